//! Where the engine is, and how to talk to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::ClientVersion;
use bollard::errors::Error;

/// Where Docker listens unless told otherwise.
const USUAL: &str = "/var/run/docker.sock";

/// Seconds that the engine may take to answer.
const PATIENCE: u64 = 120;

/// Where an engine listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// A socket of this host.
    Unix(PathBuf),
    /// An address, without encryption.
    Tcp(String),
    /// `DOCKER_HOST` says something that this cannot do.
    Unknown(String),
}

impl Host {
    /// What `DOCKER_HOST` says; without it, the system's socket or the user's own.
    pub fn usual() -> Self {
        let said = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        match said("DOCKER_HOST") {
            Some(host) => Self::parse(&host),
            None => {
                let own = said("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("docker.sock"));
                let usual = Path::new(USUAL);
                let own = own.filter(|own| !usual.exists() && own.exists());
                Self::Unix(own.unwrap_or_else(|| usual.to_owned()))
            }
        }
    }

    /// What a text as in `DOCKER_HOST` means.
    pub fn parse(text: &str) -> Self {
        match text.split_once("://") {
            Some(("unix", path)) if path.starts_with('/') => Self::Unix(path.into()),
            Some(("tcp" | "http", address)) if !address.is_empty() => Self::Tcp(address.trim_end_matches('/').into()),
            _ => Self::Unknown(text.to_owned()),
        }
    }

    /// Its name, for people and for the engine's own programs.
    pub fn name(&self) -> String {
        match self {
            Self::Unix(path) => format!("unix://{}", path.display()),
            Self::Tcp(address) => format!("tcp://{address}"),
            Self::Unknown(text) => text.clone(),
        }
    }

    /// The socket, if it is on this host.
    pub fn socket(&self) -> Option<&Path> {
        match self {
            Self::Unix(path) => Some(path),
            _ => None,
        }
    }

    /// A client. Connections are made with each request.
    pub fn client(&self, version: ClientVersion) -> Result<bollard::Docker, Error> {
        match self {
            Self::Unix(path) => bollard::Docker::connect_with_unix(&path.display().to_string(), PATIENCE, &version),
            Self::Tcp(address) => bollard::Docker::connect_with_http(address, PATIENCE, &version),
            Self::Unknown(text) => Err(Error::UnsupportedURISchemeError { uri: text.clone() }),
        }
    }
}

/// Asks the engine from code that cannot wait: in a thread with a runtime of its own.
pub fn ask<T: Send>(within: Duration, question: impl Future<Output = Result<T, Error>> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            let answer = runtime.block_on(async { tokio::time::timeout(within, question).await });
            let answer = answer.map_err(|_| format!("no answer within {} s", within.as_secs()))?;
            answer.map_err(|error| explain(&error))
        });
        asking.join().unwrap_or_else(|_| Err("the question failed".into()))
    })
}

/// What went wrong, in the engine's words where it has some.
pub fn explain(error: &Error) -> String {
    let mut text = match error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        other => other.to_string(),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause {
        let more = deeper.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = deeper.source();
    }
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(500).collect()
}

/// The status that the engine refused with, if it did.
pub fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_told_apart() {
        assert_eq!(Host::parse("unix:///run/x.sock"), Host::Unix("/run/x.sock".into()));
        assert_eq!(Host::parse("tcp://10.0.0.1:2375/"), Host::Tcp("10.0.0.1:2375".into()));
        assert_eq!(Host::parse("ssh://somebody@example.com"), Host::Unknown("ssh://somebody@example.com".into()));
        assert_eq!(Host::parse("unix://relative"), Host::Unknown("unix://relative".into()));
        assert!(Host::parse("ssh://x").client(crate::probe::OLDEST).is_err());
    }
}
