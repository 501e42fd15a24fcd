//! What can be typed about virtual machines.

use std::path::PathBuf;

use clap::Subcommand;

/// Virtual machines.
#[derive(Debug, Subcommand)]
pub enum Vm {
    /// Download the distribution's cloud kernel into the data folder; it is not installed.
    #[command(after_help = "Example:\n  sloplet vm setup && sloplet run --isolation vm --image base -- uname -a")]
    Setup {
        /// A kernel's package that is here already (.deb).
        package: Option<PathBuf>,
    },
}
