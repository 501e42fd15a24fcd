//! What holds on this host.

use std::path::Path;

use sloplet_engine::Driver;
use sloplet_policy::{Capability, DriverReport, Enforcement, Feature, Isolation};

use crate::accel::{self, Accel};
use crate::kvm::{self, Kvm};
use crate::{kernel, modules, qemu};

/// Looks at the host.
pub fn probe(data_dir: &Path, outer: &dyn Driver) -> DriverReport {
    let (asked, known) = (std::env::var(accel::VARIABLE).ok(), known(data_dir));
    let refused = || Accel::choose(asked.as_deref(), &known).err();
    let unavailable = missing(data_dir).or_else(refused);
    // Whatever the outer sandbox lacks, this lacks, too.
    let outside = outer.report();
    let by = |feature, detail: &str| {
        let lacking = outside.capabilities.iter().find(|known| known.feature == feature);
        match lacking {
            Some(known) if known.enforcement == Enforcement::Missing => known.clone(),
            _ => Capability::enforced(feature, detail),
        }
    };
    let in_turns = Accel::choose(asked.as_deref(), &known) == Ok(Accel::Tcg)
        && qemu::find().is_some_and(|program| !qemu::is_parallel(data_dir, &program));
    let processors = match in_turns {
        false => "the machine's processors; within it the guest's cgroup, around it QEMU's",
        true => {
            "the machine's processors, which this QEMU emulates in turns: together they are as fast as one \
             (at once from QEMU 8.1 on); within it the guest's cgroup, around it QEMU's"
        }
    };
    let capabilities = vec![
        by(Feature::Memory, "the machine's memory; within it the guest's cgroup, around it QEMU's"),
        by(Feature::Cpu, processors),
        Capability::enforced(Feature::Pids, "the guest's cgroup"),
        by(Feature::Disk, "a disk of that size"),
        by(Feature::Timeout, "the host kills the first process of QEMU's sandbox, and the kernel all others with it"),
        Capability::enforced(Feature::Output, "counted by the host"),
        Capability::enforced(Feature::OwnRoot, "disks made of the image's layers, nothing of the host's files"),
        Capability::enforced(Feature::OwnMounts, "the guest's own"),
        Capability::enforced(Feature::NoNetwork, "the machine has no network device"),
        Capability::enforced(Feature::SyscallFilter, "in the guest and around QEMU: seccomp allowlists"),
        Capability::enforced(Feature::SecondWall, "a virtual machine, whose QEMU is in a sandbox of its own"),
        Capability::enforced(Feature::OwnUids, "the guest's own; QEMU's are used by nobody else"),
        Capability::enforced(Feature::RootInside, "sudo and package managers work in images that have them"),
        by(Feature::Pause, "QEMU is frozen"),
        Capability::enforced(Feature::OwnKernel, own_kernel(data_dir)),
        virtualised(asked.as_deref(), &known),
        Capability::enforced(
            Feature::MemorySnapshot,
            "QEMU saves memory and disk; forks share them, and have what they change for themselves",
        ),
    ];
    DriverReport { driver: "vm".into(), isolation: Isolation::Vm, unavailable, capabilities }
}

/// The guest's kernel: its version and its digest.
fn own_kernel(data_dir: &Path) -> String {
    match kernel::find(data_dir) {
        Ok(kernel) => {
            let trouble =
                if kernel::is_troubled(&kernel.version) { format!(": {}", kernel::TROUBLE) } else { String::new() };
            match kernel::digest(data_dir, &kernel) {
                Ok(digest) => format!("Linux {} in QEMU (sha256:{digest}){trouble}", kernel.version),
                Err(_) => format!("Linux {} in QEMU{trouble}", kernel.version),
            }
        }
        Err(_) => "Linux in QEMU".into(),
    }
}

/// Whether the host's processor keeps the guest apart, or QEMU plays one.
fn virtualised(asked: Option<&str>, known: &Kvm) -> Capability {
    let feature = Feature::HardwareVirtualization;
    let emulated = "the processor is emulated (TCG), many times slower";
    match Accel::choose(asked, known) {
        Ok(Accel::Kvm) => Capability::enforced(feature, format!("KVM: {}", known.describe())),
        Ok(Accel::Tcg) if *known == Kvm::Works => {
            let detail = format!("{emulated}: {} asks for it", accel::VARIABLE);
            Capability::missing(feature, detail, Some("unset it: KVM works here"))
        }
        Ok(Accel::Tcg) => {
            let remedy = (*known == Kvm::Untried).then_some("sloplet vm setup");
            Capability::missing(feature, format!("{emulated}: {}", known.describe()), remedy)
        }
        Err(why) => Capability::missing(feature, why, None),
    }
}

/// What is known of KVM here.
pub fn known(data_dir: &Path) -> Kvm {
    match (qemu::find(), kernel::find(data_dir)) {
        (Some(qemu), Ok(kernel)) => kvm::known(data_dir, &qemu, &kernel),
        _ => Kvm::Absent,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_says_what_runs_the_guest() {
        let told = |asked, known| virtualised(asked, &known);
        assert_eq!(told(None, Kvm::Works).enforcement, Enforcement::Enforced);
        let emulated = told(Some("tcg"), Kvm::Works);
        assert!(
            emulated.enforcement == Enforcement::Missing && emulated.detail.contains("asks for it"),
            "{emulated:?}"
        );
        let failed = told(None, Kvm::Fails("a guest said nothing for 8 s".into()));
        assert!(failed.enforcement == Enforcement::Missing && failed.detail.contains("said nothing"), "{failed:?}");
        assert_eq!(told(None, Kvm::Untried).remedy.as_deref(), Some("sloplet vm setup"));
        assert!(told(Some("kvm"), Kvm::Absent).detail.contains("asks for kvm"));
    }
}
