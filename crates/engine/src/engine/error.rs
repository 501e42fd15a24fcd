//! Why there is no sandbox.

use std::path::PathBuf;

use sloplet_client::ClientError;
use sloplet_image::ImageError;
use sloplet_ledger::LedgerError;
use sloplet_policy::protect::ProtectError;
use sloplet_policy::radius::RadiusError;
use sloplet_policy::spec::SpecError;
use sloplet_policy::{Capability, Isolation};

use super::MAX_ID;
use crate::cdi::CdiError;
use crate::data::DataError;
use crate::driver::DriverError;
use crate::outward::private::PrivateError;
/// Why there is no sandbox. Nothing was made, or all of it is removed again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The description makes no sense.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// An id that cannot be one.
    #[error("'{0}' cannot be the id of a sandbox: it must be of 1 to {MAX_ID} letters and digits")]
    BadId(String),
    /// A mount is not allowed.
    #[error(transparent)]
    Protected(#[from] ProtectError),
    /// A variable or a host of the blast radius.
    #[error(transparent)]
    Secret(#[from] RadiusError),
    /// A mount that this user may not read.
    #[error("cannot mount '{}': {}", .0.display(), .1)]
    Unreadable(PathBuf, std::io::Error),
    /// A writable mount whose files that configure the host cannot be kept as they are.
    #[error(transparent)]
    Guard(#[from] sloplet_policy::guarded::GuardError),
    /// It cannot be written down what a sandbox can write to.
    #[error("cannot remember which folders sandboxes write to: {0}")]
    Exposed(#[source] std::io::Error),
    /// A socket or FIFO in a read-only mount.
    #[error(
        "'{}' is a socket or FIFO: it would carry data between inside and the host. Mount a folder without it, or allow it with :ro,sockets",
        .0.display()
    )]
    Channel(PathBuf),
    /// A bound that this machine is below of.
    #[error(
        "memory {asked} is more than this machine has ({has:.1} GiB): it would bound nothing; give less, or accept that with --best-effort"
    )]
    MoreThanThereIs {
        /// What was asked for.
        asked: sloplet_policy::ByteSize,
        /// What there is, in GiB.
        has: f64,
    },
    /// No wall of that kind.
    #[error("isolation '{0}' is not available in this build: use {1}")]
    NoDriver(Isolation, String),
    /// No wall of that name.
    #[error("there is no driver '{0}': use {1}")]
    UnknownDriver(String, String),
    /// A saved memory that belongs to another wall.
    #[error("this snapshot's memory is of the driver '{saved}', and cannot go on behind '{asked}'")]
    ForeignMemory {
        /// Of the snapshot.
        saved: String,
        /// What was asked.
        asked: String,
    },
    /// The wall does not work here.
    #[error("{asked} does not work on this host: {reason} (see 'sloplet doctor')")]
    Unavailable {
        /// What was asked for: a wall by its name, or a level.
        asked: String,
        /// Why not.
        reason: String,
    },
    /// A device that cannot be shown.
    #[error(transparent)]
    Device(#[from] CdiError),
    /// A wall that shows no devices.
    #[error("the driver '{driver}' cannot show a sandbox devices of the host (--gpu): {reason}")]
    NoDevices {
        /// Its name.
        driver: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// A limit would not hold.
    #[error("{}", unenforceable(.0))]
    Unenforceable(Vec<Capability>),
    /// The image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The wall.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The agent.
    #[error(transparent)]
    Agent(#[from] ClientError),
    /// Its secrets.
    #[error(transparent)]
    Private(#[from] PrivateError),
    /// What LLM calls cost.
    #[error("the price list cannot be used: {0}")]
    Prices(String),
    /// The way out.
    #[error("cannot open the sandbox's way out: {0}")]
    Outward(std::io::Error),
    /// A file that goes in masked.
    #[error(transparent)]
    Data(#[from] Box<DataError>),
    /// It could not be written down, so it was not done.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

fn unenforceable(missing: &[Capability]) -> String {
    let reasons: Vec<String> = missing.iter().map(|c| format!("{} ({})", c.feature, c.detail)).collect();
    let mut text = format!("this host cannot enforce: {}", reasons.join("; "));
    if let Some(remedy) = missing.iter().find_map(|c| c.remedy.as_ref()) {
        text.push_str(&format!("; {remedy}"));
    }
    text.push_str("; or accept that with --best-effort");
    text
}
