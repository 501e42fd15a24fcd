//! Clients that say nonsense, leave, or are killed.

use std::io::{BufRead, BufReader, Write};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Host, Running, Server};

/// How long something may take to be gone.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client that says exactly what it is told.
pub struct Raw {
    pub running: Running,
    lines: BufReader<std::process::ChildStdout>,
}

impl Raw {
    pub fn start(served: &Server, options: &[&str]) -> Self {
        let words = [&["mcp"], options].concat();
        let mut running = served.invoke(&words).input_pipe().unread_stdout().start();
        let lines = BufReader::new(running.stdout.take().unwrap());
        Self { running, lines }
    }

    fn say(&mut self, text: &str) {
        let stdin = self.running.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).and_then(|()| stdin.write_all(b"\n")).unwrap();
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("not JSON ({error}): {line}"))
    }

    /// The answer to a request; notifications pass.
    pub fn ask(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        loop {
            let said = self.hear();
            if said["id"] == id {
                return said;
            }
        }
    }

    pub fn greet(&mut self) {
        let about = json!({"name": "raw", "version": "1"});
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about});
        let answer = self.ask(0, "initialize", hello);
        assert_eq!(answer["result"]["serverInfo"]["name"], "sloplet", "{answer}");
        assert_eq!(answer["result"]["protocolVersion"], "2025-06-18", "{answer}");
        self.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string());
    }

    pub fn exec(&mut self, id: u64, command: &str) -> Value {
        self.ask(id, "tools/call", json!({"name": "exec", "arguments": {"command": command}}))["result"].clone()
    }
}

#[test]
fn nonsense_is_answered_and_what_follows_still_works() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        bear_nonsense(Server::start(&sloplet));
    }
}

fn bear_nonsense(served: Server) {
    let mut raw = Raw::start(&served, &[]);
    raw.greet();
    raw.say("this is not JSON");
    raw.say("{\"jsonrpc\": \"2.0\"}");
    raw.say("[]");
    raw.say("\u{0}\u{1b}[31m");
    raw.say(&format!("{{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"{}\"}}", "x".repeat(100_000)));
    let unknown = raw.ask(6, "no/such/method", json!({}));
    assert!(unknown["error"]["code"].is_i64(), "{unknown}");
    let wrong = raw.ask(7, "tools/call", json!({"name": 7}));
    assert!(wrong["error"]["code"].is_i64(), "{wrong}");
    let absent = raw.ask(8, "tools/call", json!({"name": "fly", "arguments": {}}));
    assert!(absent["error"]["message"].as_str().unwrap().contains("there is no tool 'fly'"), "{absent}");
    let misfit = raw.ask(9, "tools/call", json!({"name": "exec", "arguments": {"command": ["a"]}}));
    assert_eq!(misfit["result"]["isError"], true, "{misfit}");
    let ran = raw.exec(10, "echo still here");
    assert_eq!(ran["structuredContent"]["stdout"], "still here\n", "{ran}");
    drop(raw.running.stdin.take());
    raw.running.finish().expect_code(0);
    assert_eq!(served.json(&["ls", "--all"]), json!([]));
    served.end();
}

#[test]
fn a_client_that_leaves_or_a_signal_ends_everything() {
    let host = Host::shared();
    let leaks = host.leaks();
    let served = Server::start(&host.root());
    for ending in [None, Some(Signal::TERM)] {
        let mut raw = Raw::start(&served, &[]);
        raw.greet();
        assert_eq!(raw.exec(1, "true")["structuredContent"]["exit_code"], 0);
        // Under way while it ends.
        let call = json!({"name": "exec", "arguments": {"command": "sleep 1000"}});
        raw.say(&json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}).to_string());
        match ending {
            None => drop(raw.running.stdin.take()),
            Some(signal) => raw.running.signal(signal),
        }
        raw.running.finish().expect_code(0);
        assert_eq!(served.json(&["ls", "--all"]), json!([]), "{ending:?}");
    }
    served.end();
    leaks.assert_none_new_after_a_server();
}

#[test]
fn after_a_kill_time_ends_the_sandbox_and_use_extends_it() {
    let host = Host::shared();
    let served = Server::start(&host.root());
    let mut raw = Raw::start(&served, &["--timeout", "2s"]);
    raw.greet();
    let sandbox = raw.exec(1, "true")["structuredContent"]["sandbox"].clone();
    // Longer than its time, but never idle for so long: also while one command runs.
    for id in 2..5 {
        let ran = raw.exec(id, "sleep 1");
        assert_eq!(ran["structuredContent"]["sandbox"], sandbox, "{ran}");
    }
    assert_eq!(raw.exec(6, "sleep 3")["structuredContent"]["exit_code"], 0);
    let saved = raw.ask(7, "tools/call", json!({"name": "snapshot", "arguments": {}}));
    assert!(saved["result"]["structuredContent"]["snapshot"].is_string(), "{saved}");
    raw.running.signal(Signal::KILL);
    let _ = raw.running.finish();
    assert_ne!(served.json(&["ls"]), json!([]), "it is still there, for as long as its time is not over");
    let started = Instant::now();
    while served.json(&["ls", "--all"]) != json!([]) {
        assert!(started.elapsed() < PATIENCE, "an orphan: {}", served.json(&["ls", "--all"]));
        thread::sleep(Duration::from_millis(100));
    }
    // Snapshots have no time of their own: the next conversation removes those of the dead.
    assert_ne!(served.json(&["snapshot", "ls"]), json!([]));
    let mut next = Raw::start(&served, &[]);
    next.greet();
    next.exec(1, "true");
    drop(next.running.stdin.take());
    next.running.finish().expect_code(0);
    assert_eq!(served.json(&["snapshot", "ls"]), json!([]));
    served.end();
}
