//! A living sandbox as the spawner sees it, and what it holds on the host.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock, fstatvfs};
use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::cgroup::Group;
use crate::container::late::Claimable;
use crate::lease::Lease;
use crate::process;
use crate::protocol::{During, Living, Overdue, Problem, Usage, receive};

/// A living sandbox.
pub struct Sandbox {
    /// Its name.
    pub id: String,
    /// Its first process.
    pub pid: i32,
    /// The same, for sure.
    pub pidfd: OwnedFd,
    /// Where what it writes is.
    pub stage: Stage,
    /// The copying of what it has written, while it goes on.
    pub copying: Option<Copying>,
    /// Its control group.
    pub group: Group,
    /// Whether it is to be frozen when nothing is being copied.
    pub frozen: bool,
    /// Whether it outlives the engine.
    pub lasting: bool,
    /// When it was made.
    pub born: Instant,
    /// When its time is over.
    pub deadline: Option<Instant>,
    /// What happens then.
    pub overdue: Overdue,
    /// It was killed because its time was over.
    pub timed_out: bool,
    /// Kept from being removed.
    pub layers: Vec<Rc<HeldLayer>>,
    /// The sockets of its outlet. The engine has them, too; the next one gets these.
    pub outlet: Vec<OwnedFd>,
    /// How it can be given mounts, if it was made to be.
    pub claimable: Option<Claimable>,
    /// Its agent's socket.
    pub door: Option<Door>,
    /// Before the lease: while the folder exists, nobody else may have the id that owns it.
    pub scratch: Option<process::Scratch>,
    /// Its user ids.
    pub lease: Option<Lease>,
}

/// A process that copies what a sandbox has written.
pub struct Copying {
    /// Of the order.
    pub ticket: u64,
    /// The process.
    pub pidfd: OwnedFd,
    /// Where it says what it has done.
    pub result: OwnedFd,
    /// When the sandbox was frozen for it, if it was not frozen anyway.
    pub frozen_at: Option<Instant>,
}

impl Sandbox {
    /// Kills it; whoever watches its pidfd hears when that is done.
    pub fn kill(&mut self) {
        if let Some(copying) = &self.copying {
            let _ = pidfd_send_signal(&copying.pidfd, Signal::KILL);
        }
        if std::mem::take(&mut self.frozen) || self.copying.is_some() {
            // On cgroup v1, a frozen process does not die.
            let _ = self.group.freeze(false);
        }
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Freezes or thaws it. One that was frozen for the copying stays so until that is done; where the copying merely
    /// made use of the time, it is given up.
    pub fn set_frozen(&mut self, frozen: bool) -> Result<(), Problem> {
        match &self.copying {
            Some(copying) if !frozen && copying.frozen_at.is_none() => {
                // Dead before anything changes under it; the loop hears of it and tells.
                kill_and_wait(&copying.pidfd);
                self.group.freeze(false)?;
            }
            Some(_) => {}
            None => self.group.freeze(frozen)?,
        }
        self.frozen = frozen;
        Ok(())
    }

    /// The copying is over, however it ended; returns for how long that kept the sandbox frozen.
    pub fn end_copying(&mut self, copying: Copying) -> Duration {
        kill_and_wait(&copying.pidfd);
        let Some(since) = copying.frozen_at else { return Duration::ZERO };
        if !self.frozen {
            let _ = self.group.freeze(false);
        }
        since.elapsed()
    }

    /// What a new engine must know.
    pub fn describe(&self) -> Living {
        let age_ms = self.born.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
        Living { id: self.id.clone(), pid: self.pid, frozen: self.frozen, age_ms }
    }

    /// The sockets of its outlet, to be passed on.
    pub fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        self.outlet.iter().map(AsFd::as_fd).collect()
    }

    /// What it uses now.
    pub fn usage(&mut self) -> Usage {
        let mut usage = self.group.usage();
        if let Some(stat) = self.stage.upper().and_then(|upper| fstatvfs(upper).ok()) {
            usage.disk_total = stat.f_blocks * stat.f_frsize;
            usage.disk_used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize;
            usage.files_total = stat.f_files;
            usage.files_used = stat.f_files - stat.f_ffree;
        }
        usage
    }
}

/// Where what a sandbox writes is. The child hands it out while it builds its walls, and nobody waits for that.
#[derive(Debug)]
pub enum Stage {
    /// Not known, and will not be.
    Unknown,
    /// To be received.
    Coming(OwnedFd),
    /// The folder.
    Known(OwnedFd),
}

impl Stage {
    /// The folder, if it is known by now.
    pub fn upper(&mut self) -> Option<&OwnedFd> {
        if let Self::Coming(supplies) = self {
            let _ = rustix::io::ioctl_fionbio(&*supplies, true);
            if let Ok(Some((0u8, fds))) = receive(supplies) {
                *self = fds.into_iter().next().map_or(Self::Unknown, Self::Known);
            }
        }
        match self {
            Self::Known(upper) => Some(upper),
            _ => None,
        }
    }
}

/// The socket of an agent; its name goes with the sandbox.
#[derive(Debug)]
pub struct Door(pub PathBuf);

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A layer that the image store must not remove: a shared lock on its folder, which that one asks for.
#[derive(Debug)]
pub struct HeldLayer {
    _lock: File,
}

/// The layers that living sandboxes use, each held once.
#[derive(Debug, Default)]
pub struct HeldLayers(HashMap<PathBuf, Weak<HeldLayer>>);

impl HeldLayers {
    /// Holds a layer, which the engine holds, too, at this moment.
    pub fn hold(&mut self, path: &Path) -> Result<Rc<HeldLayer>, Problem> {
        if let Some(held) = self.0.get(path).and_then(Weak::upgrade) {
            return Ok(held);
        }
        self.0.retain(|_, held| held.strong_count() > 0);
        let step = format!("hold the layer {}", path.display());
        let lock = File::open(path).during(&step)?;
        flock(&lock, FlockOperation::NonBlockingLockShared).during(&step)?;
        let (held, there) = (lock.metadata().during(&step)?, fs::symlink_metadata(path).during(&step)?);
        if (held.dev(), held.ino()) != (there.dev(), there.ino()) {
            return Err(Problem::plain(&step, "it was removed just now"));
        }
        let held = Rc::new(HeldLayer { _lock: lock });
        self.0.insert(path.to_owned(), Rc::downgrade(&held));
        Ok(held)
    }
}

/// Kills a child and waits until it is dead.
pub fn kill_and_wait(pidfd: &OwnedFd) {
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
    while matches!(waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED), Err(Errno::INTR)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_locked_as_long_as_somebody_uses_it_and_only_once() {
        let dir = tempfile::tempdir().unwrap();
        let free = || {
            let lock = File::open(dir.path()).unwrap();
            flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        };
        let mut layers = HeldLayers::default();
        let first = layers.hold(dir.path()).unwrap();
        let second = layers.hold(dir.path()).unwrap();
        assert!(Rc::ptr_eq(&first, &second));
        drop(first);
        assert!(!free());
        drop(second);
        assert!(free());
        let third = layers.hold(dir.path()).unwrap();
        assert!(!free());
        drop(third);
        assert!(layers.hold(&dir.path().join("none")).is_err());
        assert_eq!(layers.0.len(), 0);
    }
}
