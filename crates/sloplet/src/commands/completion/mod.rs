//! `sloplet completion`: scripts for shells, and what they ask this program while somebody types.
//!
//! The scripts of bash, zsh and fish know nothing themselves: at each TAB they run the hidden subcommand [`SUBCOMMAND`] with
//! the words so far. [`mod@line`] finds what the last of them stands for; [`names`] looks up what there is.

mod line;
mod names;

use std::collections::BTreeSet;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;

/// The hidden subcommand that scripts ask.
pub const SUBCOMMAND: &str = "__complete";

const BASH: &str = r#"_sloplet() {
    local answer
    COMPREPLY=()
    while IFS= read -r answer; do
        COMPREPLY+=("${answer%%$'\t'*}")
    done < <("$1" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[:=] ]]; then
        compopt -o nospace
    fi
}
complete -o bashdefault -o default -F _sloplet sloplet"#;

const ZSH: &str = r#"#compdef sloplet
_sloplet() {
    local answer
    local -a answers found
    answers=("${(@f)$(${words[1]} __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for answer in $answers; do
        found+=("${${answer%%$'\t'*}//:/\\:}:${answer#*$'\t'}")
    done
    if (( ${#found} )); then
        _describe sloplet found
    else
        _files
    fi
}
if [ "$funcstack[1]" = "_sloplet" ]; then
    _sloplet "$@"
else
    compdef _sloplet sloplet
fi"#;

const FISH: &str = r#"function __sloplet_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l answers ($words[1] __complete $words[2..-1] "$current" 2>/dev/null)
    if test (count $answers) -gt 0
        printf '%s\n' $answers
    else
        __fish_complete_path "$current"
    end
end
complete -c sloplet -f -a '(__sloplet_complete)'"#;

pub fn run(shell: Shell) -> u8 {
    match shell {
        Shell::Bash => say!("{BASH}"),
        Shell::Zsh => say!("{ZSH}"),
        Shell::Fish => say!("{FISH}"),
        other => {
            let mut script = Vec::new();
            clap_complete::generate(other, &mut Cli::command(), "sloplet", &mut script);
            say!("{}", String::from_utf8_lossy(&script).trim_end());
        }
    }
    0
}

/// Answers a script: what the last of these words can become, one a line, with a tab before what it means. Nothing where it
/// may be a file, or anything.
pub fn answer(words: &[String]) {
    let mut command = Cli::command();
    command.build();
    let line = line::Line::read(&command, words);
    let mut told = BTreeSet::new();
    for (word, about) in line.candidates(|kind| names::find(kind, line.data.clone())) {
        if told.insert(word.clone()) {
            say!("{word}\t{about}");
        }
    }
}
