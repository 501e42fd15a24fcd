//! Ports and sockets inside that lead to the client (`ssh -R`).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use russh::server::Handle;
use sloplet_client::{Connection, Listener};
use sloplet_engine::life::Reached;
use sloplet_wire::Target;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;

use crate::forward;
use crate::guest::Guest;

/// Ports and sockets of one connection.
const MOST: usize = 16;

/// What is listened on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Spot {
    /// A port of the sandbox's loopback; 0 for any.
    Port(u16),
    /// A socket, by its path.
    Socket(String),
}

impl Spot {
    pub(crate) fn port(port: u32) -> Result<Self, String> {
        u16::try_from(port).map(Self::Port).map_err(|_| "there is no such port".into())
    }

    pub(crate) fn socket(path: &str) -> Result<Self, String> {
        forward::is_socket_path(path).map(|()| Self::Socket(path.to_owned()))
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => write!(out, "port {port}"),
            Self::Socket(path) => write!(out, "{path}"),
        }
    }
}

/// What is listened on for one client. Dropping it closes all of it.
#[derive(Default)]
pub(crate) struct Listening(HashMap<Spot, AbortOnDropHandle<()>>);

impl Listening {
    /// Listens inside; tells where, which is a number where any port would do. Of a port, `address` is what the client calls the
    /// address: it is the sandbox's loopback whatever it says.
    pub(crate) async fn begin(
        &mut self,
        guest: &Arc<Guest>,
        spot: Spot,
        address: &str,
        handle: Handle,
        room: Arc<Semaphore>,
    ) -> Result<Spot, String> {
        if !guest.options.remote_forward {
            let what = "this server forwards neither ports nor sockets to clients";
            return Err(format!("{what}: see 'sloplet serve --ssh-remote-forward'"));
        }
        if self.0.len() >= MOST {
            return Err(format!("at most {MOST} ports and sockets can be forwarded"));
        }
        let reached = guest.reach().await?;
        let listened = listen(&reached, &spot).await;
        let bound = match listened.as_ref().map(Listener::port) {
            Ok(Some(port)) => Spot::Port(port),
            _ => spot,
        };
        guest.note(&reached, &format!("forward from {bound}"), if listened.is_ok() { 200 } else { 502 });
        let listener = listened?;
        let (from, address) = (bound.clone(), address.to_owned());
        let taking = async move {
            // The sandbox does not count as idle while it is held.
            let _in_use = reached;
            while let Ok(connection) = listener.accept().await {
                // Whoever connects when there is no room is let go.
                if let Ok(place) = room.clone().try_acquire_owned() {
                    tokio::spawn(pass_on(handle.clone(), from.clone(), address.clone(), connection, place));
                }
            }
        };
        self.0.insert(bound.clone(), AbortOnDropHandle::new(tokio::spawn(taking)));
        Ok(bound)
    }

    /// Closes one; false if it was not listened on.
    pub(crate) fn end(&mut self, spot: &Spot) -> bool {
        self.0.remove(spot).is_some()
    }
}

/// A socket is made inside by the agent, with the rights of the sandbox's user.
async fn listen(reached: &Reached, spot: &Spot) -> Result<Listener, String> {
    let agent = reached.agent();
    let listener = match spot {
        Spot::Port(port) => agent.listen(*port).await,
        Spot::Socket(path) => {
            let user = reached.sandbox.spec().user.clone();
            agent.listen_at(Target { path: path.clone().into_bytes().into(), user, privileged: false }).await
        }
    };
    listener.map_err(|error| error.to_string())
}

/// Has the client connect its end.
async fn pass_on(handle: Handle, from: Spot, address: String, connection: Connection, _place: OwnedSemaphorePermit) {
    let opened = match from {
        Spot::Port(port) => handle.channel_open_forwarded_tcpip(address, u32::from(port), "127.0.0.1", 0).await,
        Spot::Socket(path) => handle.channel_open_forwarded_streamlocal(path).await,
    };
    if let Ok(channel) = opened {
        forward::join(channel, connection).await;
    }
}
