//! Capabilities, Landlock, seccomp: the last steps before hostile code may run.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
pub use sloplet_seccomp::Profile;

use sloplet_sys::filter;

use crate::protocol::{During, Problem};
use crate::weak;

/// What root inside keeps: enough for sudo, package managers and servers on low ports, all of it bounded by the user
/// namespace. Docker's default set without the raw sockets, device nodes and audit records.
pub const ROOT_INSIDE: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SETFCAP);

/// What Landlock leaves within reach, for good.
#[derive(Debug)]
pub struct Reach {
    /// Paths, and what may be done there and below.
    pub paths: Vec<Reachable>,
    /// Whether TCP is closed, too, where the kernel can.
    pub no_network: bool,
    /// Whether a kernel that cannot enforce this for files (Landlock ABI 3, Linux 6.2) is an error: it is where no other
    /// wall stands around the host's files.
    pub required: bool,
}

/// A path within reach.
#[derive(Debug)]
pub struct Reachable {
    /// Which file or folder.
    pub place: Place,
    /// What may be done there.
    pub access: BitFlags<AccessFs>,
}

/// A file or folder within reach.
#[derive(Debug)]
pub enum Place {
    /// What a path leads to; symlinks are followed.
    Path(PathBuf),
    /// The same, and its absence is fine.
    Optional(PathBuf),
    /// What is open.
    Open(OwnedFd),
}

impl Reach {
    /// Everything below the present root: for whoever has a root of its own, the second wall behind that one.
    pub fn root() -> Self {
        let root = Reachable { place: Place::Path("/".into()), access: everything() };
        Self { paths: vec![root], no_network: false, required: false }
    }

    /// What is open until the wall stands.
    pub fn open(&self) -> impl Iterator<Item = &OwnedFd> {
        self.paths.iter().filter_map(|reachable| match &reachable.place {
            Place::Open(file) => Some(file),
            Place::Path(_) | Place::Optional(_) => None,
        })
    }
}

/// All that Landlock knows about files.
pub fn everything() -> BitFlags<AccessFs> {
    AccessFs::from_all(ABI::V5)
}

/// Reading files and folders, and executing programs.
pub fn reading() -> BitFlags<AccessFs> {
    AccessFs::from_read(ABI::V5)
}

/// Reading the names in folders, and nothing else.
pub fn listing() -> BitFlags<AccessFs> {
    AccessFs::ReadDir.into()
}

/// What a server that was started by root keeps over its own files: it gives those of images to their owners. All of it is
/// bounded by its user namespace and by Landlock.
const SERVER: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETFCAP);

/// Confines a server, which is about to hear from strangers, for good. It is in a user namespace of its own if it is root's.
pub fn confine_server(root: bool, profile: Profile, reach: &Reach) -> Result<(), Problem> {
    if root {
        bound_capabilities(SERVER)?;
    }
    set_no_new_privs(true).during("forbid new privileges")?;
    restrict_to(reach)?;
    filter::install(profile.program()).during("install the syscall filter")?;
    if root {
        let sets = CapabilitySets { effective: SERVER, permitted: SERVER, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets).during("drop capabilities")?;
    }
    Ok(())
}

/// Gives up, for this process and all its descendants, whatever is not in `keep`, and installs the filters; `lacks` says
/// which protections a test has taken away.
///
/// An agent that filters its commands further (`filters_commands`) keeps `CAP_SYS_ADMIN` in its user namespace for that,
/// under a system call filter that leaves little else to do with it, and out of reach of whatever it executes.
pub fn renounce(
    keep: CapabilitySet,
    profile: Profile,
    reach: &Reach,
    filters_commands: bool,
    lacks: &dyn Fn(&str) -> bool,
) -> Result<(), Problem> {
    // Nobody inside may look into the agent, not even root inside: its memory belongs to the spawner's user namespace,
    // and so do its links to the host's binary (CVE-2019-5736) and its descriptors.
    let closed = if lacks("closed-agent") { DumpableBehavior::Dumpable } else { DumpableBehavior::NotDumpable };
    set_dumpable_behavior(closed).during("close the agent to inspection")?;
    if !lacks("capabilities") {
        bound_capabilities(keep)?;
    }
    if keep.is_empty() && !lacks("no-new-privs") {
        set_no_new_privs(true).during("forbid new privileges")?;
    }
    if !lacks("landlock") {
        restrict_to(reach)?;
    }
    // With CAP_SYS_ADMIN in the own user namespace, a filter needs no no_new_privs, which would break sudo inside.
    weak::install(profile, lacks)?;
    if lacks("capabilities") {
        return Ok(());
    }
    let own = if filters_commands && !keep.is_empty() { keep | CapabilitySet::SYS_ADMIN } else { keep };
    let sets = CapabilitySets { effective: own, permitted: own, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).during("drop capabilities")
}

/// Takes all capabilities but `keep` out of reach of whatever will be executed.
pub fn bound_capabilities(keep: CapabilitySet) -> Result<(), Problem> {
    for bit in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if keep.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::INVAL) => break, // beyond the last one this kernel knows
            // An ordinary user may not, and need not: who keeps none gets no_new_privs, and with it none ever.
            Err(Errno::PERM) if keep.is_empty() => break,
            Err(error) => return Err(Problem::new("bound capabilities", error)),
        }
    }
    Ok(())
}

/// Landlock: whatever descriptor a process may get hold of, it reaches nothing outside `reach` with it, and no program
/// outside can be executed; no abstract socket and no process outside can be reached either. Kernels without it are told
/// by `doctor`; there the other walls stand alone, if that is permitted.
fn restrict_to(reach: &Reach) -> Result<(), Problem> {
    let wall = || -> Result<RulesetStatus, Box<dyn std::error::Error>> {
        // Truncating what cannot be opened for writing is governed from ABI 3 on.
        let level = if reach.required { CompatLevel::HardRequirement } else { CompatLevel::BestEffort };
        let mut ruleset = Ruleset::default()
            .set_compatibility(level)
            .handle_access(AccessFs::from_all(ABI::V3))?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(everything())?
            .scope(Scope::AbstractUnixSocket)?
            .scope(Scope::Signal)?;
        if reach.no_network {
            ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4))?;
        }
        let mut ruleset = ruleset.create()?.no_new_privs(false);
        for Reachable { place, access } in &reach.paths {
            let fd = match place {
                Place::Open(file) => file.try_clone()?,
                Place::Path(path) | Place::Optional(path) => {
                    match open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
                        Ok(fd) => fd,
                        Err(_) if matches!(place, Place::Optional(_)) => continue,
                        Err(error) => return Err(format!("{}: {error}", path.display()).into()),
                    }
                }
            };
            ruleset = ruleset.add_rule(PathBeneath::new(fd, *access))?;
        }
        Ok(ruleset.restrict_self()?.ruleset)
    };
    wall().map(drop).map_err(|error| io::Error::other(error.to_string())).during("raise the Landlock wall")
}
