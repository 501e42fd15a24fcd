//! A doorway in memory, servers on loopback, a resolver that counts.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sloplet_egress::*;
use sloplet_policy::Network;
use sloplet_policy::addresses::{PROXY_PORT, RESOLVER_V4};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};

/// Longer than anything takes that works.
pub const LONG: Duration = Duration::from_secs(20);

type Asked = (Vec<u8>, oneshot::Sender<Vec<u8>>);

pub struct Door {
    arrivals: AsyncMutex<mpsc::UnboundedReceiver<Arrival>>,
    questions: AsyncMutex<mpsc::UnboundedReceiver<Asked>>,
}

impl Doorway for Door {
    fn connection(&self) -> Pending<'_, io::Result<Arrival>> {
        Box::pin(async { self.arrivals.lock().await.recv().await.ok_or_else(|| io::ErrorKind::BrokenPipe.into()) })
    }

    fn question(&self) -> Pending<'_, io::Result<Question>> {
        Box::pin(async {
            let (message, reply) = self.questions.lock().await.recv().await.ok_or(io::ErrorKind::BrokenPipe)?;
            Ok(Question { message, answer: Box::new(move |bytes| drop(reply.send(bytes.to_vec()))) })
        })
    }
}

#[derive(Default)]
pub struct Names {
    pub table: Mutex<HashMap<String, Vec<IpAddr>>>,
    pub asked: Mutex<Vec<String>>,
}

impl Resolve for Names {
    fn resolve<'a>(&'a self, name: &'a str) -> Pending<'a, io::Result<Vec<IpAddr>>> {
        self.asked.lock().unwrap().push(name.to_owned());
        let found = self.table.lock().unwrap().get(name).cloned();
        Box::pin(async move { found.ok_or_else(|| io::ErrorKind::NotFound.into()) })
    }
}

/// A sandbox, seen from inside.
pub struct Inside {
    pub egress: Option<Egress>,
    pub names: Arc<Names>,
    events: Arc<Mutex<Vec<Event>>>,
    arrivals: mpsc::UnboundedSender<Arrival>,
    questions: mpsc::UnboundedSender<Asked>,
    listener: TcpListener,
}

impl Inside {
    pub async fn new(network: Network) -> Self {
        Self::with(network, |_| {}).await
    }

    pub async fn with(network: Network, change: impl FnOnce(&mut Options)) -> Self {
        let (arrivals, arriving) = mpsc::unbounded_channel();
        let (questions, questioning) = mpsc::unbounded_channel();
        let door = Door { arrivals: AsyncMutex::new(arriving), questions: AsyncMutex::new(questioning) };
        let (names, events) = (Arc::new(Names::default()), Arc::new(Mutex::new(Vec::new())));
        let log = Arc::clone(&events);
        let mut options = Options {
            resolver: names.clone(),
            events: Arc::new(move |event| log.lock().unwrap().push(event)),
            own_addresses: Some(Vec::new()),
            ..Options::default()
        };
        change(&mut options);
        let egress = Some(Egress::start(Arc::new(door), network, options));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { egress, names, events, arrivals, questions, listener }
    }

    pub fn knows(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        self.names.table.lock().unwrap().insert(name.into(), addresses);
    }

    pub fn asked_upstream(&self) -> Vec<String> {
        self.names.asked.lock().unwrap().clone()
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// Waits for an event; fails with all there were.
    pub async fn event(&self, wanted: impl Fn(&Event) -> bool) -> Event {
        for _ in 0..2000 {
            if let Some(event) = self.events().into_iter().find(&wanted) {
                return event;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no such event among {:#?}", self.events());
    }

    /// The reason of the first denial.
    pub async fn denial(&self) -> String {
        match self.event(|event| matches!(event, Event::Denied { .. })).await {
            Event::Denied { reason, .. } => reason,
            _ => unreachable!(),
        }
    }

    pub fn counters(&self) -> Counters {
        self.egress.as_ref().unwrap().counters()
    }

    /// A program connects to an address.
    pub async fn connect(&self, wanted: impl Into<SocketAddr>) -> Client {
        let near = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = self.listener.accept().await.unwrap();
        self.arrivals.send(Arrival { stream, wanted: wanted.into() }).unwrap();
        Client(near)
    }

    /// A program connects to a name.
    pub async fn connect_name(&self, name: &str, port: u16) -> Client {
        let address = self.resolve(name).await.unwrap_or_else(|| panic!("{name} has no address"));
        self.connect((address, port)).await
    }

    /// A program connects to the proxy.
    pub async fn connect_proxy(&self) -> Client {
        self.connect((RESOLVER_V4, PROXY_PORT)).await
    }

    pub async fn question(&self, message: Vec<u8>) -> Option<Vec<u8>> {
        let (reply, answer) = oneshot::channel();
        self.questions.send((message, reply)).unwrap();
        tokio::time::timeout(LONG, answer).await.unwrap().ok()
    }

    /// The answer's code and the data of its record.
    pub async fn lookup(&self, name: &str, kind: u16) -> (u8, Option<Vec<u8>>) {
        read_answer(name, &self.question(question(name, kind)).await.unwrap())
    }

    pub async fn resolve(&self, name: &str) -> Option<IpAddr> {
        let (_, data) = self.lookup(name, 1).await;
        data.map(|data| IpAddr::from(<[u8; 4]>::try_from(data.as_slice()).unwrap()))
    }
}

pub fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(kind.to_be_bytes());
    message.extend([0, 1]);
    message
}

pub fn read_answer(name: &str, answer: &[u8]) -> (u8, Option<Vec<u8>>) {
    assert_eq!(&answer[..2], [0x12, 0x34]);
    assert!(answer[2] & 0x80 != 0);
    let data = (answer[7] == 1).then(|| answer[12 + name.len() + 2 + 4 + 12..].to_vec());
    (answer[3] & 15, data)
}

/// A program's connection.
pub struct Client(pub TcpStream);

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Closed,
    Reset,
}

impl Client {
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The other end may have refused already.
        let _ = self.0.write_all(bytes.as_ref()).await;
    }

    /// Reads exactly this.
    pub async fn expect(&mut self, bytes: impl AsRef<[u8]>) {
        let mut got = vec![0; bytes.as_ref().len()];
        let read = tokio::time::timeout(LONG, self.0.read_exact(&mut got)).await.expect("in time");
        assert!(read.is_ok(), "{read:?}, {:?}", String::from_utf8_lossy(&got));
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(bytes.as_ref()));
    }

    /// Reads to the end.
    pub async fn rest(&mut self) -> (String, End) {
        let mut got = Vec::new();
        let end = tokio::time::timeout(LONG, self.0.read_to_end(&mut got)).await.expect("in time");
        let end = if end.is_ok() { End::Closed } else { End::Reset };
        (String::from_utf8_lossy(&got).into_owned(), end)
    }

    /// Sends, says that this was all, and reads to the end.
    pub async fn talk(mut self, bytes: impl AsRef<[u8]>) -> (String, End) {
        self.send(bytes).await;
        let _ = self.0.shutdown().await;
        self.rest().await
    }

    /// Sends and reads to the end.
    pub async fn ask(mut self, bytes: impl AsRef<[u8]>) -> (String, End) {
        self.send(bytes).await;
        self.rest().await
    }
}

/// A server on loopback that remembers what it was told.
pub struct Server {
    pub address: SocketAddr,
    pub heard: Arc<Mutex<Vec<u8>>>,
    pub accepted: Arc<Mutex<u32>>,
}

#[derive(Clone, Copy)]
pub enum Manner {
    /// Says back what it hears.
    Echo,
    /// Says this first, then echoes.
    Banner(&'static str),
    /// Answers every blank line with a response.
    Http(&'static str),
}

pub const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

impl Server {
    pub async fn start(address: &str, manner: Manner) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let server =
            Self { address: listener.local_addr().unwrap(), heard: Default::default(), accepted: Default::default() };
        let (heard, accepted) = (Arc::clone(&server.heard), Arc::clone(&server.accepted));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *accepted.lock().unwrap() += 1;
                tokio::spawn(talk(stream, manner, Arc::clone(&heard)));
            }
        });
        server
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn heard(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().unwrap()).into_owned()
    }

    pub fn accepted(&self) -> u32 {
        *self.accepted.lock().unwrap()
    }
}

async fn talk(mut stream: TcpStream, manner: Manner, heard: Arc<Mutex<Vec<u8>>>) {
    if let Manner::Banner(text) = manner {
        stream.write_all(text.as_bytes()).await.unwrap();
    }
    let (mut buffer, mut told) = (vec![0u8; 64 << 10], Vec::<u8>::new());
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        heard.lock().unwrap().extend(&buffer[..count]);
        let answer = match manner {
            Manner::Http(answer) => {
                told.extend(&buffer[..count]);
                let mut answers = Vec::new();
                while let Some(end) = told.windows(4).position(|part| part == b"\r\n\r\n") {
                    told.drain(..end + 4);
                    answers.extend(answer.as_bytes());
                }
                answers
            }
            _ => buffer[..count].to_vec(),
        };
        if stream.write_all(&answer).await.is_err() {
            break;
        }
    }
}

pub fn network(allow: &[String]) -> Network {
    Network { allow: allow.iter().map(|text| text.parse().unwrap()).collect(), ..Network::default() }
}

/// A sandbox that may reach `ok.test` and `other.test`, both at one server; what is reached there is opened by address.
pub async fn inside_with(manner: Manner) -> (Inside, Server) {
    let server = Server::start("127.0.0.2", manner).await;
    let port = server.port();
    let rules = [format!("ok.test:{port}"), format!("other.test:{port}"), format!("127.0.0.2:{port}")];
    let inside = Inside::new(network(&rules)).await;
    for name in ["ok.test", "other.test", "evil.test"] {
        inside.knows(name, &["127.0.0.2"]);
    }
    (inside, server)
}

/// A ClientHello; `None`: without a server name.
pub fn hello(name: Option<&str>) -> Vec<u8> {
    fn vector16(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
    }
    let mut extensions = [&[0, 43][..], &vector16(&[2, 3, 4])].concat();
    if let Some(name) = name {
        let entry = [&[0][..], &vector16(name.as_bytes())].concat();
        extensions.extend([&[0, 0][..], &vector16(&vector16(&entry))].concat());
    }
    let body = [&[3, 3][..], &[7; 32], &[0], &vector16(&[0x13, 1]), &[1, 0], &vector16(&extensions)].concat();
    [&[22, 3, 1][..], &vector16(&[&[1, 0][..], &vector16(&body)].concat())].concat()
}

/// A fatal alert: access denied.
pub const ALERT: &[u8] = &[21, 3, 3, 0, 2, 2, 49];
