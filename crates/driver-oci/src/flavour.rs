//! What differs between runtimes. Another one is a variant here.

use std::path::{Path, PathBuf};

use sloplet_policy::Isolation;
use sloplet_spawner::runtime::house::places;

/// A runtime, by its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// gVisor.
    Runsc,
    /// crun.
    Crun,
    /// runc.
    Runc,
    /// Kata Containers.
    Kata,
}

impl Flavour {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Runsc, Self::Crun, Self::Runc, Self::Kata];

    /// The driver's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Runsc => "gvisor",
            Self::Crun => "crun",
            Self::Runc => "runc",
            Self::Kata => "kata",
        }
    }

    /// The program's name.
    pub fn program(self) -> &'static str {
        match self {
            Self::Runsc => "runsc",
            Self::Crun => "crun",
            Self::Runc => "runc",
            Self::Kata => "kata-runtime",
        }
    }

    /// How strong the wall is.
    pub fn isolation(self) -> Isolation {
        match self {
            Self::Runsc => Isolation::Gvisor,
            Self::Crun | Self::Runc => Isolation::Container,
            Self::Kata => Isolation::Vm,
        }
    }

    /// What to do where the program is missing.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Runsc => "apt-get install runsc (Debian), or see gvisor.dev/docs/user_guide/install",
            Self::Crun => "apt-get install crun (Debian)",
            Self::Runc => "apt-get install runc (Debian)",
            Self::Kata => "'--isolation vm' is a machine with a kernel of its own, too",
        }
    }

    /// Why it cannot be used at all, though it is there.
    pub fn unusable(self) -> Option<&'static str> {
        match self {
            Self::Runsc | Self::Crun | Self::Runc => None,
            Self::Kata => Some(
                "Kata Containers have no OCI command line since version 2, only a shim for containerd, and their \
                 hypervisor needs devices that the walls around a runtime do not have: use '--isolation vm'",
            ),
        }
    }

    /// Whether it has a kernel of its own, with file systems and a network of its own.
    pub fn has_kernel(self) -> bool {
        match self {
            Self::Runsc | Self::Kata => true,
            Self::Crun | Self::Runc => false,
        }
    }

    /// Processes and threads of the host that it needs besides those of the sandbox that has so many.
    pub fn pids(self, inside: u32) -> u32 {
        match self {
            // Each of its threads may be one of the host's, it has some of its own, and those of processes that ended go away
            // later, on a busy host much later. Where it can make no more, all of it ends.
            Self::Runsc | Self::Kata => inside.saturating_mul(4).saturating_add(1024),
            // Its keeper, and itself while it starts the agent: it is gone before anything else runs.
            Self::Crun => inside.saturating_add(1).max(8),
            // A program in Go starts a thread for each thing that it waits for.
            Self::Runc => inside.saturating_add(1).max(40),
        }
    }

    /// Flags before every subcommand.
    pub fn flags(self, platform: &str, egress: bool) -> Vec<String> {
        let root = format!("--root={}", places::STATE);
        match self {
            Self::Runsc => vec![
                root,
                format!("--platform={platform}"),
                // The house has no other network than the way out, if there is one.
                format!("--network={}", if egress { "host" } else { "none" }),
                // What is written goes to the sandbox's own disk, which is bounded and can be saved.
                "--overlay2=none".to_owned(),
                "--host-uds=all".to_owned(),
                // The cgroup around the house bounds everything.
                "--ignore-cgroups".to_owned(),
            ],
            // The same.
            Self::Crun => vec![root, "--cgroup-manager=disabled".to_owned()],
            Self::Runc | Self::Kata => vec![root],
        }
    }

    /// Its program on this host.
    pub fn find(self) -> Option<PathBuf> {
        let folders = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        folders.iter().map(|folder| Path::new(folder).join(self.program())).find(|path| path.is_file())
    }
}
