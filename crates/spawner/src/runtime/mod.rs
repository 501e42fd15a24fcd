//! A runtime inside the walls: gVisor's kernel, crun, runc, or whatever else speaks OCI's command line, between the host and
//! the sandbox's programs.
//!
//! The walls around it are those of a container: its namespaces, its cgroup, its users, its way out, its root on an overlay.
//! But the child does not go into that root. It goes into a small one beside it (the [`house`]), with nothing in it but the
//! runtime's program (and its libraries), a `/proc` and the bundle, and stays there as PID 1 ([`keeper`]), which starts the runtime. Whoever breaks
//! out of the runtime is still in a sandbox, as a user that exists nowhere else.
//!
//! - [`house`]: building it. [`keeper`]: PID 1. [`control`]: what an engine says to that one. [`inside`]: what an agent does to
//!   itself where the kernel is the host's.

pub mod control;
pub mod house;
pub mod inside;
pub mod keeper;
