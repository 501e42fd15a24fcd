//! A kernel for hosts that have none: the distribution's package, downloaded and unpacked, not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sloplet_engine::DriverError;

use crate::kernel::{self, Kernel};
use crate::kvm::{self, Kvm};
use crate::{boot, cache, failed, qemu};

/// Names of packages that depend on the newest cloud kernel.
const PACKAGES: [&str; 2] = ["linux-image-cloud-amd64", "linux-image-virtual"];

/// Downloads a kernel into the data folder, or takes a package or kernel that is given. Returns what is there then.
pub fn run(data_dir: &Path, package: Option<&Path>) -> Result<Kernel, DriverError> {
    let step = "get a kernel";
    fs::create_dir_all(data_dir.join(cache::FOLDER)).map_err(|error| failed(step, error))?;
    let scratch = tempfile::tempdir_in(data_dir.join(cache::FOLDER)).map_err(|error| failed(step, error))?;
    let packages = match package {
        Some(path) => vec![std::path::absolute(path).map_err(|error| failed(step, error))?],
        None => download(scratch.path())?,
    };
    let root = scratch.path().join("root");
    for package in &packages {
        let status = Command::new("dpkg-deb").arg("-x").arg(package).arg(&root).stdin(Stdio::null()).status();
        if !status.is_ok_and(|status| status.success()) {
            return Err(failed(step, format!("dpkg-deb cannot unpack {}", package.display())));
        }
    }
    let target = data_dir.join(kernel::FOLDER);
    let _ = fs::remove_dir_all(&target);
    fs::rename(&root, &target).map_err(|error| failed(step, error))?;
    kernel::find(data_dir)
}

/// Tries whether the host's KVM runs a guest with this kernel and this program.
pub fn try_kvm(data_dir: &Path, kernel: &Kernel, program: &Path) -> Result<Kvm, DriverError> {
    let qemu = qemu::find().ok_or_else(|| failed("find QEMU", qemu::REMEDY))?;
    kvm::probe(data_dir, &qemu, kernel, &boot::provide(data_dir, kernel, program)?)
}

/// The newest package of a cloud kernel of the same series that is better than this one.
fn other_than(troubled: &str) -> Option<String> {
    let (series, _) = troubled.strip_suffix("-cloud-amd64")?.rsplit_once('-')?;
    let pattern = format!("^{series}-[0-9]+-cloud-amd64$");
    let output = Command::new("apt-cache").args(["search", "--names-only", &pattern]).stdin(Stdio::null()).output();
    let text = String::from_utf8_lossy(&output.ok()?.stdout).into_owned();
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    let others = names.filter(|name| *name != troubled && !kernel::is_troubled(name));
    others.max_by_key(|name| kernel::numbers(name)).map(str::to_owned)
}

fn download(dir: &Path) -> Result<Vec<PathBuf>, DriverError> {
    let step = "download a kernel";
    let depends = |name: &str| -> Vec<String> {
        let output = Command::new("apt-cache").args(["depends", "--no-recommends", "--no-suggests", name]).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        names
            .filter(|name| name.starts_with("linux-image-") || name.starts_with("linux-modules-"))
            .map(str::to_owned)
            .collect()
    };
    let mut names: Vec<String> =
        PACKAGES.iter().map(|name| depends(name)).find(|names| !names.is_empty()).unwrap_or_default();
    for name in names.iter_mut().filter(|name| kernel::is_troubled(name)) {
        *name = other_than(name).unwrap_or_else(|| name.clone());
    }
    // Ubuntu has the modules in a package of their own.
    names.extend(names.clone().iter().flat_map(|name| depends(name)));
    names.dedup();
    if names.is_empty() {
        let detail = "apt-get knows no cloud kernel ('apt-get update' may help): give a package with 'sloplet vm setup FILE.deb'";
        return Err(failed(step, detail));
    }
    let mut command = Command::new("apt-get");
    command.args(["-q", "-o", "APT::Sandbox::User=root", "download"]).args(&names).current_dir(dir);
    let output = command.stdin(Stdio::null()).output().map_err(|error| failed(step, error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(failed(step, said.lines().last().unwrap_or("apt-get failed")));
    }
    let files = fs::read_dir(dir).map_err(|error| failed(step, error))?.flatten().map(|entry| entry.path());
    Ok(files.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect())
}
