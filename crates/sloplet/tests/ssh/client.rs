//! A server with SSH, and clients of it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Server, Sloplet};

/// A server, and somebody who has a key.
pub struct Served {
    pub server: Server,
    pub address: String,
    pub folder: PathBuf,
}

/// How long a client may take. The machine may be busy.
const PATIENCE: &str = "60";

impl Served {
    /// Starts a server on a free port, with a key added for its own user.
    pub fn start(sloplet: &Sloplet, options: &[&str]) -> Self {
        let served = Self::bare(sloplet, options);
        served.new_key("id");
        served.server.command(&["key", "ssh", "add", served.path("id.pub").to_str().unwrap()]).expect_code(0);
        served
    }

    /// The same without a key.
    pub fn bare(sloplet: &Sloplet, options: &[&str]) -> Self {
        let options = [&["--ssh", "127.0.0.1:0", "--destroy-on-exit"], options].concat();
        let server = Server::start_with(sloplet, &options);
        let info = server.json(&["info"]);
        let address = info["ssh"]["address"].as_str().unwrap().to_owned();
        let served = Self { address, folder: sloplet.folder("ssh"), server };
        let port = served.address.rsplit_once(':').unwrap().1;
        let known = format!("[127.0.0.1]:{port} {}\n", info["ssh"]["host_key"].as_str().unwrap());
        fs::write(served.path("known_hosts"), known).unwrap();
        served
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes a pair of keys in the folder.
    pub fn new_key(&self, name: &str) {
        let path = self.path(name);
        let made =
            Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]).arg(path).status();
        assert!(made.unwrap().success());
    }

    /// Makes a sandbox.
    pub fn sandbox(&self, name: &str) {
        self.server.command(&["create", "--name", name, "--memory", "256MiB"]).expect_code(0);
    }

    fn settings(&self, key: &str) -> Vec<String> {
        let port = self.address.rsplit_once(':').unwrap().1;
        let known = self.path("known_hosts");
        [
            format!("Port={port}"),
            "HostName=127.0.0.1".into(),
            format!("IdentityFile={}", self.path(key).display()),
            "IdentitiesOnly=yes".into(),
            "IdentityAgent=none".into(),
            "PasswordAuthentication=no".into(),
            "StrictHostKeyChecking=yes".into(),
            format!("UserKnownHostsFile={}", known.display()),
        ]
        .into_iter()
        .flat_map(|setting| ["-o".to_owned(), setting])
        .collect()
    }

    /// One of OpenSSH's programs, with this key; its time is limited.
    pub fn program(&self, program: &str, key: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--foreground", "-s", "KILL", PATIENCE, program, "-F", "none"]).args(self.settings(key));
        command.stdin(Stdio::null());
        command
    }

    /// `ssh NAME@…` with more words.
    pub fn ssh(&self, name: &str, words: &[&str]) -> Command {
        self.ssh_as("id", name, words)
    }

    /// The same with another key.
    pub fn ssh_as(&self, key: &str, name: &str, words: &[&str]) -> Command {
        let mut command = self.program("ssh", key);
        command.arg(format!("{name}@sandbox")).args(words);
        command
    }

    /// What a command in the sandbox wrote; it must succeed.
    #[track_caller]
    pub fn say(&self, name: &str, script: &str) -> String {
        said(self.ssh(name, &[script]), 0)
    }

    /// What rsync takes as its shell.
    pub fn shell(&self) -> String {
        let words = self.settings("id");
        let words: Vec<String> = words.chunks(2).map(|pair| format!("-o {}", pair[1])).collect();
        format!("ssh -F none {}", words.join(" "))
    }
}

/// What it wrote to standard output; it must end with this code.
#[track_caller]
pub fn said(mut command: Command, code: i32) -> String {
    checked(command.output().unwrap(), code)
}

/// The same with an input.
#[track_caller]
pub fn fed(mut command: Command, input: &[u8], code: i32) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeding = thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    feeding.join().unwrap();
    checked(output, code)
}

#[track_caller]
fn checked(output: Output, code: i32) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "stdout: {out}\nstderr: {err}");
    out.into_owned()
}

/// What it complained about; it must end with this code.
#[track_caller]
pub fn complained(mut command: Command, code: i32) -> String {
    let output = command.output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    checked(output, code);
    complaint
}

/// Waits until something holds.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{what} does not happen");
        thread::sleep(Duration::from_millis(30));
    }
}

/// A client that runs in the background and is killed at the end.
pub struct Background(Child);

impl Background {
    pub fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// kill -9, of `timeout` and of what it watches.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let pid = self.0.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            if let Some(pid) = rustix::process::Pid::from_raw(child) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes that differ from place to place.
pub fn noise(path: &Path, count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let bytes: Vec<u8> = (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        })
        .collect();
    fs::write(path, &bytes).unwrap();
    bytes
}
