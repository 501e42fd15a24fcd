//! Walls out of runtimes that speak OCI's command line: gVisor (isolation `gvisor`), and by name crun and runc.
//!
//! The runtime runs *inside* the walls of the namespaces driver, which this one builds on: the same cgroup, users, overlay root,
//! bounded disk, way out, snapshots, deadlines and clean-up; and whoever breaks out of the runtime is still in a sandbox. What is
//! made here is the bundle and the report.
//!
//! - [`driver`]: [`Oci`], the driver. [`bundle`]: from a spec to `config.json`. [`flavour`]: what differs between runtimes.
//! - [`closed`]: a program that sandboxes can execute and not read. [`probe`]: what works on this host, remembered. [`report`]: what holds.
//!
//! crun and runc share the host's kernel, as the walls around them do: what they add is a second set of namespaces inside, made
//! by a program that others maintain and audit. They start the agent with the right to confine itself and go; it then takes
//! on the very filter, capabilities and Landlock rules of a container (`sloplet_spawner::runtime::inside`) before it serves.
//!
//! # Limitations
//! - Kata Containers are known by name and refused: they have no OCI command line any more.
//! - An ordinary user needs subordinate ids.
//! - With a way out, sockets inside are those of the host's kernel, in a network namespace without devices; gVisor's own network
//!   stack has loopback only.
//! - Memory cannot be saved while a sandbox has a way out: connections of the host's kernel cannot be saved.

pub mod bundle;
pub mod closed;
pub mod driver;
pub mod flavour;
pub mod probe;
pub mod report;

pub use driver::Oci;
pub use flavour::Flavour;
