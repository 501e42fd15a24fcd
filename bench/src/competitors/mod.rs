//! The others: how they are set up, run once, and cleaned up after.
//!
//! - [`program`]: a program on this host, run once.
//! - [`rootfs`]: a small root for those that want one.
//! - [`oci`]: crun, runc, runsc.
//! - [`docker`]: an engine of our own on a private socket.
//! - [`networks`]: ways into a network, in namespaces of our own.
//! - [`stopwatch`]: times programs from within a mount namespace of its own.

pub mod docker;
pub mod networks;
pub mod oci;
pub mod program;
pub mod qemu;
pub mod rootfs;
pub mod stopwatch;
