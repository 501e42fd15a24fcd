//! The listener, its limits, and streams that come over HTTP.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use russh::keys::PrivateKey;
use russh::server::Config;
use russh::{MethodKind, MethodSet, Preferred, SshId, kex};
use sloplet_server::App;
use sloplet_server::auth::Access;
use sloplet_server::refusals::Refusal;
use sloplet_server::ssh::{Door, HostKey, fingerprint};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::crowd::{Crowd, Stranger};
use crate::guest::METHOD;
use crate::login::{Entered, Login};
use crate::strikes::Strikes;
use crate::{authorized, host_key};

/// How long a client may take until it is let in.
const LOGIN_WITHIN: Duration = Duration::from_secs(30);

/// Clients that are let in, at once.
const CONNECTIONS: usize = 1024;

/// A silent client is asked whether it is still there.
const ASK_AFTER: Duration = Duration::from_secs(30);
const SILENT_ROUNDS: usize = 4;

/// A client that takes nothing of what is sent to it is let go.
const STUCK: Duration = Duration::from_secs(300);

/// Each refusal takes as long, whatever its reason.
const REFUSAL: Duration = Duration::from_millis(200);

/// Signatures that do not fit, before the connection ends.
const ATTEMPTS: usize = 6;

/// How keys are agreed upon: only by curves. Groups of large numbers, which the library would offer, cost a stranger nothing and the
/// server up to seconds of computing.
const KEX: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::ECDH_SHA2_NISTP256,
    kex::EXTENSION_SUPPORT_AS_SERVER,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
];

/// Messages of a channel that wait for its sandbox; of 32 KiB at most.
const QUEUE: usize = 64;

/// How the server is to behave.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Unknown names are made into sandboxes of whoever logs in.
    pub create: bool,
    /// What those start from.
    pub image: Option<String>,
    /// Public keys of the server's own user.
    pub authorized_keys: Option<PathBuf>,
    /// Clients may have ports and sockets inside lead to them (`ssh -R`).
    pub remote_forward: bool,
}

/// The SSH server; clones are cheap.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    app: App,
    options: Arc<Options>,
    host_key: HostKey,
    address: Option<SocketAddr>,
    /// For those who come over the network, and for those who come over HTTP.
    network: Arc<Config>,
    http: Arc<Config>,
    room: Arc<Semaphore>,
    strangers: Crowd,
    strikes: Strikes,
}

impl Server {
    /// With the key of this data folder. `listener` is where it will listen, if it does.
    pub fn new(app: App, data: &Path, options: Options, address: Option<SocketAddr>) -> io::Result<Self> {
        if let Some(path) = &options.authorized_keys {
            // Better to hear of mistakes now than at the first login.
            authorized::read(path)?;
        }
        let key = host_key::of(data)?;
        let blob = key.public_key().to_bytes().map_err(io::Error::other)?;
        let public = key.public_key().to_openssh().map_err(io::Error::other)?;
        let public = public.split(' ').take(2).collect::<Vec<_>>().join(" ");
        Ok(Self(Arc::new(Inner {
            app,
            options: Arc::new(options),
            host_key: HostKey { public, fingerprint: fingerprint(&blob) },
            address,
            network: Arc::new(config(key.clone(), MethodKind::PublicKey)),
            http: Arc::new(config(key, MethodKind::None)),
            room: Arc::new(Semaphore::new(CONNECTIONS)),
            strangers: Crowd::default(),
            strikes: Strikes::default(),
        })))
    }

    /// What clients must find its key to be.
    pub fn fingerprint(&self) -> &str {
        &self.0.host_key.fingerprint
    }

    /// Takes connections until it is dropped.
    pub async fn listen(self, listener: TcpListener) {
        loop {
            let Ok((stream, peer)) = listener.accept().await else {
                // Out of descriptors, most likely: trying again at once would only burn the processor.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let from = peer.ip();
            // Whoever finds no room, or failed too often, is not even greeted: that costs nothing.
            if !self.0.strikes.may_try(from, Instant::now()) {
                self.refused(from, 429);
                continue;
            }
            let (Ok(room), Some(stranger)) = (self.0.room.clone().try_acquire_owned(), self.0.strangers.admit(from))
            else {
                self.refused(from, 503);
                continue;
            };
            let _ = stream.set_nodelay(true);
            let this = self.clone();
            // The library gives no way to end a session that does not want to.
            let Ok(cut) = stream.as_fd().try_clone_to_owned() else { continue };
            tokio::spawn(async move { this.talk(stream, Some((from, cut)), None, room, Some(stranger)).await });
        }
    }

    fn refused(&self, from: IpAddr, status: u16) {
        let refusal =
            Refusal { from: Some(from), key: None, sandbox: None, method: METHOD.into(), path: "login".into(), status };
        self.0.app.refusals().note(self.0.app.ledger(), refusal);
    }

    /// Serves one connection to its end.
    async fn talk<S>(
        &self,
        stream: S,
        from: Option<(IpAddr, OwnedFd)>,
        access: Option<Access>,
        _room: OwnedSemaphorePermit,
        stranger: Option<Stranger>,
    ) where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let config = if access.is_some() { &self.0.http } else { &self.0.network };
        let entered = Entered::default();
        let (from, cut) = from.unzip();
        let login = Login::new(self.0.app.clone(), self.0.options.clone(), from, access, entered.clone());
        // Two steps, because the first waits for the client's first line.
        let begun = Instant::now();
        let late = || LOGIN_WITHIN.saturating_sub(begun.elapsed());
        let serving = russh::server::run_stream(config.clone(), stream, login);
        let result = match tokio::time::timeout(late(), serving).await {
            Ok(Ok(session)) => attend(session, entered.wait(), late(), stranger, cut).await,
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(()),
        };
        if let Err(error) = result {
            tracing::debug!(%error, "an SSH connection ended badly");
        }
        if let Some(from) = from.filter(|_| entered.was_refused()) {
            self.0.strikes.add(from, Instant::now());
            self.refused(from, 401);
        }
    }
}

/// Waits for the end of a session. If its client is not let in within `patience`, it is cut off; when it is, it is no stranger any more.
async fn attend<T>(
    session: impl Future<Output = T>,
    is_in: impl Future<Output = ()>,
    patience: Duration,
    stranger: Option<Stranger>,
    cut: Option<OwnedFd>,
) -> T {
    let mut session = pin!(session);
    tokio::select! {
        ended = &mut session => return ended,
        () = is_in => drop(stranger),
        () = tokio::time::sleep(patience) => {
            if let Some(cut) = cut {
                let _ = rustix::net::shutdown(cut, rustix::net::Shutdown::Both);
            }
        }
    }
    session.await
}

impl Door for Server {
    fn host_key(&self) -> HostKey {
        self.0.host_key.clone()
    }

    fn address(&self) -> Option<String> {
        self.0.address.map(|address| address.to_string())
    }

    fn serve(&self, stream: DuplexStream, access: Access) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let this = self.clone();
        Box::pin(async move {
            if let Ok(room) = this.0.room.clone().try_acquire_owned() {
                this.talk(stream, None, Some(access), room, None).await;
            }
        })
    }
}

fn config(key: PrivateKey, method: MethodKind) -> Config {
    let mut methods = MethodSet::empty();
    methods.push(method);
    Config {
        server_id: SshId::Standard(concat!("SSH-2.0-sloplet_", env!("CARGO_PKG_VERSION")).into()),
        methods,
        auth_rejection_time: REFUSAL,
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys: vec![key],
        preferred: Preferred { kex: KEX.into(), ..Preferred::DEFAULT },
        max_auth_attempts: ATTEMPTS,
        inactivity_timeout: Some(STUCK),
        keepalive_interval: Some(ASK_AFTER),
        keepalive_max: SILENT_ROUNDS,
        channel_buffer_size: QUEUE,
        nodelay: true,
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;

    const SHORT: Duration = Duration::from_millis(20);

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// A session that ends when its connection does, and what cuts that.
    fn session() -> (UnixStream, impl Future<Output = usize>, Option<OwnedFd>) {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let cut = ours.as_fd().try_clone_to_owned().unwrap();
        (theirs, async move { ours.read(&mut [0; 8]).await.unwrap() }, Some(cut))
    }

    /// A place in a crowd, and whether there are places of that network left.
    fn place() -> (Stranger, impl Fn() -> bool) {
        let (crowd, from) = (Crowd::default(), IpAddr::from([10, 0, 0, 1]));
        let place = crowd.admit(from).unwrap();
        let mut rest = Vec::new();
        while let Some(another) = crowd.admit(from) {
            rest.push(another);
        }
        (place, move || !rest.is_empty() && crowd.admit(from).is_some())
    }

    #[test]
    fn who_is_not_let_in_in_time_is_cut_off_and_holds_a_place_until_then() {
        runtime().block_on(async {
            let (_theirs, session, cut) = session();
            let (place, is_room) = place();
            let attended = attend(session, std::future::pending(), SHORT, Some(place), cut);
            assert!(!is_room());
            assert_eq!(attended.await, 0);
            assert!(is_room());
        });
    }

    #[test]
    fn who_is_let_in_stays_and_makes_place() {
        runtime().block_on(async {
            let (mut theirs, session, cut) = session();
            let (place, is_room) = place();
            let attending = tokio::spawn(attend(session, std::future::ready(()), SHORT, Some(place), cut));
            tokio::time::sleep(SHORT * 5).await;
            assert!(is_room() && !attending.is_finished());
            tokio::io::AsyncWriteExt::write_all(&mut theirs, b"hello").await.unwrap();
            assert_eq!(attending.await.unwrap(), 5);
        });
    }
}
