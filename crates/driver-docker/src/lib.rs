//! A wall out of a container engine that speaks Docker's API: Docker itself, or Podman's compatible socket. For hosts where
//! only such an engine exists.
//!
//! A container is made with every restriction the engine has: no capability, no network, a read-only root, bounded places in
//! memory to write to, bounds on memory, processors and processes, a user that is not root, our allowlist of system calls,
//! no way to more rights, no environment, no log. Its first process is the agent, out of a volume that is filled once; the
//! first stream to it is that process's standard input and output, later ones are joined by a small relay that the engine
//! starts inside.
//!
//! - [`driver`]: [`Docker`], the driver. [`machine`]: one running container. [`stream`]: bytes to and from an agent.
//! - [`host`]: where the engine is. [`probe`]: what it is; remembered. [`report`]: what holds.
//! - [`container`]: from a spec to a container. [`filter`]: the allowlist as the engine reads it. [`kit`]: the agent's volume.
//! - [`egress`]: a container's way out.
//! - [`image`]: images by their names, and what is in them.
//! - [`owner`]: what is on the engine, and whose it is; cleaning up.
//!
//! # Limitations
//! - Images are the engine's own, by its names; they are never pulled. What is written goes to the home folder, `/tmp` and the
//!   volumes that the image names; the rest of the root cannot be changed. The limit is divided between these places.
//! - One user, never root. Mounts show files with the owners they have on the host.
//! - No snapshots, no volumes of sloplet's. Deadlines are kept by sloplet: for a sandbox that outlives a server, by the next one.

pub mod container;
pub mod driver;
pub mod egress;
pub mod filter;
pub mod host;
pub mod image;
pub mod kit;
pub mod machine;
pub mod owner;
pub mod probe;
pub mod report;
pub mod stream;

pub use driver::Docker;

use sloplet_engine::DriverError;

pub(crate) fn failed(step: &str, error: impl std::fmt::Display) -> DriverError {
    DriverError::Failed { step: step.to_owned(), detail: error.to_string() }
}
