//! What a profile says, and the line format it is written in.
//!
//! ```text
//! # a comment
//! [allow] files: why these are harmless
//! read write openat
//! [EPERM] keyrings: why these are refused
//! keyctl add_key
//! [arguments] decided by the low 32 bits of an argument; the first clause that holds counts
//! socket: allow when arg0 in AF_UNIX=1
//! socket: EPERM when arg0 in AF_INET=2 and arg1&0xf not in STREAM=1 DGRAM=2
//! socket: EAFNOSUPPORT otherwise
//! ```
//!
//! A group without a reason, an unknown call, a call named twice in one file and a list of clauses without `otherwise`
//! are errors, which break the build. Whatever no group names is `ENOSYS`.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::table::Table;

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel runs it.
    Allow,
    /// It fails with this error number.
    Errno(u16),
}

impl Verdict {
    /// For everything that no rule names: a C library that meets an unknown call falls back to an older one.
    pub const HIDDEN: Verdict = Verdict::Errno(libc::ENOSYS as u16);

    fn parse(word: &str) -> Option<Verdict> {
        let errno = match word {
            "allow" => return Some(Verdict::Allow),
            "EPERM" => libc::EPERM,
            "EACCES" => libc::EACCES,
            "ENOSYS" => libc::ENOSYS,
            "EAFNOSUPPORT" => libc::EAFNOSUPPORT,
            "EPROTONOSUPPORT" => libc::EPROTONOSUPPORT,
            _ => return None,
        };
        u16::try_from(errno).ok().map(Verdict::Errno)
    }
}

/// A test of one argument: whether its low 32 bits, masked, are among some values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Which argument, 0 to 5.
    pub argument: u8,
    /// Bits to look at.
    pub mask: u32,
    /// Whether the condition holds if the value is *not* listed.
    pub negated: bool,
    /// The values; never empty.
    pub values: Vec<u32>,
}

/// A verdict and the conditions that must all hold for it; with none it always holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clause {
    /// What happens then.
    pub verdict: Verdict,
    /// In the order of the file.
    pub conditions: Vec<Condition>,
}

/// How a call is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Whatever its arguments.
    Always(Verdict),
    /// By the first clause that holds; the last one always does.
    ByArguments(Vec<Clause>),
}

/// The decision for each named call.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    decisions: BTreeMap<String, Decision>,
}

/// A profile that cannot be read.
#[derive(Debug, Error)]
#[error("{file}, line {line}: {problem}")]
pub struct RulesError {
    /// The profile's file name.
    pub file: String,
    /// Counted from 1; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with a line of a profile.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// Text before the first group.
    #[error("a line outside of any group")]
    NoGroup,
    /// A group header that is not `[verdict] reason`.
    #[error("a group needs '[verdict] reason'")]
    Header,
    /// Neither `allow` nor a known error.
    #[error("unknown verdict '{0}'")]
    Verdict(String),
    /// No architecture has this call.
    #[error("unknown system call '{0}': is it spelled as in syscalls.table?")]
    Call(String),
    /// One file decides a call twice.
    #[error("{0} is decided twice in this file")]
    Twice(String),
    /// Neither `call: verdict when conditions` nor `call: verdict otherwise`.
    #[error("expected 'call: verdict when conditions' or 'call: verdict otherwise'")]
    Clause,
    /// Not `argN[&mask] [not] in values`.
    #[error("expected 'argN[&mask] [not] in values', not '{0}'")]
    Condition(String),
    /// The clauses of a call leave a case open.
    #[error("the clauses of {0} must end with 'otherwise', and only they")]
    Otherwise(String),
}

enum Group {
    Always(Verdict),
    Arguments,
}

impl Rules {
    /// The decision for a call; everything unnamed is hidden.
    pub fn decision(&self, name: &str) -> Decision {
        self.decisions.get(name).cloned().unwrap_or(Decision::Always(Verdict::HIDDEN))
    }

    /// Whether the profile says anything about a call.
    pub fn names(&self, name: &str) -> bool {
        self.decisions.contains_key(name)
    }

    /// Adds the decisions of a file, which replace those that are there.
    pub fn overlay(&mut self, file: &str, text: &str, table: &Table) -> Result<(), RulesError> {
        let mut layer = Layer { table, always: BTreeMap::new(), clauses: BTreeMap::new() };
        let mut group = None;
        for (index, content) in text.lines().enumerate() {
            let at = |problem| RulesError { file: file.to_owned(), line: index + 1, problem };
            let content = content.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            if content.starts_with('[') {
                group = Some(header(content).map_err(at)?);
                continue;
            }
            match group {
                None => Err(Problem::NoGroup),
                Some(Group::Always(verdict)) => layer.calls(content, verdict),
                Some(Group::Arguments) => layer.clause(content),
            }
            .map_err(at)?;
        }
        let layer = layer.finish().map_err(|problem| RulesError { file: file.to_owned(), line: 0, problem })?;
        self.decisions.extend(layer);
        Ok(())
    }
}

/// One file while it is read.
struct Layer<'a> {
    table: &'a Table,
    always: BTreeMap<String, Verdict>,
    clauses: BTreeMap<String, Vec<Clause>>,
}

impl Layer<'_> {
    fn calls(&mut self, content: &str, verdict: Verdict) -> Result<(), Problem> {
        for name in content.split_whitespace() {
            if !self.table.knows(name) {
                return Err(Problem::Call(name.to_owned()));
            }
            if self.clauses.contains_key(name) || self.always.insert(name.to_owned(), verdict).is_some() {
                return Err(Problem::Twice(name.to_owned()));
            }
        }
        Ok(())
    }

    fn clause(&mut self, content: &str) -> Result<(), Problem> {
        let (name, rest) = content.split_once(':').ok_or(Problem::Clause)?;
        if !self.table.knows(name) {
            return Err(Problem::Call(name.to_owned()));
        }
        if self.always.contains_key(name) {
            return Err(Problem::Twice(name.to_owned()));
        }
        let (verdict, rest) = rest.trim().split_once(' ').ok_or(Problem::Clause)?;
        let verdict = Verdict::parse(verdict).ok_or_else(|| Problem::Verdict(verdict.to_owned()))?;
        let conditions = match rest.trim() {
            "otherwise" => Vec::new(),
            rest => {
                let conditions = rest.strip_prefix("when ").ok_or(Problem::Clause)?;
                conditions.split(" and ").map(condition).collect::<Result<_, _>>()?
            }
        };
        self.clauses.entry(name.to_owned()).or_default().push(Clause { verdict, conditions });
        Ok(())
    }

    fn finish(self) -> Result<Vec<(String, Decision)>, Problem> {
        for (name, clauses) in &self.clauses {
            // Exactly one unconditional clause, at the end: no case left open and no clause out of reach.
            if clauses.iter().position(|clause| clause.conditions.is_empty()) != Some(clauses.len() - 1) {
                return Err(Problem::Otherwise(name.clone()));
            }
        }
        let always = self.always.into_iter().map(|(name, verdict)| (name, Decision::Always(verdict)));
        let by_arguments = self.clauses.into_iter().map(|(name, clauses)| (name, Decision::ByArguments(clauses)));
        Ok(always.chain(by_arguments).collect())
    }
}

fn header(content: &str) -> Result<Group, Problem> {
    let (name, reason) = content.trim_start_matches('[').split_once(']').ok_or(Problem::Header)?;
    if reason.trim().is_empty() {
        return Err(Problem::Header);
    }
    match name {
        "arguments" => Ok(Group::Arguments),
        name => Verdict::parse(name).map(Group::Always).ok_or_else(|| Problem::Verdict(name.to_owned())),
    }
}

fn condition(text: &str) -> Result<Condition, Problem> {
    let parsed = || {
        let mut words = text.split_whitespace();
        let (argument, mask) = match words.next()?.split_once('&') {
            Some((argument, mask)) => (argument, number(mask)?),
            None => (text.split_whitespace().next()?, u32::MAX),
        };
        let argument = argument.strip_prefix("arg")?.parse().ok().filter(|argument| *argument < 6)?;
        let negated = match words.next()? {
            "in" => false,
            "not" if words.next()? == "in" => true,
            _ => return None,
        };
        let values: Vec<u32> = words.map(labelled_number).collect::<Option<_>>()?;
        // A value outside of the mask could never be met.
        let reachable = !values.is_empty() && values.iter().all(|value| value & !mask == 0);
        reachable.then_some(Condition { argument, mask, negated, values })
    };
    parsed().ok_or_else(|| Problem::Condition(text.trim().to_owned()))
}

/// `LABEL=number`, where the label is for the reader, or a bare number.
fn labelled_number(word: &str) -> Option<u32> {
    number(word.split_once('=').map_or(word, |(_, value)| value))
}

fn number(word: &str) -> Option<u32> {
    match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Rules, RulesError> {
        let mut rules = Rules::default();
        rules.overlay("test", text, &Table::kernel().unwrap())?;
        Ok(rules)
    }

    #[test]
    fn groups_and_clauses_are_read() {
        let rules = parse(
            "[allow] reason\nread write # both\n[EPERM] reason\nmount\n[arguments] reason\n\
             socket: allow when arg0 in A=1 0x10 and arg1&0xf not in 3\nsocket: EACCES otherwise\n",
        )
        .unwrap();
        assert_eq!(rules.decision("write"), Decision::Always(Verdict::Allow));
        assert_eq!(rules.decision("mount"), Decision::Always(Verdict::Errno(1)));
        assert_eq!(rules.decision("bpf"), Decision::Always(Verdict::Errno(38)));
        let family = Condition { argument: 0, mask: u32::MAX, negated: false, values: vec![1, 16] };
        let kind = Condition { argument: 1, mask: 0xf, negated: true, values: vec![3] };
        assert_eq!(
            rules.decision("socket"),
            Decision::ByArguments(vec![
                Clause { verdict: Verdict::Allow, conditions: vec![family, kind] },
                Clause { verdict: Verdict::Errno(13), conditions: vec![] },
            ])
        );
    }

    #[test]
    fn a_later_layer_overrides() {
        let table = Table::kernel().unwrap();
        let mut rules = parse("[EPERM] reason\nptrace kcmp\n[allow] reason\nread\n").unwrap();
        rules.overlay("second", "[allow] reason\nptrace\n[EPERM] reason\nread\n", &table).unwrap();
        assert_eq!(rules.decision("ptrace"), Decision::Always(Verdict::Allow));
        assert_eq!(rules.decision("kcmp"), Decision::Always(Verdict::Errno(1)));
        assert_eq!(rules.decision("read"), Decision::Always(Verdict::Errno(1)));
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, line, problem) in [
            ("read\n", 1, Problem::NoGroup),
            ("[allow]\nread\n", 1, Problem::Header),
            ("[maybe] reason\nread\n", 1, Problem::Verdict("maybe".into())),
            ("[allow] reason\n\nraed\n", 3, Problem::Call("raed".into())),
            ("[allow] reason\nread\n[EPERM] reason\nread\n", 4, Problem::Twice("read".into())),
            ("[allow] reason\nread\n[arguments] reason\nread: EPERM otherwise\n", 4, Problem::Twice("read".into())),
            ("[arguments] reason\nclone allow\n", 2, Problem::Clause),
            ("[arguments] reason\nclone: allow if arg0 in 1\n", 2, Problem::Clause),
            ("[arguments] reason\nclone: allow when arg6 in 1\n", 2, Problem::Condition("arg6 in 1".into())),
            ("[arguments] reason\nclone: allow when arg0 in\n", 2, Problem::Condition("arg0 in".into())),
            ("[arguments] reason\nclone: allow when arg0&0xf in 16\n", 2, Problem::Condition("arg0&0xf in 16".into())),
            ("[arguments] reason\nclone: allow when arg0 in 1\n", 0, Problem::Otherwise("clone".into())),
            (
                "[arguments] reason\nclone: allow otherwise\nclone: EPERM otherwise\n",
                0,
                Problem::Otherwise("clone".into()),
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!((error.line, error.problem), (line, problem), "{text:?}");
        }
    }
}
