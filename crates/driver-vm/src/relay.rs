//! Beside QEMU, in its sandbox: the other end of the machine's port, for as long as the machine lives.
//!
//! This program starts QEMU and ends with it. Whoever dials one of its ports on loopback gets a stream to what the guest
//! knows by that name: the engine may come and go without the guest's port noticing. What the sandbox in the guest wants from
//! the outside arrives as streams, too, and is dialed from here: in this network namespace everything leads to the host's
//! egress, or nowhere.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{SeekFrom, seek};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;

use crate::guest::ports;
use crate::mux::{Mux, Opened, Side, Stream};
use crate::{outer, qemu, talk};

/// The word after the subcommand.
pub const WORD: &str = "relay";

/// In place of a password: the guest's port is left alone.
pub const NOBODY: &str = "-";

/// What can be dialed, and what the guest knows it by.
const PORTS: [(u16, &str); 2] = [(qemu::AGENT_PORT, talk::AGENT), (qemu::CONTROL_PORT, talk::CONTROL)];

/// How long QEMU may take to end once its port is gone.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long a resolver may take.
const ANSWER: Duration = Duration::from_secs(15);

/// Longest answer of a resolver.
const MAX_ANSWER: usize = 65_535;

/// `relay PASSWORD INPUT LIBRARY MEMORY QEMU…`: starts QEMU, with a file to read from, a library loaded before all others, and a
/// copy of a saved memory, where these are not `-`.
pub fn main(words: &[String]) -> io::Result<i32> {
    let [password, input, library, memory, program, arguments @ ..] = words else {
        return Err(io::Error::other("the relay needs a password, an input, a library, a memory and a program"));
    };
    let password = match password.as_str() {
        NOBODY => None,
        text => Some(parse(text).ok_or_else(|| io::Error::other("that is no password"))?),
    };
    let input = match input.as_str() {
        "-" => Stdio::null(),
        path => File::open(path)?.into(),
    };
    if memory != "-" {
        copy_sparse(Path::new(memory), Path::new(outer::RAM))?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Those who dial wait here until there is a guest.
        let mut listeners = Vec::new();
        for (port, name) in PORTS {
            listeners.push((TcpListener::bind(("127.0.0.1", port)).await?, name));
        }
        let mut command = Command::new(Path::new(program));
        if library != "-" {
            command.env("LD_PRELOAD", library);
        }
        let mut child = command.args(arguments).stdin(input).spawn()?;
        let (told, mut ended) = tokio::sync::oneshot::channel::<io::Result<ExitStatus>>();
        std::thread::spawn(move || told.send(child.wait()));
        let served = async {
            match password {
                Some(password) => serve(listeners, password).await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            ended = &mut ended => ended,
            served = served => {
                // Most often the port is gone because QEMU is, which is the better reason.
                let Ok(ended) = tokio::time::timeout(LAST_WORDS, ended).await else { return served.map(|()| 1) };
                ended
            }
        };
        let ended = ended.map_err(io::Error::other)??;
        ended.code().ok_or_else(|| io::Error::other(format!("QEMU was ended by {ended}")))
    })
}

/// Copies a file, but for its holes.
fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (File::open(from)?, File::create_new(to)?);
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let mut at = 0;
    while let Ok(begin) = seek(&from, SeekFrom::Data(at)) {
        let end = seek(&from, SeekFrom::Hole(begin))?;
        seek(&to, SeekFrom::Start(begin))?;
        let mut place = begin;
        while place < end {
            let most = usize::try_from(end - place).unwrap_or(usize::MAX);
            if rustix::fs::sendfile(&to, &from, Some(&mut place), most)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = end;
    }
    Ok(())
}

/// A new password.
pub fn password() -> io::Result<String> {
    let mut bytes = [0; ports::WORD];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn parse(text: &str) -> Option<[u8; ports::WORD]> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>()?.try_into().ok()
}

async fn serve(listeners: Vec<(TcpListener, &'static str)>, password: [u8; ports::WORD]) -> io::Result<()> {
    let mut port = loop {
        match TcpStream::connect(("127.0.0.1", qemu::PIPE_PORT)).await {
            Ok(port) => break port,
            // QEMU is only just starting.
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    port.set_nodelay(true)?;
    let mut word = [0; ports::WORD];
    rustix::rand::getrandom(&mut word, rustix::rand::GetRandomFlags::empty())?;
    port.write_all(&[password, word].concat()).await?;
    let (mut from, mut to) = port.into_split();
    let (incoming, pieces) = mpsc::channel(16);
    let (outgoing, mut written) = mpsc::unbounded_channel::<Vec<u8>>();
    let (opened, mut wishes) = mpsc::unbounded_channel();
    let mux = Mux::start(Side::Host, pieces, outgoing, opened);
    for (listener, name) in listeners {
        let mux = mux.clone();
        tokio::spawn(async move {
            while let Ok((visitor, _)) = listener.accept().await {
                let _ = visitor.set_nodelay(true);
                // A machine that is gone takes this program along: nothing to be told here.
                if let Ok(stream) = mux.open(name) {
                    tokio::spawn(stream.carry(visitor));
                }
            }
        });
    }
    let reading = async {
        let rest = after(&mut from, &word).await?;
        incoming.send(rest).await.map_err(io::Error::other)?;
        let mut space = vec![0; 64 * 1024];
        loop {
            let count = from.read(&mut space).await?;
            if count == 0 {
                return Ok(());
            }
            incoming.send(space[..count].to_vec()).await.map_err(io::Error::other)?;
        }
    };
    let writing = async {
        while let Some(piece) = written.recv().await {
            to.write_all(&piece).await?;
        }
        Ok(())
    };
    let granting = async {
        while let Some(wish) = wishes.recv().await {
            tokio::spawn(grant(wish));
        }
        Ok(())
    };
    tokio::select! {
        done = reading => done,
        done = writing => done,
        done = granting => done,
    }
}

/// Drops everything up to the word; returns what was read after it.
async fn after(from: &mut (impl AsyncReadExt + Unpin), word: &[u8]) -> io::Result<Vec<u8>> {
    let mut heard = Vec::new();
    let mut space = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut space).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        heard.extend_from_slice(&space[..count]);
        if let Some(at) = memchr::memmem::find(&heard, word) {
            return Ok(heard.split_off(at + word.len()));
        }
        let old = heard.len().saturating_sub(word.len() - 1);
        heard.drain(..old);
    }
}

/// What the sandbox in the guest wants from the outside.
async fn grant(Opened { purpose, stream }: Opened) -> io::Result<()> {
    let (kind, address) = purpose.split_once(' ').unwrap_or_default();
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    // What is here is QEMU's and this program's.
    if address.ip().to_canonical().is_loopback() || address.ip().is_unspecified() {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    match kind {
        talk::TCP => {
            let connection = TcpStream::connect(address).await?;
            connection.set_nodelay(true)?;
            carry(stream, connection).await
        }
        talk::QUESTION => {
            let here = if address.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(here).await?;
            socket.connect(address).await?;
            ask(stream, &socket).await
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Carries a connection; if the stream breaks, so does the connection, for both to see.
pub(crate) async fn carry(stream: Stream, connection: TcpStream) -> io::Result<()> {
    let mut connection = connection;
    let carried = stream.carry(&mut connection).await;
    if carried.is_err() {
        let _ = connection.set_zero_linger();
    }
    carried
}

/// One question, one answer.
async fn ask(stream: Stream, socket: &UdpSocket) -> io::Result<()> {
    let (ours, theirs) = tokio::io::duplex(MAX_ANSWER);
    let (mut from, mut to) = tokio::io::split(ours);
    let asked = async {
        let mut question = Vec::new();
        from.read_to_end(&mut question).await?;
        socket.send(&question).await?;
        let mut answer = vec![0; MAX_ANSWER];
        let count = tokio::time::timeout(ANSWER, socket.recv(&mut answer)).await.map_err(io::Error::other)??;
        to.write_all(&answer[..count]).await?;
        to.shutdown().await
    };
    tokio::try_join!(stream.carry(theirs), asked).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn a_copy_has_the_same_bytes_and_holes() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let file = File::create(&from).unwrap();
        file.set_len(16 << 20).unwrap();
        for (at, byte) in [(0u64, 1u8), (5 << 20, 2), ((16 << 20) - 4096, 3)] {
            file.write_all_at(&[byte; 4096], at).unwrap();
        }
        copy_sparse(&from, &to).unwrap();
        assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap());
        assert!(std::fs::metadata(&to).unwrap().blocks() * 512 < 1 << 20, "holes were written");
        assert!(copy_sparse(&from, &to).is_err(), "what is there is not written over");
    }
}
