//! Host folders shown inside a sandbox.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::source::{self, Identity};

/// A host file or folder shown inside, read-only unless said otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// On the host; relative to where sloplet was started.
    pub from: PathBuf,
    /// Inside; absolute.
    pub to: PathBuf,
    /// Whether changes inside reach the host.
    #[serde(default)]
    pub writable: bool,
    /// Whether Unix sockets and FIFOs may lie in it: they carry data between inside and the host, whatever the network is.
    #[serde(default)]
    pub sockets: bool,
    /// Whether changes may also reach what configures the host (see [`guarded`](crate::guarded)).
    #[serde(default)]
    pub unguarded: bool,
    /// Whether it is a volume: a folder of sloplet's own, in which everybody inside may own files. Nobody can ask for it by
    /// a description.
    #[serde(skip)]
    pub volume: bool,
    /// What `from`, a real path by then, was when it was checked: nothing else is shown.
    #[serde(skip)]
    pub identity: Option<Identity>,
    /// Whose user and group are the owner's, in place of its own: those of the mount that it guards.
    #[serde(skip)]
    pub owner: Option<(u32, u32)>,
}

/// Where root makes sandboxes, files in a volume that belong to a user inside other than the usual one belong to this id
/// plus theirs outside: ids that nobody has, just below those of sandboxes.
pub const VOLUME_IDS: u32 = 0x3FFF_0000;

/// What can follow a mount's paths.
const OPTIONS: [&str; 4] = ["ro", "rw", "sockets", "unguarded"];

/// A mount that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Not of the form.
    #[error(
        "mount '{0}' is not of the form HOST_PATH:PATH_INSIDE[:OPTIONS], like ./src:/workspace:ro; options are ro or rw, sockets, and unguarded (with rw), with commas between them"
    )]
    Form(String),
    /// The target is not a usable place.
    #[error("mount target '{0}' must be an absolute path without '..', and not '/', '/proc', '/dev' or '/sys'")]
    Target(String),
}

impl Bind {
    /// Settles what is shown: what `from` leads to now, unless that was settled before.
    pub fn settled(&self) -> io::Result<Self> {
        if self.identity.is_some() {
            return Ok(self.clone());
        }
        let (found, from) = source::find(&self.from)?;
        Ok(Self { from, identity: Some(Identity::of(&found)?), ..self.clone() })
    }

    /// Opens what is shown, to be looked at or mounted. An error if it is not what was settled any more.
    pub fn open(&self) -> io::Result<OwnedFd> {
        let settled = self.settled()?;
        source::reopen(&settled.from, settled.identity)
    }

    /// Refuses targets that would shadow what the sandbox itself is made of.
    pub fn check(&self) -> Result<(), BindError> {
        let inside = &self.to;
        let plain = inside.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
        let reserved = ["/proc", "/dev", "/sys"].iter().any(|path| inside.starts_with(path));
        if !inside.is_absolute() || !plain || reserved || inside == Path::new("/") || inside.as_os_str().len() > 4000 {
            return Err(BindError::Target(inside.display().to_string()));
        }
        Ok(())
    }
}

impl FromStr for Bind {
    type Err = BindError;

    fn from_str(text: &str) -> Result<Self, BindError> {
        let form = || BindError::Form(text.to_owned());
        let (rest, options) = match text.rsplit_once(':') {
            Some((rest, options)) if options.split(',').all(|option| OPTIONS.contains(&option)) => (rest, options),
            _ => (text, ""),
        };
        let has = |option: &str| options.split(',').any(|given| given == option);
        if has("ro") && has("rw") {
            return Err(form());
        }
        let (from, to) = rest.rsplit_once(':').ok_or_else(form)?;
        if from.is_empty() || to.is_empty() || text.contains('\0') {
            return Err(form());
        }
        let (writable, sockets, unguarded) = (has("rw"), has("sockets"), has("unguarded"));
        if unguarded && !writable {
            return Err(form());
        }
        let bind = Self { from: from.into(), to: to.into(), writable, sockets, unguarded, ..Self::default() };
        bind.check()?;
        Ok(bind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_only_unless_asked() {
        let bind: Bind = "./src:/workspace".parse().unwrap();
        assert!(!bind.writable);
        assert!("./a:b:/x:rw".parse::<Bind>().is_ok_and(|b| b.writable && b.from == Path::new("./a:b")));
        assert!("./a:/x:rw,sockets".parse::<Bind>().is_ok_and(|b| b.writable && b.sockets && b.to == Path::new("/x")));
        assert!("./a:/x:sockets".parse::<Bind>().is_ok_and(|b| !b.writable && b.sockets));
        for text in ["./a:/x:rw,ro", "./a:/x:rw,", "./a:/x:rw,other"] {
            assert!(text.parse::<Bind>().is_err(), "{text}");
        }
    }

    #[test]
    fn targets_that_shadow_the_sandbox_are_refused() {
        for target in ["/", "/proc", "/proc/1", "/dev/null", "/sys/fs", "relative", "/a/../etc"] {
            assert!(format!("/tmp:{target}").parse::<Bind>().is_err(), "{target}");
        }
        for text in ["", ":", "/tmp", "/tmp:", ":/x"] {
            assert!(text.parse::<Bind>().is_err(), "{text}");
        }
    }
}
