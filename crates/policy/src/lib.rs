//! What a sandbox is asked to be, and what a wall says it can enforce. Pure data: nothing here touches the system
//! except [`protect`], [`guarded`], [`realm`] and [`source`], which look at the paths they are asked about.
//!
//! - [`spec`]: [`Spec`], the description of one sandbox, the same for every front end and every driver.
//! - [`limits`]: what bounds it.
//! - [`units`]: sizes, durations, processor shares, as people write them.
//! - [`addresses`]: addresses between a sandbox and the host's egress.
//! - [`headers`]: headers that are set on its requests on the way out.
//! - [`mod@file`]: one file that describes a sandbox, `sloplet.toml`.
//! - [`bind`]: host folders shown inside.
//! - [`guarded`]: what a writable one does not let be changed.
//! - [`network`]: what it may reach, and which addresses nobody may.
//! - [`protect`]: host paths that are never shown inside.
//! - [`source`]: what is shown of the host is what was checked.
//! - [`radius`]: what a user lists as never to be reached.
//! - [`realm`]: what a confined server may have done for it.
//! - [`report`]: what a driver enforces on this host.
//! - [`secret`]: secrets that are used from inside and never are inside.
//! - [`budget`]: money, tokens, calls and commands that may be used up.
//! - [`devices`]: devices of the host that it is shown.
//! - [`data`]: files that are masked on the way in.
//! - [`untrusted`]: what such a file may say before its owner has vouched for it.
//! - [`weakness`]: protections that tests take away.

pub mod addresses;
pub mod bind;
pub mod budget;
pub mod data;
pub mod devices;
pub mod file;
pub mod guarded;
pub mod headers;
pub mod limits;
pub mod network;
pub mod protect;
pub mod radius;
pub mod realm;
pub mod report;
pub mod secret;
pub mod source;
pub mod spec;
pub mod units;
pub mod untrusted;
pub mod weakness;

pub use bind::Bind;
pub use budget::Budget;
pub use data::DataMount;
pub use headers::HeaderRule;
pub use limits::Limits;
pub use network::{Network, Rule};
pub use radius::Radius;
pub use realm::Realm;
pub use report::{Capability, DriverReport, Enforcement, Feature};
pub use secret::SecretRule;
pub use spec::{Isolation, Spec};
pub use units::{ByteSize, Cpus, Span};
