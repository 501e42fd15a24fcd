//! What this host lets the driver enforce.

use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use sloplet_policy::{Capability, DriverReport, Feature, Isolation};
use sloplet_spawner::cgroup::{Cgroups, Controller, Tables, Unavailable};

use crate::subids;

/// Looks at the host. Whether namespaces themselves are permitted shows only when one is made, which costs as much as a
/// sandbox: `doctor` makes one, a start simply tries.
pub fn probe(tables: &Tables) -> DriverReport {
    let cgroups = Cgroups::of(tables);
    let root = rustix::process::geteuid().is_root();
    let version = match &cgroups {
        Cgroups::V1 { .. } => "cgroup v1",
        Cgroups::V2 { .. } => "cgroup v2",
        Cgroups::None(_) => "no cgroups",
    };
    let by_cgroup = |feature, controller| match cgroups.check(controller) {
        Ok(()) => Capability::enforced(feature, format!("{version}, {} controller", controller.name())),
        Err(Unavailable { reason, remedy }) => Capability::missing(feature, reason, remedy.as_deref()),
    };
    let disk = if root {
        "bytes and files; in memory, or on an ext4 image when larger than half the memory limit"
    } else {
        "bytes and files; kept in memory, so it shares the memory limit"
    };
    let second_wall = if landlock_offers(ABI::V1) {
        let scopes = if landlock_offers(ABI::V6) { "files, signals and abstract sockets" } else { "files" };
        Capability::enforced(Feature::SecondWall, format!("Landlock, for {scopes}"))
    } else {
        let remedy = Some("boot with lsm=landlock,… on Linux 5.13 or later");
        Capability::missing(Feature::SecondWall, "the kernel has no Landlock or it is switched off", remedy)
    };
    let (own_uids, root_inside) = if root {
        (
            Capability::enforced(Feature::OwnUids, "65536 ids for each sandbox, used by nobody else"),
            Capability::enforced(Feature::RootInside, "sudo and package managers work in images that have them"),
        )
    } else {
        let remedy = Some("as root: apt-get install uidmap, and an entry in /etc/subuid and /etc/subgid");
        (
            Capability::missing(Feature::OwnUids, "commands run as this user behind the walls", Some("run as root")),
            match subids::of_this_user() {
                Some(_) => Capability::enforced(Feature::RootInside, "by subordinate ids, in images other than 'host'"),
                None => Capability::missing(Feature::RootInside, "no subordinate ids", remedy),
            },
        )
    };
    let capabilities = vec![
        by_cgroup(Feature::Memory, Controller::Memory),
        by_cgroup(Feature::Cpu, Controller::Cpu),
        by_cgroup(Feature::Pids, Controller::Pids),
        Capability::enforced(Feature::Disk, disk),
        Capability::enforced(Feature::Timeout, "the host kills the sandbox's PID 1, and the kernel all others with it"),
        Capability::enforced(Feature::Output, "counted by the host"),
        Capability::enforced(Feature::OwnRoot, "overlay, nothing of the host's but what the image names"),
        Capability::enforced(
            Feature::OwnMounts,
            "none follows the host's; nosuid and nodev on all of the host's files",
        ),
        Capability::enforced(Feature::NoNetwork, "a network namespace with loopback only"),
        Capability::enforced(Feature::SyscallFilter, "seccomp allowlist; 32-bit and x32 calls are refused"),
        second_wall,
        own_uids,
        root_inside,
        by_cgroup(Feature::Pause, Controller::Freezer),
        Capability::missing(Feature::OwnKernel, "shares the host's kernel", None),
        Capability::missing(Feature::MemorySnapshot, "not with this driver", None),
    ];
    DriverReport { driver: "namespaces".into(), isolation: Isolation::Container, unavailable: None, capabilities }
}

/// Making a ruleset (which is then dropped) is the only way to ask.
fn landlock_offers(abi: ABI) -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let ruleset = ruleset.handle_access(AccessFs::from_all(abi.min(ABI::V5)));
    let ruleset = if abi >= ABI::V6 { ruleset.and_then(|ruleset| ruleset.scope(Scope::Signal)) } else { ruleset };
    ruleset.is_ok_and(|ruleset| ruleset.create().is_ok())
}
