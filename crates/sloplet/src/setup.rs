//! The engine of this binary: which walls it has, and where things are kept.

use std::path::PathBuf;

use anyhow::Context;
use sloplet_driver_namespaces::Namespaces;
use sloplet_driver_process::ProcessDriver;
use sloplet_engine::{Engine, Places};

/// An engine whose spawners are this very binary.
pub fn engine(data: Option<PathBuf>) -> anyhow::Result<Engine> {
    let mut places = Places::usual();
    if let Some(data) = data {
        places.data = std::path::absolute(data).context("finding the data folder")?;
    }
    // The link, not its target: it names this binary even after the file was replaced by an upgrade.
    let program = PathBuf::from("/proc/self/exe");
    let namespaces = Namespaces::new(&program, &places.run, &places.data, 1);
    let process = ProcessDriver::new(&program, &places.run);
    Ok(Engine::new(places, vec![Box::new(namespaces), Box::new(process)]))
}

/// A runtime with one thread: nothing here needs more, and threads cost time at the start.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")
}
