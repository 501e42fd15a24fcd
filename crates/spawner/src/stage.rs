//! The spawner's own namespaces, and the templates that it keeps in them.
//!
//! Templates are mounted where only the spawner sees them; every sandbox gets copies. Whoever is about to make one
//! sandbox only enters as early and leaves as early as possible: making and freeing namespaces takes time that nobody
//! has to wait for.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, mkdir, open};
use rustix::mount::{MountAttrFlags, MountPropagationFlags, mount_change};
use sloplet_sys::clone::{Namespaces, SingleThreaded};

use crate::bare::Bare;
use crate::container::root::{attach, new_filesystem};
use crate::container::{devices, procfs};
use crate::idmap;
use crate::network::Network;
use crate::owner::TEMPLATES;
use crate::protocol::{During, Privilege, Problem};

/// The spawner's namespaces.
#[derive(Debug, Default)]
pub struct Stage {
    /// Network namespaces, a fresh one at a time.
    pub network: Network,
    /// The mount namespace to go back to.
    home: Option<File>,
    entered: bool,
    templates: Option<PathBuf>,
    bare: Option<Bare>,
}

impl Stage {
    /// As root, what needs no further instructions. Failures are told by [`Self::set`], which tries again.
    pub fn enter_ahead(&mut self, thread: &SingleThreaded, outlet: bool) {
        if rustix::process::geteuid().is_root() {
            let _ = self.enter(thread, &Privilege::Root);
            let _ = self.network.prepare(thread);
            if outlet {
                let _ = self.network.expect_outlet(thread);
            }
        }
    }

    fn enter(&mut self, thread: &SingleThreaded, privilege: &Privilege) -> Result<(), Problem> {
        if self.entered {
            return Ok(());
        }
        match privilege {
            Privilege::Root => {
                self.home = File::open("/proc/self/ns/mnt").ok();
                thread.unshare(Namespaces::MOUNT).during("make a mount namespace")?;
            }
            _ => idmap::enter_own_user_namespace(thread, privilege)?,
        }
        self.entered = true;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).during("detach from the host's mounts")
    }

    /// Makes sure that everything is in place for a sandbox.
    pub fn set(&mut self, thread: &SingleThreaded, privilege: &Privilege, run_dir: &Path) -> Result<(), Problem> {
        self.enter(thread, privilege)?;
        self.network.prepare(thread)?;
        if self.templates.is_some() {
            return Ok(());
        }
        let step = "prepare templates";
        let place = run_dir.join(TEMPLATES);
        let find = || open(&place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let target = match find() {
            Ok(target) => target,
            Err(_) => {
                fs::create_dir_all(&place).during(step)?;
                find().during(step)?
            }
        };
        let options = [("size", "64k".to_owned()), ("mode", "0755".to_owned())];
        attach(new_filesystem("tmpfs", &options, MountAttrFlags::empty())?, target.as_fd(), "the templates")?;
        for name in [DEVICES, MASKS] {
            mkdir(place.join(name), Mode::from_raw_mode(0o755)).during(step)?;
        }
        devices::fill(&place.join(DEVICES), privilege)?;
        procfs::fill(&place.join(MASKS))?;
        self.templates = Some(place);
        Ok(())
    }

    /// Goes back to the host's mounts, where that is possible, so that what was mounted here is freed now and not when
    /// somebody waits for the end of this process.
    pub fn leave(&mut self, thread: &SingleThreaded) {
        self.network.rest();
        if let Some(home) = self.home.take()
            && thread.enter(home.as_fd()).is_ok()
        {
            self.entered = false;
            self.templates = None;
            self.bare = None;
        }
    }

    /// Makes what costs time once and saves some with each sandbox. Without it, they are made in the usual way.
    pub fn expect_many(&mut self, thread: &SingleThreaded, privilege: &Privilege) {
        if self.bare.is_none() && *privilege == Privilege::Root {
            self.bare = Bare::make(thread).ok();
        }
    }

    /// Where children are forked, if there is such a place.
    pub fn bare(&self) -> Option<&Bare> {
        self.bare.as_ref()
    }

    /// The template of `/dev`.
    pub fn devices(&self) -> PathBuf {
        self.templates.clone().unwrap_or_default().join(DEVICES)
    }

    /// The masks of `/proc`.
    pub fn masks(&self) -> PathBuf {
        self.templates.clone().unwrap_or_default().join(MASKS)
    }
}

const DEVICES: &str = "dev";
const MASKS: &str = "masks";
