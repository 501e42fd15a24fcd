//! Whether the host's KVM runs a guest: found out by booting one, for a device that can be opened proves little. Some hosts
//! offer one that stands still with a usual kernel, or gives it no processor that it knows.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use sloplet_engine::DriverError;
use sloplet_monitor::{Done, Task, perform, task};
use sloplet_policy::Realm;
use sloplet_policy::devices::Shown;

use crate::accel::Accel;
use crate::boot::{self, Boot};
use crate::kernel::Kernel;
use crate::{cache, failed, guest};

const DEVICE: &str = "/dev/kvm";

/// How long a guest may take to its first words. With KVM it takes a third of a second.
const PATIENCE: Duration = Duration::from_secs(8);

/// What the guest says.
pub const WORDS: &str = "the guest runs";

/// What is known of KVM on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kvm {
    /// There is none.
    Absent,
    /// There is one, but not for QEMU's sandbox, whose ids are nobody's: this user cannot change that.
    Closed,
    /// Nobody has tried since the host was started, or with this QEMU and this kernel.
    Untried,
    /// A guest has run.
    Works,
    /// None did, and why.
    Fails(String),
}

impl Kvm {
    /// In words, for people.
    pub fn describe(&self) -> String {
        match self {
            Self::Absent => format!("the host has no {DEVICE}"),
            Self::Closed => {
                format!("{DEVICE} is not open to all users, as it must be for machines of an ordinary user")
            }
            Self::Untried => format!("{DEVICE} is there; whether a guest runs is found out by 'sloplet vm setup'"),
            Self::Works => format!("{DEVICE} runs a guest"),
            Self::Fails(why) => format!("{DEVICE} is there, but {why}"),
        }
    }
}

/// Where the answer is kept: it holds for this start of the host, this QEMU and this kernel.
fn place(data_dir: &Path, qemu: &Path, kernel: &Kernel) -> PathBuf {
    let start = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let key = cache::key(&[&start, &cache::stamp(qemu), &cache::stamp(&kernel.image)]);
    data_dir.join(cache::FOLDER).join(format!("kvm-{key}"))
}

/// What is known, without trying.
pub fn known(data_dir: &Path, qemu: &Path, kernel: &Kernel) -> Kvm {
    if fs::File::options().read(true).write(true).open(DEVICE).is_err() {
        return Kvm::Absent;
    }
    if !rustix::process::geteuid().is_root() && !open_to_all() {
        return Kvm::Closed;
    }
    match fs::read_to_string(place(data_dir, qemu, kernel)) {
        Ok(answer) if answer.is_empty() => Kvm::Works,
        Ok(why) => Kvm::Fails(why),
        Err(_) => Kvm::Untried,
    }
}

fn open_to_all() -> bool {
    fs::metadata(DEVICE).is_ok_and(|meta| meta.permissions().mode() & 0o006 == 0o006)
}

/// The device for QEMU's sandbox, whose ids are nobody's. Root makes one of its own that all may open, in a folder that only
/// root gets into, where the host's is not open to all.
pub fn device(data_dir: &Path) -> Result<Shown, DriverError> {
    let step = "show KVM to QEMU's sandbox";
    let shown = |from: PathBuf| Shown { from, to: DEVICE.into() };
    if open_to_all() {
        return Ok(shown(DEVICE.into()));
    }
    let folder = data_dir.join(cache::FOLDER);
    perform::<()>(&NODE, &folder, Vec::new()).map_err(|error| failed(step, error))?;
    Ok(shown(folder.join("kvm")))
}

/// Makes a device of our own that all may open. Only root can make one, and a confined server is root in name alone.
pub static NODE: Task = Task {
    name: "kvm-node",
    run: |input, _| {
        let folder: PathBuf = fs::canonicalize(task::input::<PathBuf>(input)?)?;
        if let Some(realm) = Realm::get() {
            realm.check_data(&folder)?;
        }
        let number = fs::metadata(DEVICE)?.rdev();
        let node = folder.join("kvm");
        let is_it = |meta: fs::Metadata| meta.file_type().is_char_device() && meta.rdev() == number;
        if !fs::symlink_metadata(&node).is_ok_and(is_it) {
            let draft = folder.join(format!("kvm.{}", std::process::id()));
            let _ = fs::remove_file(&draft);
            let mask = rustix::process::umask(Mode::empty());
            let made = mknodat(CWD, &draft, FileType::CharacterDevice, Mode::from_raw_mode(0o666), number);
            rustix::process::umask(mask);
            made?;
            fs::rename(&draft, &node)?;
        }
        Done::with(&())
    },
};

/// Boots a guest that says a word and ends, unless that was tried before.
pub fn probe(data_dir: &Path, qemu: &Path, kernel: &Kernel, boot: &Boot) -> Result<Kvm, DriverError> {
    let known = known(data_dir, qemu, kernel);
    if known != Kvm::Untried {
        return Ok(known);
    }
    let tried = run(qemu, boot);
    let answer = tried.as_ref().err().cloned().unwrap_or_default();
    fs::write(place(data_dir, qemu, kernel), answer).map_err(|error| failed("keep what KVM did", error))?;
    Ok(match tried {
        Ok(()) => Kvm::Works,
        Err(why) => Kvm::Fails(why),
    })
}

fn run(qemu: &Path, boot: &Boot) -> Result<(), String> {
    let append = format!("{} -- {} {}", Accel::Kvm.kernel_options(), guest::SUBCOMMAND, guest::PROBE);
    let mut command = Command::new(qemu);
    command.args("-nodefaults -no-user-config -display none -no-reboot -m 256M -serial stdio -machine".split(' '));
    command.arg(crate::qemu::MACHINE).args(Accel::Kvm.arguments(true).split(' '));
    command.arg("-kernel").arg(boot.folder.join(boot::KERNEL)).arg("-initrd").arg(boot.folder.join(boot::INITRD));
    command.arg("-append").arg(append);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("QEMU does not start: {error}"))?;
    let since = Instant::now();
    let ended = loop {
        match child.try_wait() {
            Ok(Some(_)) => break true,
            Ok(None) if since.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
            _ => break false,
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    let said = |stream: Option<&mut dyn Read>| {
        let mut text = Vec::new();
        let _ = stream.map(|stream| stream.take(4096).read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    };
    let output = said(child.stdout.as_mut().map(|stream| stream as &mut dyn Read));
    if output.contains(WORDS) {
        return Ok(());
    }
    let complaint = said(child.stderr.as_mut().map(|stream| stream as &mut dyn Read));
    match (ended, complaint.lines().next()) {
        (false, _) => Err(format!("a guest said nothing for {} s", PATIENCE.as_secs())),
        (true, Some(line)) => Err(format!("QEMU says: {}", crate::driver::shorten(line))),
        (true, None) => Err("the guest ended without a word".into()),
    }
}
