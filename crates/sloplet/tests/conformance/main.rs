//! The same tests for every wall: what holds behind one holds behind all. A wall that lacks something is asked for it, too,
//! and must refuse.
//!
//! A wall is a line in [`walls!`]; a test is a function that takes a [`Wall`].

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod commands;
mod life;
mod limits;
mod memory;
mod network;

use std::time::Duration;

use common::{Ended, Host, Invocation, Sloplet};

/// Names the kernel that virtual machines boot, and where the test script puts one.
const KERNEL: &str = "SLOPLET_VM_KERNEL";
const USUAL_KERNEL: &str = "/var/cache/sloplet/tools/kernel";

/// A wall, and what it is known to lack.
#[derive(Debug, Clone, Copy)]
pub struct Wall {
    /// The driver's name.
    pub name: &'static str,
    /// Its level.
    pub isolation: &'static str,
    /// Whether it has a kernel of its own.
    pub own_kernel: bool,
    /// Whether it can save memory.
    pub memory_snapshots: bool,
    /// Whether it can write to folders of the host, volumes among them.
    pub shared_folders: bool,
    /// What its sandboxes are made of.
    pub image: &'static str,
}

impl Wall {
    /// A root user with the wall's image.
    pub fn sloplet(&self, host: &Host) -> Sloplet {
        let sloplet = host.root().with(KERNEL, &std::env::var(KERNEL).unwrap_or_else(|_| USUAL_KERNEL.into()));
        if self.image != "host" {
            common::built::copy_to(&sloplet, self.image);
        }
        sloplet
    }

    /// The words that ask for it.
    pub fn words(&self) -> [&'static str; 4] {
        ["--driver", self.name, "--image", self.image]
    }

    /// `sloplet run --driver <name> <options> -- <command>`.
    pub fn run(&self, sloplet: &Sloplet, options: &[&str], command: &[&str]) -> Ended {
        self.invoke(sloplet, options, command).finish()
    }

    /// The same, to be started.
    pub fn invoke(&self, sloplet: &Sloplet, options: &[&str], command: &[&str]) -> Invocation {
        // An emulated processor on a busy host takes its time.
        sloplet.invoke_run(&[&self.words(), options].concat(), command).within(Duration::from_secs(300))
    }

    /// The same with a program for Python: its own `ls` works behind every kernel.
    pub fn python(&self, sloplet: &Sloplet, options: &[&str], program: &str) -> Ended {
        self.run(sloplet, options, &["python3", "-c", program])
    }
}

/// All that work here are measured, by name.
#[test]
fn a_comparison() {
    let host = common::Host::shared();
    let picture = host.dir().join("root/walls.svg");
    let words = ["compare", "--rounds", "1", "--json", "--svg", picture.to_str().unwrap()];
    let rows = host.root().invoke(&words).finish().expect_code(0).json();
    for name in ["namespaces", "process", "gvisor"] {
        let row =
            rows.as_array().unwrap().iter().find(|row| row["driver"] == name).unwrap_or_else(|| panic!("{rows:#}"));
        for figure in ["start_ms", "exec_ms", "syscall_ns", "write_mb_s", "read_mb_s"] {
            assert!(row[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure}: {row:#}");
        }
    }
    assert!(std::fs::read_to_string(picture).unwrap().contains(">gvisor<"));
}

/// For each wall a module with all tests.
macro_rules! walls {
    ($($module:ident: $wall:expr;)*) => {
        $(mod $module {
            use super::*;
            const WALL: Wall = $wall;

            #[test]
            fn commands() { commands::test(WALL); }

            #[test]
            fn a_terminal() { commands::terminal(WALL); }

            #[test]
            fn limits() { limits::test(WALL); }

            #[test]
            fn the_network() { network::test(WALL); }

            #[test]
            fn a_life() { life::test(WALL); }

            #[test]
            fn a_crash() { life::crash(WALL); }

            #[test]
            fn memory() { memory::test(WALL); }
        })*
    };
}

walls! {
    namespaces: Wall {
        name: "namespaces",
        isolation: "container",
        own_kernel: false,
        memory_snapshots: false,
        shared_folders: true,
        image: "host",
    };
    gvisor: Wall {
        name: "gvisor",
        isolation: "gvisor",
        own_kernel: true,
        memory_snapshots: true,
        shared_folders: true,
        image: "host",
    };
    vm: Wall {
        name: "vm",
        isolation: "vm",
        own_kernel: true,
        memory_snapshots: true,
        shared_folders: false,
        image: "base",
    };
}
