//! What the engine is. Asking takes as long as a tenth of a start: it is remembered, for as long as the engine has not been
//! started anew, which makes its socket anew.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use bollard::ClientVersion;
use serde::{Deserialize, Serialize};
use sloplet_engine::places;

use crate::host::{self, Host};

/// What every engine that this works with understands: Docker 20.10, Podman 4.
pub const OLDEST: ClientVersion = ClientVersion { major_version: 1, minor_version: 41 };

/// The newest version of the API that is spoken here.
const NEWEST: usize = 47;

/// How long an engine may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Where it was.
    host: String,
    /// Inode and time of its socket then.
    stamp: String,
    /// Its name and version.
    pub version: String,
    /// Which version of the API to speak.
    minor: usize,
    /// Whether an ordinary user runs it.
    pub rootless: bool,
    /// Whether it is Podman.
    pub podman: bool,
    /// Whether it can bound memory.
    pub memory: bool,
    /// Whether it can bound processor time.
    pub cpu: bool,
    /// Whether it can bound processes.
    pub pids: bool,
    /// Whether it can filter system calls.
    pub seccomp: bool,
    /// The host's name, as it knows it.
    pub machine: String,
}

impl Found {
    /// The version of the API to speak.
    pub fn api(&self) -> ClientVersion {
        ClientVersion { major_version: 1, minor_version: self.minor }
    }
}

/// Looks it up, or asks. `Err` says why it cannot be used.
pub fn found(host: &Host, data: &Path) -> Result<Found, String> {
    if let Host::Unknown(text) = host {
        return Err(format!("DOCKER_HOST is '{text}': only unix:// and tcp:// are known here"));
    }
    let stamp = host.socket().map(stamp).transpose().map_err(|error| unreachable(host, &error))?;
    let file = data.join("probes").join("docker.json");
    if let Some(stamp) = &stamp {
        let known = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Found>(&text).ok());
        if let Some(known) = known.filter(|known| known.host == host.name() && known.stamp == *stamp) {
            return Ok(known);
        }
    }
    let remembered = stamp.is_some();
    let found = ask(host, stamp.unwrap_or_default())?;
    if remembered {
        let _ = serde_json::to_vec(&found).map(|found| places::replace(&file, &found));
    }
    Ok(found)
}

fn unreachable(host: &Host, error: &dyn std::fmt::Display) -> String {
    format!("no Docker engine at {}: {error}; start one, or say where it is with DOCKER_HOST", host.name())
}

fn stamp(socket: &Path) -> std::io::Result<String> {
    let meta = fs::metadata(socket)?;
    Ok(format!("{} {} {} {}", meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

fn ask(host: &Host, stamp: String) -> Result<Found, String> {
    let client = host.client(OLDEST).map_err(|error| unreachable(host, &host::explain(&error)))?;
    let asked = host::ask(PATIENCE, async {
        // Tells what it can speak; all else must be asked in a version that it does.
        let client = client.negotiate_version().await?;
        let (version, info) = (client.version().await?, client.info().await?);
        Ok((version, info))
    });
    let (version, info) = asked.map_err(|error| unreachable(host, &error))?;
    let minor = |text: Option<&String>| text.and_then(|text| text.strip_prefix("1.")?.parse::<usize>().ok());
    let (newest, oldest) = (minor(version.api_version.as_ref()), minor(version.min_api_version.as_ref()));
    let spoken = newest.unwrap_or(OLDEST.minor_version).min(NEWEST);
    if spoken < OLDEST.minor_version || oldest.is_some_and(|oldest| oldest > NEWEST) {
        let api = version.api_version.unwrap_or_default();
        return Err(format!("the engine at {} speaks API {api}, and 1.41 to 1.{NEWEST} are known here", host.name()));
    }
    let components = version.components.unwrap_or_default();
    let podman = components.iter().any(|component| component.name.starts_with("Podman"));
    let security = info.security_options.unwrap_or_default();
    let names = |word: &str| security.iter().any(|option| option.contains(word));
    let plain = |text: String| text.chars().filter(|letter| !letter.is_control()).take(80).collect::<String>();
    let name = if podman { "Podman" } else { "Docker" };
    Ok(Found {
        host: host.name(),
        stamp,
        version: plain(format!("{name} {}", version.version.unwrap_or_default())),
        minor: spoken,
        rootless: names("rootless"),
        podman,
        memory: info.memory_limit.unwrap_or(false),
        cpu: info.cpu_cfs_quota.unwrap_or(false),
        pids: info.pids_limit.unwrap_or(false),
        seccomp: names("seccomp"),
        machine: plain(info.name.unwrap_or_default()),
    })
}
