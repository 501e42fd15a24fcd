//! Host paths that are never shown inside a sandbox, whatever is asked.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::source;

/// Whole trees that are the host itself.
const SYSTEM: &[&str] = &["/proc", "/sys", "/dev", "/run", "/var/run", "/boot", "/etc", "/var/lib/docker"];

/// Where people keep keys, below a home folder: of shells and clouds, of package registries, of wallets, browsers and agents.
/// The one list of them: these are never mounted, `sloplet init` looks for them, and SECURITY.md names them.
pub const KEYS: &[&str] = &[
    ".ssh",
    ".gnupg",
    ".password-store",
    ".netrc",
    ".git-credentials",
    ".pgpass",
    ".my.cnf",
    ".vault-token",
    ".aws",
    ".azure",
    ".oci",
    ".kube",
    ".docker",
    ".boto",
    ".s3cfg",
    ".terraformrc",
    ".terraform.d",
    ".databrickscfg",
    ".snowflake",
    ".fly",
    ".kaggle",
    ".huggingface",
    ".config/gcloud",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".config/doctl",
    ".config/hcloud",
    ".config/linode-cli",
    ".config/scw",
    ".config/stripe",
    ".config/op",
    ".config/rclone",
    ".config/sops",
    ".config/containers/auth.json",
    ".npmrc",
    ".pypirc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings.xml",
    ".gradle/gradle.properties",
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".local/share/keyrings",
    ".bitcoin",
    ".ethereum",
    ".config/solana",
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
];

/// Homes in these are the system's own, of accounts that are nobody's.
const NO_HOMES: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/dev", "/proc", "/sys", "/run", "/nonexistent"];

/// A mount was refused.
#[derive(Debug, thiserror::Error)]
pub enum ProtectError {
    /// It is, or lies in, a protected place.
    #[error(
        "'{path}' is protected ({rule}) and is never shown inside a sandbox: mount a folder that holds only what the work needs"
    )]
    Inside {
        /// The asked path.
        path: PathBuf,
        /// The protected place.
        rule: PathBuf,
    },
    /// It contains a protected place.
    #[error("'{path}' contains the protected '{rule}', which is never shown inside a sandbox: mount a narrower folder")]
    Contains {
        /// The asked path.
        path: PathBuf,
        /// The protected place.
        rule: PathBuf,
    },
    /// It cannot be looked at.
    #[error("cannot mount '{path}': {source}")]
    Unreadable {
        /// The asked path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The protected places of this host, with symlinks resolved where they exist.
#[derive(Debug, Clone)]
pub struct Protected {
    rules: Vec<PathBuf>,
}

impl Protected {
    /// The built-in rules for all homes of this machine and `home` (if there is one), and `own`: where sloplet keeps its data.
    pub fn for_host(home: Option<&Path>, own: &[PathBuf]) -> Self {
        Self::for_homes(homes(home), own)
    }

    fn for_homes(homes: BTreeSet<PathBuf>, own: &[PathBuf]) -> Self {
        let system = SYSTEM.iter().map(PathBuf::from);
        let personal = homes.iter().flat_map(|home| KEYS.iter().map(move |name| home.join(name)));
        let rules = system.chain(personal).chain(own.iter().cloned());
        Self { rules: rules.map(|path| fs::canonicalize(&path).unwrap_or(path)).collect() }
    }

    /// The same, and what a user lists besides.
    pub fn with(mut self, paths: &[PathBuf]) -> Self {
        self.rules.extend(paths.iter().map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.clone())));
        self
    }

    /// Opens what `path` leads to, and tells its real path, or why it may not be shown. What is checked is what is open: who
    /// goes on with it must use that, or [open it again](source::reopen) as the same.
    pub fn open(&self, path: &Path) -> Result<(OwnedFd, PathBuf), ProtectError> {
        let (found, real) = source::find(path)
            .and_then(|(found, real)| try_reading(&source::through(&found)).map(|()| (found, real)))
            .map_err(|source| ProtectError::Unreadable { path: path.to_owned(), source })?;
        self.judge(path, &real)?;
        Ok((found, real))
    }

    /// Whether what was asked for as `path`, and really is at `real`, may be shown.
    pub fn judge(&self, path: &Path, real: &Path) -> Result<(), ProtectError> {
        for rule in &self.rules {
            if real.starts_with(rule) {
                return Err(ProtectError::Inside { path: path.to_owned(), rule: rule.clone() });
            }
            if rule.starts_with(real) && rule.exists() {
                return Err(ProtectError::Contains { path: path.to_owned(), rule: rule.clone() });
            }
        }
        Ok(())
    }
}

/// The homes of everybody on this machine: whoever is root could show them all.
fn homes(own: Option<&Path>) -> BTreeSet<PathBuf> {
    let table = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut homes = homes_of(&table);
    let listed = fs::read_dir("/home").into_iter().flatten().flatten().map(|entry| entry.path());
    homes.extend(listed.chain([PathBuf::from("/root")]).chain(own.map(Path::to_owned)));
    homes
}

/// The homes that a table of accounts names.
fn homes_of(table: &str) -> BTreeSet<PathBuf> {
    let named = table.lines().filter_map(|line| line.split(':').nth(5)).map(Path::new);
    let lived_in = |home: &&Path| home.is_absolute() && !NO_HOMES.iter().any(|system| home.starts_with(system));
    named.filter(lived_in).map(Path::to_owned).collect()
}

/// Better said now than found out inside. FIFOs and the like are not opened: that could wait for somebody.
fn try_reading(path: &Path) -> io::Result<()> {
    let meta = fs::metadata(path)?;
    if meta.is_dir() {
        fs::read_dir(path).map(drop)
    } else if meta.is_file() {
        // Not opened: a confined server may show what it cannot read itself.
        Ok(rustix::fs::access(path, rustix::fs::Access::READ_OK)?)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_the_host_itself_cannot_be_mounted() {
        let home = std::env::temp_dir().join(format!("sloplet-protect-{}", std::process::id()));
        fs::create_dir_all(home.join(".ssh")).unwrap();
        fs::create_dir_all(home.join("project")).unwrap();
        std::os::unix::fs::symlink(home.join(".ssh"), home.join("project/innocent")).unwrap();
        let protected = Protected::for_host(Some(&home), &[]);
        assert!(protected.open(&home.join("project")).is_ok());
        for path in [home.join(".ssh"), home.join("project/innocent"), home.join("project/../.ssh"), "/etc".into()] {
            assert!(matches!(protected.open(&path), Err(ProtectError::Inside { .. })), "{path:?}");
        }
        for path in [home.clone(), "/".into()] {
            assert!(matches!(protected.open(&path), Err(ProtectError::Contains { .. })), "{path:?}");
        }
        assert!(matches!(protected.open(Path::new("/nowhere")), Err(ProtectError::Unreadable { .. })));
        fs::remove_dir_all(home).unwrap();
    }

    #[test]
    fn keys_of_everybody_on_the_machine_are_protected_with_and_without_a_home_of_one_s_own() {
        let base = std::env::temp_dir().join(format!("sloplet-homes-{}", std::process::id()));
        let other = base.join("other");
        fs::create_dir_all(other.join(".ssh")).unwrap();
        fs::write(other.join(".vault-token"), "x").unwrap();
        fs::create_dir_all(other.join("project")).unwrap();
        let table =
            format!("root:x:0:0::/root:/bin/sh\ndaemon:x:1:1::/usr/sbin:/x\nother:x:7:7::{}:/x\n", other.display());
        let homes = homes_of(&table);
        assert_eq!(homes, BTreeSet::from(["/root".into(), other.clone()]));
        let protected = Protected::for_homes(homes, &[]);
        for name in [".ssh", ".vault-token"] {
            let result = protected.open(&other.join(name));
            assert!(matches!(result, Err(ProtectError::Inside { .. })), "{name}: {result:?}");
        }
        assert!(protected.open(&other).is_err() && protected.open(&other.join("project")).is_ok());
        assert!(super::homes(None).contains(Path::new("/root")));
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn the_documents_name_what_is_protected() {
        let text = include_str!("../../../SECURITY.md");
        let missing: Vec<&&str> = KEYS.iter().filter(|name| !text.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "SECURITY.md does not name {missing:?}");
    }
}
