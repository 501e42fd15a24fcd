//! What holds behind a container engine.

use sloplet_policy::{Capability, DriverReport, Feature, Isolation};

use crate::driver::NAME;
use crate::host::Host;
use crate::probe::Found;

/// What the engine enforces, or why there is none.
pub fn report(host: &Host, found: Result<&Found, String>) -> DriverReport {
    let (driver, isolation) = (NAME.to_owned(), Isolation::Container);
    match found {
        Ok(found) => DriverReport { driver, isolation, unavailable: None, capabilities: capabilities(host, found) },
        Err(reason) => DriverReport { driver, isolation, unavailable: Some(reason), capabilities: Vec::new() },
    }
}

fn capabilities(host: &Host, found: &Found) -> Vec<Capability> {
    let whose = if found.rootless { "rootless" } else { "as root" };
    let engine = format!("{}, {whose}, at {}", found.version, host.name());
    let bound = |feature, holds: bool| match holds {
        true => Capability::enforced(feature, format!("a cgroup of {}", found.version)),
        false => {
            let remedy = "give the engine the cgroup controllers memory, cpu and pids";
            Capability::missing(feature, format!("{} has no such cgroup controller here", found.version), Some(remedy))
        }
    };
    let filter = match found.seccomp {
        true => Capability::enforced(
            Feature::SyscallFilter,
            "the same allowlist as for namespaces, by the engine and the agent",
        ),
        false => Capability::missing(Feature::SyscallFilter, "the engine has no seccomp", None),
    };
    vec![
        bound(Feature::Memory, found.memory),
        bound(Feature::Cpu, found.cpu),
        bound(Feature::Pids, found.pids),
        match found.podman {
            false => Capability::enforced(
                Feature::Disk,
                "bytes and files; kept in memory, so it shares the memory limit; divided between the writable places",
            ),
            true => Capability::missing(
                Feature::Disk,
                "Podman bounds no number of files, and adds places to write to (/run, /var/tmp): only the memory limit holds",
                Some("use Docker, or --driver namespaces"),
            ),
        },
        Capability::watched(
            Feature::Timeout,
            "by sloplet, which has the engine kill everything; without a server, by the next",
        ),
        Capability::enforced(Feature::Output, "counted by the host"),
        Capability::enforced(
            Feature::OwnRoot,
            format!("an image of {engine}; read-only but for home, /tmp and its volumes"),
        ),
        Capability::missing(
            Feature::OwnMounts,
            "the engine's: the root follows the host's mounts, folders are shown without nosuid and nodev \
             (no-new-privileges and the list of devices hold instead)",
            Some("use --driver namespaces"),
        ),
        Capability::enforced(Feature::NoNetwork, "a network namespace with loopback only"),
        filter,
        Capability::missing(Feature::SecondWall, "no Landlock with this driver", Some("use --driver namespaces")),
        match found.rootless {
            true => Capability::enforced(Feature::OwnUids, "those of a rootless engine"),
            false => Capability::missing(
                Feature::OwnUids,
                "user 1000 inside is user 1000 outside, unless the engine maps users",
                Some("use --driver namespaces, or an engine with userns-remap"),
            ),
        },
        Capability::missing(Feature::RootInside, "one user, without any capability", Some("use --driver namespaces")),
        Capability::enforced(Feature::Pause, "the engine freezes all processes"),
        Capability::missing(Feature::OwnKernel, "shares the host's kernel", None),
        Capability::missing(Feature::MemorySnapshot, "not with this driver", Some("use --isolation gvisor or vm")),
    ]
}
