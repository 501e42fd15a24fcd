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
use std::os::fd::AsFd;

use sloplet_sys::clone::{Namespaces, SingleThreaded};
use sloplet_sys::loopback;

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
}

impl Network {
    /// Makes sure that this process sits in a network namespace that no sandbox has used.
    pub fn prepare(&mut self, thread: &SingleThreaded) -> Result<(), Problem> {
        if self.fresh {
            return Ok(());
        }
        self.home = None;
        make(thread)?;
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
        make(thread)?;
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

    /// Gives up what was made ahead for some child only.
    pub fn forget_spare(&mut self) {
        self.spare = None;
    }
}

/// Moves this process into a new network namespace.
fn make(thread: &SingleThreaded) -> Result<(), Problem> {
    thread.unshare(Namespaces::NET).during("make a network namespace")?;
    loopback::bring_up().during("bring up loopback")?;
    // Nothing else is on this network: ports below 1024 protect nobody here, and servers inside want them.
    let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    // Nor does anything here ever leave this machine's memory. What a host has for long ways (BBR paces by timers) costs a
    // loopback connection a fifth of its speed; this is built into every kernel.
    let _ = fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno");
    Ok(())
}

/// This process's network namespace.
fn own() -> Result<File, Problem> {
    File::open("/proc/self/ns/net").during("open a network namespace")
}
