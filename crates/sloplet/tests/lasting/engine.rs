//! An engine that takes orders.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::time::{Duration, Instant};

use crate::common::{Host, Running, Sloplet};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A running engine.
pub struct Engine {
    pub running: Running,
    answers: BufReader<ChildStdout>,
}

/// A copy of the engine's program that everybody can execute; each has another name, and so is another build.
pub fn program(host: &Host, name: &str) -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_sloplet")).with_file_name("examples").join("lasting_engine");
    let copy = host.dir().join(name);
    if !copy.exists() {
        // Not by this process: whatever it forks meanwhile would hold the file open for writing, and it could not be started.
        let copied = Command::new("cp").arg(built).arg(&copy).status().unwrap();
        assert!(copied.success());
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    }
    copy
}

impl Engine {
    pub fn start(host: &Host, sloplet: &Sloplet) -> Self {
        Self::of_build(host, sloplet, "engine")
    }

    /// One whose program is another file.
    pub fn of_build(host: &Host, sloplet: &Sloplet, build: &str) -> Self {
        Self::with_words(&program(host, build), sloplet, &[])
    }

    /// One that is about to make one sandbox with a way out, and no other.
    pub fn for_one_with_outlet(host: &Host, sloplet: &Sloplet) -> Self {
        Self::with_words(&program(host, "engine"), sloplet, &["--one-with-outlet"])
    }

    fn with_words(program: &Path, sloplet: &Sloplet, words: &[&str]) -> Self {
        let invocation = sloplet.other_program(&[&[program.to_str().unwrap()], words].concat());
        let mut running = invocation.input_pipe().unread_stdout().within(Duration::from_secs(180)).start();
        let answers = BufReader::new(running.stdout.take().unwrap());
        Self { running, answers }
    }

    /// Sends an order without waiting for its answer.
    pub fn order(&mut self, order: &Value) {
        let stdin = self.running.stdin.as_mut().unwrap();
        writeln!(stdin, "{order}").and_then(|()| stdin.flush()).unwrap();
    }

    /// Sends an order; its answer, whatever it is.
    pub fn try_ask(&mut self, order: Value) -> Value {
        self.order(&order);
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{order}: the engine said '{line}'"))
    }

    /// Sends an order that must succeed.
    #[track_caller]
    pub fn ask(&mut self, order: Value) -> Value {
        let answer = self.try_ask(order.clone());
        assert!(answer["error"].is_null(), "{order}: {answer}");
        answer
    }

    /// Makes a lasting sandbox; returns its pid.
    #[track_caller]
    pub fn create(&mut self, id: &str, image: &str) -> i64 {
        self.ask(json!({ "do": "create", "id": id, "image": image }))["pid"].as_i64().unwrap()
    }

    /// Runs a script, which must succeed; returns its output.
    #[track_caller]
    pub fn sh(&mut self, id: &str, script: &str) -> String {
        let answer = self.ask(json!({ "do": "exec", "id": id, "script": script }));
        assert_eq!(answer["code"], 0, "{script}: {answer}");
        answer["out"].as_str().unwrap().trim_end().to_owned()
    }

    /// Takes over what there is; the living, by id.
    #[track_caller]
    pub fn adopt(&mut self) -> Value {
        self.ask(json!({ "do": "adopt" }))
    }

    /// Destroys a sandbox.
    #[track_caller]
    pub fn destroy(&mut self, id: &str) {
        self.ask(json!({ "do": "destroy", "id": id }));
    }

    /// `kill -9`.
    pub fn kill(self) {
        self.running.signal(Signal::KILL);
        drop(self.answers);
        self.running.finish();
    }

    /// Ends it as it should end.
    pub fn end(self) {
        self.running.finish().expect_code(0);
    }
}

/// One of the sandboxes in an adoption.
pub fn find<'a>(adoption: &'a Value, list: &str, id: &str) -> Option<&'a Value> {
    adoption[list].as_array().unwrap().iter().find(|sandbox| sandbox["id"] == id)
}

/// Waits until something holds.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn is_alive(pid: i64) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
