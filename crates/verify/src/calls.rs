//! Calls to the world outside, made inside by hand: no library comes between that would know better.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use sloplet_policy::addresses::RESOLVER_V4;

use crate::probes::spelled;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most bytes of an answer.
const ANSWER: usize = 4096;

/// One call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Call {
    /// Connects and says something, piece by piece; with an answer awaited after each, if `turns`.
    Tcp {
        /// A name, or an address in any spelling.
        host: String,
        /// The port.
        port: u16,
        /// What to say: a character for each byte, which is shorter than numbers.
        say: Vec<String>,
        /// Whether both take turns.
        turns: bool,
    },
    /// Sends a datagram and waits for another.
    Udp {
        /// Where to.
        address: SocketAddr,
        /// What to say.
        say: Vec<u8>,
    },
    /// Asks for a name.
    Ask {
        /// The name.
        name: String,
        /// The kind of record.
        kind: u16,
    },
    /// Opens connections and holds them all, each with half a request.
    Many {
        /// The name.
        host: String,
        /// How many.
        count: usize,
    },
}

impl Call {
    /// A request by HTTP, for this path, with this Host.
    pub fn http(host: &str, port: u16, shown: &str, path: &str) -> Self {
        Self::text(host, port, &[&format!("GET {path} HTTP/1.1\r\nHost: {shown}\r\nConnection: close\r\n\r\n")])
    }

    /// Words as they are.
    pub fn text(host: &str, port: u16, say: &[&str]) -> Self {
        let say = say.iter().map(|text| spell(text.as_bytes())).collect();
        Self::Tcp { host: host.to_owned(), port, say, turns: false }
    }

    /// The same, with an answer awaited after each piece.
    pub fn in_turns(host: &str, port: u16, say: &[&str]) -> Self {
        let say = say.iter().map(|text| spell(text.as_bytes())).collect();
        Self::Tcp { host: host.to_owned(), port, say, turns: true }
    }

    /// The first message of TLS, with this server name and this mark in it.
    pub fn tls(host: &str, port: u16, name: Option<&str>, mark: &str) -> Self {
        Self::bytes(host, port, &hello(name, mark))
    }

    /// Bytes as they are.
    pub fn bytes(host: &str, port: u16, say: &[u8]) -> Self {
        Self::Tcp { host: host.to_owned(), port, say: vec![spell(say)], turns: false }
    }

    /// What came of it: what was said, or why not.
    pub fn make(&self) -> String {
        let told = match self {
            Self::Tcp { host, port, say, turns } => talk(host, *port, say, *turns),
            Self::Udp { address, say } => datagram(*address, say),
            Self::Ask { name, kind } => ask(name, *kind).map(|found| found.map_or("none".into(), |it| it.to_string())),
            Self::Many { host, count } => many(host, *count),
        };
        told.unwrap_or_else(|error| format!("error: {error}"))
    }
}

/// Makes all of these, a list of JSON; prints what came of each, as a list.
pub fn act(text: &str) -> io::Result<String> {
    let calls: Vec<Call> = serde_json::from_str(text)?;
    Ok(serde_json::to_string(&calls.iter().map(Call::make).collect::<Vec<_>>())?)
}

/// Waits for something to be read, or for the end. Time-outs of sockets are not kept by every kernel: gVisor's knows none
/// for those of its host.
pub fn await_answer(socket: impl AsFd, patience: Duration) -> io::Result<()> {
    let wait = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&wait))? {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(()),
    }
}

fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let address = match spelled(host) {
        Some(address) => address,
        None => ask(host, 1)?.ok_or_else(|| io::Error::other("no such name"))?,
    };
    let stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), PATIENCE)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn spell(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

fn talk(host: &str, port: u16, say: &[String], turns: bool) -> io::Result<String> {
    let mut stream = connect(host, port)?;
    let (mut said, mut buffer) = (Vec::new(), [0u8; ANSWER]);
    for (place, piece) in say.iter().enumerate() {
        let piece: Vec<u8> = piece.chars().map(|letter| letter as u8).collect();
        if let Err(error) = stream.write_all(&piece) {
            // Cut in the middle of a sentence: perhaps it says why.
            if said.is_empty() && !matches!(read(&mut stream, &mut buffer, PATIENCE), Ok(1..)) {
                return Err(error);
            }
            break;
        }
        if !turns && place + 1 < say.len() {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        let count = match read(&mut stream, &mut buffer, PATIENCE) {
            Ok(count) => count,
            Err(error) if said.is_empty() => return Err(error),
            Err(_) => 0,
        };
        said.extend_from_slice(&buffer[..count]);
        if count == 0 {
            break;
        }
    }
    // What else there is at once: a second answer, say.
    while said.len() < ANSWER {
        match read(&mut stream, &mut buffer, Duration::from_millis(100)) {
            Ok(count @ 1..) => said.extend_from_slice(&buffer[..count]),
            _ => break,
        }
    }
    Ok(if said.is_empty() { "closed".into() } else { String::from_utf8_lossy(&said).into_owned() })
}

fn read(stream: &mut TcpStream, buffer: &mut [u8], patience: Duration) -> io::Result<usize> {
    await_answer(&*stream, patience)?;
    stream.read(buffer)
}

fn datagram(address: SocketAddr, say: &[u8]) -> io::Result<String> {
    let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(address)?;
    socket.send(say)?;
    let mut buffer = [0u8; ANSWER];
    await_answer(&socket, Duration::from_millis(500))?;
    let count = socket.recv(&mut buffer)?;
    Ok(format!("answered: {count} bytes"))
}

/// Asks the resolver of the sandbox; the address, if there is one.
fn ask(name: &str, kind: u16) -> io::Result<Option<IpAddr>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((RESOLVER_V4, 53))?;
    socket.send(&question(name, kind))?;
    let mut buffer = [0u8; ANSWER];
    await_answer(&socket, PATIENCE)?;
    let count = socket.recv(&mut buffer)?;
    let answer = &buffer[..count];
    // One record at most, and it is the last thing in front of what only says why: found by its form.
    let found = answer.get(6..8) == Some(&[0, 1]);
    let record = answer.windows(12).find(|record| record[..6] == [0xc0, 12, 0, 1, 0, 1] && record[10..12] == [0, 4]);
    let at = record.map(|record| record.as_ptr() as usize - answer.as_ptr() as usize + 12);
    let address = at.and_then(|at| answer.get(at..at + 4)).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
    Ok(address.filter(|_| found).map(IpAddr::from))
}

/// A question as it goes over the wire.
pub fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.trim_end_matches('.').split('.') {
        query.push(label.len().min(63) as u8);
        query.extend_from_slice(&label.as_bytes()[..label.len().min(63)]);
    }
    query.push(0);
    query.extend_from_slice(&kind.to_be_bytes());
    query.extend_from_slice(&[0, 1]);
    query
}

/// Holds as many as can be had; tells how many were not cut.
fn many(host: &str, count: usize) -> io::Result<String> {
    let mut held = Vec::new();
    for _ in 0..count {
        if let Ok(mut stream) = connect(host, 80)
            && stream.write_all(b"GET / HTTP/1.1\r\nHost: a").is_ok()
        {
            held.push(stream);
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    let alive = |mut stream: &TcpStream| {
        let _ = stream.set_nonblocking(true);
        matches!(stream.read(&mut [0u8; 1]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    };
    Ok(held.iter().filter(|stream| alive(stream)).count().to_string())
}

/// A ClientHello of TLS 1.2: what any server would answer, with the mark as its random number.
fn hello(name: Option<&str>, mark: &str) -> Vec<u8> {
    let with_length = |length: usize, bytes: &[u8]| -> Vec<u8> {
        let size = (bytes.len() as u32).to_be_bytes();
        [&size[4 - length..], bytes].concat()
    };
    let mut random = [b'.'; 32];
    let mark = &mark.as_bytes()[..mark.len().min(32)];
    random[..mark.len()].copy_from_slice(mark);
    let mut extensions = Vec::new();
    if let Some(name) = name {
        let list = with_length(2, &[&[0u8][..], &with_length(2, name.as_bytes())].concat());
        extensions.extend([&[0u8, 0][..], &with_length(2, &list)].concat());
    }
    // Versions, groups, signatures: enough to be taken for real.
    extensions.extend([0, 10, 0, 4, 0, 2, 0, 29, 0, 13, 0, 4, 0, 2, 4, 3]);
    let body =
        [&[3, 3][..], &random, &[0], &with_length(2, &[0xc0, 0x2b]), &[1, 0], &with_length(2, &extensions)].concat();
    let handshake = [&[1u8][..], &with_length(3, &body)].concat();
    [&[22u8, 3, 1][..], &with_length(2, &handshake)].concat()
}
