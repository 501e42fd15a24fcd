//! Connections to a server.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::SocketType;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use sloplet_sys::private;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::{Place, SOCKET, Server};

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Bytes to and from a server.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

impl Server {
    /// A fresh connection.
    pub(super) async fn connect(&self) -> anyhow::Result<Box<dyn Wire>> {
        match &self.place {
            Place::Socket(folder) => {
                let stream = own(folder);
                Ok(Box::new(stream.with_context(|| format!("no server answers on {}", folder.join(SOCKET).display()))?))
            }
            Place::Web { host, port, tls, .. } => {
                let connect = web(host, *port, tls.as_deref());
                match tokio::time::timeout(PATIENCE, connect).await {
                    Ok(stream) => stream.with_context(|| format!("no server answers on {host}:{port}")),
                    Err(_) => bail!("no server answers on {host}:{port}: the connection took too long"),
                }
            }
        }
    }

    /// What the `Host` header says.
    pub(super) fn authority(&self) -> String {
        match &self.place {
            Place::Socket(_) => "localhost".into(),
            Place::Web { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Place::Web { host, port, .. } => format!("{host}:{port}"),
        }
    }

    /// What comes before `/v1`.
    pub(super) fn base(&self) -> &str {
        match &self.place {
            Place::Socket(_) => "",
            Place::Web { base, .. } => base,
        }
    }
}

/// Connects to the server of this user in a run folder. Nobody else can have put a socket there, nor listen on it.
fn own(folder: &Path) -> io::Result<UnixStream> {
    folder.parent().map_or(Ok(()), private::check)?;
    private::check(folder)?;
    UnixStream::from_std(private::knock(folder, SOCKET, SocketType::STREAM)?.into())
}

async fn web(host: &str, port: u16, tls: Option<&TlsConnector>) -> anyhow::Result<Box<dyn Wire>> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    match tls {
        None => Ok(Box::new(stream)),
        Some(tls) => {
            let name = ServerName::try_from(host.to_owned()).context("the server's name")?;
            Ok(Box::new(tls.connect(name, stream).await?))
        }
    }
}

/// Trusts whom the host trusts; `SSL_CERT_FILE` names others.
pub fn tls() -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
