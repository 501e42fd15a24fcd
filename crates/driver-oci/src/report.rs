//! What holds behind a runtime.

use sloplet_policy::{Capability, DriverReport, Enforcement, Feature};

use crate::flavour::Flavour;
use crate::probe::Found;

/// What the walls around it enforce, and what the runtime adds.
pub fn report(flavour: Flavour, walls: DriverReport, found: Result<&Found, &String>) -> DriverReport {
    let mut capabilities = walls.capabilities;
    if let Ok(found) = found {
        let more = match flavour {
            Flavour::Runsc => gvisor(found),
            Flavour::Crun | Flavour::Runc => sharing(found),
            Flavour::Kata => Vec::new(),
        };
        for capability in more {
            match capabilities.iter_mut().find(|known| known.feature == capability.feature) {
                // The runtime's own bound is each user's inside: where the host has none for all of them, there is none.
                Some(known) if known.feature == Feature::Pids && known.enforcement != Enforcement::Enforced => {}
                Some(known) => *known = capability,
                None => capabilities.push(capability),
            }
        }
    }
    // Of one that is not there, nothing was found out; what it is, is known.
    if found.is_err()
        && flavour.has_kernel()
        && let Some(kernel) = capabilities.iter_mut().find(|known| known.feature == Feature::OwnKernel)
    {
        *kernel = Capability::enforced(Feature::OwnKernel, "a kernel of its own");
    }
    let (driver, isolation) = (flavour.name().to_owned(), flavour.isolation());
    DriverReport { driver, isolation, unavailable: found.err().cloned(), capabilities }
}

/// What differs from the walls around it where the kernel is the host's.
fn sharing(found: &Found) -> Vec<Capability> {
    let root = format!("overlay, in namespaces of {}'s inside the sandbox's own", found.version);
    vec![Capability::enforced(Feature::OwnRoot, root)]
}

fn gvisor(found: &Found) -> Vec<Capability> {
    let kernel = format!("gVisor, {}, platform {}", found.version, found.platform);
    let old = (!found.lists).then_some("a newer gVisor: with this one, 'ls' and 'stat' of coreutils 9 fail inside");
    let pids = "by gVisor for each user inside; four times as many of the host's and 1024 more, by its cgroup, for all";
    vec![
        Capability { remedy: old.map(Into::into), ..Capability::enforced(Feature::OwnKernel, kernel) },
        Capability::enforced(Feature::Pids, pids),
        Capability::enforced(Feature::SyscallFilter, "the host's kernel sees only gVisor's own calls, filtered by it"),
        Capability::enforced(Feature::SecondWall, "namespaces, users and a root of its own around gVisor"),
        Capability::enforced(Feature::NoNetwork, "gVisor's network stack with loopback only"),
        Capability::enforced(Feature::MemorySnapshot, "without a way out; connections to its agent are made anew"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use sloplet_policy::Isolation;

    #[test]
    fn a_bound_of_each_user_is_no_bound_of_all() {
        let bounds = |outer: Capability| {
            let walls = DriverReport {
                driver: "namespaces".into(),
                isolation: Isolation::Container,
                unavailable: None,
                capabilities: vec![outer],
            };
            let found = Found::default();
            let told = report(Flavour::Runsc, walls, Ok(&found)).capabilities;
            told.iter().find(|known| known.feature == Feature::Pids).map(|known| known.enforcement)
        };
        assert_eq!(bounds(Capability::enforced(Feature::Pids, "cgroup")), Some(Enforcement::Enforced));
        assert_eq!(bounds(Capability::missing(Feature::Pids, "no cgroup", None)), Some(Enforcement::Missing));
    }
}
