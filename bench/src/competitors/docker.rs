//! A Docker engine of our own: private socket, private data, stopped at the end.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::program;

/// The image that it has.
pub const IMAGE: &str = "bench";
const IDLE: &str = "bench-idle";

/// How long the engine may take to start, and to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running engine with a small image.
pub struct Docker {
    client: PathBuf,
    dir: PathBuf,
    engine: Child,
    cgroup: String,
}

impl Docker {
    /// Starts an engine and imports the image.
    pub fn start(scratch: &Path, rootfs: &Path) -> Result<Self> {
        let client = program::find("docker")?;
        let engine = program::find("dockerd")?;
        let dir = scratch.join("docker");
        fs::create_dir_all(&dir).context("making the engine's folder")?;
        fs::write(dir.join("daemon.json"), "{}").context("configuring the engine")?;
        let log = File::create(dir.join("log")).context("making the engine's log")?;
        let cgroup = format!("sloplet-bench-{}", std::process::id());
        let path = |name: &str| dir.join(name).display().to_string();
        let engine = Command::new(engine)
            .args(["--host", &socket(&dir), "--config-file", &path("daemon.json")])
            .args(["--data-root", &path("data"), "--exec-root", &path("exec"), "--pidfile", &path("pid")])
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false", "--cgroup-parent", &cgroup])
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A Ctrl-C is for this program, which then stops the engine in good order.
            .process_group(0)
            .spawn()
            .context("starting dockerd")?;
        let mut docker = Self { client, dir, engine, cgroup };
        docker.wait_until_it_serves()?;
        docker.import(rootfs)?;
        Ok(docker)
    }

    fn wait_until_it_serves(&mut self) -> Result<()> {
        let started = Instant::now();
        while program::time(self.command().arg("version")).is_err() {
            let ended = self.engine.try_wait()?.is_some();
            if ended || started.elapsed() > PATIENCE {
                let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
                bail!("dockerd does not work here: {}", log.lines().last().unwrap_or("it says nothing"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn import(&self, rootfs: &Path) -> Result<()> {
        let archive = self.dir.join("rootfs.tar");
        program::output(Command::new(program::find("tar")?).arg("-cf").arg(&archive).arg("-C").arg(rootfs).arg("."))?;
        program::output(self.command().arg("import").arg(&archive).arg(IMAGE)).map(drop)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.client);
        command.env("DOCKER_CONFIG", &self.dir).args(["--host", &socket(&self.dir)]);
        command
    }

    /// Where its API is.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    /// The same, as `DOCKER_HOST` has it.
    pub fn host(&self) -> String {
        socket(&self.dir)
    }

    /// A whole run of `true`.
    pub fn run(&self) -> Result<Duration> {
        program::time(self.command().args(["run", "--rm", "--network", "none", IMAGE, "true"]))
    }

    /// Starts a container that does nothing, to run commands in.
    pub fn start_idle(&self) -> Result<()> {
        let words = ["run", "--detach", "--network", "none", "--name", IDLE, IMAGE, "sleep", "1000000"];
        program::output(self.command().args(words)).map(drop)
    }

    /// Runs `true` in that container.
    pub fn exec(&self) -> Result<Duration> {
        program::time(self.command().args(["exec", IDLE, "true"]))
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let _ = program::output(self.command().args(["rm", "--force", IDLE]));
        if let Some(pid) = Pid::from_raw(self.engine.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let asked = Instant::now();
        while asked.elapsed() < PATIENCE && matches!(self.engine.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.engine.kill();
        let _ = self.engine.wait();
        // The groups' common parent is not the engine's to remove.
        let trees = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
        for tree in trees.chain([PathBuf::from("/sys/fs/cgroup")]) {
            let _ = fs::remove_dir(tree.join(&self.cgroup));
        }
    }
}

fn socket(dir: &Path) -> String {
    format!("unix://{}", dir.join("socket").display())
}
