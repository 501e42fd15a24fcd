//! What a server gives up before it hears from strangers.
//!
//! It forks a monitor, which keeps the privileges (`sloplet_monitor`). Then it gives up, for good: as root, all power over the
//! host, by a user namespace of its own; every file but its own and what everybody may read (Landlock); signals to other
//! processes; Unix sockets and the system calls that no sandbox has either (seccomp).

#[cfg(debug_assertions)]
pub mod taken_over;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::process::{Resource, Rlimit, geteuid, setrlimit};
use sloplet_driver_docker::host::Host;
use sloplet_engine::cdi::Cdi;
use sloplet_engine::{Places, failpoint};
use sloplet_monitor::{Task, user_namespace};
use sloplet_policy::Realm;
use sloplet_spawner::privileges::{self, Place, Reach, Reachable};
use sloplet_sys::private;

use crate::verification;

/// Everything that the monitor does for a server. A task that is not here is done by nobody.
static TASKS: [&Task; 13] = [
    &user_namespace::MAP_IDS,
    &verification::VERIFY,
    &sloplet_image::outside::READ,
    &sloplet_driver_docker::container::LOOK,
    &sloplet_driver_docker::egress::OPEN,
    &sloplet_driver_oci::probe::PROBE,
    &sloplet_driver_vm::kvm::NODE,
    &sloplet_spawner::door::KNOCK,
    &sloplet_spawner::door::OPEN_DOOR,
    &sloplet_spawner::launcher::LAUNCH,
    &sloplet_spawner::launcher::END,
    &sloplet_spawner::owner::COLLECT,
    &sloplet_spawner::remover::REMOVE,
];

/// Programs and libraries, which a server starts (`mkfs.ext4`, QEMU to try it) or puts into virtual machines.
const SYSTEM: [&str; 11] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/boot", "/proc", "/sys"];

/// Devices without a memory, and KVM's.
const DEVICES: [&str; 7] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/kvm", "/dev/shm"];

/// Variables that name files which a server reads.
const NAMED: [&str; 3] = ["SLOPLET_VM_KERNEL", "SSL_CERT_FILE", "SSL_CERT_DIR"];

/// What the operator decides.
#[derive(Debug, Default)]
pub struct Wishes {
    /// What no sandbox may be shown.
    pub protect: Vec<PathBuf>,
    /// Files that the server reads again later.
    pub files: Vec<PathBuf>,
    /// Whether sandboxes may be made by a Docker engine on this host.
    pub docker: bool,
}

/// Confines this process. It must have one thread.
pub fn apply(places: &Places, wishes: &Wishes) -> anyhow::Result<()> {
    let run = places.own_run()?;
    let machines =
        run.with_file_name(format!("{}{}", run.file_name().unwrap_or_default().to_string_lossy(), private::MACHINES));
    private::make(&machines)?;
    let home = std::env::home_dir();
    let (cdi, protect) = (Cdi::folders_of_host(), wishes.protect.clone());
    Realm { data: places.data.clone(), run: run.clone(), home, cdi, protect }.install();
    sloplet_monitor::fork(&TASKS).context("cannot start the monitor that keeps the server's privileges")?;
    let root = geteuid().is_root();
    if root {
        user_namespace::enter().context(
            "the server cannot give up its power over the host: user namespaces are not permitted here; \
             '--unconfined' starts it with all privileges, which SECURITY.md advises against",
        )?;
    }
    // Its memory holds keys of the host.
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let engine = wishes.docker && Host::usual().socket().is_none_or(Path::exists);
    let profile = if engine { privileges::Profile::Container } else { privileges::Profile::Server };
    privileges::confine_server(root, profile, &reach(places, &run, &machines, wishes))?;
    Ok(())
}

fn reach(places: &Places, run: &Path, machines: &Path, wishes: &Wishes) -> Reach {
    let (all, read) = (privileges::everything(), privileges::reading());
    let mut paths = Vec::new();
    let mut add = |path: PathBuf, access| paths.push(Reachable { place: Place::Optional(path), access });
    for own in [&places.data, run, machines] {
        add(own.to_owned(), all);
    }
    // Where tests have each step noted.
    let steps = std::env::var_os(failpoint::VARIABLE).filter(|_| cfg!(debug_assertions)).map(PathBuf::from);
    steps.iter().filter_map(|file| file.parent()).for_each(|folder| add(folder.to_owned(), all));
    DEVICES.iter().for_each(|device| add(device.into(), all));
    SYSTEM.iter().for_each(|folder| add(folder.into(), read));
    readable_by_all(Path::new("/etc")).into_iter().for_each(|path| add(path, read));
    Cdi::folders_of_host().into_iter().for_each(|folder| add(folder, read));
    wishes.files.iter().for_each(|file| add(file.clone(), read));
    NAMED.iter().filter_map(std::env::var_os).for_each(|path| add(path.into(), read));
    // This very program, which becomes the agent of machines.
    std::env::current_exe().into_iter().for_each(|program| add(program, read));
    // Names everywhere, contents nowhere: a folder is looked through for sockets before it is shown.
    add("/".into(), privileges::listing());
    Reach { paths, no_network: false, required: false }
}

/// The largest trees in a folder of which everybody may read everything: of `/etc` all but keys and passwords.
fn readable_by_all(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if walk(folder, &mut found) { vec![folder.to_owned()] } else { found }
}

/// Whether everybody may read all of it; else the parts that everybody may.
fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> bool {
    let (mut whole, mut parts) = (true, Vec::new());
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(meta) = entry.metadata() else { continue };
        let mode = meta.permissions().mode();
        if meta.is_dir() {
            let mut inner = Vec::new();
            match mode & 0o005 == 0o005 && walk(&path, &mut inner) {
                true => parts.push(path),
                false => {
                    whole = false;
                    parts.append(&mut inner);
                }
            }
        } else if meta.is_file() {
            match mode & 0o004 != 0 {
                true => parts.push(path),
                false => whole = false,
            }
        }
    }
    found.append(&mut parts);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_root_may_read_is_left_out_with_the_folders_around_it() {
        let top = tempfile::tempdir().unwrap();
        let at = |path: &str| top.path().join(path);
        for folder in ["open/deep", "mixed/private", "closed"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        for file in ["open/deep/a", "mixed/b", "mixed/private/key", "closed/c", "d", "shadow"] {
            fs::write(at(file), "").unwrap();
            fs::set_permissions(at(file), fs::Permissions::from_mode(0o644)).unwrap();
        }
        for folder in ["open", "open/deep", "mixed"] {
            fs::set_permissions(at(folder), fs::Permissions::from_mode(0o755)).unwrap();
        }
        for (path, mode) in [("mixed/private", 0o700), ("closed", 0o750), ("shadow", 0o640)] {
            fs::set_permissions(at(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        let mut found = readable_by_all(top.path());
        found.sort();
        assert_eq!(found, [at("d"), at("mixed/b"), at("open")]);
    }
}
