//! The engine of this binary: which walls it has, and where things are kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use sloplet_driver_docker::Docker;
use sloplet_driver_namespaces::Namespaces;
use sloplet_driver_oci::{Flavour, Oci};
use sloplet_driver_process::ProcessDriver;
use sloplet_driver_vm::{Vm, Whole};
use sloplet_engine::{Driver, Engine, Places};
use sloplet_policy::Isolation;
use sloplet_spawner::launcher::Forked;

use crate::api::Search;

/// This binary. The link, not its target: it names it even after the file was replaced by an upgrade.
pub const PROGRAM: &str = "/proc/self/exe";

/// Where things are kept.
pub fn places(data: Option<PathBuf>) -> anyhow::Result<Places> {
    let mut places = Places::usual();
    if let Some(data) = data {
        places.data = std::path::absolute(data).context("finding the data folder")?;
    }
    Ok(places)
}

/// Where a server is looked for.
pub fn search(data: Option<PathBuf>, autostart: bool) -> anyhow::Result<Search> {
    let Places { data, run } = places(data)?;
    Ok(Search { data, run, autostart })
}

/// An engine whose spawners are this very binary. A spawner that was forked at the start goes to the wall that is asked
/// for.
pub fn engine(data: Option<PathBuf>, forked: Option<(Forked, Isolation)>) -> anyhow::Result<Engine> {
    let places = places(data)?;
    let run = places.own_run()?;
    let mut namespaces = Namespaces::new(Path::new(PROGRAM), &run, &places.data, 1);
    let mut process = ProcessDriver::new(Path::new(PROGRAM), &run);
    match forked {
        Some((forked, Isolation::Process)) => process = process.with_forked(forked),
        Some((forked, _)) => namespaces = namespaces.with_forked(forked),
        None => {}
    }
    let namespaces = Arc::new(namespaces);
    let mut walls = stronger(&namespaces, &places);
    walls.splice(0..0, [Box::new(namespaces) as Box<dyn Driver>, Box::new(process)]);
    walls.extend(machines(Vm::new(Path::new(PROGRAM), &run, &places.data)));
    walls.push(Box::new(Docker::new(Path::new(PROGRAM), &places.data)));
    Ok(Engine::new(places, walls))
}

/// An engine whose sandboxes outlive it, with a spawner for each processor (up to four).
pub fn lasting_engine(data: Option<PathBuf>) -> anyhow::Result<Engine> {
    let places = places(data)?;
    let run = places.own_run()?;
    let spawners = std::thread::available_parallelism().map_or(1, |number| number.get().min(4));
    let namespaces = Namespaces::new(Path::new(PROGRAM), &run, &places.data, spawners).lasting();
    let namespaces = Arc::new(namespaces);
    let mut walls = stronger(&namespaces, &places);
    walls.insert(0, Box::new(namespaces));
    walls.extend(machines(Vm::new(Path::new(PROGRAM), &run, &places.data).lasting()));
    walls.push(Box::new(Docker::new(Path::new(PROGRAM), &places.data)));
    Ok(Engine::new(places, walls))
}

/// The walls besides the usual ones. None of them does anything before it is asked for something.
fn stronger(namespaces: &Arc<Namespaces>, places: &Places) -> Vec<Box<dyn Driver>> {
    let oci =
        |flavour| Box::new(Oci::new(flavour, namespaces.clone(), Path::new(PROGRAM), &places.data)) as Box<dyn Driver>;
    Flavour::ALL.into_iter().map(oci).collect()
}

/// Virtual machines: those with a sandbox in them, and whole ones.
fn machines(machines: Vm) -> [Box<dyn Driver>; 2] {
    let machines = Arc::new(machines);
    [Box::new(machines.clone()), Box::new(Whole::new(machines))]
}

/// A runtime with one thread: nothing here needs more, and threads cost time at the start.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")
}
