//! A server of one test's own.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::http::{self, Reply};
use super::{Running, Sloplet};

/// How long a start may take.
const PATIENCE: Duration = Duration::from_secs(150);

/// A running server. [`Server::end`] must be the last word of a test; a test that fails drops it, and what it had made goes
/// with it.
pub struct Server {
    running: Option<Running>,
    /// Who started it: its commands find it by themselves.
    pub sloplet: Sloplet,
    /// `127.0.0.1:PORT`.
    pub address: String,
    /// A key of the scope `admin`.
    pub key: String,
}

impl Server {
    /// Starts one on a free port, with the data and run folders of `sloplet`.
    pub fn start(sloplet: &Sloplet) -> Self {
        Self::start_with(sloplet, &["--destroy-on-exit"])
    }

    /// The same with other options.
    pub fn start_with(sloplet: &Sloplet, options: &[&str]) -> Self {
        Self::start_at(sloplet, "127.0.0.1:0", options)
    }

    /// The same on an address.
    pub fn start_at(sloplet: &Sloplet, listen: &str, options: &[&str]) -> Self {
        let words = [&["serve", "--listen", listen], options].concat();
        Self::of(sloplet, sloplet.invoke(&words))
    }

    /// The same by a program that starts others, such as `prlimit`.
    pub fn start_under(sloplet: &Sloplet, program: &[&str], options: &[&str]) -> Self {
        let binary = sloplet.binary();
        let words = [program, &[binary.to_str().unwrap(), "serve", "--listen", "127.0.0.1:0"], options].concat();
        Self::of(sloplet, sloplet.other_program(&words))
    }

    /// Starts one in place of another that has ended, whose key is known; `None` if it dies before it answers.
    pub fn try_start_again(sloplet: &Sloplet, key: &str) -> Option<Self> {
        let mut server = Self::begin(sloplet, sloplet.invoke(&["serve", "--listen", "127.0.0.1:0"])).ok()?;
        key.clone_into(&mut server.key);
        Some(server)
    }

    fn of(sloplet: &Sloplet, invocation: super::Invocation) -> Self {
        let mut server = Self::begin(sloplet, invocation).unwrap_or_else(|ended| panic!("the server ends: {ended}"));
        server.key = server.new_key(&["test", "--scope", "admin"]);
        server
    }

    /// Starts one, and waits until it answers or ends.
    fn begin(sloplet: &Sloplet, invocation: super::Invocation) -> Result<Self, Box<super::Ended>> {
        let mut running = invocation.within(Duration::from_secs(600)).start();
        let started = Instant::now();
        let info = loop {
            let ended = sloplet.invoke(&["--no-autostart", "info", "--json"]).finish();
            if ended.code == 0 {
                break ended.json();
            }
            if !running.is_running() {
                return Err(Box::new(running.finish()));
            }
            assert!(started.elapsed() < PATIENCE, "the server does not answer: {ended}");
            thread::sleep(Duration::from_millis(20));
        };
        let address = info["url"].as_str().unwrap().split_once("://").unwrap().1.to_owned();
        Ok(Self { running: Some(running), sloplet: sloplet.clone(), address, key: String::new() })
    }

    /// Makes a key and returns its secret.
    pub fn new_key(&self, words: &[&str]) -> String {
        self.command(&[&["key", "create"], words].concat()).expect_code(0).word()
    }

    /// A command that finds this server.
    pub fn command(&self, words: &[&str]) -> super::Ended {
        self.invoke(words).finish()
    }

    /// The same, to be started.
    pub fn invoke(&self, words: &[&str]) -> super::Invocation {
        self.sloplet.invoke(&[&["--no-autostart"], words].concat())
    }

    /// A request with the server's key.
    pub fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        self.ask_as(&self.key, method, path, body)
    }

    /// A request with a key.
    pub fn ask_as(&self, key: &str, method: &str, path: &str, body: Option<Value>) -> Reply {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        self.send(key, method, path, body.as_bytes())
    }

    /// A request with a key and any body.
    pub fn send(&self, key: &str, method: &str, path: &str, body: &[u8]) -> Reply {
        self.send_as(key, method, path, &format!("Content-Length: {}\r\n", body.len()), body)
    }

    /// The same; `more` are its headers.
    pub fn send_as(&self, key: &str, method: &str, path: &str, more: &str, body: &[u8]) -> Reply {
        let mut request = self.head(key, method, path, more).into_bytes();
        request.extend_from_slice(body);
        http::exchange(&self.address, &request)
    }

    /// A request of E2B's API, with the server's key.
    pub fn ask_e2b(&self, method: &str, path: &str, body: &Value) -> Reply {
        let (Self { address, key, .. }, body) = (self, body.to_string());
        let head =
            format!("Host: {address}\r\nX-API-KEY: {key}\r\nConnection: close\r\nContent-Type: application/json");
        let request = format!("{method} {path} HTTP/1.1\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        http::exchange(address, request.as_bytes())
    }

    fn head(&self, key: &str, method: &str, path: &str, more: &str) -> String {
        let Self { address, .. } = self;
        format!("{method} /v1{path} HTTP/1.1\r\nHost: {address}\r\nX-API-KEY: {key}\r\nConnection: close\r\n{more}\r\n")
    }

    /// A request to read, with headers.
    pub fn send_with(&self, path: &str, more: &str) -> Reply {
        http::exchange(&self.address, self.head(&self.key, "GET", path, more).as_bytes())
    }

    /// Opens a stream of server-sent events; `more` are headers.
    pub fn events(&self, path: &str, more: &str) -> Events {
        let mut stream = http::connect(&self.address);
        stream.write_all(self.head(&self.key, "GET", path, more).as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let (status, headers) = http::head(&mut reader);
        Events { status, headers, reader, text: String::new() }
    }

    /// Its pid.
    pub fn pid(&self) -> rustix::process::Pid {
        self.running.as_ref().unwrap().pid()
    }

    /// `sloplet <words> --json` against it; must succeed.
    #[track_caller]
    pub fn json(&self, words: &[&str]) -> Value {
        self.command(&[words, &["--json"]].concat()).expect_code(0).json()
    }

    /// Whether it has ended.
    pub fn has_died(&mut self) -> bool {
        !self.running.as_mut().unwrap().is_running()
    }

    /// Kills it, without a chance to clean up.
    pub fn kill(mut self) {
        let mut running = self.running.take().unwrap();
        // The pid of one that has ended may be somebody else's.
        if running.is_running() {
            running.signal(Signal::KILL);
        }
        let _ = running.finish();
    }

    /// Removes all its sandboxes and asks it to end.
    #[track_caller]
    pub fn end_with_its_sandboxes(self) {
        self.command(&["rm", "--all"]).expect_code(0);
        self.end();
    }

    /// Asks it to end and waits for that.
    pub fn end(self) {
        self.end_and_tell();
    }

    /// The same; what it wrote to standard error.
    pub fn end_and_tell(mut self) -> String {
        let running = self.running.take().unwrap();
        running.signal(Signal::TERM);
        let ended = running.finish();
        assert_eq!(ended.code, 0, "{ended}");
        ended.stderr
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        running.signal(Signal::TERM);
        let started = Instant::now();
        while running.is_running() && started.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A stream of server-sent events.
pub struct Events {
    pub status: u16,
    pub headers: String,
    reader: BufReader<TcpStream>,
    text: String,
}

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub name: String,
    pub id: String,
    pub data: Value,
}

impl Events {
    /// The next one; `None` at the end.
    pub fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((first, rest)) = self.text.split_once("\n\n") {
                let (first, rest) = (first.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| {
                    let line = first.lines().find_map(|line| line.strip_prefix(name));
                    line.unwrap_or_default().trim_start_matches(':').trim().to_owned()
                };
                if first.starts_with(':') {
                    continue; // says only that it is still there
                }
                let data = serde_json::from_str(&field("data")).unwrap_or(Value::Null);
                return Some(Event { name: field("event"), id: field("id"), data });
            }
            self.text.push_str(&String::from_utf8_lossy(&http::chunk(&mut self.reader)?));
        }
    }

    /// All that follow.
    pub fn rest(mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.next()).collect()
    }
}
