//! Reaching the other end: resolve, vet, and dial one of what was vetted.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use sloplet_policy::addresses::HOST_NAME;
use sloplet_policy::network::Decision;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::connection::{Place, Record};
use crate::egress::Core;
use crate::intercept::{Dial, Pending, Stream};
use crate::refuse::Problem;
use crate::resolve::Connect;

/// How long one address may take.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a name may take.
const LOOKUP: Duration = Duration::from_secs(10);

/// When the next address is tried beside the one that does not answer. RFC 8305.
const STAGGER: Duration = Duration::from_millis(250);

/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 8;

/// How long the host's answers are used again. Every use is vetted again.
const REMEMBER: Duration = Duration::from_secs(30);

/// Answers that are remembered.
const MAX_REMEMBERED: usize = 1024;

/// Opens connections for one connection from inside.
#[derive(Debug)]
pub(crate) struct Dialer(pub(crate) Arc<Record>);

impl Dialer {
    /// Opens one.
    pub(crate) async fn connect(&self) -> Result<TcpStream, Problem> {
        let record = &*self.0;
        let (core, port) = (&*record.core, record.port);
        if let Decision::Deny { reason } = core.network().decide(record.place.wanted(), port) {
            return Err(Problem::rules(&reason, record.place.wanted(), port));
        }
        let on_host = matches!(&record.place, Place::Name(name) if name == HOST_NAME);
        let found = match &record.place {
            Place::Address(address) => vec![*address],
            Place::Name(_) if on_host => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            Place::Name(name) => lookup(core, name).await?,
        };
        let found = unprotected(core, found).await?;
        // The rules may have changed during the lookup.
        let network = core.network();
        let own = core.options.own_addresses();
        let mut refusal = None;
        let vetted: Vec<SocketAddr> = found
            .into_iter()
            .filter(|address| match network.may_dial(*address, port, &own) {
                Err(reason) if !on_host && !core.options.lacks("egress-vetting") => {
                    refusal = Some(reason);
                    false
                }
                _ => true,
            })
            .take(MAX_ADDRESSES)
            .map(|address| SocketAddr::new(address, port))
            .collect();
        if let (true, Some(refusal)) = (vetted.is_empty(), refusal) {
            return Err(Problem::vetted(&refusal, port));
        }
        let (stream, peer) = race(&*core.options.connector, &vetted).await.map_err(|error| {
            if let Place::Name(name) = &record.place {
                core.forget(name);
            }
            let status = if error.kind() == io::ErrorKind::TimedOut { 504 } else { 502 };
            Problem::failed(status, error.to_string())
        })?;
        // Addresses come and go: where both ends are the same machine, it is the host, whatever the list says.
        if !on_host && !network.names_address(peer, port) && stream.local_addr().is_ok_and(|local| local.ip() == peer) {
            return Err(Problem::denied(format!("the address {peer} is refused: the host itself")));
        }
        let _ = stream.set_nodelay(true);
        let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
        record.dialed(peer);
        if !Arc::ptr_eq(&network, &core.network()) {
            // Or during the dial, when nobody knew yet which address it would be.
            record.decide_again();
        }
        Ok(stream)
    }
}

/// Those that are no protected host's.
async fn unprotected(core: &Core, mut found: Vec<IpAddr>) -> Result<Vec<IpAddr>, Problem> {
    let protected = core.protected().await;
    let refused = found.iter().copied().find(|address| protected.contains(&address.to_canonical()));
    found.retain(|address| !protected.contains(&address.to_canonical()));
    match refused {
        Some(address) if found.is_empty() => {
            Err(Problem::denied(format!("the address {address} is that of a protected host")))
        }
        _ => Ok(found),
    }
}

async fn lookup(core: &Core, name: &str) -> Result<Vec<IpAddr>, Problem> {
    if let Some(found) = core.remembered(name) {
        return Ok(found);
    }
    // Each lookup under way may hold a thread of the host.
    let Ok(_turn) = core.lookups.acquire().await else { return Err(Problem::failed(502, "the egress is ending")) };
    match timeout(LOOKUP, core.options.resolver.resolve(name)).await {
        Ok(Ok(found)) if !found.is_empty() => {
            core.remember(name, &found);
            Ok(found)
        }
        Ok(Ok(_)) => Err(Problem::failed(502, "the name has no address")),
        Ok(Err(error)) => Err(Problem::failed(502, format!("the name was not found ({error})"))),
        Err(_) => Err(Problem::failed(504, "looking the name up took too long")),
    }
}

/// Dials the first address, and the next one whenever the last fails or does not answer for a moment.
async fn race(connector: &dyn Connect, addresses: &[SocketAddr]) -> io::Result<(TcpStream, IpAddr)> {
    if let [only] = addresses {
        return connect(connector, *only).await;
    }
    let mut under_way = FuturesUnordered::new();
    let mut rest = addresses.iter();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        let next = rest.next();
        if let Some(address) = next {
            under_way.push(connect(connector, *address));
        }
        tokio::select! {
            result = under_way.next() => match result {
                Some(Ok(reached)) => return Ok(reached),
                Some(Err(error)) => last = error,
                None => return Err(last),
            },
            () = sleep(STAGGER), if next.is_some() => {}
        }
    }
}

async fn connect(connector: &dyn Connect, address: SocketAddr) -> io::Result<(TcpStream, IpAddr)> {
    match timeout(CONNECT, connector.connect(address)).await {
        Ok(result) => result.map(|stream| (stream, address.ip())),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it did not answer in time")),
    }
}

impl Core {
    fn remembered(&self, name: &str) -> Option<Vec<IpAddr>> {
        let cache = self.cache.lock();
        cache.get(name).filter(|(since, _)| since.elapsed() < REMEMBER).map(|(_, found)| found.clone())
    }

    fn remember(&self, name: &str, found: &[IpAddr]) {
        let mut cache = self.cache.lock();
        if cache.len() >= MAX_REMEMBERED {
            cache.retain(|_, (since, _)| since.elapsed() < REMEMBER);
        }
        if cache.len() < MAX_REMEMBERED {
            let found = found.iter().copied().take(4 * MAX_ADDRESSES).collect();
            cache.insert(name.to_owned(), (Instant::now(), found));
        }
    }

    fn forget(&self, name: &str) {
        self.cache.lock().remove(name);
    }
}

impl Dial for Dialer {
    fn dial(&self) -> Pending<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async {
            let stream = self.connect().await.map_err(|problem| {
                let kind = if problem.denied { io::ErrorKind::PermissionDenied } else { io::ErrorKind::NotConnected };
                io::Error::new(kind, problem.reason)
            })?;
            Ok(Box::new(Counted { stream, record: Arc::clone(&self.0) }) as Box<dyn Stream>)
        })
    }
}

/// A connection whose bytes are counted.
#[derive(Debug)]
struct Counted {
    stream: TcpStream,
    record: Arc<Record>,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        match result {
            Poll::Ready(Ok(())) => Poll::Ready(self.record.down(buf.filled().len() - before)),
            other => other,
        }
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        match result {
            Poll::Ready(Ok(count)) => Poll::Ready(self.record.up(count).map(|()| count)),
            other => other,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
