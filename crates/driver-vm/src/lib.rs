//! A wall with a kernel of its own, isolation `vm`: virtual machines by QEMU.
//!
//! There are three walls, one in the other. QEMU runs in a sandbox of namespaces with nothing but its own files in it, no
//! network, an unprivileged user, a filter on system calls and bounds on all that it uses; so whoever escapes from the machine
//! is in a sandbox. In it is the machine, with a kernel, memory, processors and disks of its own, and no network device. In the
//! machine this same program makes a sandbox of namespaces again ([`guest`]), for its agent.
//!
//! Time, freezing, ending, cleaning up and surviving the engine are those of the outer sandbox. One port of the machine is a
//! pipe to a relay beside QEMU, which carries many streams ([`mux`]): the outer agent dials the relay, and the relay dials
//! what the sandbox in the guest wants from the outside, which is the outer sandbox's way out.
//!
//! - [`driver`], [`machine`]: as the engine sees it. [`outer`]: QEMU's own sandbox. [`report`]: what holds here.
//! - [`relay`], [`mux`]: the pipe. [`qemu`]: its arguments and files. [`kernel`], [`modules`], [`boot`], [`cpio`]: what it boots.
//! - [`disks`], [`qcow2`]: its disks. [`cache`]: what is made once. [`talk`]: what is said to the guest.
//! - [`whole`]: machines with an init system in place of a sandbox.
//! - [`saved`], [`monitor`]: machines saved with their memory, [`shim`]: for many to share it. [`living`]: those that live.
//! - [`booted`]: machines that were booted ahead, to start others from. [`launch`]: starts QEMU.
//! - [`setup`]: a kernel for hosts that have none. [`kvm`], [`accel`]: whether the host's processor does without emulation.
//!
//! Limitations: x86_64 guests on x86_64 hosts; no writable mounts and no volumes.

pub mod accel;
pub mod boot;
pub mod booted;
pub mod cache;
pub mod cpio;
pub mod disks;
pub mod driver;
pub mod guest;
pub mod kernel;
pub mod kvm;
pub mod launch;
pub mod living;
pub mod machine;
pub mod modules;
pub mod monitor;
pub mod mux;
pub mod outer;
pub mod qcow2;
pub mod qemu;
pub mod relay;
pub mod report;
pub mod saved;
pub mod setup;
pub mod shim;
pub mod talk;
pub mod whole;

pub use driver::Vm;
pub use whole::Whole;

use sloplet_engine::DriverError;

pub(crate) fn failed(step: &str, error: impl std::fmt::Display) -> DriverError {
    DriverError::Failed { step: step.to_owned(), detail: error.to_string() }
}
