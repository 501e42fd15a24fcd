//! The engine of this binary: which walls it has, and where things are kept.

use std::path::{Path, PathBuf};

use anyhow::Context;
use sloplet_driver_namespaces::Namespaces;
use sloplet_driver_process::ProcessDriver;
use sloplet_engine::{Engine, Places};
use sloplet_policy::{Isolation, Spec};
use sloplet_spawner::launcher::Forked;

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

/// An engine whose spawners are this very binary. A spawner that was forked at the start goes to the wall that is asked
/// for.
pub fn engine(data: Option<PathBuf>, forked: Option<(Forked, Isolation)>) -> anyhow::Result<Engine> {
    let places = places(data)?;
    let mut namespaces = Namespaces::new(Path::new(PROGRAM), &places.run, &places.data, 1);
    let mut process = ProcessDriver::new(Path::new(PROGRAM), &places.run);
    match forked {
        Some((forked, Isolation::Process)) => process = process.with_forked(forked),
        Some((forked, _)) => namespaces = namespaces.with_forked(forked),
        None => {}
    }
    Ok(Engine::new(places, vec![Box::new(namespaces), Box::new(process)]))
}

/// An engine whose sandboxes outlive it, with a spawner for each processor (up to four).
pub fn lasting_engine(data: Option<PathBuf>) -> anyhow::Result<Engine> {
    let places = places(data)?;
    let spawners = std::thread::available_parallelism().map_or(1, |number| number.get().min(4));
    let namespaces = Namespaces::new(Path::new(PROGRAM), &places.run, &places.data, spawners).lasting();
    Ok(Engine::new(places, vec![Box::new(namespaces)]))
}

/// The name of the wall that a description asks for, without an engine.
pub fn driver_of(spec: &Spec) -> &str {
    match (&spec.driver, spec.isolation) {
        (Some(name), _) => name,
        (None, Isolation::Container) => "namespaces",
        (None, other) => other.name(),
    }
}

/// A runtime with one thread: nothing here needs more, and threads cost time at the start.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")
}
