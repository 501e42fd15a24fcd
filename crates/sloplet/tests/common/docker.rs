//! A Docker engine of one test's own: private socket, private data, stopped at the end.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Host, Sloplet, small_image};

/// The image that every engine has: a shell, a few programs, Python.
pub const IMAGE: &str = "small:local";

/// How long the engine may take to start, and to stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running engine. Dropping it stops it, with all that it runs.
pub struct Engine {
    dir: PathBuf,
    engine: Child,
    cgroup: String,
}

impl Engine {
    /// Starts one, and imports the image.
    pub fn start(host: &Host) -> Self {
        let dir = host.dir().join("docker");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("daemon.json"), "{}").unwrap();
        let log = File::create(dir.join("log")).unwrap();
        let cgroup = host.dir().file_name().unwrap().to_str().unwrap().replace("sloplet-test", "sloplet-docker");
        let path = |name: &str| dir.join(name).display().to_string();
        let engine = Command::new("dockerd")
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .args(["--host", &format!("unix://{}", path("socket")), "--config-file", &path("daemon.json")])
            .args(["--data-root", &path("data"), "--exec-root", &path("exec"), "--pidfile", &path("pid")])
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false", "--cgroup-parent", &cgroup])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            // A Ctrl-C is for the test, which then stops the engine in good order.
            .process_group(0)
            .spawn()
            .expect("dockerd (Debian: docker.io)");
        let mut engine = Self { dir, engine, cgroup };
        engine.wait_until_it_serves();
        engine.import(host);
        engine
    }

    fn wait_until_it_serves(&mut self) {
        let started = Instant::now();
        while self.get("/version").is_empty() {
            let ended = self.engine.try_wait().unwrap().is_some();
            let log = || fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            assert!(!ended && started.elapsed() < PATIENCE, "dockerd does not work here: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// By the API: a client program may be missing, or be another version's.
    fn import(&self, host: &Host) {
        let programs = ["sh", "cat", "id", "uname", "sleep", "head", "mkdir", "setsid", "env", "ls"];
        small_image(host, &programs);
        let script = r#"
            set -eu
            cd "$1"
            add() {
                for library in $(ldd "$@" 2>/dev/null | grep -o '/[^ ]*\.so[^ ]*' | sort -u); do
                    mkdir -p ".$(dirname "$library")"
                    cp -Ln "$library" ".$library" || true
                done
            }
            # Of these the shell has its own.
            cp -L /usr/bin/true /usr/bin/test bin/
            python=$(readlink -f /usr/bin/python3)
            library=/usr/lib/$(basename "$python")
            mkdir -p usr/bin usr/lib
            cp "$python" usr/bin/python3
            cp -a "$library" usr/lib/
            rm -rf usr/lib/python3*/test usr/lib/python3*/config-*
            add "$python" "$library"/lib-dynload/*.so
            printf '12345678901234567890123456789012\n' >etc/machine-id
            tar -cf "$2" ."#;
        let archive = self.dir.join("image.tar");
        let made = Command::new("sh").args(["-c", script, "sh"]).arg(host.dir().join("small")).arg(&archive).output();
        let made = made.unwrap();
        assert!(made.status.success(), "{made:?}");
        let (name, tag) = IMAGE.split_once(':').unwrap();
        let path = format!("/images/create?fromSrc=-&repo={name}&tag={tag}");
        let imported = self.curl(&["-X", "POST", "-T", archive.to_str().unwrap()], &path);
        assert!(imported.contains("sha256:"), "{imported}");
        fs::remove_file(archive).unwrap();
    }

    fn curl(&self, options: &[&str], path: &str) -> String {
        let asked = Command::new("curl")
            .args(["--silent", "--unix-socket", self.dir.join("socket").to_str().unwrap()])
            .args(options)
            .arg(format!("http://engine{path}"))
            .output();
        String::from_utf8_lossy(&asked.unwrap().stdout).into_owned()
    }

    /// What the engine says.
    pub fn get(&self, path: &str) -> String {
        self.curl(&[], path)
    }

    /// The same, read.
    pub fn json(&self, path: &str) -> serde_json::Value {
        let text = self.get(path);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"))
    }

    /// Asks it to make something.
    pub fn post(&self, path: &str, body: &serde_json::Value) -> serde_json::Value {
        let options = ["-X", "POST", "-H", "Content-Type: application/json", "-d", &body.to_string()];
        serde_json::from_str(&self.curl(&options, path)).unwrap()
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    /// A sloplet that finds it.
    pub fn known_to(&self, sloplet: Sloplet) -> Sloplet {
        sloplet.with("DOCKER_HOST", &format!("unix://{}", self.socket().display()))
    }

    /// Fails if there is a container, or a volume but that of the agent; or a note of one.
    #[track_caller]
    pub fn assert_nothing_left(&self, sloplet: &Sloplet) {
        let started = Instant::now();
        let left = || {
            let containers = self.json("/containers/json?all=1").as_array().unwrap().clone();
            let volumes = self.json("/volumes")["Volumes"].as_array().cloned().unwrap_or_default();
            let kept = |volume: &serde_json::Value| volume["Name"].as_str().unwrap().starts_with("sloplet-agent-");
            let volumes: Vec<_> = volumes.into_iter().filter(|volume| !kept(volume)).collect();
            let notes = ["owners", "files"].map(|name| sloplet.data.join("docker").join(name));
            let notes = notes.iter().flat_map(fs::read_dir).flatten().flatten().map(|entry| entry.path());
            // The folder of lasting containers' files stays, empty.
            let notes = notes.filter(|path| fs::read_dir(path).map_or(true, |mut inside| inside.next().is_some()));
            (containers, volumes, notes.collect::<Vec<_>>())
        };
        loop {
            let found = left();
            if found.0.is_empty() && found.1.is_empty() && found.2.is_empty() {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(10), "left behind: {found:#?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Of a test that failed.
        let listed = self.get("/containers/json?all=1");
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap_or_default();
        for id in listed.as_array().into_iter().flatten().filter_map(|container| container["Id"].as_str()) {
            self.curl(&["-X", "DELETE"], &format!("/containers/{id}?force=1&v=1"));
        }
        if let Some(pid) = Pid::from_raw(self.engine.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let asked = Instant::now();
        while asked.elapsed() < PATIENCE && matches!(self.engine.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
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
