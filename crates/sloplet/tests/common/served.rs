//! A server of a test's own.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Sloplet;
use super::invocation::{Ended, Running};
use super::leaks::Leaks;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running `sloplet serve`. Dropping it kills it; its sandboxes stay, unless [`Self::end`] is used.
pub struct Served {
    /// The binary as its user: commands of it find this server.
    pub sloplet: Sloplet,
    /// The server.
    pub running: Running,
}

impl Served {
    /// Starts one, on a port that nobody has, and waits until it answers.
    pub fn start(sloplet: &Sloplet, options: &[&str]) -> Self {
        let words = [&["serve", "--listen", "127.0.0.1:0"], options].concat();
        let mut running = sloplet.invoke(&words).within(Duration::from_secs(600)).start();
        let socket = sloplet.run_dir.join("api.sock");
        let started = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            assert!(running.is_running() && started.elapsed() < PATIENCE, "the server does not answer");
            thread::sleep(Duration::from_millis(5));
        }
        Self { sloplet: sloplet.clone(), running }
    }

    /// Its address.
    pub fn url(&self) -> String {
        self.json(&["info"])["url"].as_str().expect("an address").to_owned()
    }

    /// A new key.
    pub fn key(&self, options: &[&str]) -> String {
        let ended = self.call(&[&["key", "create", "test"], options].concat()).expect_code(0);
        ended.out().split_whitespace().find(|word| word.starts_with("e2b_")).expect("a key").to_owned()
    }

    /// `sloplet <words>` against it, to its end.
    pub fn call(&self, words: &[&str]) -> Ended {
        self.sloplet.invoke(&[&["--no-autostart"], words].concat()).finish()
    }

    /// `sloplet <words> --json` against it; must succeed.
    #[track_caller]
    pub fn json(&self, words: &[&str]) -> serde_json::Value {
        self.call(&[words, &["--json"]].concat()).expect_code(0).json()
    }

    /// Kills it, without a chance to clean up.
    pub fn kill(self) {
        self.running.signal(Signal::KILL);
        let _ = self.running.finish();
    }

    /// Destroys its sandboxes and asks it to end.
    #[track_caller]
    pub fn end(self) {
        self.call(&["rm", "--all"]).expect_code(0);
        self.running.signal(Signal::TERM);
        self.running.finish().expect_code(0);
    }
}

/// Waits until nothing of a server is left: its spawners stay for some seconds, for the next one.
#[track_caller]
pub fn assert_nothing_left(leaks: &Leaks) {
    let started = Instant::now();
    while !leaks.new_ones().is_empty() && started.elapsed() < Duration::from_secs(30) {}
    leaks.assert_none_new();
}
