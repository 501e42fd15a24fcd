//! The default wall, isolation `container`: Linux namespaces, an overlay root, cgroups, seccomp, Landlock.
//!
//! This crate is the engine's side: it turns a spec into a plan for a [spawner](sloplet_spawner) and reports what
//! this host can enforce. The walls can have a runtime inside ([`Namespaces::bring_up`]): other drivers build on that.
//!  The walls themselves are built in the spawner's child.
//!
//! - [`driver`]: [`Namespaces`], the driver.
//! - [`machine`]: one running sandbox. [`late`]: its stream, where that takes time.
//! - [`planning`]: from a spec to a plan.
//! - [`disk`]: bounded disks on files, for what does not fit into memory.
//! - [`subids`]: subordinate user ids of an ordinary user.
//! - [`report`]: what holds here. [`egress`]: whether there can be a way out.

pub mod disk;
pub mod driver;
pub mod egress;
pub mod late;
pub mod machine;
pub mod planning;
pub mod report;
pub mod subids;

pub use driver::Namespaces;
