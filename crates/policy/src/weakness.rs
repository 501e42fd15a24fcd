//! Protections that can be taken away, one at a time, to show that the verifier notices.
//!
//! No configuration, flag of an ordinary command or request can name one: a weakness is part of no serialised form of a
//! [`Spec`](crate::Spec), release builds know none, and debug builds want it said twice (see [`for_test`]).

/// The variable that must name the weakness a second time.
pub const VARIABLE: &str = "SLOPLET_TEST_WEAKEN";

/// Processes beyond the bound where that is taken away: many, and yet no bomb that buries the host of the test.
pub const PIDS_BEYOND: u32 = 512;

/// All of them, each named after the protection that is missing.
pub const ALL: &[&str] = &[
    "seccomp",
    "seccomp-namespaces",
    "seccomp-mounts",
    "seccomp-keyrings",
    "seccomp-io-uring",
    "seccomp-userfaultfd",
    "seccomp-sockets",
    "seccomp-terminals",
    "seccomp-personality",
    "seccomp-handles",
    "seccomp-clocks",
    "set-id-filter",
    "capabilities",
    "no-new-privs",
    "closed-agent",
    "landlock",
    "masked-paths",
    "read-only-proc",
    "devices",
    "nosuid",
    "nodev",
    "read-only-mounts",
    "ipc-namespace",
    "uts-namespace",
    "network-namespace",
    "cgroup-namespace",
    "own-ids",
    "pids",
    "memory",
    "cpus",
    "disk",
    "files",
    "core-dumps",
    "deadline",
    "environment",
    "protected-paths",
    "protected-env",
    "sysfs",
    "host-root",
    "host-run",
    "host-shm",
    "egress-rules",
    "egress-vetting",
    "egress-checks",
    "egress-questions",
    "egress-limits",
    "placeholders",
    "redaction",
    "sandbox-tokens",
    "forked-limits",
    "copy-out",
    "run-folder",
    "server-limits",
];

/// Why there is no such weakness.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no protection can be taken away here: that is for sloplet's own tests")]
pub struct NoWeakness;

/// A weakness by its name, in a debug build in whose environment [`VARIABLE`] says the same.
pub fn for_test(name: &str) -> Result<&'static str, NoWeakness> {
    let confirmed = std::env::var(VARIABLE).is_ok_and(|value| value == name);
    let known = ALL.iter().find(|known| **known == name);
    known.copied().filter(|_| cfg!(debug_assertions) && confirmed).ok_or(NoWeakness)
}
