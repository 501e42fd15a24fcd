//! What differs between runtimes. Another one is a variant here: its program must be static, for the house it runs in has no
//! libraries.

use std::path::{Path, PathBuf};

use sloplet_policy::Isolation;
use sloplet_spawner::runtime::house::places;

/// A runtime, by its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// gVisor.
    Runsc,
}

impl Flavour {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::Runsc];

    /// The driver's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Runsc => "gvisor",
        }
    }

    /// The program's name.
    pub fn program(self) -> &'static str {
        match self {
            Self::Runsc => "runsc",
        }
    }

    /// How strong the wall is.
    pub fn isolation(self) -> Isolation {
        match self {
            Self::Runsc => Isolation::Gvisor,
        }
    }

    /// What to do where the program is missing.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Runsc => "apt-get install runsc (Debian), or see gvisor.dev/docs/user_guide/install",
        }
    }

    /// Whether it has a kernel of its own, with file systems and a network of its own.
    pub fn has_kernel(self) -> bool {
        match self {
            Self::Runsc => true,
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
        }
    }

    /// Its program on this host.
    pub fn find(self) -> Option<PathBuf> {
        let folders = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        folders.iter().map(|folder| Path::new(folder).join(self.program())).find(|path| path.is_file())
    }
}
