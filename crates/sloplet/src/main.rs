//! The `sloplet` binary: one command per file in [`commands`], no logic of its own.

/// Prints a line. Unlike `println!`, does not mind if nobody reads it any more.
macro_rules! say {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($argument)*);
    }};
}

/// The same for standard error.
macro_rules! complain {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($argument)*);
    }};
}

mod cli;
mod clone;
mod commands;
mod config;
mod confinement;
mod memory;
mod progress;
mod relay;
mod setup;
mod table;
mod terminal;
mod tidy;
mod trail;
mod verification;

use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
use sloplet_agent::program;
use sloplet_policy::Realm;
use sloplet_remote as api;
use sloplet_spawner::launcher::{Forked, SUBCOMMAND};
use sloplet_spawner::remover;
use sloplet_spawner::server::{self, Haste};

/// Our own failure, as against the command's.
const FAILURE: u8 = 125;

fn main() -> ExitCode {
    // Before anything else: a spawner must stay small and single-threaded.
    let first = std::env::args_os().nth(1);
    if first.as_deref().is_some_and(|word| word == SUBCOMMAND) {
        if let Some(realm) = Realm::from_words(std::env::args_os().skip(2)) {
            realm.install();
        }
        return match std::io::stdin().as_fd().try_clone_to_owned() {
            Ok(control) => ExitCode::from(server::serve(control, Haste::None) as u8),
            Err(_) => ExitCode::from(FAILURE),
        };
    }
    if first.as_deref().is_some_and(|word| word == program::SUBCOMMAND) {
        let words: Vec<String> = std::env::args_os().skip(2).map(|word| word.to_string_lossy().into_owned()).collect();
        let measures = program::Measures {
            set_id: sloplet_seccomp::set_id::program,
            container: || sloplet_seccomp::Profile::Container.program(),
            confine: sloplet_spawner::runtime::inside::confine,
        };
        return match program::main(&words, measures) {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => {
                complain!("{problem}");
                ExitCode::from(FAILURE)
            }
        };
    }
    if first.as_deref().is_some_and(|word| word == commands::compare::MEASURE) {
        return match commands::compare::inside() {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => {
                complain!("{}", one_line(&problem));
                ExitCode::from(FAILURE)
            }
        };
    }
    if first.as_deref().is_some_and(|word| word == sloplet_driver_vm::guest::SUBCOMMAND) {
        complain!("{}", sloplet_driver_vm::guest::main());
        return ExitCode::from(FAILURE);
    }
    if first.as_deref().is_some_and(|word| word == remover::SUBCOMMAND) {
        let words: Vec<_> = std::env::args_os().skip(2).collect();
        return match remover::run(words.iter().map(|word| word.as_os_str())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => {
                complain!("{problem}");
                ExitCode::from(FAILURE)
            }
        };
    }
    if first.as_deref().is_some_and(|word| word == sloplet_verify::SUBCOMMAND) {
        let words: Vec<String> = std::env::args_os().skip(2).map(|word| word.to_string_lossy().into_owned()).collect();
        return ExitCode::from(sloplet_verify::program::main(&words));
    }
    if first.as_deref().is_some_and(|word| word == commands::completion::SUBCOMMAND) {
        let words: Vec<String> = std::env::args_os().skip(2).map(|word| word.to_string_lossy().into_owned()).collect();
        commands::completion::answer(&words);
        return ExitCode::SUCCESS;
    }
    #[cfg(debug_assertions)]
    if first.as_deref().is_some_and(|word| word == confinement::taken_over::SUBCOMMAND) {
        let words: Vec<String> = std::env::args_os().skip(2).map(|word| word.to_string_lossy().into_owned()).collect();
        return match confinement::taken_over::main(&words) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain!("{}", one_line(&error));
                ExitCode::from(FAILURE)
            }
        };
    }
    // Starting one sandbox is what most invocations do: its spawner gets going while this process reads its arguments.
    // Where that fails, one is started in the ordinary way later.
    let forked = first.filter(|word| word == "run").and_then(|_| {
        // Guesses: what is really wanted is said later, and a wrong guess costs only time.
        let said = |words: &[&str]| {
            std::env::args_os().any(|given| words.iter().any(|word| given.to_string_lossy().starts_with(word)))
        };
        if said(&["docker", "--driver=docker"]) {
            return None; // a container engine has no use for one
        }
        let haste = match (said(&["process", "--isolation=process"]), said(&["--allow", "--ask", "--secret"])) {
            (true, _) => Haste::None,
            (false, true) => Haste::OneContainerWithOutlet,
            (false, false) => Haste::OneContainer,
        };
        Forked::fork(haste).ok()
    });
    let arguments = match cli::Cli::read() {
        Ok(arguments) => arguments,
        Err(error) if !error.use_stderr() || error.kind() == DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { FAILURE } else { 0 });
        }
        Err(error) => {
            complain!("sloplet: {}", usage_error(&error.to_string()));
            return ExitCode::from(FAILURE);
        }
    };
    match commands::run(arguments, forked) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            complain!("sloplet: {}", one_line(&error));
            ExitCode::from(FAILURE)
        }
    }
}

/// What was wrong and, if there is one, the tip: on one line, without the usage that follows.
fn usage_error(text: &str) -> String {
    let plain = |part: &str| part.split_whitespace().collect::<Vec<_>>().join(" ");
    let (first, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut said = plain(first.strip_prefix("error: ").unwrap_or(first));
    if let Some(tip) = rest.lines().find_map(|line| line.trim().strip_prefix("tip: ")) {
        said.push_str(&format!("; {}", plain(tip)));
    }
    terminal::harmless(&format!("{said} (see --help)"))
}

/// The whole chain of causes on one line, with nothing in it that could steer a terminal.
fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        // Another program of ours may have said it, or a part of it.
        let cause = cause.strip_prefix("sloplet: ").unwrap_or(&cause).replace(": sloplet: ", ": ");
        if text.contains(&cause) {
            continue; // many errors already quote their source
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    terminal::harmless(&text)
}
