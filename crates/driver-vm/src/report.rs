//! What holds on this host.

use std::path::Path;

use sloplet_engine::Driver;
use sloplet_policy::{Capability, DriverReport, Enforcement, Feature, Isolation};

use crate::{kernel, kvm, modules, qemu};

/// Looks at the host.
pub fn probe(data_dir: &Path, outer: &dyn Driver) -> DriverReport {
    let unavailable = missing(data_dir);
    // Whatever the outer sandbox lacks, this lacks, too.
    let outside = outer.report();
    let by = |feature, detail: &str| {
        let lacking = outside.capabilities.iter().find(|known| known.feature == feature);
        match lacking {
            Some(known) if known.enforcement == Enforcement::Missing => known.clone(),
            _ => Capability::enforced(feature, detail),
        }
    };
    let capabilities = vec![
        by(Feature::Memory, "the machine's memory; within it the guest's cgroup, around it QEMU's"),
        by(Feature::Cpu, "the machine's processors; within it the guest's cgroup, around it QEMU's"),
        Capability::enforced(Feature::Pids, "the guest's cgroup"),
        by(Feature::Disk, "a disk of that size"),
        by(Feature::Timeout, "the host kills the first process of QEMU's sandbox, and the kernel all others with it"),
        Capability::enforced(Feature::Output, "counted by the host"),
        Capability::enforced(Feature::OwnRoot, "disks made of the image's layers, nothing of the host's files"),
        Capability::enforced(Feature::NoNetwork, "the machine has no network device"),
        Capability::enforced(Feature::SyscallFilter, "in the guest and around QEMU: seccomp allowlists"),
        Capability::enforced(Feature::SecondWall, "a virtual machine, whose QEMU is in a sandbox of its own"),
        Capability::enforced(Feature::OwnUids, "the guest's own; QEMU's are used by nobody else"),
        Capability::enforced(Feature::RootInside, "sudo and package managers work in images that have them"),
        by(Feature::Pause, "QEMU is frozen"),
        Capability::enforced(Feature::OwnKernel, processor(data_dir)),
        Capability::enforced(
            Feature::MemorySnapshot,
            "QEMU saves memory and disk; forks share them, and have what they change for themselves",
        ),
    ];
    DriverReport { driver: "vm".into(), isolation: Isolation::Vm, unavailable, capabilities }
}

/// What runs the guest's instructions.
fn processor(data_dir: &Path) -> String {
    let kvm = match (qemu::find(), kernel::find(data_dir)) {
        (Some(qemu), Ok(kernel)) => format!(": {}", kvm::known(data_dir, &qemu, &kernel).describe()),
        _ => String::new(),
    };
    format!("Linux in QEMU; the processor is emulated (TCG), not virtualised{kvm}")
}

/// Whether a machine can have a way out: through that of QEMU's sandbox, if the guest's kernel can lead everything there.
pub fn egress(data_dir: &Path, outside: Capability) -> Capability {
    if outside.enforcement != Enforcement::Enforced {
        return outside;
    }
    let kernel = kernel::find(data_dir);
    match kernel.as_ref().map(|kernel| modules::lacks_way_out(kernel)) {
        Ok(None) => Capability::enforced(
            Feature::Egress,
            "no network device: connections go through the machine's port to QEMU's sandbox, on whose sockets the host decides",
        ),
        Ok(Some(module)) => {
            let detail = format!("the guest's kernel has no {module}");
            Capability::missing(Feature::Egress, detail, Some("use a cloud kernel: sloplet vm setup"))
        }
        Err(error) => Capability::missing(Feature::Egress, error.to_string(), Some(kernel::REMEDY)),
    }
}

/// What the host lacks for a machine at all.
pub fn missing(data_dir: &Path) -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("virtual machines are made on x86_64 only".into());
    }
    let have = |name: &str| {
        ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .iter()
            .any(|dir| Path::new(dir).join(name).exists())
    };
    if qemu::find().is_none() {
        return Some(format!("QEMU is missing: {}", qemu::REMEDY));
    }
    if !have("mkfs.erofs") {
        return Some(format!("mkfs.erofs is missing: {}", qemu::REMEDY));
    }
    if !have("mkfs.ext4") {
        return Some("mkfs.ext4 is missing: apt-get install e2fsprogs".into());
    }
    kernel::find(data_dir).err().map(|error| error.to_string())
}
