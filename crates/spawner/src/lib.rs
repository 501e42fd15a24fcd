//! The tiny single-threaded process that brings up sandboxes on this kernel.
//!
//! Forking from a large multi-threaded server is slow and unsound, so a small process of its own does it: the engine
//! starts it once ([`handle::Spawner`]), tells it what to make ([`plan::Plan`]), and gets a pidfd and, through a socket
//! that it passed along, a stream to the agent. The child builds its own walls and then *becomes* the agent, without an
//! exec.
//!
//! On the engine's side:
//! - [`launcher`]: starting a spawner. [`handle`]: talking to it. [`remover`]: removing what others inside own.
//! - [`protocol`], [`plan`]: what is said.
//!
//! In the spawner:
//! - [`server`]: its loop. [`conversation`]: its talk with the engine. [`sandbox`]: what it knows of a sandbox.
//! - [`door`]: where the next engine finds it and its agents. [`build`]: which build it is.
//! - [`copier`]: saving what a sandbox has written.
//! - [`owner`]: its record on the host, and [`owner::collect`], the clean-up after dead ones.
//! - [`stage`]: its own namespaces, with templates. [`network`]: network namespaces and
//!   ways out of them. [`idmap`]: id mappings.
//! - [`lease`]: user id ranges. [`cgroup`]: control groups.
//!
//! In the child:
//! - [`child`]: its way to an agent.
//! - [`container`]: the walls of a sandbox with a root of its own, one file for each part.
//! - [`runtime`]: a kernel in user space inside such walls.
//! - [`process`]: the walls of a confined process tree.
//! - [`privileges`]: capabilities, Landlock, seccomp: the last steps before hostile code may run.
//!
//! Limitations: x86_64 and aarch64 Linux ≥ 5.12. The child's set-up is tested as a whole, by the sandboxes in the
//! workspace's `tests/`; cgroup detection, owners and leases have unit tests here.

pub mod bare;
pub mod build;
pub mod cgroup;
pub mod child;
pub mod container;
pub mod conversation;
pub mod copier;
pub mod door;
pub mod handle;
pub mod idmap;
pub mod launcher;
pub mod lease;
pub mod network;
pub mod owner;
pub mod plan;
pub mod privileges;
pub mod process;
pub mod protocol;
pub mod remover;
pub mod runtime;
pub mod sandbox;
pub mod server;
pub mod stage;
mod weak;
