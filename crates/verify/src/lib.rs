//! Attacks a sandbox from inside and tells what came of it.
//!
//! A sandbox that is believed in is worth less than one that was attacked. Every **probe** is a small unit that says what
//! it tries and why that matters. Its attempts run twice: on the host, unconfined, where they must take effect (else they
//! prove nothing), and inside a sandbox of the configuration in question, where none may. What was planted on the host
//! (files, processes, sockets, shared memory: [`canaries`]) is looked at afterwards.
//!
//! - [`probes`]: the probes, one a file, one line each to register them.
//! - [`part`]: single attempts, each in a process of its own, and what they answer.
//! - [`program`]: the program that makes attempts, on the host and inside: the same binary with a hidden subcommand.
//! - [`conduct`]: a whole verification.
//! - [`drill`]: what probes that need the host's hand (bombs, archives, deadlines) are given.
//! - [`processes`]: a sandbox's processes, as the host sees them.
//! - [`outside`], [`calls`]: a world outside, for sandboxes with a way out, and calls to it from inside.
//! - [`served`]: a server of this binary, for the doors that only a server has.
//! - [`judge`]: from answers to verdicts.
//! - [`report`], [`html`], [`junit`]: what is told, to people and machines.
//! - [`record`]: results of earlier verifications, and whether one still speaks for a configuration.
//!
//! # Limitations
//! A probe shows that an attack fails that somebody thought of. It does not show that there is no other.
//!
//! # Tests
//! `crates/sloplet/tests/verify` verifies real sandboxes, and sandboxes each with one protection taken away, for which the
//! matching probe must report a breach.

pub mod acts;
pub mod calls;
pub mod canaries;
pub mod conduct;
pub mod drill;
pub mod html;
pub mod judge;
pub mod junit;
pub mod outside;
pub mod part;
pub mod probe;
pub mod probes;
pub mod processes;
pub mod program;
pub mod record;
pub mod report;
pub mod served;
pub mod settings;

pub use conduct::{Verification, VerifyError, verify};
pub use probe::{Probe, Verdict};
pub use program::SUBCOMMAND;
pub use record::{Records, Standing};
pub use report::{Report, Result as ProbeResult};
pub use served::{KERNEL_FOLDER, KERNEL_VARIABLE};
