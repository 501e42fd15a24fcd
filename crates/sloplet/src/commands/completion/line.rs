//! What the last word of a line that is being typed stands for.

use std::path::PathBuf;

use clap::{Arg, Command};

use super::names::Kind;

/// A word that fits, and what it means.
pub type Candidate = (String, String);

/// A line so far.
pub struct Line<'a> {
    /// The last subcommand, and the names that lead to it.
    command: &'a Command,
    path: Vec<&'a str>,
    /// How many of its arguments stand there.
    place: usize,
    /// The option whose value comes next.
    option: Option<&'a Arg>,
    /// Whether the words are of somebody else's command.
    foreign: bool,
    /// The data folder that is named.
    pub data: Option<PathBuf>,
    current: String,
}

impl<'a> Line<'a> {
    /// Reads words without the program's own name; the last one is being typed.
    pub fn read(command: &'a Command, words: &[String]) -> Self {
        let (last, before) = words.split_last().map_or((String::new(), words), |(last, rest)| (last.clone(), rest));
        let mut line = Line {
            command,
            path: Vec::new(),
            place: 0,
            option: None,
            foreign: false,
            data: None,
            // bash takes an equals sign for a word of its own.
            current: if last == "=" { String::new() } else { last },
        };
        before.iter().filter(|word| *word != "=").for_each(|word| line.pass(word));
        line
    }

    fn pass(&mut self, word: &str) {
        if self.foreign {
            return;
        }
        if let Some(option) = self.option.take() {
            if option.get_id() == "data" {
                self.data = Some(word.into());
            }
        } else if word == "--" {
            self.foreign = true;
        } else if word.len() > 1 && word.starts_with('-') {
            self.option = self.find(word).filter(|option| takes_value(option) && !word.contains('='));
        } else if let Some(next) = self.command.find_subcommand(word).filter(|_| self.place == 0) {
            self.command = next;
            self.path.push(next.get_name());
        } else {
            self.place += 1;
            // From its second word on, it is a command of theirs.
            self.foreign = self.argument(self.place - 1).is_some_and(|argument| argument.get_id() == "command");
        }
    }

    /// The option that a word names: a long one, or the last of a row of short ones.
    fn find(&self, word: &str) -> Option<&'a Arg> {
        let options = || self.command.get_opts().chain(self.command.get_arguments());
        match word.strip_prefix("--") {
            Some(long) => {
                let name = long.split('=').next().unwrap_or(long);
                options().find(|option| option.get_long() == Some(name))
            }
            None => options().find(|option| option.get_short().is_some() && option.get_short() == word.chars().last()),
        }
    }

    /// The argument in a place; the last one may have many words.
    fn argument(&self, place: usize) -> Option<&'a Arg> {
        let all: Vec<&Arg> = self.command.get_positionals().collect();
        let many = |arg: &&&Arg| arg.get_num_args().is_some_and(|count| count.max_values() > 1);
        all.get(place).or_else(|| all.last().filter(many)).copied()
    }

    /// What it can become. `find` looks up names of a kind.
    pub fn candidates(&self, find: impl Fn(Kind) -> Vec<Candidate>) -> Vec<Candidate> {
        let mut found = Vec::new();
        let mut start = self.current.as_str();
        let mut before = String::new();
        if self.foreign {
            return found;
        }
        if let Some(option) = self.option {
            found = self.values(option, &find);
        } else if let Some((option, value)) = start.split_once('=').filter(|_| start.starts_with("--")) {
            found = self.find(option).map(|arg| self.values(arg, &find)).unwrap_or_default();
            before = format!("{option}=");
            start = value;
        } else if start.starts_with('-') {
            let shown = self.command.get_arguments().filter(|arg| !arg.is_hide_set());
            let option = |arg: &Arg| Some((format!("--{}", arg.get_long()?), first_line(arg.get_help())));
            found = shown.filter_map(option).collect();
        } else {
            if self.place == 0 {
                let shown = self.command.get_subcommands().filter(|command| !command.is_hide_set());
                found = shown.map(|it| (it.get_name().to_owned(), first_line(it.get_about()))).collect();
            }
            found.extend(self.argument(self.place).map(|arg| self.values(arg, &find)).unwrap_or_default());
        }
        let fits = |(word, about): Candidate| word.starts_with(start).then(|| (format!("{before}{word}"), about));
        found.into_iter().filter_map(fits).collect()
    }

    fn values(&self, arg: &Arg, find: &impl Fn(Kind) -> Vec<Candidate>) -> Vec<Candidate> {
        if !takes_value(arg) && !arg.is_positional() {
            return Vec::new();
        }
        let known = arg.get_possible_values();
        match known.is_empty() {
            false => known.iter().map(|it| (it.get_name().to_owned(), first_line(it.get_help()))).collect(),
            true => Kind::of(&self.path, arg).iter().flat_map(|kind| find(*kind)).collect(),
        }
    }
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

fn first_line(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(|text| text.to_string().lines().next().unwrap_or_default().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn words(typed: &[&str]) -> Vec<String> {
        let mut command = Cli::command();
        command.build();
        let typed: Vec<String> = typed.iter().map(|&word| word.to_owned()).collect();
        let line = Line::read(&command, &typed);
        line.candidates(|kind| vec![(format!("{kind:?}"), String::new())]).into_iter().map(|(word, _)| word).collect()
    }

    #[test]
    fn each_place_of_a_line_has_words_of_its_own() {
        assert_eq!(words(&["snapsh"]), ["snapshot"]);
        assert_eq!(words(&["image", "bu"]), ["build"]);
        assert_eq!(words(&["run", "--mem"]), ["--memory"]);
        assert_eq!(words(&["run", "--isolation", ""]), ["Isolation"]);
        assert_eq!(words(&["run", "--isolation=I"]), ["--isolation=Isolation"]);
        assert_eq!(words(&["run", "--isolation", "=", "I"]), ["Isolation"]);
        assert_eq!(words(&["run", "--isolation", "="]), ["Isolation"]);
        assert_eq!(words(&["exec", ""]), ["Sandbox"]);
        assert_eq!(words(&["--data", "/x", "exec", "-u", "root", "S"]), ["Sandbox"]);
        assert_eq!(words(&["rm", "one", ""]), ["Sandbox"]);
        assert_eq!(words(&["image", "rm", ""]), ["Image"]);
        assert_eq!(words(&["create", "--image", ""]), ["Image", "Snapshot"]);
        assert_eq!(words(&["key", "create", "x", "--scope", "a"]), ["admin"]);
        // A new name, and the words of somebody else's command, are anybody's guess.
        for other in
            [&["create", "--name", ""][..], &["exec", "my", "--", "S"], &["exec", "my", "ls", ""], &["run", "--", ""]]
        {
            assert_eq!(words(other), [""; 0], "{other:?}");
        }
    }
}
