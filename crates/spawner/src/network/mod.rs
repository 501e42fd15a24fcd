//! Network namespaces: loopback, and for those that may ask the host for more, a way to ask.
//!
//! Making one takes as long as everything else together, so the spawner moves *itself* into a fresh one ahead of time
//! (while the engine is still looking up the image, or after the previous sandbox was forked): the next child inherits
//! it. It belongs to the spawner's user namespace, so that nobody inside holds any capability over it.
//!
//! - [`outlet`]: sockets in it that the host accepts on. [`routes`], [`rules`]: what leads there.
//! - [`netlink`]: talking to the kernel about both.

pub mod netlink;
pub mod outlet;
pub mod routes;
pub mod rules;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::MountAttrFlags;
use sloplet_sys::clone::{Namespaces, SingleThreaded};
use sloplet_sys::loopback;

use crate::container::root::new_filesystem;
use crate::protocol::{During, Problem};
pub use outlet::Outlet;

/// The spawner's own network namespace, for the next child.
#[derive(Debug, Default)]
pub struct Network {
    fresh: bool,
    /// A way out of it, made ahead.
    expected: Option<Outlet>,
    /// Another one, with a way out, made ahead.
    spare: Option<(File, Outlet)>,
    /// The fresh one, while this process is in the other.
    home: Option<File>,
    /// Where the latest one's settings were made: closing it takes a tenth of a millisecond, and has time.
    settings: Option<OwnedFd>,
}

impl Network {
    /// Makes sure that this process sits in a network namespace that no sandbox has used.
    pub fn prepare(&mut self, thread: &SingleThreaded) -> Result<(), Problem> {
        if self.fresh {
            return Ok(());
        }
        self.home = None;
        self.settings = make(thread)?;
        self.fresh = true;
        Ok(())
    }

    /// Opens a way out of this very one, because the next child will want it.
    pub fn expect_outlet(&mut self, thread: &SingleThreaded) -> Result<(), Problem> {
        self.prepare(thread)?;
        if self.expected.is_none() {
            let outlet = Outlet::open();
            self.fresh = outlet.is_ok();
            self.expected = Some(outlet?);
        }
        Ok(())
    }

    /// The next child wants no way out.
    pub fn expect_none(&mut self, thread: &SingleThreaded) -> Result<(), Problem> {
        if self.expected.take().is_some() {
            self.fresh = false;
        }
        self.prepare(thread)
    }

    /// Makes one with a way out for the next child that wants it, and comes back to the fresh one.
    pub fn prepare_outlet(&mut self, thread: &SingleThreaded) -> Result<(), Problem> {
        if self.spare.is_some() {
            return Ok(());
        }
        self.prepare(thread)?;
        let home = own()?;
        // Should anything fail: wherever this process is then, no child may have it.
        self.fresh = false;
        self.settings = make(thread)?;
        let outlet = Outlet::open();
        let namespace = own();
        thread.enter(home.as_fd()).during("come back from a network namespace")?;
        self.fresh = true;
        self.spare = Some((namespace?, outlet?));
        Ok(())
    }

    /// Lets the next child reach the host by sockets that stand for everybody else.
    pub fn open_outlet(&mut self, thread: &SingleThreaded) -> Result<Outlet, Problem> {
        // Whatever comes of it: only the child that it is for may have this namespace.
        let fresh = std::mem::replace(&mut self.fresh, false);
        if let Some(outlet) = self.expected.take() {
            return Ok(outlet);
        }
        match self.spare.take() {
            Some((namespace, outlet)) => {
                self.home = if fresh { own().ok() } else { None };
                thread.enter(namespace.as_fd()).during("enter a network namespace")?;
                Ok(outlet)
            }
            None => Outlet::open(),
        }
    }

    /// A child has inherited it.
    pub fn used(&mut self, thread: &SingleThreaded) {
        self.fresh = self.home.take().is_some_and(|home| thread.enter(home.as_fd()).is_ok());
    }

    /// Does what has waited until there was time.
    pub fn rest(&mut self) {
        self.settings = None;
    }

    /// Gives up what was made ahead for some child only.
    pub fn forget_spare(&mut self) {
        self.spare = None;
    }
}

/// Moves this process into a new network namespace; returns where its settings were made.
fn make(thread: &SingleThreaded) -> Result<Option<OwnedFd>, Problem> {
    thread.unshare(Namespaces::NET).during("make a network namespace")?;
    loopback::bring_up().during("bring up loopback")?;
    Ok(suit_a_small_network())
}

/// Settings of a network that nothing else is on.
const SETTINGS: [(&str, &str); 2] = [
    // Ports below 1024 protect nobody here, and servers inside want them.
    ("ip_unprivileged_port_start", "0"),
    // Nothing here ever leaves this machine's memory. What a host has for long ways (BBR paces by timers) costs a loopback
    // connection a fifth of its speed; this is built into every kernel.
    ("tcp_congestion_control", "reno"),
];

/// Makes the settings, as far as the kernel has them.
fn suit_a_small_network() -> Option<OwnedFd> {
    // The host's `/proc` keeps entries of these names for every network namespace there is, and looks through all of them
    // each time. A new one, where that can be had, does not.
    let proc = new_filesystem("proc", &[], MountAttrFlags::empty());
    for (name, value) in SETTINGS {
        let path = format!("sys/net/ipv4/{name}");
        let _ = match &proc {
            Ok(proc) => openat(proc, &path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
                .and_then(|setting| rustix::io::write(&setting, value.as_bytes()).map(drop))
                .map_err(io::Error::from),
            Err(_) => fs::write(format!("/proc/{path}"), value),
        };
    }
    proc.ok()
}

/// This process's network namespace.
fn own() -> Result<File, Problem> {
    File::open("/proc/self/ns/net").during("open a network namespace")
}
