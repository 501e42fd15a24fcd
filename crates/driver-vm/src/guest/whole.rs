//! A whole machine: the image's own init system is its first process, and the agent one of its services.
//!
//! The kernel starts this program as ever. It starts itself a second time, as the keeper, which stays in the kernel's first
//! root; when the host has said what the machine is, the first process goes over to the root that the keeper has made, and
//! becomes the init system. There is no sandbox in the machine: root in it is root of that kernel, and the wall is the machine's.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open, statvfs};
use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive, mount_move, mount_remount};
use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;
use sloplet_driver_namespaces::planning::{default_user, own_files};
use sloplet_engine::driver::{ByteStream, When};
use sloplet_engine::{DriverError, End, Machine, MachineState, Outlets, Pending, PutFile, Usage, Wanted};
use sloplet_spawner::network::outlet::Outlet;
use tokio::sync::watch;

use super::{SUBCOMMAND, mounts};
use crate::{failed, outer};

/// The word after the subcommand that asks for a whole machine.
pub const WORD: &str = "whole";

/// The word that makes this program the keeper of one.
pub const KEEPER: &str = "keeper";

/// What the keeper says when the new root is ready.
const GO: &[u8] = b"g";

/// The new root, as long as it is being made.
const ROOT: &str = "/machine";

/// Where what is needed later is kept within it.
const OWN: &str = "/run/sloplet";

/// The target that wants it.
const TARGET: &str = "multi-user.target.wants";

/// How long its agent may take to listen.
const PATIENCE: Duration = outer::START_WHOLE;

/// The agent's unit: it comes when units can be asked for, and does not wait for any other service.
const UNIT: &str = "[Unit]
Description=The agent that this machine's host talks to
After=dbus.socket
[Service]
ExecStart=/run/sloplet/program __agent serve --listen /run/sloplet/agent/socket --user USER
Restart=always
OOMScoreAdjust=-900
KillMode=process
Delegate=yes
TasksMax=infinity
";

/// The first process: starts the keeper, waits for its word, and becomes the init system. Returns only if that fails.
pub fn first_process() -> io::Result<()> {
    if let Some(disks) = mounts::settle()? {
        disks.put_away()?;
    }
    let (mut ours, theirs) = UnixStream::pair()?;
    Command::new("/proc/self/exe").args([SUBCOMMAND, KEEPER]).stdin(OwnedFd::from(theirs)).spawn()?;
    let mut word = [0; GO.len()];
    ours.read_exact(&mut word)?;
    drop(ours);
    rustix::process::chdir(ROOT)?;
    mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    rustix::process::chdir("/")?;
    Err(Command::new("/sbin/init").env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").exec())
}

/// A machine whose first process is an init system.
pub struct Whole {
    /// Its `/run`, where the agent listens.
    run: OwnedFd,
    state: watch::Sender<MachineState>,
}

/// Makes the root, has the first process go there, and waits for the agent. `first` leads to the first process.
pub async fn begin(mut first: UnixStream, wanted: Wanted<'_>) -> io::Result<(Whole, Option<Outlets>)> {
    make_root(wanted)?;
    let run = open(format!("{ROOT}/run"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    furnish(wanted)?;
    let outlets = if wanted.egress { Some(lead_out().await?) } else { None };
    first.write_all(GO)?;
    let whole = Whole { run, state: watch::Sender::new(MachineState::Running) };
    let listens = async {
        while tokio::net::UnixStream::connect(whole.door()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, listens).await;
    waited.map_err(|_| io::Error::other("the init system of the image did not start the agent"))?;
    Ok((whole, outlets))
}

/// The image's layers, below the disk that is written to.
fn make_root(wanted: Wanted<'_>) -> io::Result<()> {
    let none = MountFlags::empty();
    for folder in ["/disk", ROOT] {
        fs::create_dir_all(folder)?;
    }
    mount(mounts::device("disk")?, "/disk", "ext4", none, None)?;
    for folder in ["/disk/upper", "/disk/work"] {
        DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    }
    let lower: Vec<String> = wanted.image.layers.iter().map(|layer| layer.display().to_string()).collect();
    let options = format!("lowerdir={},upperdir=/disk/upper,workdir=/disk/work,userxattr", lower.join(":"));
    let options = std::ffi::CString::new(options)?;
    mount("root", ROOT, "overlay", none, Some(options.as_c_str()))?;
    for bind in &wanted.image.binds {
        let target = Path::new(ROOT).join(bind.target.strip_prefix("/").unwrap_or(&bind.target));
        fs::create_dir_all(&target)?;
        mount_bind_recursive(&bind.source, &target)?;
    }
    if fs::symlink_metadata(format!("{ROOT}/sbin/init")).is_err() {
        let why = "the image has no /sbin/init: a whole machine needs one, as 'debian-machine' has it \
                   (sloplet image build debian-machine)";
        return Err(io::Error::other(why));
    }
    for place in ["/dev", "/proc", "/sys"] {
        fs::create_dir_all(format!("{ROOT}{place}"))?;
        mount_bind_recursive(place, format!("{ROOT}{place}"))?;
    }
    fs::create_dir_all(format!("{ROOT}/run"))?;
    mount("run", format!("{ROOT}/run"), "tmpfs", MountFlags::NODEV | MountFlags::NOSUID, Some(c"mode=0755"))?;
    // What is shown by the user's wish, where the new root can reach it.
    for (number, bind) in wanted.spec.mounts.iter().enumerate() {
        let place = PathBuf::from(format!("{ROOT}{OWN}/mounts/{number}"));
        make_place(&place, bind.from.is_dir())?;
        mount_bind(&bind.from, &place)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(format!("{ROOT}{OWN}"))?;
    let program = format!("{ROOT}{OWN}/program");
    io::copy(&mut File::open("/proc/self/exe")?, &mut File::create(&program)?)?;
    fs::set_permissions(program, fs::Permissions::from_mode(0o700))
}

/// An empty folder or file, for something to be mounted there.
fn make_place(place: &Path, folder: bool) -> io::Result<()> {
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent)?;
    }
    match folder {
        true => fs::create_dir_all(place),
        false => File::options().create(true).append(true).open(place).map(drop),
    }
}

/// Puts into the root what the host says. In a thread whose root it is: an image's links lead nowhere else.
fn furnish(wanted: Wanted<'_>) -> io::Result<()> {
    let user = default_user(wanted.spec, wanted.image);
    if !user.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte)) {
        return Err(io::Error::other("the user has a name that a unit cannot have"));
    }
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            sloplet_sys::clone::leave_common_folders()?;
            rustix::process::chroot(ROOT)?;
            rustix::process::chdir("/")?;
            for (number, bind) in wanted.spec.mounts.iter().enumerate() {
                let from = PathBuf::from(format!("{OWN}/mounts/{number}"));
                make_place(&bind.to, from.is_dir())?;
                mount_bind(&from, &bind.to)?;
            }
            let own = own_files(&wanted.spec.hostname, wanted.egress);
            for (number, file) in own.iter().chain(wanted.files).enumerate() {
                put(file, number)?;
            }
            let name = &wanted.spec.hostname;
            fs::write("/etc/hostname", format!("{name}\n"))?;
            let hosts =
                fs::read_to_string("/etc/hosts").unwrap_or_else(|_| "127.0.0.1 localhost\n::1 localhost\n".into());
            let line = format!("127.0.1.1 {name}");
            if !hosts.lines().any(|there| there == line) {
                fs::write("/etc/hosts", format!("{}\n{line}\n", hosts.trim_end()))?;
            }
            rustix::system::sethostname(name.as_bytes())?;
            seed(wanted.id, name)?;
            let units = Path::new("/run/systemd/system");
            fs::create_dir_all(units.join(TARGET))?;
            fs::write(units.join("sloplet-agent.service"), UNIT.replace("USER", &user))?;
            symlink("../sloplet-agent.service", units.join(TARGET).join("sloplet-agent.service"))
        });
        work.join().map_err(|_| io::Error::other("the thread ended early"))?
    })
}

/// Puts one file of the host's into its places: a mount that only root of the machine can take away, and no part of what was
/// written; or, where the machine is to change it, a file of its own.
fn put(file: &PutFile, number: usize) -> io::Result<()> {
    let before = file.after.iter().find_map(|path| fs::read(path).ok()).unwrap_or_default();
    let content = [before, file.content.clone()].concat();
    for (index, (path, when)) in file.places.iter().enumerate() {
        let there = fs::metadata(path).ok();
        let wanted = match when {
            When::Always => true,
            When::Absent => there.as_ref().is_none_or(|meta| meta.len() == 0),
            When::Present => there.is_some(),
        };
        if !wanted {
            continue;
        }
        if *when == When::Absent {
            fs::write(path, &content)?;
            fs::set_permissions(path, fs::Permissions::from_mode(file.mode))?;
            continue;
        }
        let source = PathBuf::from(format!("{OWN}/files/{number}-{index}"));
        make_place(&source, false)?;
        fs::write(&source, &content)?;
        fs::set_permissions(&source, fs::Permissions::from_mode(file.mode))?;
        make_place(Path::new(path), false)?;
        mount_bind(&source, path.as_str())?;
        mount_remount(path.as_str(), MountFlags::BIND | MountFlags::RDONLY, "")?;
    }
    Ok(())
}

/// What cloud-init is told: which machine this is. User data of the image's or the user's own (a mount) stay.
fn seed(id: &str, name: &str) -> io::Result<()> {
    let folder = Path::new("/var/lib/cloud/seed/nocloud");
    fs::create_dir_all(folder)?;
    fs::write(folder.join("meta-data"), format!("instance-id: {id}\nlocal-hostname: {name}\n"))?;
    match folder.join("user-data") {
        file if file.exists() => Ok(()),
        file => fs::write(file, "#cloud-config\n{}\n"),
    }
}

/// Leads everything that the machine sends to sockets that the keeper passes on.
async fn lead_out() -> io::Result<Outlets> {
    let namespace = File::open("/proc/self/ns/net")?;
    let opened = tokio::task::spawn_blocking(move || Outlet::open_in(namespace.as_fd())).await;
    let opened = opened.map_err(io::Error::other)?.map_err(|problem| io::Error::other(problem.to_string()))?;
    let listens = |socket: &OwnedFd| socket_type(socket).is_ok_and(|kind| kind == SocketType::STREAM);
    let (listeners, resolvers) = opened.sockets.into_iter().partition(listens);
    Ok(Outlets { listeners, resolvers })
}

impl Whole {
    /// Where the agent listens, whatever is mounted above it.
    fn door(&self) -> PathBuf {
        format!("/proc/self/fd/{}/sloplet/agent/socket", self.run.as_raw_fd()).into()
    }
}

impl Machine for Whole {
    fn connect(&self) -> Pending<'_, Result<Box<dyn ByteStream>, DriverError>> {
        Box::pin(async move {
            let stream = tokio::net::UnixStream::connect(self.door()).await;
            stream
                .map(|stream| Box::new(stream) as Box<dyn ByteStream>)
                .map_err(|error| failed("reach the agent", error))
        })
    }

    /// The host freezes all of it. What was written goes to the disk before.
    fn pause(&self, frozen: bool) -> Pending<'_, Result<(), DriverError>> {
        if frozen {
            rustix::fs::sync();
        }
        Box::pin(async { Ok(()) })
    }

    fn usage(&self) -> Pending<'_, Result<Usage, DriverError>> {
        Box::pin(async { usage().map_err(|error| failed("tell what the machine uses", error)) })
    }

    fn state(&self) -> watch::Receiver<MachineState> {
        self.state.subscribe()
    }

    fn destroy(&self) -> Pending<'_, Result<End, DriverError>> {
        Box::pin(async { Err(failed("end the machine", "that is up to its host")) })
    }

    fn pid(&self) -> Option<i32> {
        Some(1)
    }
}

/// What the machine uses, as its kernel tells.
fn usage() -> io::Result<Usage> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    let cache = kib("Cached");
    let memory = kib("MemTotal").saturating_sub(kib("MemAvailable"));
    let disk = statvfs("/disk")?;
    let processes = fs::read_dir("/proc")?.flatten().filter(|entry| {
        entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) && entry.path().join("exe").exists()
    });
    Ok(Usage {
        memory,
        memory_peak: memory,
        pids: processes.count() as u64,
        disk_used: (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        disk_total: disk.f_blocks * disk.f_frsize,
        files_used: disk.f_files - disk.f_ffree,
        files_total: disk.f_files,
        cache,
        ..Usage::default()
    })
}
