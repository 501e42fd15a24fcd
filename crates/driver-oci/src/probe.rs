//! What works on this host. Finding out takes a second: it is remembered, for as long as the program is the same.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sloplet_engine::places;
use sloplet_monitor::{Done, Task, perform, task};

use crate::flavour::Flavour;

/// How long a trial may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Ways of gVisor to hear of system calls, the best first. `kvm` is not among them: it needs a device that the walls around
/// the runtime do not have.
const PLATFORMS: [&str; 2] = ["systrap", "ptrace"];

/// What was found out.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The program.
    pub program: PathBuf,
    /// Size, time and place of the program then.
    stamp: String,
    /// What it says of its version.
    pub version: String,
    /// How it hears of system calls; empty where there is no choice.
    pub platform: String,
    /// Whether `ls` of the host works in it: releases of gVisor before 2023 refuse a flag of `statx` that coreutils 9 uses.
    pub lists: bool,
    /// What it is linked with, by the paths that its loader uses.
    #[serde(default)]
    pub libraries: Vec<PathBuf>,
}

/// Looks it up, or finds out. `Err` says why it cannot work here.
pub fn found(flavour: Flavour, data: &Path) -> Result<Found, String> {
    let Some(program) = flavour.find() else {
        return Err(format!("{} is not installed: {}", flavour.program(), flavour.remedy()));
    };
    if let Some(reason) = flavour.unusable() {
        return Err(reason.to_owned());
    }
    let stamp = stamp(&program).map_err(|error| format!("{}: {error}", program.display()))?;
    let file = data.join("probes").join(format!("{}.json", flavour.program()));
    let known = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Found>(&text).ok());
    if let Some(known) = known.filter(|known| known.program == program && known.stamp == stamp) {
        return Ok(known);
    }
    let (found, _) = perform(&PROBE, &flavour.program(), Vec::new()).map_err(|error| error.to_string())?;
    let _ = serde_json::to_vec(&found).map(|text| places::replace(&file, &text));
    Ok(found)
}

/// Tries a runtime: it needs namespaces, which a confined server cannot have.
pub static PROBE: Task = Task {
    name: "probe-runtime",
    run: |input, _| {
        let name: String = task::input(input)?;
        let flavour = Flavour::ALL.into_iter().find(|flavour| flavour.program() == name);
        let found = flavour.ok_or_else(|| "there is no such runtime".to_owned()).and_then(find_out);
        Done::with(&found.map_err(io::Error::other)?)
    },
};

/// `Err` says why it cannot work here.
fn find_out(flavour: Flavour) -> Result<Found, String> {
    let program = flavour.find().ok_or_else(|| format!("{} is not installed", flavour.program()))?;
    let stamp = stamp(&program).map_err(|error| format!("{}: {error}", program.display()))?;
    let version = version(&program);
    let platform = match flavour {
        Flavour::Runsc => platform(&program)?,
        _ => String::new(),
    };
    let lists = flavour != Flavour::Runsc || trial(&program, &platform, &["ls", "/"]).is_ok();
    let libraries = libraries(&program)?;
    Ok(Found { program, stamp, version, platform, lists, libraries })
}

fn stamp(program: &Path) -> std::io::Result<String> {
    let meta = fs::metadata(program)?;
    Ok(format!("{} {} {} {}", meta.len(), meta.mtime(), meta.mtime_nsec(), meta.ino()))
}

fn version(program: &Path) -> String {
    let said = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    said.lines().next().unwrap_or_default().chars().filter(|letter| !letter.is_control()).take(80).collect()
}

/// What the loader finds for a program, itself among it; nothing for a static one. The program is the administrator's own.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, String> {
    let said = Command::new("ldd").arg(program).env("LC_ALL", "C").stdin(Stdio::null()).output();
    let said = said.map_err(|error| format!("ldd, which tells what {} is linked with: {error}", program.display()))?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    match said.lines().find(|line| line.contains("not found")) {
        Some(missing) => Err(format!("{} lacks a library: {}", program.display(), missing.trim())),
        None => Ok(said.lines().filter_map(path).collect()),
    }
}

/// The first that really runs a program.
fn platform(program: &Path) -> Result<String, String> {
    let mut last = String::new();
    for platform in PLATFORMS {
        match trial(program, platform, &["true"]) {
            Ok(()) => return Ok(platform.to_owned()),
            Err(error) => last = error,
        }
    }
    Err(format!("no platform of gVisor works here: {last}"))
}

fn trial(program: &Path, platform: &str, words: &[&str]) -> Result<(), String> {
    let state = std::env::temp_dir().join(format!("sloplet-probe-{}", std::process::id()));
    fs::create_dir(&state).map_err(|error| error.to_string())?;
    let tried = attempt(program, platform, words, &state);
    let _ = fs::remove_dir_all(&state);
    tried
}

fn attempt(program: &Path, platform: &str, words: &[&str], state: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    command.arg(format!("--root={}", state.display())).arg(format!("--platform={platform}"));
    command.args(["--network=none", "--ignore-cgroups", "--rootless", "do"]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let since = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(_)) => break,
            Ok(None) if since.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{platform}: nothing happened within {PATIENCE:?}"));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error.to_string()),
        }
    }
    let mut said = String::new();
    if let Some(mut errors) = child.stderr.take() {
        let _ = std::io::Read::read_to_string(&mut errors, &mut said);
    }
    Err(format!("{platform}: {}", said.lines().next().unwrap_or("it failed").chars().take(200).collect::<String>()))
}
