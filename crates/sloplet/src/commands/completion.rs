//! `sloplet completion`

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;

pub fn run(shell: Shell) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sloplet", &mut script);
    say!("{}", String::from_utf8_lossy(&script).trim_end());
    0
}
