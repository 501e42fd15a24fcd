//! What every request needs to know about the sandbox.

use std::ffi::CString;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sloplet_sys::identity::ActingAs;
use sloplet_wire::Failure;

use crate::failure;
use crate::files::resolve::Root;
use crate::poll::Poll;
use crate::users::{self, User};
use crate::{Config, Identity};

/// The sandbox, as requests see it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) poll: Poll,
    pub(crate) root: Root,
    pub(crate) identity: Identity,
    pub(crate) oom: OomScore,
    pub(crate) ignored_signals: Vec<i32>,
}

/// How started processes get their score.
#[derive(Debug)]
pub(crate) enum OomScore {
    /// Not at all.
    Unset,
    /// They write it themselves before exec.
    Child(CString),
    /// The agent writes it after exec. The entry of a non-dumpable process that was forked into a user namespace
    /// belongs to the outer root: neither the agent nor its forked child may write it, until exec gives the child a
    /// new address space.
    Agent(CString),
}

impl Context {
    pub(crate) fn new(config: &Config) -> std::io::Result<Self> {
        let oom = match config.oom_score_adj {
            None => OomScore::Unset,
            Some(score) => {
                let value = CString::new(score.to_string())?;
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                match rustix::fs::open("/proc/self/oom_score_adj", flags, Mode::empty()) {
                    Ok(_) => OomScore::Child(value),
                    Err(_) => OomScore::Agent(value),
                }
            }
        };
        Ok(Self {
            poll: Poll::new()?,
            root: Root::new(&config.root)?,
            identity: config.identity.clone(),
            oom,
            ignored_signals: sloplet_sys::spawn::ignored_signals(),
        })
    }

    /// The user that a request names, or the default one.
    pub(crate) fn user(&self, asked: Option<&str>) -> Result<User, Failure> {
        users::find(&self.identity, &self.root, asked)
    }

    /// That user, ready to be acted as.
    pub(crate) fn actor(&self, asked: Option<&str>) -> Result<Actor, Failure> {
        let switches = matches!(self.identity, Identity::Switch { .. });
        Ok(Actor {
            user: self.user(asked)?,
            switches,
        })
    }
}

/// Somebody on whose behalf files are used.
#[derive(Debug, Clone)]
pub(crate) struct Actor {
    pub(crate) user: User,
    switches: bool,
}

impl Actor {
    pub(crate) fn new(user: User, identity: &Identity) -> Self {
        Self {
            user,
            switches: matches!(identity, Identity::Switch { .. }),
        }
    }

    /// Acts as that user on files until the result is dropped.
    pub(crate) fn act(&self) -> Result<Option<ActingAs>, Failure> {
        if !self.switches {
            return Ok(None);
        }
        ActingAs::new(self.user.uid, self.user.gid, &self.user.groups)
            .map(Some)
            .map_err(|error| {
                let number = Errno::from_io_error(&error).unwrap_or(Errno::PERM);
                failure::errno(number, format_args!("acting as user {}", self.user.uid))
            })
    }
}

/// A path's bytes.
pub(crate) fn path_bytes(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}
