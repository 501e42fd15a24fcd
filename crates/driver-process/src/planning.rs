//! From a spec to a plan, and what a spec cannot ask of this level.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sloplet_engine::DriverError;
use sloplet_policy::{Bind, Spec};
use sloplet_spawner::plan::{Bounds, Mount, Plan, Process, Wall};

use crate::driver::failed;
use crate::system;

/// Open files of one process: what most distributions allow.
const OPEN_FILES: u64 = 65_536;

/// Where a sandbox's private folder is made: open to every user id, and usually on a disk, unlike `/run` and `/tmp`,
/// which are memory on many hosts. The id in its name is random, so nobody can have prepared it.
pub fn scratch_path(id: &str) -> PathBuf {
    let places = ["/var/tmp", "/tmp"];
    let place = places.iter().find(|path| Path::new(path).is_dir()).unwrap_or(&"/tmp");
    Path::new(place).join(format!("sloplet-{id}"))
}

/// The plan; refuses what would need a root of its own.
pub fn plan(spec: &Spec, scratch: &Path) -> Result<Plan, DriverError> {
    if spec.image != "host" {
        let detail =
            "isolation 'process' shares the host's root, so only the image 'host' works: use --isolation container";
        return Err(failed(&format!("start from image '{}'", spec.image), detail));
    }
    spec.mounts.iter().try_for_each(check_mount)?;
    if let Some(guard) = spec.guards.first() {
        let detail = "isolation 'process' cannot keep it read-only in a writable mount, and it configures the host: use \
                      --isolation container, or let it be changed with :rw,unguarded";
        return Err(failed(&format!("guard {}", guard.from.display()), detail));
    }
    let limits = &spec.limits;
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec().into();
    let process = Process {
        scratch: bytes(scratch),
        readable: system::readable().iter().map(|path| bytes(path)).collect(),
        mounts: spec.mounts.iter().map(mount).collect(),
        file_size: limits.disk.0,
    };
    let bounds = Bounds {
        memory: limits.memory.0,
        cpu_millis: limits.cpus.millis,
        pids: limits.pids,
        open_files: OPEN_FILES,
        lifetime_ms: limits.timeout.0.as_millis().try_into().unwrap_or(u64::MAX),
    };
    let (wall, best_effort) = (Wall::Process(process), spec.best_effort);
    Ok(Plan {
        bounds,
        wall,
        lasting: false,
        best_effort,
        egress: false,
        files: Vec::new(),
        claimable: false,
        ear: false,
        weaken: spec.weaken.map(str::to_owned),
    })
}

fn mount(bind: &Bind) -> Mount {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec().into();
    let identity = bind.identity.map(|identity| (identity.device, identity.inode));
    Mount { from: bytes(&bind.from), to: bytes(&bind.to), writable: bind.writable, ids: None, identity, owner: None }
}

fn check_mount(bind: &Bind) -> Result<(), DriverError> {
    if bind.from == bind.to {
        return Ok(());
    }
    let (from, to) = (bind.from.display(), bind.to.display());
    let detail = format!(
        "isolation 'process' cannot show a path under another name: mount {from}:{from}, or use --isolation container"
    );
    Err(failed(&format!("mount {from} at {to}"), detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_host_image_is_accepted() {
        let spec = Spec { image: "base".into(), ..Spec::default() };
        let error = plan(&spec, Path::new("/x")).unwrap_err().to_string();
        assert!(error.contains("'base'") && error.contains("--isolation container"), "{error}");
    }

    #[test]
    fn a_mount_keeps_its_path() {
        let mount = |from: &str, to: &str| Bind { from: from.into(), to: to.into(), writable: true, ..Bind::default() };
        let with = |bind| plan(&Spec { mounts: vec![bind], ..Spec::default() }, Path::new("/x"));
        let error = with(mount("/srv/a", "/workspace")).unwrap_err().to_string();
        assert!(error.contains("mount /srv/a:/srv/a"), "{error}");
        let Wall::Process(process) = with(mount("/srv/a", "/srv/a")).unwrap().wall else { panic!() };
        assert_eq!(process.mounts[0].from.as_slice(), b"/srv/a");
    }
}
