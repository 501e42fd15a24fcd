//! Runtimes that take an OCI bundle: crun, runc, runsc.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::program;
use super::stopwatch::Stopwatch;

/// What `runc spec` writes, without a terminal and with `true` as its command: no limits, no seccomp filter, no user
/// namespace, which is less than our sandboxes have.
const CONFIG: &str = include_str!("bundle.json");

/// A runtime and its bundle.
pub struct Runtime {
    program: PathBuf,
    options: Vec<String>,
    bundle: PathBuf,
    idle_bundle: PathBuf,
    name: &'static str,
    /// Times its runs, if they must happen in a mount namespace of their own.
    stopwatch: Option<Stopwatch>,
}

impl Runtime {
    /// crun. It refuses hosts that have cgroup v1 controllers and a cgroup2 tree side by side, so the latter is hidden
    /// from it.
    pub fn crun(scratch: &Path, rootfs: &Path) -> Result<Self> {
        let runtime = Self::new("crun", &[], scratch, rootfs)?;
        Ok(Self { stopwatch: Some(Stopwatch::start()?), ..runtime })
    }

    /// runc.
    pub fn runc(scratch: &Path, rootfs: &Path) -> Result<Self> {
        Self::new("runc", &[], scratch, rootfs)
    }

    /// gVisor, with the platform that needs no virtualization.
    pub fn runsc(scratch: &Path, rootfs: &Path) -> Result<Self> {
        Self::new("runsc", &["--platform=ptrace", "--network=none"], scratch, rootfs)
    }

    fn new(name: &'static str, options: &[&str], scratch: &Path, rootfs: &Path) -> Result<Self> {
        let program = program::find(name)?;
        let dir = scratch.join(name);
        // An absolute path, as runc takes no symlink.
        let config = CONFIG.replace("\"rootfs\"", &serde_json::to_string(&rootfs)?);
        let idle_config = config.replace("\"true\"", "\"sleep\", \"1000000\"");
        let (bundle, idle_bundle) = (dir.join("bundle"), dir.join("idle-bundle"));
        for (bundle, config) in [(&bundle, &config), (&idle_bundle, &idle_config)] {
            fs::create_dir_all(bundle).context("making a bundle")?;
            fs::write(bundle.join("config.json"), config).context("making a bundle")?;
        }
        let mut all = vec!["--root".to_owned(), dir.join("state").display().to_string()];
        all.extend(options.iter().map(|option| (*option).to_owned()));
        Ok(Self { program, options: all, bundle, idle_bundle, name, stopwatch: None })
    }

    /// A whole run of `true`.
    pub fn run(&mut self) -> Result<Duration> {
        let bundle = self.bundle.display().to_string();
        let id = format!("bench-{}-{}", self.name, std::process::id());
        self.time(&["run", "--bundle", &bundle, &id])
    }

    /// A container that does nothing, to run commands in.
    pub fn start_idle(mut self) -> Result<Idle> {
        let bundle = self.idle_bundle.display().to_string();
        let id = format!("bench-idle-{}-{}", self.name, std::process::id());
        self.time(&["run", "--detach", "--bundle", &bundle, &id])?;
        Ok(Idle { runtime: self, id })
    }

    fn time(&mut self, arguments: &[&str]) -> Result<Duration> {
        match &mut self.stopwatch {
            Some(stopwatch) => {
                let options = self.options.iter().map(String::as_str);
                let program = self.program.display().to_string();
                let words: Vec<&str> =
                    std::iter::once(program.as_str()).chain(options).chain(arguments.iter().copied()).collect();
                stopwatch.time(&words)
            }
            None => program::time(Command::new(&self.program).args(&self.options).args(arguments)),
        }
    }
}

/// A running container that does nothing.
pub struct Idle {
    runtime: Runtime,
    id: String,
}

impl Idle {
    /// Runs `true` in it.
    pub fn exec(&mut self) -> Result<Duration> {
        self.runtime.time(&["exec", &self.id, "true"])
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        if let Err(error) = self.runtime.time(&["delete", "--force", &self.id]) {
            eprintln!("warning: the container {} may be left behind: {error:#}", self.id);
        }
    }
}
