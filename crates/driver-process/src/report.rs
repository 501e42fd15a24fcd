//! What this host lets the driver enforce.

use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use sloplet_policy::{Capability, DriverReport, Feature, Isolation};
use sloplet_spawner::cgroup::{Cgroups, Controller, Tables, Unavailable};

/// Why there is no sandbox without Landlock.
pub const NO_LANDLOCK: &str = "this kernel has no Landlock that governs truncation (Linux 6.2, lsm=landlock,… at boot), \
    and nothing else stands between the commands and this host's files: use --isolation container, or accept that with \
    --best-effort";

/// Looks at the host.
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
    let pids = match by_cgroup(Feature::Pids, Controller::Pids) {
        capability if capability.remedy.is_none() && cgroups.check(Controller::Pids).is_ok() => capability,
        _ if root => Capability::enforced(Feature::Pids, "a resource limit on the sandbox's own user id"),
        missing => Capability {
            detail: format!("{}; a resource limit on all processes of this user stands in for it", missing.detail),
            ..missing
        },
    };
    let capabilities = vec![
        by_cgroup(Feature::Memory, Controller::Memory),
        by_cgroup(Feature::Cpu, Controller::Cpu),
        pids,
        Capability::watched(
            Feature::Disk,
            "bytes and files are summed up several times a second, but for files deleted while open; one file cannot \
             exceed the limit",
        ),
        Capability::enforced(Feature::Timeout, timeout_detail(root)),
        Capability::enforced(Feature::Output, "counted by the host"),
        Capability::missing(Feature::OwnRoot, "the host's own, closed by Landlock", Some("use --isolation container")),
        Capability::missing(Feature::OwnMounts, "the host's own", Some("use --isolation container")),
        Capability::enforced(Feature::NoNetwork, "seccomp refuses every socket"),
        Capability::enforced(Feature::SyscallFilter, "seccomp allowlist; 32-bit and x32 calls are refused"),
        landlock(root),
        own_uids(root),
        Capability::missing(Feature::RootInside, "needs a user namespace", Some("use --isolation container")),
        by_cgroup(Feature::Pause, Controller::Freezer),
        Capability::missing(Feature::OwnKernel, "shares the host's kernel", None),
        Capability::missing(Feature::MemorySnapshot, "not with this driver", None),
    ];
    DriverReport { driver: "process".into(), isolation: Isolation::Process, unavailable: None, capabilities }
}

fn timeout_detail(root: bool) -> &'static str {
    if root {
        "the host kills every process of the sandbox's own user id"
    } else {
        "the host kills the agent, then its orphans until none are left"
    }
}

/// At this level Landlock is the wall, not the second one.
fn landlock(root: bool) -> Capability {
    if !offers(ABI::V3) {
        let remedy = "boot with lsm=landlock,… on Linux 6.2 or later";
        return Capability::missing(Feature::SecondWall, NO_LANDLOCK, Some(remedy));
    }
    let detail = match (offers(ABI::V6), root) {
        (true, _) => "Landlock, for files, signals and abstract sockets; it is the first wall here",
        (false, true) => "Landlock, for files; it is the first wall here. The user id keeps signals in",
        (false, false) => {
            "Landlock, for files; it is the first wall here. Before Linux 6.12 commands can send signals to this user's \
             other processes"
        }
    };
    Capability::enforced(Feature::SecondWall, detail)
}

fn own_uids(root: bool) -> Capability {
    if root {
        return Capability::enforced(Feature::OwnUids, "one id for each sandbox, used by nobody else");
    }
    let detail = "commands run as this user: they cannot open this user's files or processes, but can change modes and \
                  times of the files";
    Capability::missing(Feature::OwnUids, detail, Some("run as root, or use --isolation container"))
}

/// Whether files can be closed off on this kernel, truncation included.
pub fn landlock_suffices() -> bool {
    offers(ABI::V3)
}

/// Making a ruleset (which is then dropped) is the only way to ask.
fn offers(abi: ABI) -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let ruleset = ruleset.handle_access(AccessFs::from_all(abi.min(ABI::V5)));
    let ruleset = if abi >= ABI::V6 { ruleset.and_then(|ruleset| ruleset.scope(Scope::Signal)) } else { ruleset };
    ruleset.is_ok_and(|ruleset| ruleset.create().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sloplet_policy::report::Enforcement;

    #[test]
    fn weaknesses_are_told() {
        let report = probe(&Tables::read());
        let of = |feature| report.capabilities.iter().find(|c| c.feature == feature).unwrap().enforcement;
        assert_eq!(of(Feature::OwnRoot), Enforcement::Missing);
        assert_eq!(of(Feature::Disk), Enforcement::Watched);
        assert_eq!(of(Feature::NoNetwork), Enforcement::Enforced);
    }
}
