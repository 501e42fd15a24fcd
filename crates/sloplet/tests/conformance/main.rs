//! The same tests for every wall: what holds behind one holds behind all. A wall that lacks something is asked for it, too,
//! and must refuse.
//!
//! A wall is a line in [`walls!`]; a test is a function that takes a [`Wall`].

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod commands;
mod devices;
mod life;
mod limits;
mod memory;
mod network;
mod pools;
mod verify;
mod whole;

use std::time::Duration;

use common::docker::{Engine, IMAGE};
use common::{Ended, Host, Invocation, Sloplet};

/// Names the kernel that virtual machines boot.
const KERNEL: &str = "SLOPLET_VM_KERNEL";

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
    /// Whether it is a container engine's: with images of its own, one user, a root that cannot be changed, the host's ids;
    /// without snapshots and volumes.
    pub engine: bool,
}

/// One that lacks nothing but a kernel of its own, and what goes with it.
const USUAL: Wall = Wall {
    name: "namespaces",
    isolation: "container",
    own_kernel: false,
    memory_snapshots: false,
    shared_folders: true,
    image: "host",
    engine: false,
};

/// Virtual machines. What they are made of is copied, so a small image.
const VM: Wall = Wall {
    name: "vm",
    isolation: "vm",
    own_kernel: true,
    memory_snapshots: true,
    shared_folders: false,
    image: "base",
    ..USUAL
};

/// What a test of a wall runs on. The engine, if there is one, ends before the host's folder is removed.
pub struct Ground {
    /// For walls that need one.
    pub engine: Option<Engine>,
    /// The machine.
    pub host: Host,
    wall: Wall,
}

impl Ground {
    /// sloplet as root, with what the wall needs.
    pub fn root(&self) -> Sloplet {
        let sloplet = self.host.root().with(KERNEL, common::tools::kernel().to_str().unwrap());
        match &self.engine {
            Some(engine) => engine.known_to(sloplet),
            None => {
                if self.wall.image != "host" {
                    common::built::copy_to(&sloplet, self.wall.image);
                }
                sloplet
            }
        }
    }
}

impl Wall {
    /// Takes a turn on the machine, next to other tests.
    pub fn shared(self) -> Ground {
        self.on(Host::shared())
    }

    /// The same, with no other test.
    pub fn alone(self) -> Ground {
        self.on(Host::alone())
    }

    fn on(self, host: Host) -> Ground {
        Ground { engine: self.engine.then(|| Engine::start(&host)), host, wall: self }
    }

    /// Makes a test of it; of one that boots machines of an image that takes minutes to build, only if there is time.
    pub fn unless_slow(self, test: impl Fn(Self)) {
        if !(common::fast() && self.image == VM.image) {
            test(self);
        }
    }

    /// Whether it has volumes, or how it refuses them.
    pub fn volumes(&self) -> Result<(), &'static str> {
        match self {
            Self { engine: true, .. } => Err("cannot mount volumes"),
            Self { shared_folders: false, .. } => Err("use a read-only mount"),
            _ => Ok(()),
        }
    }

    /// What names it, for `run` and `create`.
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

    /// `create --driver <name> <options>`.
    pub fn creation<'a>(&self, options: &[&'a str]) -> Vec<&'a str> {
        [&["create"], &self.words()[..], options].concat()
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
    for name in ["namespaces", "process", "gvisor", "crun", "runc"] {
        let row =
            rows.as_array().unwrap().iter().find(|row| row["driver"] == name).unwrap_or_else(|| panic!("{rows:#}"));
        for figure in ["start_ms", "exec_ms", "memory_bytes", "syscall_ns", "write_mb_s", "read_mb_s"] {
            assert!(row[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure}: {row:#}");
        }
    }
    assert!(std::fs::read_to_string(picture).unwrap().contains(">gvisor<"));
}

/// A runtime that this host lacks, or that cannot be used in this way, is known and refused, and nothing else is taken in its
/// place.
#[test]
fn kata_is_refused() {
    let host = common::Host::shared();
    let sloplet = host.root();
    let refused = sloplet.run(&["--driver", "kata"], &["true"]).expect_code(125);
    refused.expect_said("kata").expect_said("--isolation vm");
    let reports = sloplet.invoke(&["doctor", "--json"]).finish().json();
    let kata = reports.as_array().unwrap().iter().find(|report| report["driver"] == "kata").unwrap().clone();
    assert!(kata["unavailable"].as_str().is_some_and(|reason| reason.contains("kata")), "{kata}");
}

/// For each wall a module with all tests.
macro_rules! walls {
    ($($module:ident: $wall:expr;)*) => {
        $(mod $module {
            use super::*;
            const WALL: Wall = $wall;

            #[test]
            fn commands() { WALL.unless_slow(commands::test); }

            #[test]
            fn a_terminal() { WALL.unless_slow(commands::terminal); }

            #[test]
            fn limits() { WALL.unless_slow(limits::test); }

            #[test]
            fn the_network() { WALL.unless_slow(network::test); }

            #[test]
            fn a_life() { WALL.unless_slow(life::test); }

            #[test]
            fn a_crash() { WALL.unless_slow(life::crash); }

            #[test]
            fn memory() { WALL.unless_slow(memory::test); }

            #[test]
            fn a_verification() { WALL.unless_slow(verify::test); }
        })*
    };
}

walls! {
    namespaces: USUAL;
    crun: Wall { name: "crun", ..USUAL };
    runc: Wall { name: "runc", ..USUAL };
    docker: Wall { name: "docker", image: IMAGE, engine: true, ..USUAL };
    gvisor: Wall { name: "gvisor", isolation: "gvisor", own_kernel: true, memory_snapshots: true, ..USUAL };
    vm: VM;
}
