//! What is planted on the host, to be found, changed or killed by a sandbox that is none. Dropping it removes it all.

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use sloplet_sys::attempt::{Call, attempt, handle_of};
use tempfile::TempDir;

use crate::program::SUBCOMMAND;
use crate::settings::{Settings, digest_of};

/// What files say that may be read and not changed.
const UNCHANGED: &str = "may be read, must not be changed";

/// How names of what is planted begin.
const PREFIX: &str = "sloplet-verify-";

/// How the name of the file begins that tells, by its name, whose canaries these are.
const PID: &str = "pid-";

/// Variables that every sandbox has of its own.
const ORDINARY: [&str; 10] = ["PATH", "HOME", "LANG", "USER", "LOGNAME", "TERM", "TMPDIR", "PWD", "SHLVL", "_"];

/// Settings of the kernel that nobody inside may change, below `/proc/sys`.
pub const SETTINGS: [&str; 9] = [
    "kernel/core_pattern",
    "kernel/modprobe",
    "kernel/hostname",
    "kernel/shmmax",
    "kernel/panic",
    "vm/overcommit_memory",
    "fs/file-max",
    "user/max_inotify_instances",
    "user/max_user_namespaces",
];

/// Something that happened to them.
#[derive(Debug, Clone)]
pub struct Harm {
    /// The probe that must have done it.
    pub by: &'static str,
    /// What.
    pub words: String,
}

/// How something is at a moment.
struct State {
    /// The probe that would change it.
    by: &'static str,
    name: String,
    value: String,
}

/// Canaries on the host.
pub struct Canaries {
    work: TempDir,
    program: PathBuf,
    victim: Child,
    tcp: Vec<TcpListener>,
    udp: UdpSocket,
    sockets: [UnixListener; 2],
    shm: Option<i32>,
    files: Vec<PathBuf>,
    queue: Option<CString>,
    _terminal: OwnedFd,
    before: Vec<State>,
    /// What attempts are told of them.
    pub settings: Settings,
}

impl Canaries {
    /// Plants them. `program` is this binary; `data` is a folder that no sandbox may see.
    pub fn plant(program: &Path, data: &Path) -> io::Result<Self> {
        sweep(data);
        let work = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        File::create(work.path().join(format!("{PID}{}", std::process::id())))?;
        let open = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o755));
        open(work.path())?;
        let name = work.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let secret = format!("canary-{name}");
        let root = rustix::process::geteuid().is_root();
        // A copy, because the original may lie where no sandbox may look.
        let copy = work.path().join("probe");
        fs::copy(program, &copy)?;
        open(&copy)?;
        for folder in ["shown", "private", "writable", "attempts"] {
            fs::create_dir(work.path().join(folder))?;
            open(&work.path().join(folder))?;
        }
        fs::write(work.path().join("shown/read-only"), UNCHANGED)?;
        let mut files = Vec::new();
        let places =
            [Some(work.path().join("private")), std::env::home_dir(), Some("/var/tmp".into()), Some(data.into())];
        for place in places.into_iter().flatten() {
            let path = place.join(format!(".{name}"));
            if fs::write(&path, &secret).is_ok() {
                files.push(path);
            }
        }
        let canary = files.first().cloned().ok_or_else(|| io::Error::other("no canary could be planted"))?;
        let shm_file = Path::new("/dev/shm").join(&name);
        if fs::write(&shm_file, &secret).is_ok() {
            files.push(shm_file);
        }
        let mut victim = Command::new(program)
            .args([SUBCOMMAND, "wait", &secret])
            .env("SLOPLET_CANARY", &secret)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut address = String::new();
        if let Some(stdout) = victim.stdout.take() {
            BufReader::new(stdout).read_line(&mut address)?;
        }
        let local = TcpListener::bind("127.0.0.1:0")?;
        let port = local.local_addr()?.port();
        let address_outside = own_address();
        let mut tcp = vec![local];
        tcp.extend(address_outside.as_deref().and_then(|own| TcpListener::bind((own, port)).ok()));
        let address_outside = address_outside.filter(|_| tcp.len() > 1);
        for listener in &tcp {
            listener.set_nonblocking(true)?;
        }
        let udp = UdpSocket::bind("127.0.0.1:0")?;
        udp.set_nonblocking(true)?;
        let folder = if root { PathBuf::from("/run") } else { work.path().join("private") };
        let socket = folder.join(format!("{name}.socket"));
        let by_path = UnixListener::bind(&socket)?;
        files.push(socket.clone());
        fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
        let by_name = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&secret)?)?;
        for listener in [&by_path, &by_name] {
            listener.set_nonblocking(true)?;
        }
        let shm_key = 0x5100_0000 | std::process::id() as i32;
        let shm = attempt(Call::ShmGet { key: shm_key, create: true }).ok().map(|id| id as i32);
        let queue = CString::new(name.clone()).ok();
        if let Some(queue) = &queue {
            let _ = attempt(Call::MqOpen { name: queue, create: true });
        }
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&terminal)?;
        unlockpt(&terminal)?;
        let terminal_size = (0x4000 | (std::process::id() & 0x3fff) as u16, port);
        let size = Winsize { ws_row: terminal_size.0, ws_col: terminal_size.1, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size)?;
        let terminal_name = ptsname(&terminal, Vec::new())?.to_string_lossy().into_owned();
        let (handle, handle_kind) = handle_of(c"/").unwrap_or_default();
        let disk = fs::metadata("/").map_or(0, |meta| meta.dev());
        let settings = Settings {
            root,
            victim: victim.id() as i32,
            address: address.trim().parse().unwrap_or(0),
            host_process: victim.id() as i32,
            marker: secret.clone(),
            secret: secret.clone(),
            canary,
            planted: files.iter().filter_map(|path| path.parent().map(Path::to_owned)).collect(),
            read_only: work.path().join("shown/read-only"),
            writable: work.path().join("writable"),
            port,
            udp_port: udp.local_addr()?.port(),
            address_outside,
            abstract_name: secret,
            socket,
            terminal_size,
            terminal: terminal_name.rsplit('/').next().unwrap_or_default().to_owned(),
            shm_key,
            shm_file: name.clone(),
            queue: name,
            handle: handle.iter().map(|byte| format!("{byte:02x}")).collect(),
            handle_kind,
            host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            disk: (rustix::fs::major(disk), rustix::fs::minor(disk)),
            throwaway: 61_234,
            variables: std::env::vars()
                .filter(|(name, value)| !ORDINARY.contains(&name.as_str()) && value.len() > 3)
                .map(|(name, value)| digest_of(&name, &value))
                .collect(),
            ..Settings::default()
        };
        let sockets = [by_path, by_name];
        let program = program.to_owned();
        let mut all = Self {
            work,
            program,
            victim,
            tcp,
            udp,
            sockets,
            shm,
            files,
            queue,
            _terminal: terminal,
            before: Vec::new(),
            settings,
        };
        all.before = all.state();
        Ok(all)
    }

    /// The folder that holds them, with the program for attempts.
    pub fn folder(&self) -> &Path {
        self.work.path()
    }

    /// Takes note that the host itself has called: whoever calls after this is somebody else.
    pub fn forget_calls(&mut self) {
        self.calls();
        // Whoever was traced and left alone stands still, and could not be seen to be stopped again.
        if let Some(victim) = Pid::from_raw(self.settings.host_process) {
            let _ = kill_process(victim, Signal::CONT);
        }
        let until = Instant::now() + Duration::from_secs(1);
        while !self.victim_runs() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.before = self.state();
    }

    /// Whether the planted process is neither gone nor stopped.
    fn victim_runs(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.settings.host_process)).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'T', 't', 'X']))
    }

    /// How many connected, or sent something, since the last look: by the network, and to sockets of services.
    fn calls(&self) -> (usize, usize) {
        let tcp = self.tcp.iter().map(|listener| std::iter::from_fn(|| listener.accept().ok()).count()).sum::<usize>();
        let unix =
            self.sockets.iter().map(|listener| std::iter::from_fn(|| listener.accept().ok()).count()).sum::<usize>();
        let mut buffer = [0u8; 64];
        (tcp + std::iter::from_fn(|| self.udp.recv_from(&mut buffer).ok()).count(), unix)
    }

    /// What is to stay as it is.
    fn state(&self) -> Vec<State> {
        let text = |by: &'static str, path: &Path| State {
            by,
            name: path.display().to_string(),
            value: fs::read_to_string(path).unwrap_or_default(),
        };
        let settings = SETTINGS.iter().map(|name| text("kernel-settings", &Path::new("/proc/sys").join(name)));
        let files = self.files.iter().filter(|path| path.extension().is_none_or(|kind| kind != "socket"));
        let files = files.map(|path| text("climb-out", path));
        let mut all: Vec<State> = settings.chain(files).collect();
        all.push(text("read-only-files", &self.settings.read_only));
        for program in [self.program.clone(), self.work.path().join("probe")] {
            // Whoever changes a file cannot keep the time of its last change.
            let print = File::open(&program)
                .and_then(|file| file.metadata())
                .map(|meta| format!("{} {} {} {}", meta.ino(), meta.size(), meta.mtime_nsec(), meta.mode()));
            let (name, value) = (program.display().to_string(), print.unwrap_or_default());
            all.push(State { by: "agent-binary", name, value });
        }
        let value = if self.victim_runs() { "alive" } else { "gone or stopped" }.to_owned();
        all.push(State { by: "host-processes", name: "the planted process".to_owned(), value });
        all
    }

    /// What has happened to them; nothing is good.
    pub fn harm(&self) -> Vec<Harm> {
        let mut found = Vec::new();
        let (network, services) = self.calls();
        for (by, count, what) in [
            ("network-direct", network, "host's sockets"),
            ("host-sockets", services, "sockets of the host's services"),
        ] {
            if count > 0 {
                found.push(Harm { by, words: format!("{count} connections or datagrams reached the {what}") });
            }
        }
        for (before, after) in self.before.iter().zip(self.state()) {
            if before.value != after.value {
                found.push(Harm { by: after.by, words: format!("{} was changed", after.name) });
            }
        }
        found
    }
}

/// In words.
pub fn told(harm: &[Harm]) -> String {
    harm.iter().map(|harm| harm.words.as_str()).collect::<Vec<_>>().join("; ")
}

impl Drop for Canaries {
    fn drop(&mut self) {
        let _ = self.victim.kill();
        let _ = self.victim.wait();
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        if let Some(id) = self.shm {
            let _ = attempt(Call::ShmRemove(id));
        }
        if let Some(queue) = &self.queue {
            let _ = attempt(Call::MqUnlink(queue));
        }
    }
}

/// Removes what a verification left that was killed.
fn sweep(data: &Path) {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let own = entry.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw());
        let names = fs::read_dir(entry.path()).into_iter().flatten().flatten().map(|file| file.file_name());
        let pid = names.filter_map(|name| name.to_str()?.strip_prefix(PID)?.parse::<u32>().ok()).next();
        let Some(pid) = pid.filter(|_| own && name.starts_with(PREFIX)) else { continue };
        if Path::new("/proc").join(pid.to_string()).exists() {
            continue;
        }
        let hidden = format!(".{name}");
        let places = [std::env::home_dir(), Some("/var/tmp".into()), Some(data.into())];
        for place in places.into_iter().flatten() {
            let _ = fs::remove_file(place.join(&hidden));
        }
        let _ = fs::remove_file(Path::new("/dev/shm").join(&name));
        let _ = fs::remove_file(Path::new("/run").join(format!("{name}.socket")));
        if let Ok(queue) = CString::new(name) {
            let _ = attempt(Call::MqUnlink(&queue));
        }
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// The address with which this host would leave for elsewhere, if it has one. Nothing is sent.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_loopback() && !own.is_unspecified()).then(|| own.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stands in for the binary: any program that waits for its input to end.
    fn planted(folder: &Path) -> Canaries {
        let program = folder.join("program");
        fs::write(&program, "#!/bin/sh\necho 0\nexec cat\n").unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        Canaries::plant(&program, folder).unwrap()
    }

    #[test]
    fn what_happens_to_canaries_is_told_with_the_probe_that_did_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut canaries = planted(folder.path());
        assert!(canaries.harm().is_empty());
        let victim = Pid::from_raw(canaries.settings.host_process).unwrap();
        // A victim that the controls have stopped is woken, so that it can be stopped again.
        kill_process(victim, Signal::STOP).unwrap();
        canaries.forget_calls();
        assert!(canaries.harm().is_empty());
        kill_process(victim, Signal::STOP).unwrap();
        fs::write(&canaries.settings.read_only, "changed").unwrap();
        fs::write(&canaries.settings.canary, "changed").unwrap();
        let _call = std::net::TcpStream::connect(("127.0.0.1", canaries.settings.port)).unwrap();
        let _service = std::os::unix::net::UnixStream::connect(&canaries.settings.socket).unwrap();
        let until = Instant::now() + Duration::from_secs(5);
        while canaries.victim_runs() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let by: Vec<&str> = canaries.harm().iter().map(|harm| harm.by).collect();
        assert_eq!(by, ["network-direct", "host-sockets", "climb-out", "read-only-files", "host-processes"]);
    }

    #[test]
    fn whoever_is_blamed_for_harm_is_a_probe() {
        let folder = tempfile::tempdir().unwrap();
        let named = planted(folder.path()).state().into_iter().map(|state| state.by);
        for by in named.chain(["network-direct", "host-sockets"]) {
            assert!(crate::probes::ALL.iter().any(|probe| probe.name == by), "{by}");
        }
    }
}
