//! A server of this very binary, with folders and a port of its own: for the doors that only a server has.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sloplet_policy::weakness;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::drill::{Drill, DrillError};
use crate::program::SUBCOMMAND;

/// How long it may take to start, to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// How it refuses what its wall cannot do.
pub const NOT_IMPLEMENTED: u16 = 501;

/// The longest answer.
const ANSWER: u64 = 1 << 20;

/// Names the kernel that virtual machines boot, and where `sloplet vm setup` puts one in the data folder: see
/// `sloplet_driver_vm::kernel`.
pub const KERNEL_VARIABLE: &str = "SLOPLET_VM_KERNEL";

/// The folder within the data folder.
pub const KERNEL_FOLDER: &str = "vm/kernel";

/// The kernel that a server with another data folder would not find by itself. One that was named, it inherits.
fn kernel(data: &Path) -> Option<PathBuf> {
    let own = data.join(KERNEL_FOLDER);
    (std::env::var_os(KERNEL_VARIABLE).is_none() && own.is_dir()).then_some(own)
}

/// A server. Dropping it ends it, and it takes its sandboxes along.
pub struct Served {
    child: Option<Child>,
    folder: PathBuf,
    address: String,
    /// The key of whoever runs it.
    pub key: String,
}

/// What it answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub text: String,
}

impl Answer {
    /// The body, read as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Something of it that is a text.
    pub fn word(&self, name: &str) -> String {
        self.json()[name].as_str().unwrap_or_default().to_owned()
    }
}

impl Served {
    /// Starts one that protects what this engine protects, weakened as the drill's sandboxes are.
    pub async fn start(drill: &Drill<'_>) -> Result<Self, DrillError> {
        Self::start_with(drill, &[]).await
    }

    /// The same, with options of `sloplet serve`.
    pub async fn start_with(drill: &Drill<'_>, options: &[&str]) -> Result<Self, DrillError> {
        let folder = drill.canaries.folder().join("private/served");
        std::fs::create_dir_all(&folder)?;
        let mut command = Command::new(drill.host_program);
        command.args([SUBCOMMAND, "act", "serve"]);
        command.arg(drill.spec.weaken.unwrap_or_default()).args(options);
        if let Some(weakness) = drill.spec.weaken {
            command.env(weakness::VARIABLE, weakness);
        }
        command.env("SLOPLET_DATA", folder.join("data")).env("SLOPLET_RUN", folder.join("run"));
        if let Some(kernel) = kernel(&drill.engine.places().data) {
            command.env(KERNEL_VARIABLE, kernel);
        }
        command.env_remove("SLOPLET_KEY").env_remove("SLOPLET_URL");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // All that it would ever say.
        command.env("SLOPLET_LOG", "debug").stderr(std::fs::File::create(folder.join("log"))?);
        // In this thread, which lives as long as the program does: the server ends with the thread that started it.
        let mut child = command.spawn()?;
        let said = child.stdout.take();
        let mut served = Self { child: Some(child), folder, address: String::new(), key: String::new() };
        let reading = tokio::task::spawn_blocking(move || said.map(introduction).unwrap_or_default());
        let (key, address) = tokio::time::timeout(PATIENCE, reading)
            .await
            .map_err(|_| DrillError::Late)?
            .map_err(io::Error::other)?
            .ok_or_else(|| io::Error::other("the server of this drill did not start"))?;
        (served.key, served.address) = (key, address);
        let until = Instant::now() + PATIENCE;
        while served.ask(&[], "GET", "/health", None).await.is_err() {
            if Instant::now() > until {
                return Err(DrillError::Late);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(served)
    }

    /// Its folder: its data, and its log.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Bytes of memory that it holds of its own.
    pub fn memory(&self) -> io::Result<u64> {
        let gone = || io::Error::other("the server of this drill has ended");
        let pid = self.child.as_ref().map(Child::id).ok_or_else(gone)?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|_| gone())?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or_else(gone)?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().map_err(io::Error::other)?;
        Ok(kib << 10)
    }

    /// A key of somebody else.
    pub async fn stranger(&self) -> Result<String, DrillError> {
        let body = json!({"label": "a stranger", "scope": "use"});
        Ok(self.ask(&[("X-API-KEY", &self.key)], "POST", "/v1/keys", Some(body)).await?.word("secret"))
    }

    /// Makes a sandbox like the verified one, with the program for attempts in it.
    pub async fn create(&self, drill: &Drill<'_>, pids: u32) -> Result<Value, DrillError> {
        self.create_with(drill, pids, json!([])).await
    }

    /// The same, with secrets.
    pub async fn create_with(&self, drill: &Drill<'_>, pids: u32, secrets: Value) -> Result<Value, DrillError> {
        let spec = drill.spec;
        let mounts: Vec<Value> = spec
            .mounts
            .iter()
            .filter(|mount| mount.from.starts_with(drill.canaries.folder()))
            .map(|mount| json!({"from": mount.from, "to": mount.to}))
            .collect();
        let network = match drill.engine.can_reach_out(spec) {
            true => json!({"allow": ["allowed.sloplet.test:443"]}),
            false => json!({}),
        };
        // The server has no images but the host's own, and those of an engine beside it.
        let image = if drill.engine.has_own_images(spec)? { spec.image.as_str() } else { "host" };
        let body = json!({
            "image": image,
            "isolation": spec.isolation,
            "driver": spec.driver,
            "pids": pids,
            "best_effort": spec.best_effort,
            "mounts": mounts,
            "network": network,
            "secrets": secrets,
        });
        let answer = self.own("POST", "/v1/sandboxes", Some(body)).await?;
        match answer.status {
            201 => Ok(answer.json()),
            _ => Err(io::Error::other(format!("no sandbox from the server: {}", answer.text)).into()),
        }
    }

    /// Has something done in one of its sandboxes; what was said.
    pub async fn act(&self, drill: &Drill<'_>, id: &str, act: &[&str]) -> Result<String, DrillError> {
        let words: Vec<&str> = [drill.program, SUBCOMMAND, "act"].into_iter().chain(act.iter().copied()).collect();
        let body = json!({"command": words, "timeout": "20s"});
        let answer = self.own("POST", &format!("/v1/sandboxes/{id}/exec"), Some(body)).await?;
        Ok(answer.word("stdout").trim().to_owned())
    }

    /// A request with the key of whoever runs it.
    pub async fn own(&self, method: &str, path: &str, body: Option<Value>) -> Result<Answer, DrillError> {
        self.ask(&[("X-API-KEY", &self.key)], method, path, body).await
    }

    /// A request with these headers.
    pub async fn ask(
        &self,
        headers: &[(&str, &str)],
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<Answer, DrillError> {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.address);
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            request.push_str("Content-Type: application/json\r\n");
        }
        request.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        let exchange = async {
            let mut stream = TcpStream::connect(&self.address).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut answer = Vec::new();
            stream.take(ANSWER).read_to_end(&mut answer).await?;
            Ok::<_, io::Error>(String::from_utf8_lossy(&answer).into_owned())
        };
        let text = tokio::time::timeout(PATIENCE, exchange).await.map_err(|_| DrillError::Late)??;
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok(Answer { status, text: body.to_owned() })
    }

    /// Ends it, and waits for that.
    pub async fn end(mut self) -> Result<(), DrillError> {
        let Some(child) = self.child.take() else { return Ok(()) };
        let folder = self.folder.clone();
        let ending = tokio::task::spawn_blocking(move || {
            stop(child);
            let _ = std::fs::remove_dir_all(folder);
        });
        Ok(ending.await.map_err(io::Error::other)?)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            stop(child);
        }
    }
}

/// Asks it to end, and insists after a while.
fn stop(mut child: Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// The key and the address that a new server tells.
fn introduction(said: impl Read) -> Option<(String, String)> {
    for line in BufReader::new(said.take(1 << 16)).lines().map_while(Result::ok) {
        let value = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)).map(str::to_owned);
        if let (Some(key), Some(url)) = (value("E2B_API_KEY="), value("E2B_API_URL=http://")) {
            return Some((key, url));
        }
    }
    None
}
