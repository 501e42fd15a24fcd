//! An outside world of one test's own: two network namespaces and a cable between them.
//!
//! - `near`, where sloplet runs, and the test's thread with it: it has a default route to the other one, a name server there,
//!   and a loopback of its own.
//! - `far`, where made-up public and private addresses are, with servers on all of them (`world.py`) that keep what reaches
//!   them.
//!
//! Nothing in it can reach any other network, nor be reached from one. Dropping it removes it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use super::{Host, Sloplet};

/// The host's own address.
pub const NEAR: &str = "10.99.7.2";

/// Addresses of the world that are public, and those that are not.
pub const PUBLIC: [&str; 5] = ["45.33.10.1", "45.33.10.2", "45.33.10.3", "45.33.10.53", "45.33.11.9"];
const PRIVATE: [&str; 5] = ["10.20.0.5", "169.254.169.254", "100.64.0.9", "172.16.5.5", "192.168.77.7"];

/// The same of IPv6.
pub const PUBLIC_V6: &str = "2600:3c00:10::1";
const PRIVATE_V6: [&str; 3] = ["fd00:ec2::254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"];

/// How long its servers may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// An outside world.
pub struct World {
    /// Its files; `share` is what sandboxes are shown.
    pub dir: PathBuf,
    spaces: [String; 2],
    servers: Child,
}

impl World {
    /// Makes one. The calling thread, and what it starts, is at home in it from now on.
    pub fn new(host: &Host) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let dir = host.dir().join(format!("world{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let share = dir.join("share");
        fs::create_dir_all(dir.join("site")).unwrap();
        fs::create_dir_all(&share).unwrap();
        let own = host.dir().file_name().unwrap().to_str().unwrap();
        let number = dir.file_name().unwrap().to_str().unwrap();
        let spaces = ["near", "far"].map(|end| format!("{own}-{number}-{end}"));
        connect(&spaces);
        certificates(&dir);
        fs::copy(dir.join("ca.pem"), share.join("ca.pem")).unwrap();
        fs::write(share.join("inside.py"), include_str!("inside.py")).unwrap();
        fs::write(dir.join("world.py"), include_str!("world.py")).unwrap();
        fs::write(dir.join("hosts"), "127.0.0.1 localhost\n::1 localhost\n").unwrap();
        fs::write(dir.join("resolv.conf"), "nameserver 45.33.10.53\noptions timeout:5 attempts:4\n").unwrap();
        let standin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/tests/packages");
        let config = json!({
            "control": dir.join("control"),
            "certificate": dir.join("chain.pem"),
            "key": dir.join("key.pem"),
            "site": dir.join("site"),
            "standin": standin,
            "addresses": addresses(),
            "names": names(),
        });
        fs::write(dir.join("config.json"), config.to_string()).unwrap();
        let servers = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", spaces[1]))
            .args(["/usr/bin/python3", "-B"])
            .args([dir.join("world.py"), dir.join("config.json")])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the world's servers");
        let mut world = Self { dir, spaces, servers };
        let started = Instant::now();
        while UnixStream::connect(world.dir.join("control")).is_err() {
            let ended = world.servers.try_wait().unwrap();
            assert!(ended.is_none() && started.elapsed() < PATIENCE, "the world's servers do not start: {ended:?}");
            thread::sleep(Duration::from_millis(10));
        }
        let near = fs::File::open(format!("/run/netns/{}", world.spaces[0])).unwrap();
        move_into_link_name_space(near.as_fd(), Some(LinkNameSpaceType::Network)).expect("a network namespace");
        world
    }

    /// A sloplet that finds this world outside: its names, and whom to trust.
    pub fn around(&self, sloplet: Sloplet) -> Sloplet {
        Sloplet { world: Some(self.dir.clone()), ..sloplet }
    }

    /// The option that shows programs inside what they need to know of it, at `/world`.
    pub fn mount(&self) -> String {
        format!("--mount={}:/world", self.dir.join("share").display())
    }

    /// Whom it is certified by.
    pub fn authority(&self) -> PathBuf {
        self.dir.join("share/ca.pem")
    }

    /// A folder that is served below `/site/`.
    pub fn site(&self) -> PathBuf {
        self.dir.join("site")
    }

    /// Everything that reached it since it was last asked to forget.
    pub fn seen(&self) -> Vec<Value> {
        self.ask(&json!({}))
    }

    /// The same of one kind: `tcp`, `http`, `call`, `udp` or `dns`.
    pub fn seen_of(&self, kind: &str) -> Vec<Value> {
        self.seen().into_iter().filter(|one| one["kind"] == kind).collect()
    }

    /// Forgets what it has seen.
    pub fn forget(&self) {
        self.ask(&json!({"forget": true}));
    }

    /// Names of it that were asked for, each once.
    pub fn asked_names(&self) -> Vec<String> {
        let mut asked: Vec<String> =
            self.seen_of("dns").iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
        asked.sort();
        asked.dedup();
        asked
    }

    /// Gives a name other addresses.
    pub fn rename(&self, name: &str, addresses: &[&str]) {
        self.ask(&json!({"name": name, "addresses": addresses}));
    }

    fn ask(&self, question: &Value) -> Vec<Value> {
        let mut control = UnixStream::connect(self.dir.join("control")).expect("the world's servers");
        control.write_all(format!("{question}\n").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(control).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.servers.kill();
        let _ = self.servers.wait();
        for space in &self.spaces {
            let _ = Command::new("ip").args(["netns", "del", space]).output();
        }
    }
}

/// All its addresses.
fn addresses() -> Vec<&'static str> {
    PUBLIC.into_iter().chain(PRIVATE).chain([PUBLIC_V6]).chain(PRIVATE_V6).collect()
}

/// The names that its name server knows. Many lead where a sandbox may not go.
fn names() -> Value {
    json!({
        "example.com": ["45.33.10.1"],
        "*.example.com": ["45.33.10.1"],
        "*.a.example.com": ["45.33.10.1"],
        "example.org": ["45.33.10.2"],
        "*.example.org": ["45.33.10.2"],
        "evil-example.com": ["45.33.10.2"],
        "example.com.evil.test": ["45.33.10.2"],
        "xn--exmple-cua.com": ["45.33.10.2"],
        "api.anthropic.com": ["45.33.10.3"],
        "api.openai.com": ["45.33.10.3"],
        "six.example.net": [PUBLIC_V6],
        "both.example.net": ["45.33.10.1", PUBLIC_V6],
        "private.example.net": ["10.20.0.5"],
        "metadata.example.net": ["169.254.169.254"],
        "metadata.google.internal": ["169.254.169.254"],
        "loopback.example.net": ["127.0.0.1"],
        "host.example.net": [NEAR],
        "mixed.example.net": ["10.20.0.5", "45.33.10.2"],
        "rebind.example.net": ["45.33.10.2"],
    })
}

/// Makes the namespaces, the cable and the addresses.
fn connect([near, far]: &[String; 2]) {
    let mut steps = vec![
        format!("netns add {near}"),
        format!("netns add {far}"),
        format!("link add near0 netns {near} type veth peer name far0 netns {far}"),
    ];
    for (space, link, v4, v6) in [(near, "near0", NEAR, "fd99:7::2"), (far, "far0", "10.99.7.1", "fd99:7::1")] {
        steps.push(format!("-n {space} link set lo up"));
        steps.push(format!("-n {space} addr add {v4}/24 dev {link}"));
        steps.push(format!("-n {space} addr add {v6}/64 dev {link} nodad"));
        steps.push(format!("-n {space} link set {link} up"));
    }
    steps.push(format!("-n {near} route add default via 10.99.7.1"));
    steps.push(format!("-n {near} -6 route add default via fd99:7::1"));
    for address in addresses() {
        let length = if address.contains(':') { "128 nodad" } else { "32" };
        steps.push(format!("-n {far} addr add dev lo {address}/{length}"));
    }
    for step in steps {
        let output = Command::new("ip").args(step.split(' ')).output().expect("ip (iproute2)");
        assert!(output.status.success(), "ip {step}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// An authority, and a certificate for all names.
fn certificates(dir: &Path) {
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Names of their own: OpenSSL takes a certificate that is called like its issuer for self-signed.
    ca.distinguished_name.push(DnType::CommonName, "the world's authority");
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let named = names();
    let subjects: Vec<String> = named.as_object().unwrap().keys().cloned().chain(PUBLIC.map(String::from)).collect();
    let mut leaf = CertificateParams::new(subjects).unwrap();
    leaf.distinguished_name.push(DnType::CommonName, "the world");
    let leaf = leaf.signed_by(&key, &ca).unwrap();
    for (name, text) in [("ca.pem", ca.pem()), ("chain.pem", leaf.pem()), ("key.pem", key.serialize_pem())] {
        fs::write(dir.join(name), text).unwrap();
    }
}
