//! System calls that no safe crate offers. The only crate of the workspace with `unsafe` code.
//!
//! Everything that [`rustix`] wraps safely is used from there directly; this crate holds the rest, one noun a file,
//! each block with the invariant that makes it sound.
//!
//! - [`allocator`]: memory that goes back to the kernel.
//! - [`attempt`]: calls that a sandbox must refuse, for the verifier.
//! - [`clock`]: the processor's own clock.
//! - [`clone`]: new processes in new namespaces, proof of being single-threaded.
//! - [`filter`]: installing a seccomp program.
//! - [`identity`]: becoming another user, for a process or for one file operation.
//! - [`loopback`]: the one network interface a sandbox has.
//! - [`loopdev`]: a file as a block device.
//! - [`mount`]: changing what is mounted, `mount_setattr(2)`.
//! - [`private`]: folders and sockets of one user alone.
//! - [`random`]: the kernel's random numbers.
//! - [`sending`]: what a connection still has to send.
//! - [`spawn`]: starting a program from the agent.
//! - [`transparent`]: sockets that stand for other hosts.

pub mod allocator;
pub mod attempt;
pub mod clock;
pub mod clone;
pub mod filter;
pub mod identity;
pub mod loopback;
pub mod loopdev;
pub mod mount;
pub mod private;
pub mod random;
pub mod sending;
pub mod spawn;
pub mod transparent;
