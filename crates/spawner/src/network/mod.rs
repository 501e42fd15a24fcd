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

use std::fs;

use sloplet_sys::clone::{Namespaces, SingleThreaded};
use sloplet_sys::loopback;

use crate::protocol::{During, Problem};
pub use outlet::Outlet;

/// The spawner's own network namespace, for the next child.
#[derive(Debug, Default)]
pub struct Network {
    fresh: bool,
}

impl Network {
    /// Makes sure that this process sits in a network namespace that no sandbox has used.
    pub fn prepare(&mut self, thread: &SingleThreaded) -> Result<(), Problem> {
        if self.fresh {
            return Ok(());
        }
        thread.unshare(Namespaces::NET).during("make a network namespace")?;
        loopback::bring_up().during("bring up loopback")?;
        // Nothing else is on this network: ports below 1024 protect nobody here, and servers inside want them.
        let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
        self.fresh = true;
        Ok(())
    }

    /// Lets the next child reach the host by sockets that stand for everybody else.
    pub fn open_outlet(&mut self) -> Result<Outlet, Problem> {
        // Whatever comes of it: only the child that it is for may have this namespace.
        self.fresh = false;
        Outlet::open()
    }

    /// A child has inherited it.
    pub fn used(&mut self) {
        self.fresh = false;
    }
}
