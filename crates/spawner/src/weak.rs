//! Filters with holes, for tests of the verifier. Release builds install the whole one, whatever a plan says.

use sloplet_seccomp::Profile;
use sloplet_sys::filter;

use crate::protocol::{During, Problem};

/// What a weakness lets through.
const HOLES: &[(&str, &str)] = &[
    ("seccomp-namespaces", "[allow] x\nunshare setns clone3\n[arguments] x\nclone: allow otherwise\n"),
    (
        "seccomp-mounts",
        "[allow] x\nmount umount2 pivot_root fsopen fsconfig fsmount fspick open_tree open_tree_attr move_mount mount_setattr statmount listmount\n",
    ),
    ("seccomp-keyrings", "[allow] x\nkeyctl add_key request_key\n"),
    ("seccomp-io-uring", "[allow] x\nio_uring_setup io_uring_enter io_uring_register\n"),
    ("seccomp-userfaultfd", "[allow] x\nuserfaultfd\n"),
    ("seccomp-sockets", "[allow] x\nsocket\n"),
    ("seccomp-terminals", "[allow] x\nioctl\n"),
    ("seccomp-personality", "[allow] x\npersonality\n"),
    ("seccomp-handles", "[allow] x\nopen_by_handle_at name_to_handle_at\n"),
    ("seccomp-clocks", "[allow] x\nclock_settime clock_adjtime settimeofday\n"),
];

/// Installs the profile, with the hole that a test asks for.
pub fn install(profile: Profile, lacks: &dyn Fn(&str) -> bool) -> Result<(), Problem> {
    let step = "install the syscall filter";
    if lacks("seccomp") {
        return Ok(());
    }
    match HOLES.iter().find(|(name, _)| lacks(name)) {
        None => filter::install(profile.program()).during(step),
        Some((_, hole)) => {
            let program = profile.program_with(hole).map_err(std::io::Error::other).during(step)?;
            filter::install(&program).during(step)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hole_compiles() {
        for (name, hole) in HOLES {
            Profile::Container.program_with(hole).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
