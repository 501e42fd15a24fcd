//! QEMU: where it is, what it needs of the host, how it is started.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sloplet_engine::DriverError;

use crate::accel::Accel;
use crate::{cache, failed, guest, outer, saved, talk};

/// Where the relay leads to the agent, inside QEMU's own sandbox.
pub const AGENT_PORT: u16 = 2001;
/// Where it leads to the keeper.
pub const CONTROL_PORT: u16 = 2002;
/// The machine's port, for the relay.
pub const PIPE_PORT: u16 = 2004;
/// QEMU's own monitor.
pub const MONITOR_PORT: u16 = 2003;

/// Where a machine's state is caught while it is saved.
pub const CATCH_PORT: u16 = 2005;

/// Where distributions keep QEMU's parts.
const MODULES: [&str; 3] = ["/usr/lib/x86_64-linux-gnu/qemu", "/usr/lib64/qemu", "/usr/lib/qemu"];

/// What to do where there is none.
pub const REMEDY: &str = "apt-get install qemu-system-x86 erofs-utils";

/// QEMU's program on this host.
pub fn find() -> Option<PathBuf> {
    let name = format!("qemu-system-{}", std::env::consts::ARCH);
    ["/usr/local/bin", "/usr/bin", "/bin"].iter().map(|dir| Path::new(dir).join(&name)).find(|path| path.exists())
}

/// QEMU, ready to be started in a sandbox.
#[derive(Debug)]
pub struct Qemu {
    /// The program.
    pub program: PathBuf,
    /// A root with nothing but it.
    pub root: PathBuf,
    /// Whether its emulator can be trusted with several processors at once.
    pub parallel: bool,
}

impl Qemu {
    /// The one of this host; its root is made if it is not there.
    pub fn provide(data_dir: &Path) -> Result<Self, DriverError> {
        let program = find().ok_or_else(|| failed("find QEMU", REMEDY))?;
        let root = provide_root(data_dir, &program)?;
        let parallel = emulates_in_parallel(&fs::read_to_string(root.join(VERSION)).unwrap_or_default());
        Ok(Self { program, root, parallel })
    }
}

/// What QEMU says of its version, in its root: asking takes as long as a tenth of a machine's start.
const VERSION: &str = "usr/share/qemu-version";

/// Whether QEMU of this host can be trusted to emulate several processors at once.
pub fn is_parallel(data_dir: &Path, program: &Path) -> bool {
    let kept = fs::read_to_string(data_dir.join(cache::FOLDER).join(root_name(program)).join(VERSION));
    kept.map_or_else(
        |_| version(program).is_ok_and(|said| emulates_in_parallel(&said)),
        |said| emulates_in_parallel(&said),
    )
}

fn version(program: &Path) -> std::io::Result<String> {
    let said = Command::new(program).arg("--version").stdin(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

/// Before 8.1, a processor may translate code while another changes it, and keep what it has read for ever: Linux changes its
/// own code as it runs, and one machine in two hundred stood still in a breakpoint that was not there any more.
fn emulates_in_parallel(version: &str) -> bool {
    let number = version.split_whitespace().skip_while(|word| *word != "version").nth(1).unwrap_or_default();
    let mut parts = number.split('.').map_while(|part| part.parse::<u32>().ok());
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (8, 1)
}

fn root_name(program: &Path) -> String {
    format!("qemu-{}", cache::key(&["3", &program.display().to_string(), &cache::stamp(program)]))
}

/// A root with nothing but QEMU in it: the program, its libraries and firmware, copied; and what it says of its version.
fn provide_root(data_dir: &Path, program: &Path) -> Result<PathBuf, DriverError> {
    let step = "make a root for QEMU";
    cache::folder(data_dir, &root_name(program), |root| {
        let mut files: BTreeSet<PathBuf> = libraries(program)?;
        files.insert(program.to_owned());
        for name in ["bios-microvm.bin", "qboot.rom", "linuxboot_dma.bin", "pvh.bin", "kvmvapic.bin"] {
            let found = ["/usr/share/qemu", "/usr/share/seabios", "/usr/local/share/qemu"].iter();
            files.extend(found.map(|dir| Path::new(dir).join(name)).find(|path| path.exists()));
        }
        // Distributions split it up; of its parts, only those that run a processor are needed.
        for folder in MODULES.iter().map(Path::new) {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            for part in entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"accel-")) {
                files.extend(libraries(&part.path())?);
                files.insert(part.path());
            }
        }
        for folder in ["proc", "dev", "sys", "tmp", "etc", "run", "home", "mnt"] {
            fs::create_dir(root.join(folder)).map_err(|error| failed(step, error))?;
        }
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        fs::set_permissions(root.join("tmp"), open).map_err(|error| failed(step, error))?;
        for file in files {
            let target = root.join(file.strip_prefix("/").unwrap_or(&file));
            let folder = target.parent().unwrap_or(root);
            let copied = fs::create_dir_all(folder).and_then(|()| fs::copy(&file, &target));
            copied.map_err(|error| failed(step, format!("{}: {error}", file.display())))?;
        }
        let said = version(program).and_then(|said| fs::write(root.join(VERSION), said));
        said.map_err(|error| failed(step, error))?;
        // Firmware is looked for in one folder.
        let shared = root.join("usr/share/qemu");
        let beside = root.join("usr/share/seabios/bios-microvm.bin");
        if beside.exists() && !shared.join("bios-microvm.bin").exists() {
            let copied = fs::create_dir_all(&shared).and_then(|()| fs::copy(&beside, shared.join("bios-microvm.bin")));
            copied.map_err(|error| failed(step, error))?;
        }
        Ok(())
    })
}

/// The libraries that the dynamic linker finds for a program of the distribution.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>, DriverError> {
    let output = Command::new("ldd").arg(program).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed("find QEMU's libraries with ldd", error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// The machine: what a guest without a network and without any old device needs.
pub const MACHINE: &str = "microvm,acpi=on,pcie=off,usb=off,pit=off,pic=off,rtc=on,graphics=off";

/// A machine to be started.
#[derive(Debug)]
pub struct Start<'a> {
    /// What runs its instructions.
    pub accel: Accel,
    /// Whether an emulator runs its processors at once, and not in turns.
    pub parallel: bool,
    /// Whether it is a whole machine.
    pub whole: bool,
    /// Bytes of memory.
    pub memory: u64,
    /// Processors.
    pub cpus: u32,
    /// Read-only disks: what the guest knows each by, and its file.
    pub disks: &'a [(String, String)],
    /// The disk that is written to, a qcow2 image.
    pub disk: &'a str,
    /// The kernel.
    pub kernel: &'a str,
    /// Its first root.
    pub initrd: &'a str,
    /// How the machine gets its memory and where it goes on.
    pub from: From,
}

/// Where a machine begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// At the beginning.
    Boot,
    /// From a state without memory, which is copied before: it is the machine's own from then on.
    Copy,
    /// From a state with memory and all that is its standard input, when the monitor says so.
    State,
    /// From a state without memory; the memory is a file, and what is changed of it is the machine's own.
    Memory,
}

/// QEMU's arguments.
pub fn arguments(program: &Path, start: &Start<'_>) -> Vec<String> {
    let mut words: Vec<String> = vec![program.display().to_string()];
    let mut add = |text: &str| words.extend(text.split(' ').map(str::to_owned));
    add("-nodefaults -no-user-config -display none -no-reboot -name sloplet");
    add("-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    add(&format!("-machine {MACHINE},memory-backend=ram"));
    add(start.accel.arguments(start.parallel || start.cpus == 1));
    let memory = start.memory;
    // Where it begins, a file, so that it can be saved by copying that; shared with nobody but who copies it.
    let (file, shared) = match start.from {
        From::Boot | From::Copy | From::State => (outer::RAM.to_owned(), "on"),
        From::Memory => (format!("{}/{}", outer::SAVED, saved::RAM), "off"),
    };
    add(&format!("-object memory-backend-file,id=ram,size={memory},mem-path={file},share={shared}"));
    add(&format!("-m {memory}B -smp {}", start.cpus));
    add(&format!("-kernel {} -initrd {}", start.kernel, start.initrd));
    words.push("-append".into());
    let kind = if start.whole { guest::whole::WORD } else { "" };
    words.push(format!("{} -- {} {kind}", start.accel.kernel_options(), guest::SUBCOMMAND).trim_end().to_owned());
    let mut add = |text: &str| words.extend(text.split(' ').map(str::to_owned));
    add(match start.from {
        From::Boot => "-chardev stdio,id=console,signal=off",
        // Standard input is the saved state.
        From::Copy | From::State | From::Memory => "-chardev null,id=console",
    });
    add("-serial chardev:console");
    add("-device virtio-serial-device,max_ports=2");
    add(&format!("-chardev socket,id=pipe,host=127.0.0.1,port={PIPE_PORT},server=on,wait=off,nodelay=on"));
    add(&format!("-device virtserialport,chardev=pipe,name={}", talk::PORT));
    add(&format!("-chardev socket,id=monitor,host=127.0.0.1,port={MONITOR_PORT},server=on,wait=off,nodelay=on"));
    add("-mon chardev=monitor,mode=control");
    for (name, file) in start.disks {
        add(&format!("-drive if=none,id={name},file={file},format=raw,readonly=on,file.locking=off"));
        add(&format!("-device virtio-blk-device,drive={name},serial={name}"));
    }
    add(&format!("-drive if=none,id=disk,file={},format=qcow2,discard=unmap,cache=unsafe", start.disk));
    add("-device virtio-blk-device,drive=disk,serial=disk");
    if start.from != From::Boot {
        add("-incoming defer");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_emulator_that_sees_code_change_runs_processors_at_once() {
        for (said, parallel) in [
            ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright", false),
            ("QEMU emulator version 8.0.4", false),
            ("QEMU emulator version 8.1.0", true),
            ("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)", true),
            ("something else", false),
            ("", false),
        ] {
            assert_eq!(emulates_in_parallel(said), parallel, "{said}");
        }
        assert!(line(Accel::Tcg, From::Boot).contains("thread=single"));
    }

    fn line(accel: Accel, from: From) -> String {
        let disks = [("l0".to_owned(), "/mnt/l0".to_owned())];
        let start = Start {
            accel,
            parallel: false,
            whole: false,
            memory: 1 << 30,
            cpus: 2,
            disks: &disks,
            disk: "/tmp/disk",
            kernel: "/k",
            initrd: "/i",
            from,
        };
        arguments(Path::new("/usr/bin/qemu"), &start).join(" ")
    }

    #[test]
    fn a_machine_is_virtualised_or_emulated_and_never_both() {
        let (kvm, tcg) = (line(Accel::Kvm, From::Boot), line(Accel::Tcg, From::Boot));
        assert!(kvm.contains("-accel kvm -cpu host") && !kvm.contains("tcg"), "{kvm}");
        assert!(!kvm.contains("mitigations=off") && !kvm.contains("tsc_early_khz"), "{kvm}");
        assert!(tcg.contains("-accel tcg") && !tcg.contains("kvm"), "{tcg}");
        for common in ["-sandbox on,", "-nodefaults", "-smp 2", "-m 1073741824B", "readonly=on"] {
            assert!(kvm.contains(common) && tcg.contains(common), "{common}");
        }
        for line in [&kvm, &tcg] {
            assert!(!line.contains("netdev") && !line.contains("-nic"), "it has a network: {line}");
        }
    }

    #[test]
    fn one_that_goes_on_waits_for_its_state_and_shares_memory_with_nobody() {
        assert!(!line(Accel::Tcg, From::Boot).contains("-incoming"));
        for from in [From::Copy, From::State] {
            let line = line(Accel::Tcg, from);
            assert!(line.contains("-incoming defer") && line.contains("mem-path=/dev/shm/ram,share=on"), "{line}");
        }
        assert!(line(Accel::Kvm, From::Memory).contains("mem-path=/mnt/saved/ram,share=off"));
    }
}
