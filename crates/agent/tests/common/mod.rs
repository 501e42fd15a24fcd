//! An agent in a child process and a small blocking client for it.

#![allow(dead_code)]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sloplet_wire::*;

/// No test waits longer than this for anything.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// An agent and the first connection to it.
pub struct Agent {
    child: Child,
    pub client: Client,
    listening: Option<PathBuf>,
}

/// The example that serves, built by cargo beside the tests.
fn program() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples/serve")
}

impl Agent {
    /// With the present user only, and files below `root`.
    pub fn fixed(root: &Path) -> Self {
        Self::start(root, "fixed", None)
    }

    /// With users to switch to; needs root.
    pub fn switching(default_user: &str) -> Self {
        Self::start(Path::new("/"), default_user, None)
    }

    /// As [`Self::fixed`], listening at `socket`.
    pub fn listening(root: &Path, socket: &Path) -> Self {
        Self::start(root, "fixed", Some(socket))
    }

    fn start(root: &Path, identity: &str, socket: Option<&Path>) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(program());
        command.arg(root).arg(identity).stdin(OwnedFd::from(theirs));
        if let Some(socket) = socket {
            command.arg("listener").stdout(Stdio::from(OwnedFd::from(UnixListener::bind(socket).unwrap())));
        }
        let child = command.spawn().unwrap();
        Self { child, client: Client::new(ours), listening: socket.map(Into::into) }
    }

    /// Another connection.
    pub fn connect(&self) -> Client {
        Client::new(UnixStream::connect(self.listening.as_ref().unwrap()).unwrap())
    }

    /// The agent's own pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Closes the first connection and waits for the agent to end by itself.
    pub fn finish(mut self) -> bool {
        self.client.close();
        for _ in 0..PATIENCE.as_millis() / 10 {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A frame, owned.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    Event(Event),
    Data(u8, Vec<u8>),
    End(u8),
    Window(u8, u32),
    Reset,
}

pub struct Client {
    socket: UnixStream,
    decoder: Decoder,
    next: u32,
    held: VecDeque<(u32, Seen)>,
    pub hello: Option<Hello>,
    pub pongs: Vec<Vec<u8>>,
    /// Whether received data is granted back as credit at once.
    pub grants: bool,
}

/// All that a process stream said.
#[derive(Debug, Default, Clone)]
pub struct Finished {
    pub pid: u32,
    pub output: Vec<u8>,
    pub error: Vec<u8>,
    pub ends: Vec<u8>,
    pub exit: Exit,
}

impl Client {
    pub fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        Self {
            socket,
            decoder: Decoder::new(),
            next: 0,
            held: VecDeque::new(),
            hello: None,
            pongs: Vec::new(),
            grants: true,
        }
    }

    pub fn close(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub fn frame(&mut self, kind: Kind, stream: u32, channel: u8, payload: &[u8]) {
        let mut bytes = Vec::new();
        frame::encode(&mut bytes, kind, stream, channel, payload);
        self.raw(&bytes);
    }

    /// Opens a stream.
    pub fn open(&mut self, request: &Request) -> u32 {
        self.next += 1;
        self.frame(Kind::Request, self.next, 0, &to_bytes(request));
        self.next
    }

    pub fn send(&mut self, stream: u32, data: &[u8]) {
        for chunk in data.chunks(MAX_PAYLOAD) {
            self.frame(Kind::Data, stream, 0, chunk);
        }
    }

    pub fn end(&mut self, stream: u32) {
        self.frame(Kind::End, stream, 0, &[]);
    }

    pub fn reset(&mut self, stream: u32) {
        self.frame(Kind::Reset, stream, 0, &[]);
    }

    pub fn grant(&mut self, stream: u32, channel: u8, credit: u32) {
        self.frame(Kind::Window, stream, channel, &credit.to_le_bytes());
    }

    /// The next frame on any stream; `None` when the agent has closed the connection.
    pub fn next_frame(&mut self) -> Option<(u32, Seen)> {
        loop {
            while let Some(frame) = self.decoder.next_frame().unwrap() {
                let (stream, channel) = (frame.header.stream, frame.header.channel);
                let seen = match frame.header.kind {
                    Kind::Hello => {
                        self.hello = Some(from_bytes(frame.payload, "hello").unwrap());
                        continue;
                    }
                    Kind::Pong => {
                        self.pongs.push(frame.payload.to_vec());
                        return Some((0, Seen::Window(0, 0)));
                    }
                    Kind::Event => Seen::Event(from_bytes(frame.payload, "event").unwrap()),
                    Kind::Data => Seen::Data(channel, frame.payload.to_vec()),
                    Kind::End => Seen::End(channel),
                    Kind::Window => Seen::Window(channel, u32::from_le_bytes(frame.payload.try_into().unwrap())),
                    Kind::Reset => Seen::Reset,
                    other => panic!("unexpected {other:?}"),
                };
                if let (Seen::Data(channel, bytes), true) = (&seen, self.grants) {
                    let (channel, len) = (*channel, bytes.len());
                    let mut grant = Vec::new();
                    frame::encode(&mut grant, Kind::Window, stream, channel, &(len as u32).to_le_bytes());
                    let _ = self.socket.write_all(&grant);
                }
                return Some((stream, seen));
            }
            let mut buffer = vec![0; 1 << 20];
            match self.socket.read(&mut buffer) {
                Ok(0) => return None,
                Ok(len) => self.decoder.extend(&buffer[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    /// The next frame of `stream`; others are held.
    pub fn next(&mut self, stream: u32) -> Seen {
        if let Some(at) = self.held.iter().position(|(of, _)| *of == stream) {
            return self.held.remove(at).unwrap().1;
        }
        loop {
            match self.next_frame().expect("the agent closed the connection") {
                (of, seen) if of == stream => return seen,
                other => self.held.push_back(other),
            }
        }
    }

    pub fn event(&mut self, stream: u32) -> Event {
        loop {
            match self.next(stream) {
                Seen::Event(event) => return event,
                Seen::Window(..) => {}
                other => panic!("expected an event, not {other:?}"),
            }
        }
    }

    /// Asks what is answered with one event.
    pub fn ask(&mut self, request: &Request) -> Event {
        let stream = self.open(request);
        self.event(stream)
    }

    pub fn started(&mut self, stream: u32) -> u32 {
        match self.event(stream) {
            Event::Started { pid, .. } => pid,
            other => panic!("expected Started, not {other:?}"),
        }
    }

    /// Everything of a process from `Started` to `Exited`.
    pub fn finish(&mut self, stream: u32) -> Finished {
        let mut all = Finished { pid: self.started(stream), ..Finished::default() };
        self.finish_started(stream, &mut all);
        all
    }

    pub fn finish_started(&mut self, stream: u32, all: &mut Finished) {
        loop {
            match self.next(stream) {
                Seen::Data(1, bytes) => all.output.extend(bytes),
                Seen::Data(2, bytes) => all.error.extend(bytes),
                Seen::End(channel) => all.ends.push(channel),
                Seen::Event(Event::Exited(exit)) => {
                    all.exit = exit;
                    all.ends.sort_unstable();
                    assert_eq!(all.ends, [1, 2], "both channels end before the exit");
                    return;
                }
                Seen::Window(..) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    pub fn run(&mut self, exec: Exec) -> Finished {
        let stream = self.open(&Request::Exec(exec));
        self.finish(stream)
    }

    /// Reads data on the output channel up to its end and returns it with the events around it.
    pub fn download(&mut self, stream: u32) -> (Vec<Event>, Vec<u8>) {
        let (mut events, mut data) = (Vec::new(), Vec::new());
        loop {
            match self.next(stream) {
                Seen::Event(event @ (Event::Done | Event::Failed(_))) => {
                    events.push(event);
                    return (events, data);
                }
                Seen::Event(event) => events.push(event),
                Seen::Data(1, bytes) => data.extend(bytes),
                Seen::End(1) | Seen::Window(..) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }
}

pub fn exec(argv: &[&str]) -> Exec {
    Exec {
        argv: argv.iter().map(|argument| argument.as_bytes().to_vec().into()).collect(),
        env: vec![b"PATH=/usr/local/bin:/usr/bin:/bin".to_vec().into()],
        ..Exec::default()
    }
}

pub fn shell(script: &str) -> Exec {
    exec(&["sh", "-c", script])
}

pub fn target(path: impl AsRef<Path>) -> Target {
    use std::os::unix::ffi::OsStrExt;
    Target { path: path.as_ref().as_os_str().as_bytes().to_vec().into(), ..Target::default() }
}

pub fn code(event: &Event) -> ErrorCode {
    match event {
        Event::Failed(failure) => failure.code,
        other => panic!("expected a failure, not {other:?}"),
    }
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 5 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("never happened: {what}");
}

pub fn alive(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'),
        Err(_) => false,
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
