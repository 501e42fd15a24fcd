//! A program on this host, run once.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Where a program is, if it is installed.
pub fn find(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let found = std::env::split_paths(&path).chain(extra).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("{name} is not installed"))
}

/// Runs it to its end, which must be a good one, and returns how long that took. Its path is absolute and it changes
/// neither folder nor user, so the standard library uses the cheapest way to start it (`posix_spawn`).
pub fn time(command: &mut Command) -> Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let started = Instant::now();
    let status = command.status().with_context(|| format!("starting {}", name_of(command)))?;
    let time = started.elapsed();
    if !status.success() {
        // Once more, for its last words: keeping them would have cost time that is not its own.
        output(command)?;
        bail!("{} ended with {status}", name_of(command));
    }
    Ok(time)
}

/// Runs it and returns what it wrote; if it fails, its last words are the error.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("starting {}", name_of(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}", name_of(command), said.lines().last().unwrap_or("failed without a word"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn name_of(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}
