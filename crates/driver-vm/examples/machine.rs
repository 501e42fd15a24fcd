//! A program that is its own spawner and guest, for tests: without arguments it does nothing.

use std::os::fd::AsFd;
use std::process::ExitCode;

use sloplet_driver_vm::guest;
use sloplet_spawner::launcher::SUBCOMMAND;
use sloplet_spawner::server::{self, Haste};

fn main() -> ExitCode {
    let word = std::env::args().nth(1).unwrap_or_default();
    if word == SUBCOMMAND {
        return match std::io::stdin().as_fd().try_clone_to_owned() {
            Ok(control) => ExitCode::from(server::serve(control, Haste::None) as u8),
            Err(_) => ExitCode::FAILURE,
        };
    }
    if word == guest::SUBCOMMAND {
        eprintln!("{}", guest::main());
    }
    ExitCode::FAILURE
}
