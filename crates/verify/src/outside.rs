//! A world outside for sandboxes with a way out: names lead where the verifier says, and every connection ends at one
//! listener on the host's loopback, whatever address was dialed. It keeps what reaches it.
//!
//! It stands where the host's resolver and sockets stand otherwise, at the very end of the way out: all that decides is
//! before it. So it needs no root, no address and no name server, and nothing leaves the host.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sloplet_egress::{Connect, Pending, Resolve};
use sloplet_engine::Outside;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Bytes of one connection that are kept.
const HEARD: usize = 256 << 10;

/// How long a connection may be silent.
const SILENCE: Duration = Duration::from_secs(20);

/// A world outside. Dropping it closes it.
pub struct World {
    seen: Arc<Seen>,
    serving: JoinHandle<()>,
}

/// What it was asked and sent.
struct Seen {
    port: u16,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Answers of each name, in turn; the last one stays.
    names: HashMap<String, VecDeque<Vec<IpAddr>>>,
    /// Addresses where nobody is.
    dead: HashSet<IpAddr>,
    asked: Vec<String>,
    dialed: Vec<SocketAddr>,
    heard: Vec<Vec<u8>>,
    open: usize,
    most: usize,
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    /// One in which these names lead to these addresses.
    pub async fn open(names: &[(&str, &str)]) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let seen = Arc::new(Seen { port: listener.local_addr()?.port(), state: Mutex::default() });
        let serving = tokio::spawn(serve(listener, seen.clone()));
        let world = Self { seen, serving };
        for (name, address) in names {
            world.name(name, &[&[*address]]);
        }
        Ok(world)
    }

    /// Where a name leads: one answer after the other, the last one for ever.
    pub fn name(&self, name: &str, answers: &[&[&str]]) {
        let parsed = |answer: &&[&str]| answer.iter().filter_map(|address| address.parse().ok()).collect();
        self.seen.lock().names.insert(name.to_owned(), answers.iter().map(parsed).collect());
    }

    /// Nobody answers at this address.
    pub fn bury(&self, address: &str) {
        self.seen.lock().dead.extend(address.parse::<IpAddr>());
    }

    /// What a sandbox is given to see it.
    pub fn outside(&self) -> Outside {
        let seen = Arc::new(Outlet(self.seen.clone()));
        Outside { resolver: seen.clone(), connector: seen }
    }

    /// Names that were looked up.
    pub fn asked(&self) -> Vec<String> {
        self.seen.lock().asked.clone()
    }

    /// Addresses that were dialed.
    pub fn dialed(&self) -> Vec<SocketAddr> {
        self.seen.lock().dialed.clone()
    }

    /// Whether somebody sent this text, or asked for it as part of a name.
    pub fn heard(&self, text: &str) -> bool {
        let state = self.seen.lock();
        state.heard.iter().any(|bytes| crate::part::contains(bytes, text.as_bytes()))
            || state.asked.iter().any(|name| name.contains(&text.to_ascii_lowercase()))
    }

    /// Whether one connection brought both texts.
    pub fn heard_with(&self, one: &str, other: &str) -> bool {
        let both = |bytes: &Vec<u8>| [one, other].iter().all(|text| crate::part::contains(bytes, text.as_bytes()));
        self.seen.lock().heard.iter().any(both)
    }

    /// The most connections that it had at once.
    pub fn most(&self) -> usize {
        self.seen.lock().most
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The end of a way out.
struct Outlet(Arc<Seen>);

impl Resolve for Outlet {
    fn resolve<'a>(&'a self, name: &'a str) -> Pending<'a, io::Result<Vec<IpAddr>>> {
        let mut state = self.0.lock();
        state.asked.push(name.to_ascii_lowercase());
        let answer = state.names.get_mut(name).and_then(|answers| match answers.len() {
            0 | 1 => answers.front().cloned(),
            _ => answers.pop_front(),
        });
        Box::pin(async move { answer.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such name")) })
    }
}

impl Connect for Outlet {
    fn connect(&self, address: SocketAddr) -> Pending<'_, io::Result<TcpStream>> {
        let dead = {
            let mut state = self.0.lock();
            state.dialed.push(address);
            state.dead.contains(&address.ip())
        };
        let port = self.0.port;
        Box::pin(async move {
            if dead {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            TcpStream::connect(("127.0.0.1", port)).await
        })
    }
}

async fn serve(listener: TcpListener, seen: Arc<Seen>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(converse(stream, seen.clone()))),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Answers requests, and says that it was reached to whoever speaks something else.
async fn converse(mut stream: TcpStream, seen: Arc<Seen>) {
    let place = {
        let mut state = seen.lock();
        state.open += 1;
        state.most = state.most.max(state.open);
        state.heard.push(Vec::new());
        state.heard.len() - 1
    };
    let _ = tokio::time::timeout(SILENCE, talk(&mut stream, &seen, place)).await;
    seen.lock().open -= 1;
}

async fn talk(stream: &mut TcpStream, seen: &Seen, place: usize) -> io::Result<()> {
    let (mut buffer, mut text) = (vec![0u8; 16 << 10], Vec::new());
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        text.extend_from_slice(&buffer[..count]);
        if let Some(heard) = seen.lock().heard.get_mut(place)
            && heard.len() < HEARD
        {
            heard.extend_from_slice(&buffer[..count]);
        }
        if !text.first().is_some_and(u8::is_ascii_uppercase) {
            text.clear();
            stream.write_all(b"reached\n").await?;
        }
        while let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") {
            let head: Vec<u8> = text.drain(..end + 4).collect();
            stream.write_all(answer(&head).as_bytes()).await?;
        }
        text.truncate(HEARD);
    }
}

/// `/redirect?to=…` redirects; everything else was reached.
fn answer(head: &[u8]) -> String {
    let head = String::from_utf8_lossy(head);
    match head.split("/redirect?to=").nth(1).and_then(|rest| rest.split(' ').next()) {
        Some(to) => format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"),
        None => "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nreached\n".to_owned(),
    }
}
