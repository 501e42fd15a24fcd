//! Host paths that are never shown inside a sandbox, whatever is asked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Whole trees that are the host itself.
const SYSTEM: &[&str] =
    &["/proc", "/sys", "/dev", "/run", "/var/run", "/boot", "/etc", "/var/lib/docker", "/root/.ssh"];

/// Where a person keeps keys, below the home folder.
const HOME: &[&str] = &[
    ".ssh",
    ".aws",
    ".azure",
    ".gnupg",
    ".kube",
    ".docker",
    ".config/gcloud",
    ".config/gh",
    ".config/doctl",
    ".netrc",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    ".cargo/credentials.toml",
    ".password-store",
    ".mozilla",
    ".config/google-chrome",
    ".config/chromium",
    ".local/share/keyrings",
    ".claude",
    ".codex",
];

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
    /// The built-in rules for a home folder (if there is one), and `own`: where sloplet keeps its data.
    pub fn for_host(home: Option<&Path>, own: &[PathBuf]) -> Self {
        let system = SYSTEM.iter().map(PathBuf::from);
        let personal = home.into_iter().flat_map(|home| HOME.iter().map(move |name| home.join(name)));
        let rules = system.chain(personal).chain(own.iter().cloned());
        Self { rules: rules.map(|path| fs::canonicalize(&path).unwrap_or(path)).collect() }
    }

    /// The same, and what a user lists besides.
    pub fn with(mut self, paths: &[PathBuf]) -> Self {
        self.rules.extend(paths.iter().map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.clone())));
        self
    }

    /// The real path of `path`, or why it may not be shown.
    pub fn check(&self, path: &Path) -> Result<PathBuf, ProtectError> {
        let real = fs::canonicalize(path)
            .and_then(|real| try_reading(&real).map(|()| real))
            .map_err(|source| ProtectError::Unreadable { path: path.to_owned(), source })?;
        for rule in &self.rules {
            if real.starts_with(rule) {
                return Err(ProtectError::Inside { path: path.to_owned(), rule: rule.clone() });
            }
            if rule.starts_with(&real) && rule.exists() {
                return Err(ProtectError::Contains { path: path.to_owned(), rule: rule.clone() });
            }
        }
        Ok(real)
    }
}

/// Better said now than found out inside. FIFOs and the like are not opened: that could wait for somebody.
fn try_reading(path: &Path) -> io::Result<()> {
    let meta = fs::metadata(path)?;
    if meta.is_dir() {
        fs::read_dir(path).map(drop)
    } else if meta.is_file() {
        fs::File::open(path).map(drop)
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
        assert!(protected.check(&home.join("project")).is_ok());
        for path in [home.join(".ssh"), home.join("project/innocent"), home.join("project/../.ssh"), "/etc".into()] {
            assert!(matches!(protected.check(&path), Err(ProtectError::Inside { .. })), "{path:?}");
        }
        for path in [home.clone(), "/".into()] {
            assert!(matches!(protected.check(&path), Err(ProtectError::Contains { .. })), "{path:?}");
        }
        assert!(matches!(protected.check(Path::new("/nowhere")), Err(ProtectError::Unreadable { .. })));
        fs::remove_dir_all(home).unwrap();
    }
}
