//! One command per file.

mod completion;
mod doctor;
mod gc;
mod image;
mod run;
mod serve;

use sloplet_spawner::launcher::Forked;

use crate::cli::{Cli, Command};

/// Carries out a command and returns the exit status.
pub fn run(arguments: Cli, forked: Option<Forked>) -> anyhow::Result<u8> {
    let data = arguments.data;
    match arguments.command {
        Command::Run(options) => run::run(data, forked, *options),
        Command::Serve(options) => serve::run(data, *options),
        Command::Doctor { json } => doctor::run(data, json),
        Command::Image(command) => image::run(data, command),
        Command::Gc { json } => gc::run(data, json),
        Command::Completion { shell } => Ok(completion::run(shell)),
    }
}
