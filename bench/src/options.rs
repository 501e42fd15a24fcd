//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Measures sloplet and its competitors in one run, in turns, and prints one table for each section.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Options {
    /// Only these sections, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SECTION")]
    pub only: Vec<SectionName>,

    /// A short run, to see that everything works: too few samples to quote.
    #[arg(long)]
    pub quick: bool,

    /// Rounds of the sections that take turns.
    #[arg(long, value_name = "NUMBER")]
    pub rounds: Option<usize>,

    /// Sandboxes of the density section.
    #[arg(long, value_name = "NUMBER")]
    pub sandboxes: Option<usize>,

    /// Write the results to this file, too.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// The sloplet binary [default: built now, or the one beside this program]
    #[arg(long, value_name = "FILE")]
    pub sloplet: Option<PathBuf>,
}

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SectionName {
    /// A whole run of `true`.
    Whole,
    /// A command in a running sandbox.
    Exec,
    /// The steps of a sandbox's life in the library.
    Stages,
    /// Sandboxes per second.
    Rate,
    /// Many idle sandboxes at once.
    Density,
    /// Output of a command.
    Streaming,
    /// Memory of an idle agent.
    Agent,
    /// A virtual machine.
    Machine,
    /// The server, over HTTP.
    Serve,
    /// Pools of machines that wait.
    Pools,
    /// Connections out of a sandbox.
    Egress,
    /// Masking a table.
    Mask,
}

impl Options {
    /// Whether a section is wanted.
    pub fn wants(&self, section: SectionName) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }

    /// Rounds of the sections that take turns.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 20 } else { 200 })
    }

    /// Sandboxes of the density section.
    pub fn sandboxes(&self) -> usize {
        self.sandboxes.unwrap_or(if self.quick { 200 } else { 1000 })
    }
}
