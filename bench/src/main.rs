//! One command, one table: sloplet and its competitors, measured in the same run, in turns.
//!
//! `cargo run --release -p sloplet-bench` (as root). Absolute times differ from machine to machine and from minute to
//! minute; because every round runs one of each, the ratios hold even on a busy machine.
//!
//! - [`options`]: the command line.
//! - [`sections`]: what is measured, a file for each table.
//! - [`competitors`]: how the others are set up, run and cleaned up after.
//! - [`ours`]: the engine library and the binary under test.
//! - [`http`]: a client for what is served; [`traffic`]: both ends of connections out of a sandbox.
//! - [`measure`]: rounds and samples; [`process_memory`]: what processes and the kernel hold.
//! - [`scratch`]: folders for what is made.
//! - [`report`], [`mod@print`]: the results, for machines and for people; [`targets`]: what they must be.
//!
//! A competitor that is not installed, or does not work here, is reported as missing. Everything made is removed at the
//! end, also after Ctrl-C.

mod competitors;
mod http;
mod interrupt;
mod measure;
mod options;
mod ours;
mod print;
mod process_memory;
mod report;
mod scratch;
mod sections;
mod targets;
mod traffic;

use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::Parser;

use crate::competitors::stopwatch;
use crate::options::Options;
use crate::report::Report;

fn main() -> ExitCode {
    match std::env::args_os().nth(1) {
        // Before anything else: a spawner must stay small and single-threaded.
        Some(word) if word == sloplet_spawner::launcher::SUBCOMMAND => {
            return match std::io::stdin().as_fd().try_clone_to_owned() {
                Ok(control) => {
                    ExitCode::from(sloplet_spawner::server::serve(control, sloplet_spawner::server::Haste::None) as u8)
                }
                Err(_) => ExitCode::FAILURE,
            };
        }
        Some(word) if word == stopwatch::SUBCOMMAND => return stopwatch::serve(),
        Some(word) if word == traffic::SERVER => return traffic::serve(std::env::args().nth(2)),
        Some(word) if word == traffic::CLIENT => {
            return traffic::measure(&std::env::args().skip(2).collect::<Vec<_>>());
        }
        _ => {}
    }
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sloplet-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch();
    let mut report = Report::new();
    let outcome = sections::run_all(options, &mut report);
    // What was measured before a failure or Ctrl-C is worth seeing.
    report.targets = targets::judge(&report, options.only.is_empty());
    print::targets(&report.targets);
    if let Some(path) = &options.json {
        report.write(path)?;
    }
    outcome
}
