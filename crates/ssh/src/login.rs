//! One connection: who it is, and which channels it may open.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use russh::keys::{Algorithm, PublicKey};
use russh::server::{Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, Pty};
use sloplet_server::App;
use sloplet_server::auth::{Access, Scope};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::guest::Guest;
use crate::listening::{Listening, Spot};
use crate::server::Options;
use crate::{authorized, forward, session};

/// Keys that a client may offer. Agents hold a few.
const OFFERS: u32 = 20;

/// Bytes of a user's name. A sandbox's has up to 63.
const NAME: usize = 128;

/// Channels of one connection at once.
const CHANNELS: usize = 128;

/// How far a client came.
#[derive(Clone, Default)]
pub(crate) struct Entered(Arc<Progress>);

#[derive(Default)]
struct Progress {
    entered: AtomicBool,
    failed: AtomicBool,
    told: Notify,
}

impl Entered {
    fn set(&self) {
        self.0.entered.store(true, Ordering::Relaxed);
        self.0.told.notify_one();
    }

    /// It showed a key that opens nothing.
    fn failed(&self) {
        self.0.failed.store(true, Ordering::Relaxed);
    }

    /// Whether it tried, and was not let in. Who says nothing, or leaves at once, did not.
    pub(crate) fn was_refused(&self) -> bool {
        self.0.failed.load(Ordering::Relaxed) && !self.0.entered.load(Ordering::Relaxed)
    }

    /// Waits until it is let in.
    pub(crate) async fn wait(&self) {
        self.0.told.notified().await;
    }
}

/// One connection.
pub(crate) struct Login {
    app: App,
    options: Arc<Options>,
    from: Option<IpAddr>,
    /// Known before a word was said, for streams that came over HTTP.
    known: Option<Access>,
    entered: Entered,
    offers: u32,
    guest: Option<Arc<Guest>>,
    channels: Arc<Semaphore>,
    /// Sessions, and whether something was started in them.
    sessions: HashMap<ChannelId, bool>,
    listening: Listening,
}

impl Login {
    pub(crate) fn new(
        app: App,
        options: Arc<Options>,
        from: Option<IpAddr>,
        known: Option<Access>,
        entered: Entered,
    ) -> Self {
        Self {
            app,
            options,
            from,
            known,
            entered,
            offers: 0,
            guest: None,
            channels: Arc::new(Semaphore::new(CHANNELS)),
            sessions: HashMap::new(),
            listening: Listening::default(),
        }
    }

    /// Whose key this is, if it opens anything.
    async fn owner(&self, key: &PublicKey, shown: bool) -> Option<Access> {
        let blob = key.to_bytes().ok()?;
        let (app, path) = (self.app.clone(), self.options.authorized_keys.clone());
        let looked = tokio::task::spawn_blocking(move || {
            let listed = path.is_some_and(|path| match authorized::read(&path) {
                Ok(keys) => keys.iter().any(|key| key.blob == blob),
                Err(error) => {
                    tracing::warn!(%error, "nobody is let in by this file");
                    false
                }
            });
            if listed { Some(Access::local()) } else { app.who_logs_in(&blob, shown) }
        });
        looked.await.ok().flatten().filter(|access| access.scope >= Scope::Use)
    }

    fn enter(&mut self, access: Access, user: &str) {
        let guest = Guest::new(self.app.clone(), self.options.clone(), access, user.to_owned(), self.from);
        self.guest = Some(Arc::new(guest));
        self.entered.set();
    }

    /// A place for one more channel, and who it is for.
    fn admit(&self) -> Option<(Arc<Guest>, OwnedSemaphorePermit)> {
        Some((self.guest.clone()?, self.channels.clone().try_acquire_owned().ok()?))
    }

    /// Answers a request to start something: once in each session.
    fn start(&mut self, channel: ChannelId, known: bool, session: &mut Session) -> Result<(), russh::Error> {
        match self.sessions.get_mut(&channel) {
            Some(started) if known && !*started => {
                *started = true;
                session.channel_success(channel)
            }
            _ => session.channel_failure(channel),
        }
    }
}

impl Handler for Login {
    type Error = russh::Error;

    async fn auth_none(&mut self, user: &str) -> Result<Auth, Self::Error> {
        match self.known.clone().filter(|_| user.len() <= NAME) {
            Some(access) => {
                self.enter(access, user);
                Ok(Auth::Accept)
            }
            None => Ok(Auth::reject()),
        }
    }

    async fn auth_publickey_offered(&mut self, user: &str, offer: PublicKeyOffer<'_>) -> Result<Auth, Self::Error> {
        self.offers += 1;
        if self.offers > OFFERS {
            return Err(russh::Error::Disconnect);
        }
        // SHA-1 signatures can be forged. The name is not looked at yet: who has not shown to have the key learns nothing of it.
        let weak = matches!(offer.algorithm, Algorithm::Rsa { hash: None });
        if weak || user.len() > NAME || self.owner(offer.public_key, false).await.is_none() {
            self.entered.failed();
            return Ok(Auth::reject());
        }
        Ok(Auth::Accept)
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
        match self.owner(key.public_key, true).await {
            Some(access) if user.len() <= NAME => {
                self.enter(access, user);
                Ok(Auth::Accept)
            }
            _ => {
                self.entered.failed();
                Ok(Auth::reject())
            }
        }
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let Some((guest, place)) = self.admit() else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        self.sessions.insert(channel.id(), false);
        reply.accept().await;
        let handle = session.handle();
        tokio::spawn(async move {
            session::run(channel, handle, &guest).await;
            drop(place);
        });
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _from: &str,
        _from_port: u32,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        let wanted = forward::Wanted::port(host, port);
        self.forward(channel, wanted, reply).await
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        let wanted = forward::Wanted::socket(path);
        self.forward(channel, wanted, reply).await
    }

    async fn tcpip_forward(
        &mut self,
        address: &str,
        port: &mut u32,
        session: &mut Session,
    ) -> Result<bool, Self::Error> {
        let Some(Spot::Port(bound)) = self.listen(Spot::port(*port), address, session).await? else {
            return Ok(false);
        };
        *port = bound.into();
        Ok(true)
    }

    async fn cancel_tcpip_forward(&mut self, _: &str, port: u32, _: &mut Session) -> Result<bool, Self::Error> {
        Ok(Spot::port(port).is_ok_and(|spot| self.listening.end(&spot)))
    }

    async fn streamlocal_forward(&mut self, path: &str, session: &mut Session) -> Result<bool, Self::Error> {
        Ok(self.listen(Spot::socket(path), "", session).await?.is_some())
    }

    async fn cancel_streamlocal_forward(&mut self, path: &str, _: &mut Session) -> Result<bool, Self::Error> {
        Ok(self.listening.end(&Spot::Socket(path.to_owned())))
    }

    async fn channel_close(&mut self, channel: ChannelId, _: &mut Session) -> Result<(), Self::Error> {
        self.sessions.remove(&channel);
        Ok(())
    }

    // What is asked of a session is answered here, at once: a reply goes to the latest request. What it says reaches the
    // session itself by its channel.

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        _: &str,
        _: u32,
        _: u32,
        _: u32,
        _: u32,
        _: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        match self.sessions.get(&channel) {
            Some(false) => session.channel_success(channel),
            _ => session.channel_failure(channel),
        }
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        _: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        match session::takes_variable(name) {
            true => session.channel_success(channel),
            false => session.channel_failure(channel),
        }
    }

    async fn shell_request(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), Self::Error> {
        self.start(channel, true, session)
    }

    async fn exec_request(&mut self, channel: ChannelId, _: &[u8], session: &mut Session) -> Result<(), Self::Error> {
        self.start(channel, true, session)
    }

    async fn subsystem_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.start(channel, name == session::SFTP, session)
    }

    async fn x11_request(
        &mut self,
        channel: ChannelId,
        _: bool,
        _: &str,
        _: &str,
        _: u32,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_failure(channel)
    }
}

impl Login {
    /// Has something inside lead to the client; tells where it is, if that is possible.
    async fn listen(
        &mut self,
        spot: Result<Spot, String>,
        address: &str,
        session: &mut Session,
    ) -> Result<Option<Spot>, russh::Error> {
        let Some(guest) = self.guest.clone() else { return Ok(None) };
        let begun = match spot {
            Ok(spot) => self.listening.begin(&guest, spot, address, session.handle(), self.channels.clone()).await,
            Err(reason) => Err(reason),
        };
        match begun {
            Ok(bound) => Ok(Some(bound)),
            Err(reason) => {
                // The protocol has no place for a reason here; clients show this with -v.
                tracing::debug!(reason, "nothing is forwarded");
                session.debug(true, &session::harmless(&reason), "")?;
                Ok(None)
            }
        }
    }

    async fn forward(
        &self,
        channel: Channel<Msg>,
        wanted: Result<forward::Wanted, String>,
        reply: ChannelOpenHandle,
    ) -> Result<(), russh::Error> {
        let (wanted, admitted) = match (wanted, self.admit()) {
            (Err(reason), _) => {
                reply.reject(forward::refusal(reason)).await;
                return Ok(());
            }
            (Ok(_), None) => {
                reply.reject(ChannelOpenFailure::ResourceShortage).await;
                return Ok(());
            }
            (Ok(wanted), Some(admitted)) => (wanted, admitted),
        };
        tokio::spawn(async move {
            let (guest, place) = admitted;
            forward::run(channel, &guest, wanted, reply).await;
            drop(place);
        });
        Ok(())
    }
}
