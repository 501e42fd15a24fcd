//! What every request needs to know about the sandbox.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use sloplet_sys::filter::SockFilter;
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
    pub(crate) oom: Option<OomScore>,
    pub(crate) command_filter: Option<Vec<SockFilter>>,
    pub(crate) ignored_signals: Vec<i32>,
}

/// The agent's own score, raised while it forks.
///
/// A child cannot raise its own: the entry of a process that is not dumpable belongs to the outer root, until exec gives
/// the child a new address space. A score is inherited, and going back to the old one needs no privilege.
#[derive(Debug)]
pub(crate) struct OomScore {
    file: File,
    own: String,
}

/// What started processes get: enough to be chosen before an agent of a few hundred KiB, whatever their size.
const RAISED: &[u8] = b"500";

impl OomScore {
    fn new(mut file: File) -> std::io::Result<Self> {
        let mut own = String::new();
        file.read_to_string(&mut own)?;
        Ok(Self { file, own })
    }

    /// Runs `fork` with the score raised. Failures are ignored: then merely the order of killing is left to chance.
    pub(crate) fn raised<T>(this: Option<&Self>, fork: impl FnOnce() -> T) -> T {
        let write = |bytes: &[u8]| this.map(|score| score.file.write_all_at(bytes, 0));
        let _ = write(RAISED);
        let result = fork();
        let _ = this.and_then(|score| write(score.own.trim().as_bytes()));
        result
    }
}

impl Context {
    pub(crate) fn new(config: &Config) -> std::io::Result<Self> {
        let oom = config.oom_score.as_ref().map(|file| OomScore::new(file.try_clone()?)).transpose()?;
        Ok(Self {
            poll: Poll::new()?,
            root: Root::new(&config.root)?,
            identity: config.identity.clone(),
            oom,
            command_filter: config.command_filter.clone(),
            ignored_signals: sloplet_sys::spawn::ignored_signals(),
        })
    }

    /// The user that a request names, or the default one.
    pub(crate) fn user(&self, asked: Option<&str>) -> Result<User, Failure> {
        users::find(&self.identity, &self.root, asked)
    }

    /// That user, ready to be acted as, or for.
    pub(crate) fn actor(&self, asked: Option<&str>, privileged: bool) -> Result<Actor, Failure> {
        let actor = Actor::new(self.user(asked)?, &self.identity);
        Ok(Actor { privileged: privileged && actor.switches, ..actor })
    }
}

/// Somebody on whose behalf files are used.
#[derive(Debug, Clone)]
pub(crate) struct Actor {
    pub(crate) user: User,
    switches: bool,
    /// Acts as the agent itself, which is root, and gives what it makes to the user.
    privileged: bool,
}

impl Actor {
    pub(crate) fn new(user: User, identity: &Identity) -> Self {
        Self { user, switches: matches!(identity, Identity::Switch { .. }), privileged: false }
    }

    /// Acts as that user on files until the result is dropped.
    pub(crate) fn act(&self) -> Result<Option<ActingAs>, Failure> {
        if !self.switches || self.privileged {
            return Ok(None);
        }
        ActingAs::new(self.user.uid, self.user.gid, &self.user.groups).map(Some).map_err(|error| {
            let number = Errno::from_io_error(&error).unwrap_or(Errno::PERM);
            failure::errno(number, format_args!("acting as user {}", self.user.uid))
        })
    }
}

impl Actor {
    /// Who must be given what was made, because somebody else made it.
    pub(crate) fn owner(&self) -> Option<(Uid, Gid)> {
        self.privileged.then(|| (Uid::from_raw(self.user.uid), Gid::from_raw(self.user.gid)))
    }
}

/// A path's bytes.
pub(crate) fn path_bytes(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}
