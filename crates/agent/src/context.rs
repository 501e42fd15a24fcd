//! What every request needs to know about the sandbox.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use sloplet_sys::filter::SockFilter;
use sloplet_sys::identity::ActingAs;
use sloplet_wire::{ErrorCode, Failure};

use crate::failure::{self, fail};
use crate::files::resolve::Root;
use crate::listen::Listeners;
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
    spare_filter: Option<Vec<SockFilter>>,
    pub(crate) ignored_signals: Vec<i32>,
    /// Ports and sockets that it listens on for the host.
    pub(crate) listeners: Listeners,
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
            spare_filter: config.spare_filter.clone(),
            ignored_signals: sloplet_sys::spawn::ignored_signals(),
            listeners: Listeners::default(),
        })
    }

    /// Puts the spare filter in force. Whoever runs already would not be under it.
    pub(crate) fn filter_commands(&mut self) -> Result<(), Failure> {
        if self.command_filter.is_some() {
            return Ok(());
        }
        if self.spare_filter.is_none() {
            return Err(fail(ErrorCode::Unsupported, "this agent was given no filter for later"));
        }
        // The kernel leaves out the first process of a namespace, which is this one.
        match sloplet_sys::spawn::send_signal(-1, 0) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {
                self.command_filter = self.spare_filter.take();
                Ok(())
            }
            _ => Err(fail(ErrorCode::Invalid, "processes run here already, which no filter would hold")),
        }
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
