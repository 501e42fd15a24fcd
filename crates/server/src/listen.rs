//! Sockets, TLS, and the patience that a client gets.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
pub use tokio_rustls::TlsAcceptor;

use crate::account::{Account, Until};
use crate::auth::OwnUser;
use crate::gate::Gate;
use crate::opening::Opening;
use crate::places::{Place, Places};
use crate::refusals::Peer;

/// How long a client may take to say what it wants; then it is a slow loris.
const HEADERS_WITHIN: Duration = Duration::from_secs(15);

/// Bytes of headers.
const HEADER_BYTES: usize = 64 * 1024;

/// What waits to be written on one connection of HTTP/1, and on one stream of HTTP/2.
const SEND_BUFFER: usize = 64 * 1024;

/// What a client of HTTP/2 may send ahead on one stream, and on a connection.
const WINDOWS: (u32, u32) = (64 * 1024, 128 * 1024);

/// Requests at once on one connection of HTTP/2, and those that may be given up before anybody looked at them.
const STREAMS: (u32, usize) = (128, 32);

/// How often a silent connection of HTTP/2 is asked whether it is still there, and how long it may take to say so.
const ALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(20));

/// How long a connection may wait without a request.
const IDLE: Duration = Duration::from_secs(60);

/// How long one that is told to end may take.
const GRACE: Duration = Duration::from_secs(5);

/// Connections to the local socket, which nobody from the network can take.
const LOCAL_CONNECTIONS: usize = 1024;

/// How long requests may go on once the server is asked to end.
const FAREWELL: Duration = Duration::from_secs(3);

/// Connections from the network at once, unless the operator says otherwise.
pub const CONNECTIONS: usize = 4096;

/// Where a server listens.
pub struct Listeners {
    /// For clients with a key.
    pub tcp: Option<TcpListener>,
    /// The certificate of that.
    pub tls: Option<TlsAcceptor>,
    /// For this user's own programs.
    pub unix: Option<UnixListener>,
    /// Connections from the network at once. One address has at most three quarters of them.
    pub connections: usize,
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
    let most = listeners.connections.max(4);
    let network = Places::new(most, most / 4 * 3, IDLE);
    let local = Places::new(LOCAL_CONNECTIONS, LOCAL_CONNECTIONS, IDLE);
    let leaving = gate.clone();
    // Every connection holds a receiver: when the last is gone, all requests have ended.
    let (ending, is_ending) = watch::channel(false);
    let mut stop = pin!(stop);
    loop {
        // Nothing is waited for outside of this: whatever clients do, a signal ends the server.
        tokio::select! {
            biased;
            () = &mut stop => break,
            (stream, own) = accept_unix(listeners.unix.as_ref()) => {
                let Some(place) = local.take(Ipv4Addr::UNSPECIFIED.into()) else { continue };
                let who = if own { Who::OwnUser } else { Who::OtherUser };
                tokio::spawn(talk(stream, place, gate.clone(), who, is_ending.clone()));
            }
            (stream, peer) = accept_tcp(listeners.tcp.as_ref()) => {
                let Some(place) = network.take(peer.ip()) else {
                    tracing::debug!(%peer, "no place for a connection");
                    continue;
                };
                let _ = stream.set_nodelay(true);
                let who = Who::At(peer.ip());
                let (gate, tls, is_ending) = (gate.clone(), listeners.tls.clone(), is_ending.clone());
                tokio::spawn(async move {
                    match tls {
                        None => talk(stream, place, gate, who, is_ending).await,
                        Some(tls) => match tokio::time::timeout(HEADERS_WITHIN, tls.accept(stream)).await {
                            Ok(Ok(stream)) => talk(stream, place, gate, who, is_ending).await,
                            _ => tracing::debug!("a TLS handshake failed"),
                        },
                    }
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

async fn accept_tcp(listener: Option<&TcpListener>) -> (TcpStream, SocketAddr) {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => pause_after(&error).await,
        }
    }
}

/// Somebody at the local socket, and whether that is this server's own user.
async fn accept_unix(listener: Option<&UnixListener>) -> (UnixStream, bool) {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let own = rustix::net::sockopt::socket_peercred(stream.as_fd())
                    .is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root());
                return (stream, own);
            }
            Err(error) => pause_after(&error).await,
        }
    }
}

/// Out of descriptors, most likely: trying again at once would only burn the processor.
async fn pause_after(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
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

async fn talk<S>(stream: S, place: Place, gate: Gate, who: Who, mut is_ending: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let held = place.held.clone();
    let answering = held.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (gate, held) = (gate.clone(), answering.clone());
        async move {
            let under_way = held.begin();
            let mut request = request.map(Body::new);
            name_host(&mut request);
            match who {
                Who::At(address) => drop(request.extensions_mut().insert(Peer(address))),
                Who::OwnUser => drop(request.extensions_mut().insert(OwnUser)),
                Who::OtherUser => {}
            }
            let mut response = gate.answer(request).await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                // From here on it is in use to its end, and so is what its request has taken.
                held.keep((under_way, response.extensions_mut().remove::<Account>()));
                return Ok(response);
            }
            Ok::<_, std::convert::Infallible>(response.map(|body| Body::new(Until::new(body, under_way))))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN).max_buf_size(HEADER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEADER_BYTES as u32)
        .max_concurrent_streams(STREAMS.0)
        .max_pending_accept_reset_streams(STREAMS.1)
        .max_local_error_reset_streams(STREAMS.1)
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(Some(ALIVE.0))
        .keep_alive_timeout(ALIVE.1);
    let stream = TokioIo::new(Opening::new(stream, Some(place), HEADERS_WITHIN));
    let mut connection = pin!(builder.serve_connection_with_upgrades(stream, service));
    let result = tokio::select! {
        result = &mut connection => result,
        _ = is_ending.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = held.over() => {
            connection.as_mut().graceful_shutdown();
            // A client of HTTP/2 may never answer; but a request that came meanwhile is carried out.
            loop {
                match tokio::time::timeout(GRACE, &mut connection).await {
                    Ok(result) => break result,
                    Err(_) if held.is_idle() => break Ok(()),
                    Err(_) => {}
                }
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended badly");
    }
}
