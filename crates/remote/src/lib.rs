//! The client of a server's API.
//!
//! [`Server::find`] looks for a server: the one that `SLOPLET_URL` names, or this user's own on its Unix socket, which is
//! started if there is none (`start`). `request` asks it; `events` listens to it; `socket` talks to it over a WebSocket.

mod body;
mod connect;
mod events;
mod request;
mod socket;
mod start;

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use hyper::header::HeaderValue;
use sloplet_sys::private;
use tokio_rustls::TlsConnector;

pub use body::{Body, full, stream, tar};
pub use request::{Refused, encode, json};
pub use socket::{Socket, Tunnel};

/// The Unix socket of a user's own server, within its run folder.
pub const SOCKET: &str = "api.sock";

/// Longest name of a front end.
const VIA: usize = 128;

/// Where to look for a server.
#[derive(Debug, Clone)]
pub struct Search {
    /// Where it keeps what lasts.
    pub data: PathBuf,
    /// Where the run folders of all data folders are: its socket is in that of its own.
    pub run: PathBuf,
    /// Whether one may be started.
    pub autostart: bool,
}

/// A server that answers.
#[derive(Clone)]
pub struct Server {
    place: Place,
    key: Option<String>,
    via: Option<HeaderValue>,
}

#[derive(Clone)]
enum Place {
    /// This user's own, in its run folder.
    Socket(PathBuf),
    Web {
        host: String,
        port: u16,
        tls: Option<Arc<TlsConnector>>,
        base: String,
    },
}

/// Whether the run folder, or who listens there, is not this user's own.
fn is_refused(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref())
        .any(|cause: &io::Error| cause.kind() == ErrorKind::PermissionDenied)
}

/// Whether another server than this user's own is meant.
pub fn is_elsewhere() -> bool {
    std::env::var_os("SLOPLET_URL").is_some_and(|url| !url.is_empty())
}

impl Server {
    /// Looks for a server and, if that may be, starts one.
    pub async fn find(search: &Search) -> anyhow::Result<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let key = variable("SLOPLET_API_KEY");
        if let Some(url) = variable("SLOPLET_URL") {
            return Ok(Self { place: Place::parse(&url)?, key, via: None });
        }
        let folder = private::run_folder(&search.run, &search.data)
            .with_context(|| format!("cannot make the data folder {}", search.data.display()))?;
        let server = Self { place: Place::Socket(folder.clone()), key, via: None };
        match server.connect().await {
            Ok(_) => return Ok(server),
            // Somebody else is there: no server of this user could be started beside.
            Err(error) if is_refused(&error) => return Err(error),
            Err(_) => {}
        }
        if !search.autostart {
            let (data, socket) = (search.data.display(), folder.join(SOCKET));
            bail!("no server answers for {data} (on {}): start one with 'sloplet serve'", socket.display());
        }
        start::in_background(search, &server).await?;
        Ok(server)
    }

    /// The same server; whatever is asked of it is written down as asked through this front end.
    pub fn via(&self, front: &str) -> Self {
        let visible = front.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' });
        let text: String = visible.take(VIA).collect();
        Self { via: HeaderValue::from_str(&text).ok(), ..self.clone() }
    }
}

impl Place {
    fn parse(url: &str) -> anyhow::Result<Self> {
        let advice = "SLOPLET_URL must be like http://127.0.0.1:7070";
        let (tls, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => bail!("{advice}"),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let base = path.trim_end_matches('/');
        let base = if base.is_empty() { String::new() } else { format!("/{base}") };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().context(advice)?),
            _ => (authority, if tls { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            bail!("{advice}");
        }
        let tls = if tls { Some(Arc::new(connect::tls()?)) } else { None };
        Ok(Self::Web { host: host.to_owned(), port, tls, base })
    }
}
