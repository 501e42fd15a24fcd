//! Runs the probes of this folder on the host and inside, and compares.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::common::{Ended, Host, Running, Sloplet};

/// Where the probes are inside.
const INSIDE: &str = "/probes";

const FILES: [(&str, &str); 8] = [
    ("probe.py", include_str!("probe.py")),
    ("attempts.py", include_str!("attempts.py")),
    ("canaries.py", include_str!("canaries.py")),
    ("channels.py", include_str!("channels.py")),
    ("kernel.py", include_str!("kernel.py")),
    ("processes.py", include_str!("processes.py")),
    ("roots.py", include_str!("roots.py")),
    ("plant.py", include_str!("plant.py")),
];

/// What one part of a probe said.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// Whether the attempt took effect; `None` if the probe is broken.
    pub did: Option<bool>,
    pub errno: Option<String>,
    pub saw: String,
    /// Whether a host may lack what it needs.
    pub optional: bool,
}

/// Verdicts by probe and part.
pub type Verdicts = BTreeMap<(String, String), Verdict>;

/// Probes, and what they look for on the host.
pub struct Probes {
    /// With the probes; read-only inside.
    pub dir: PathBuf,
    /// Planted on the host, and nowhere else.
    pub secret: String,
    settings: Value,
    plant: Option<Running>,
}

impl Probes {
    /// Plants canaries that belong to `owner`.
    pub fn plant(host: &Host, owner: &Sloplet) -> Self {
        let dir = host.dir().join(format!("probes-{}", owner.name));
        fs::create_dir(&dir).unwrap();
        for (name, text) in FILES {
            fs::write(dir.join(name), text).unwrap();
        }
        let (uid, gid) = owner.account.as_ref().map_or((0, 0), |account| (account.uid, account.gid));
        let unique = host.dir().file_name().unwrap().to_str().unwrap().trim_start_matches("sloplet-test-").to_owned();
        let secret = format!("canary{unique}{}", owner.name);
        for (name, content) in [("read-only", "may be read, must not be changed"), ("canary", &secret)] {
            fs::write(dir.join(name), content).unwrap();
        }
        let set_id = dir.join("set-user-id");
        fs::copy("/usr/bin/id", &set_id).unwrap();
        fs::set_permissions(&set_id, Permissions::from_mode(0o4755)).unwrap();
        let doors = if cfg!(target_arch = "x86_64") { compile_doors(&dir) } else { String::new() };
        chown(&dir, Some(uid), Some(gid)).unwrap();

        // Named after nothing else, so that it can be told from all other processes.
        let marker = format!("sloplet-marker-{unique}-{}", owner.name);
        let script = "exec -a \"$0\" python3 -B \"$@\"";
        let program = dir.join("plant.py");
        let sockets = if uid == 0 { PathBuf::from("/run") } else { owner.folder("sockets") };
        let words =
            ["bash", "-c", script, &marker, program.to_str().unwrap(), &marker, sockets.to_str().unwrap(), &secret];
        let environment = owner.other_program(&words).env("SLOPLET_CANARY", &secret);
        let mut plant = environment.input_pipe().unread_stdout().within(Duration::from_secs(600)).start();
        let mut line = String::new();
        BufReader::new(plant.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let Ok(mut settings) = serde_json::from_str::<Value>(&line) else { panic!("no canaries: {}", plant.finish()) };
        let disk = fs::metadata("/").unwrap().dev();
        let own = json!({
            "canary": dir.join("canary"), "secret": secret, "throwaway": 61_234, "doors": doors, "canaries": [], "sweep": [],
            "disk": [rustix::fs::major(disk), rustix::fs::minor(disk)],
        });
        merge(&mut settings, own);
        let handle =
            Command::new("python3").args(["-B", dir.join("probe.py").to_str().unwrap(), "handle", "/"]).output();
        merge(&mut settings, serde_json::from_slice(&handle.unwrap().stdout).expect("a file handle of the root"));
        Self { dir, secret, settings, plant: Some(plant) }
    }

    /// Adds to the settings.
    pub fn set(&mut self, more: Value) {
        merge(&mut self.settings, more);
    }

    /// Whether the planted process lives.
    pub fn host_process_is_alive(&mut self) -> bool {
        self.plant.as_mut().is_some_and(Running::is_running)
    }

    /// On the host, as root, with everything open that will be open when sandboxes are started.
    pub fn on_host(&self, root: &Sloplet, names: &[&str]) -> Verdicts {
        let settings = self.settings_for(false);
        let program = self.dir.join("probe.py");
        let words = [&["python3", "-B", program.to_str().unwrap(), &settings], names].concat();
        let words = with_open_files(&self.dir, &words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        verdicts(root.other_program(&words).env("SLOPLET_CANARY", &self.secret).finish())
    }

    /// Inside a sandbox.
    pub fn inside(&self, sloplet: &Sloplet, host: &Host, options: &[&str], names: &[&str]) -> Verdicts {
        verdicts(self.run_inside(sloplet, host, options, names))
    }

    /// The same, without reading the verdicts.
    pub fn run_inside(&self, sloplet: &Sloplet, host: &Host, options: &[&str], names: &[&str]) -> Ended {
        let mount = format!("{}:{INSIDE}:ro", self.dir.display());
        let settings = self.settings_for(true);
        let program = format!("{INSIDE}/probe.py");
        let words = [
            &[host.binary().to_str().unwrap(), "run", "--mount", &mount],
            options,
            &["--", "python3", "-B", &program, &settings],
            names,
        ]
        .concat();
        let words = with_open_files(&self.dir, &words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        sloplet.other_program(&words).env("SLOPLET_CANARY", &self.secret).finish()
    }

    fn settings_for(&self, inside: bool) -> String {
        let mut settings = self.settings.clone();
        let dir = if inside { Path::new(INSIDE) } else { &self.dir };
        merge(
            &mut settings,
            json!({"inside": inside, "own": dir, "setuid": dir.join("set-user-id"), "read_only": dir.join("read-only")}),
        );
        if settings["doors"] != "" {
            settings["doors"] = json!(dir.join("doors"));
        }
        if inside {
            settings["victim"] = json!(1);
        }
        settings.to_string()
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        let Some(mut plant) = self.plant.take() else { return };
        plant.stdin = None; // its sign to clean up, also when the test has failed
        let deadline = Instant::now() + Duration::from_secs(10);
        while plant.is_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What a wall may answer; anything else comes from the code behind it.
const REFUSALS: [&str; 6] = ["EPERM", "EACCES", "ENOSYS", "EROFS", "ENOENT", "EAFNOSUPPORT"];

/// Further answers that are as good: nobody there, or no such kind here.
fn other_refusals(probe: &str) -> &'static [&'static str] {
    match probe {
        "sockets" => &["EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "ECONNREFUSED", "ENETUNREACH"],
        "host_sockets" => &["ECONNREFUSED"],
        "host_processes" => &["ESRCH"],
        "terminals" => &["ENXIO"],
        "other_doors" => &["SIGSYS"],
        _ => &[],
    }
}

/// What is wrong: attempts that take effect inside, and attempts that do not take effect on the host either, so that
/// their failing inside tells nothing.
pub fn problems(host: &Verdicts, inside: &Verdicts) -> Vec<String> {
    let mut found = Vec::new();
    for (name @ (probe, part), verdict) in host {
        let shown = |verdict: &Verdict| format!("{:?} {}", verdict.errno, verdict.saw);
        match verdict.did {
            Some(true) => {}
            Some(false) if verdict.optional => {}
            _ => found.push(format!("INCONCLUSIVE {probe}: {part}: on the host: {}", shown(verdict))),
        }
        let Some(inside) = inside.get(name) else {
            found.push(format!("NOT TRIED inside: {probe}: {part}"));
            continue;
        };
        let refused = |errno: &str| REFUSALS.contains(&errno) || other_refusals(probe).contains(&errno);
        match (inside.did, &inside.errno) {
            (Some(true), _) => found.push(format!("NOT CONTAINED {probe}: {part}: {}", shown(inside))),
            (Some(false), None) => {}
            (Some(false), Some(errno)) if refused(errno) || verdict.did == Some(false) => {}
            (Some(false), Some(_)) => found.push(format!("ODD ANSWER {probe}: {part}: {}", shown(inside))),
            (None, _) => found.push(format!("BROKEN {probe}: {part}: {}", inside.saw)),
        }
    }
    found
}

fn verdicts(ended: Ended) -> Verdicts {
    let ended = ended.expect_code(0);
    let mut all = Verdicts::new();
    for line in ended.out().lines() {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("not a verdict: {line}: {ended}"));
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let verdict = Verdict {
            did: value["did"].as_bool(),
            errno: text("errno"),
            saw: text("saw").unwrap_or_default(),
            optional: value["optional"] == true,
        };
        all.insert((text("probe").unwrap(), text("part").unwrap()), verdict);
    }
    assert!(!all.is_empty(), "no verdicts: {ended}");
    all
}

/// Descriptors 3 to 9 are open: files and folders of the host, the root among them.
fn with_open_files(dir: &Path, words: &[&str]) -> Vec<String> {
    let canary = dir.join("canary").display().to_string();
    let script = "exec 3<\"$0\" 4</ 5</usr 6<\"$0\" 7</tmp 8</ 9</dev/null; exec \"$@\"";
    ["sh", "-c", script, &canary].iter().chain(words).map(|word| (*word).to_owned()).collect()
}

fn compile_doors(dir: &Path) -> String {
    let (source, program) = (dir.join("doors.c"), dir.join("doors"));
    fs::write(&source, include_str!("doors.c")).unwrap();
    let done = Command::new("gcc").args(["-static", "-no-pie", "-o"]).arg(&program).arg(&source).output();
    let done = done.expect("this test needs the Debian package gcc");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    program.display().to_string()
}

/// A root file system with nothing of its own but users; the host's `/usr` is to be mounted. Unlike the image `host`, it
/// has a root user also in sandboxes of an ordinary user.
pub fn bare_root(at: &Path) {
    for folder in ["usr", "proc", "dev", "sys", "tmp", "etc", "home/user", "root", "var", "run"] {
        fs::create_dir_all(at.join(folder)).unwrap();
    }
    fs::set_permissions(at.join("tmp"), Permissions::from_mode(0o1777)).unwrap();
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
            std::os::unix::fs::symlink(target, at.join(name)).unwrap();
        }
    }
    let users = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n";
    fs::write(at.join("etc/passwd"), users).unwrap();
    fs::write(at.join("etc/group"), "root:x:0:\nuser:x:1000:\n").unwrap();
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}
