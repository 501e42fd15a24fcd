//! What a sandbox is asked to be, and what a wall says it can enforce. Pure data: nothing here touches the system
//! except [`protect`], which looks at the paths it is asked about.
//!
//! - [`spec`]: [`Spec`], the description of one sandbox, the same for every front end and every driver.
//! - [`limits`]: what bounds it.
//! - [`units`]: sizes, durations, processor shares, as people write them.
//! - [`addresses`]: addresses between a sandbox and the host's egress.
//! - [`bind`]: host folders shown inside.
//! - [`network`]: what it may reach, and which addresses nobody may.
//! - [`protect`]: host paths that are never shown inside.
//! - [`report`]: what a driver enforces on this host.

pub mod addresses;
pub mod bind;
pub mod limits;
pub mod network;
pub mod protect;
pub mod report;
pub mod spec;
pub mod units;

pub use bind::Bind;
pub use limits::Limits;
pub use network::{Network, Rule};
pub use report::{Capability, DriverReport, Enforcement, Feature};
pub use spec::{Isolation, Spec};
pub use units::{ByteSize, Cpus, Span};
