//! `sloplet completion`

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;

pub fn run(shell: Shell) -> u8 {
    clap_complete::generate(shell, &mut Cli::command(), "sloplet", &mut std::io::stdout());
    0
}
