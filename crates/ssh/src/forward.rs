//! Connections to ports and sockets inside, and to what the sandbox itself may reach.

use std::net::IpAddr;

use bytes::{Bytes, BytesMut};
use russh::server::{ChannelOpenHandle, Msg};
use russh::{Channel, ChannelMsg, ChannelOpenFailure};
use sloplet_client::{Connection, Process, ProcessEvent};
use sloplet_engine::life::Reached;
use sloplet_policy::addresses::{PROXY_PORT, RESOLVER_V4};
use sloplet_wire::{Builtin, Exec};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};

use crate::guest::Guest;
use crate::session::harmless;

/// Bytes that are moved at once.
const PIECE: usize = 32 * 1024;

/// Pieces that wait to be written inside.
const QUEUE: usize = 16;

/// Bytes of an answer of the way out.
const ANSWER: usize = 8 * 1024;

/// Where a client wants to be connected to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A port of the sandbox's loopback.
    Inside(u16),
    /// A socket inside, by its path.
    Socket(String),
    /// Something else: as if the sandbox dialed it.
    Outside(String, u16),
}

impl Wanted {
    /// A host and a port.
    pub(crate) fn port(host: &str, port: u32) -> Result<Self, String> {
        let port = u16::try_from(port).ok().filter(|port| *port > 0).ok_or("a port is a number from 1 to 65535")?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        match bare.parse::<IpAddr>().map(|address| address.to_canonical()) {
            Ok(address) if address.is_loopback() || address.is_unspecified() => Ok(Self::Inside(port)),
            Ok(address @ IpAddr::V6(_)) => Ok(Self::Outside(format!("[{address}]"), port)),
            Ok(address) => Ok(Self::Outside(address.to_string(), port)),
            Err(_) if bare.eq_ignore_ascii_case("localhost") => Ok(Self::Inside(port)),
            Err(_) => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
                if bare.is_empty() || bare.len() > 253 || !bare.bytes().all(plain) {
                    return Err("that is not the name of a host".into());
                }
                Ok(Self::Outside(bare.to_owned(), port))
            }
        }
    }

    /// A socket.
    pub(crate) fn socket(path: &str) -> Result<Self, String> {
        is_socket_path(path).map(|()| Self::Socket(path.to_owned()))
    }

    fn described(&self) -> String {
        match self {
            Self::Inside(port) => format!("forward to port {port}"),
            Self::Socket(path) => format!("forward to {path}"),
            Self::Outside(host, port) => format!("forward to {host}:{port}"),
        }
    }
}

/// What can be the path of a socket.
pub(crate) fn is_socket_path(path: &str) -> Result<(), String> {
    match path.starts_with('/') && !path.contains('\0') && path.len() <= 107 {
        true => Ok(()),
        false => Err("the path of a socket is absolute and has 107 bytes at most".into()),
    }
}

/// A refusal with its reason.
pub(crate) fn refusal(reason: String) -> ChannelOpenFailure {
    ChannelOpenFailure::Other { code: 2, reason: harmless(&reason) }
}

/// What a channel is joined with.
enum Far {
    Port(Connection),
    Process(Box<Process>, Bytes),
}

/// Connects, answers, and moves bytes until it is over.
pub(crate) async fn run(channel: Channel<Msg>, guest: &Guest, wanted: Wanted, reply: ChannelOpenHandle) {
    let reached = match guest.reach().await {
        Ok(reached) => reached,
        Err(reason) => return reply.reject(refusal(reason)).await,
    };
    let far = connect(&reached, &wanted).await;
    guest.note(&reached, &wanted.described(), if far.is_ok() { 200 } else { 502 });
    match far {
        Err(reason) => reply.reject(refusal(reason)).await,
        Ok(Far::Port(connection)) => {
            reply.accept().await;
            join(channel, connection).await;
        }
        Ok(Far::Process(process, first)) => {
            reply.accept().await;
            join_process(channel, *process, first).await;
        }
    }
}

async fn connect(reached: &Reached, wanted: &Wanted) -> Result<Far, String> {
    match wanted {
        Wanted::Inside(port) => Ok(Far::Port(reached.agent().dial(*port).await.map_err(|error| error.to_string())?)),
        Wanted::Socket(path) => Ok(Far::Process(Box::new(helper(reached, path).await?), Bytes::new())),
        Wanted::Outside(host, port) => {
            let proxy = format!("{RESOLVER_V4}:{PROXY_PORT}");
            let mut process = helper(reached, &proxy).await.map_err(|_| {
                format!("this sandbox may reach nothing outside, so neither can you through it ({host}:{port})")
            })?;
            let first = ask(&mut process, host, *port).await?;
            Ok(Far::Process(Box::new(process), first))
        }
    }
}

/// What everything is labelled with that SSH starts.
pub(crate) const TAG: &str = "ssh";

/// Something of the agent's own, started as commands are.
pub(crate) fn of_user(reached: &Reached, builtin: Builtin, argv: &[&str]) -> Exec {
    Exec {
        argv: argv.iter().map(|word| word.as_bytes().to_vec().into()).collect(),
        cwd: reached.sandbox.workdir().map(|path| path.into_bytes().into()),
        user: reached.sandbox.spec().user.clone(),
        stdin: true,
        tag: Some(TAG.into()),
        builtin: Some(builtin),
        ..Exec::default()
    }
}

/// A process of the user's inside that is connected to an address or a socket.
async fn helper(reached: &Reached, to: &str) -> Result<Process, String> {
    let exec = of_user(reached, Builtin::Connect, &["connect", to]);
    let mut process = reached.agent().exec(exec).await.map_err(|error| error.to_string())?;
    let mut said = Vec::new();
    loop {
        match process.next().await {
            Some(Ok(ProcessEvent::Stderr(bytes))) if said.is_empty() && bytes.starts_with(b"+") => return Ok(process),
            Some(Ok(ProcessEvent::Stderr(bytes))) if said.len() < ANSWER => said.extend_from_slice(&bytes),
            Some(Ok(ProcessEvent::Stdout(_) | ProcessEvent::Stderr(_))) => {}
            _ => return Err(format!("{to}: {}", String::from_utf8_lossy(&said))),
        }
    }
}

/// Asks the way out to connect, as any program inside could. Whether that is allowed is decided, and written down, there.
async fn ask(process: &mut Process, host: &str, port: u16) -> Result<Bytes, String> {
    let gone = || "the sandbox's way out did not answer".to_owned();
    let mut stdin = process.take_stdin().ok_or_else(gone)?;
    let request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
    stdin.write(request.into_bytes()).await.map_err(|_| gone())?;
    process.give_stdin(stdin);
    let mut answer = BytesMut::new();
    let end = loop {
        if let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end;
        }
        match process.next().await {
            Some(Ok(ProcessEvent::Stdout(bytes))) if answer.len() < ANSWER => answer.extend_from_slice(&bytes),
            Some(Ok(ProcessEvent::Stderr(_))) => {}
            _ => return Err(gone()),
        }
    };
    let head = answer.split_to(end + 4);
    if head[..].split(|byte| *byte == b' ').nth(1) == Some(b"200") {
        return Ok(answer.freeze());
    }
    // The reason follows, as text.
    while let Some(Ok(event)) = process.next().await {
        match event {
            ProcessEvent::Stdout(bytes) if answer.len() < ANSWER => answer.extend_from_slice(&bytes),
            ProcessEvent::Exited(_) => break,
            _ => {}
        }
    }
    Err(format!("the sandbox may not reach {host}:{port}: {}", String::from_utf8_lossy(&answer).trim()))
}

/// Moves bytes both ways; each direction ends by itself, and all is over when both have, or when the client closes the channel.
pub(crate) async fn join<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(channel: Channel<Msg>, far: S) {
    let (mut incoming, outgoing) = channel.split();
    let (mut from, mut to) = tokio::io::split(far);
    let input_is_over = Notify::new();
    let outward = async {
        let mut writer = outgoing.make_writer();
        let mut buffer = vec![0; PIECE];
        loop {
            match from.read(&mut buffer).await {
                Ok(0) => break,
                Ok(count) if writer.write_all(&buffer[..count]).await.is_ok() => {}
                _ => return,
            }
        }
        let _ = outgoing.eof().await;
        input_is_over.notified().await;
    };
    let inward = async {
        let mut open = true;
        while let Some(message) = incoming.wait().await {
            match message {
                ChannelMsg::Data { data } if open => open = to.write_all(&data).await.is_ok(),
                ChannelMsg::Eof => {
                    open = false;
                    let _ = to.shutdown().await;
                }
                ChannelMsg::Close => return,
                _ => {}
            }
            if !open {
                input_is_over.notify_one();
            }
        }
    };
    tokio::select! { () = outward => {}, () = inward => {} }
    let _ = outgoing.close().await;
}

/// The same with a process's standard streams.
async fn join_process(channel: Channel<Msg>, mut process: Process, first: Bytes) {
    let Some(mut stdin) = process.take_stdin() else { return };
    let (mut incoming, outgoing) = channel.split();
    let (input, mut queue) = mpsc::channel::<Bytes>(QUEUE);
    let feeding = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        while let Some(bytes) = queue.recv().await {
            if stdin.write(bytes).await.is_err() {
                break;
            }
        }
    }));
    let outward = async {
        let mut writer = outgoing.make_writer();
        if !first.is_empty() && writer.write_all(&first).await.is_err() {
            return;
        }
        while let Some(Ok(event)) = process.next().await {
            match event {
                ProcessEvent::Stdout(bytes) if writer.write_all(&bytes).await.is_err() => return,
                ProcessEvent::Exited(_) => return,
                _ => {}
            }
        }
    };
    let inward = async {
        let mut input = Some(input);
        while let Some(message) = incoming.wait().await {
            match message {
                ChannelMsg::Data { data } => {
                    if let Some(input) = &input {
                        let _ = input.send(data).await;
                    }
                }
                ChannelMsg::Eof => input = None,
                ChannelMsg::Close => return,
                _ => {}
            }
        }
    };
    tokio::select! { () = outward => {}, () = inward => {} }
    drop(feeding);
    let _ = outgoing.eof().await;
    let _ = outgoing.close().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_inside_and_all_else_is_outside() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "0.0.0.0", "::ffff:127.0.0.1"]
        {
            assert_eq!(Wanted::port(host, 80), Ok(Wanted::Inside(80)), "{host}");
        }
        assert_eq!(Wanted::port("example.com", 443), Ok(Wanted::Outside("example.com".into(), 443)));
        assert_eq!(Wanted::port("2001:db8::1", 443), Ok(Wanted::Outside("[2001:db8::1]".into(), 443)));
        for (host, port) in [("", 80), ("a b", 80), ("a\r\nX: y", 80), ("example.com", 0), ("example.com", 65536)] {
            assert!(Wanted::port(host, port).is_err(), "{host} {port}");
        }
        assert!(Wanted::socket("relative").is_err() && Wanted::socket(&format!("/{}", "x".repeat(107))).is_err());
        assert!(Wanted::socket("/run/x.sock").is_ok());
    }
}
