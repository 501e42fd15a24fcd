//! Whether the host's KVM runs a guest: found out by booting one, for a device that can be opened proves little. Some hosts
//! offer one that stands still with a usual kernel, or gives it no processor that it knows.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sloplet_engine::DriverError;

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
            Self::Untried => format!("{DEVICE} is there; whether a guest runs is found out by 'sloplet vm setup'"),
            Self::Works => format!("{DEVICE} runs a guest, but is not used yet"),
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
    match fs::read_to_string(place(data_dir, qemu, kernel)) {
        Ok(answer) if answer.is_empty() => Kvm::Works,
        Ok(why) => Kvm::Fails(why),
        Err(_) => Kvm::Untried,
    }
}

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
    let append = format!("console=ttyS0 quiet loglevel=1 panic=-1 reboot=t -- {} {}", guest::SUBCOMMAND, guest::PROBE);
    let mut command = Command::new(qemu);
    command.args("-nodefaults -no-user-config -display none -no-reboot -accel kvm -cpu host -m 256M".split(' '));
    command.args("-machine microvm,acpi=on,pcie=off,usb=off,pit=off,pic=off,rtc=on -serial stdio".split(' '));
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
