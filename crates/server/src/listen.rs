//! Sockets, TLS, and the patience that a client gets.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::auth::OwnUser;
use crate::gate::Gate;
use crate::opening::Opening;
use crate::refusals::Peer;

/// How long a client may take to say what it wants; then it is a slow loris.
const HEADERS_WITHIN: Duration = Duration::from_secs(15);

/// Bytes of headers.
const HEADER_BYTES: usize = 64 * 1024;

/// Connections at once.
const CONNECTIONS: usize = 4096;

/// How long requests may go on once the server is asked to end.
const FAREWELL: Duration = Duration::from_secs(3);

/// Where a server listens.
pub struct Listeners {
    /// For clients with a key.
    pub tcp: Option<TcpListener>,
    /// The certificate of that.
    pub tls: Option<TlsAcceptor>,
    /// For this user's own programs.
    pub unix: Option<UnixListener>,
}

/// Reads a certificate chain and its key in PEM form.
pub fn tls(certificates: &Path, key: &Path) -> io::Result<TlsAcceptor> {
    let bad = |path: &Path, error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", path.display()));
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificates)
        .and_then(Iterator::collect)
        .map_err(|error| bad(certificates, &error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| bad(key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| bad(certificates, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves until `stop` resolves, then lets requests end that are under way.
pub async fn serve(listeners: Listeners, gate: Gate, stop: impl Future<Output = ()>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let leaving = gate.clone();
    // Every connection holds a receiver: when the last is gone, all requests have ended.
    let (ending, is_ending) = watch::channel(false);
    let mut stop = pin!(stop);
    loop {
        let Ok(place) = room.clone().acquire_owned().await else { return };
        tokio::select! {
            () = &mut stop => break,
            accepted = accept_tcp(listeners.tcp.as_ref()) => {
                let Ok((stream, peer)) = accepted else { pause_after_failure().await; continue };
                let _ = stream.set_nodelay(true);
                let who = Who::At(peer.ip());
                let (gate, tls, is_ending) = (gate.clone(), listeners.tls.clone(), is_ending.clone());
                tokio::spawn(async move {
                    match tls {
                        None => talk(stream, gate, who, is_ending).await,
                        Some(tls) => match tokio::time::timeout(HEADERS_WITHIN, tls.accept(stream)).await {
                            Ok(Ok(stream)) => talk(stream, gate, who, is_ending).await,
                            _ => tracing::debug!("a TLS handshake failed"),
                        },
                    }
                    drop(place);
                });
            }
            accepted = accept_unix(listeners.unix.as_ref()) => {
                let Ok(stream) = accepted else { pause_after_failure().await; continue };
                let own = rustix::net::sockopt::socket_peercred(stream.as_fd())
                    .is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root());
                let (gate, is_ending) = (gate.clone(), is_ending.clone());
                let who = if own { Who::OwnUser } else { Who::OtherUser };
                tokio::spawn(async move {
                    talk(stream, gate, who, is_ending).await;
                    drop(place);
                });
            }
        }
    }
    drop(is_ending);
    let _ = ending.send(true);
    let _ = tokio::time::timeout(FAREWELL, ending.closed()).await;
    leaving.end();
}

/// HTTP/2 says in the address what HTTP/1 says in a header; everybody else here looks at the header.
fn name_host(request: &mut Request<Body>) {
    if let Some(authority) = request.uri().authority()
        && !request.headers().contains_key(header::HOST)
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(header::HOST, host);
    }
}

async fn accept_tcp(listener: Option<&TcpListener>) -> io::Result<(tokio::net::TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

async fn accept_unix(listener: Option<&UnixListener>) -> io::Result<tokio::net::UnixStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// Out of descriptors, most likely: trying again at once would only burn the processor.
async fn pause_after_failure() {
    tracing::warn!("cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy)]
enum Who {
    /// Somebody in the network.
    At(IpAddr),
    /// This server's own user, over the Unix socket.
    OwnUser,
    /// Another one.
    OtherUser,
}

async fn talk<S>(stream: S, gate: Gate, who: Who, mut is_ending: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let gate = gate.clone();
        async move {
            let mut request = request.map(Body::new);
            name_host(&mut request);
            match who {
                Who::At(address) => drop(request.extensions_mut().insert(Peer(address))),
                Who::OwnUser => drop(request.extensions_mut().insert(OwnUser)),
                Who::OtherUser => {}
            }
            Ok::<_, std::convert::Infallible>(gate.answer(request).await)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN).max_buf_size(HEADER_BYTES * 4);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEADER_BYTES as u32)
        .max_concurrent_streams(256)
        .keep_alive_interval(Some(Duration::from_secs(20)));
    let stream = TokioIo::new(Opening::new(stream, HEADERS_WITHIN));
    let mut connection = pin!(builder.serve_connection_with_upgrades(stream, service));
    let result = tokio::select! {
        result = &mut connection => result,
        _ = is_ending.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended badly");
    }
}
