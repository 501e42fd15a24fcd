//! Machines that were booted once and saved before anybody talked to them: others of the same size start from a copy, which
//! takes a fraction of a boot's time.
//!
//! Such a machine has not looked at its disks, which are another's, and has not been told anything. What it drew by chance is
//! the same in all that start from it, so each is told the time and random numbers of its own before it does anything else.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sloplet_client::{Process, ProcessEvent};
use sloplet_driver_namespaces::Namespaces;
use sloplet_engine::{Driver, DriverError, Wanted};
use sloplet_policy::devices::Shown;

use crate::cache::{self, Claim};
use crate::launch::launch;
use crate::machine::last_words;
use crate::qemu::Qemu;
use crate::saved::{self, Record};
use crate::{driver, failed, guest, outer, qemu, relay};

/// How the names of their folders begin.
const PREFIX: &str = "booted-";

const STEP: &str = "boot a machine ahead";

/// How many are kept, if the others were not used for a while. Each has about as many bytes as a guest that does nothing.
const KEPT: usize = 6;
const WHILE: Duration = Duration::from_secs(600);

/// What is needed to boot one.
pub(crate) struct Ahead<'a> {
    /// Makes QEMU's sandbox.
    pub sandboxes: &'a Namespaces,
    /// The data folder.
    pub data_dir: &'a Path,
    /// QEMU.
    pub qemu: &'a Qemu,
}

impl Ahead<'_> {
    /// The folder of a machine like the one that `record` describes, with as many devices and of the same size; one is booted
    /// if there is none.
    pub async fn provide(
        &self,
        wanted: Wanted<'_>,
        record: &Record,
        devices: &[Shown],
    ) -> Result<PathBuf, DriverError> {
        let name = format!("{PREFIX}{}", key(&self.qemu.program, record));
        let there = self.data_dir.join(cache::FOLDER).join(&name);
        if there.is_dir() {
            touch(&there);
            return Ok(there);
        }
        let place = self.data_dir.to_owned();
        let claim = tokio::task::spawn_blocking(move || cache::claim(&place, &name));
        let draft = match claim.await.map_err(|error| failed(STEP, error))?? {
            Claim::Kept(path) => return Ok(path),
            Claim::Missing(draft) => draft,
        };
        self.make(wanted, record, devices, draft.place()).await?;
        let kept = draft.keep()?;
        forget(self.data_dir, &kept);
        Ok(kept)
    }

    async fn make(
        &self,
        wanted: Wanted<'_>,
        record: &Record,
        devices: &[Shown],
        folder: &Path,
    ) -> Result<(), DriverError> {
        // Nobody has come yet: the first visitor of each copy brings a password of its own.
        let record = &Record { password: relay::NOBODY.into(), ..record.clone() };
        let (spec, image) = (outer::spec(wanted.spec, record, None, devices), outer::image(&self.qemu.root));
        let inside = Wanted {
            id: wanted.id,
            spec: &spec,
            image: &image,
            egress: false,
            files: &[],
            memory: None,
            claimable: false,
            ear: false,
        };
        let sandbox = self.sandboxes.create(inside).await?;
        let saved = tokio::time::timeout(outer::START, async {
            let disk_bytes = wanted.spec.limits.disk.0;
            let (agent, mut process) = launch(&*sandbox, self.qemu, record, disk_bytes, qemu::From::Boot).await?;
            waits(&mut process).await?;
            saved::save(&agent, record, folder).await.map_err(|error| failed(STEP, error))
        });
        let saved = saved.await.unwrap_or_else(|_| Err(failed(STEP, "it took too long")));
        sandbox.destroy().await?;
        saved?;
        // It goes with what it was booted from.
        let source = record.boot.display().to_string();
        fs::write(folder.join(cache::SOURCE), source).map_err(|error| failed(STEP, error))
    }
}

/// All that two machines must have in common.
fn key(program: &Path, record: &Record) -> String {
    let accel = format!("{:?}", record.accel);
    let size = format!("{} {} {} {}", record.memory, record.cpus, record.disks.len(), record.whole);
    // Another start of the host may have another processor.
    let start = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    cache::key(&["1", &cache::stamp(program), &record.boot.display().to_string(), &size, &accel, &start])
}

/// Waits until the guest waits.
async fn waits(process: &mut Process) -> Result<(), DriverError> {
    let mut said = Vec::new();
    loop {
        match process.next().await {
            Some(Ok(ProcessEvent::Stdout(bytes) | ProcessEvent::Stderr(bytes))) => said.extend_from_slice(&bytes),
            Some(Ok(ProcessEvent::Exited(_))) | None => {
                let more = last_words(process).await;
                let said = format!("{} {more}", String::from_utf8_lossy(&said));
                return Err(failed(STEP, driver::shorten(&said)));
            }
            Some(Err(error)) => return Err(failed(STEP, error)),
        }
        if memchr::memmem::find(&said, guest::WAITS).is_some() {
            return Ok(());
        }
        let over = said.len().saturating_sub(2048);
        said.drain(..over);
    }
}

/// It was used now.
fn touch(folder: &Path) {
    let _ = File::open(folder.join(saved::STATE)).and_then(|file| file.set_modified(SystemTime::now()));
}

/// Removes those that were not used for a while, if there are too many.
fn forget(data_dir: &Path, but: &Path) {
    let entries = fs::read_dir(data_dir.join(cache::FOLDER)).into_iter().flatten().flatten();
    let mut found: Vec<(SystemTime, PathBuf)> = entries
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()))
        .map(|entry| entry.path())
        .filter(|path| path != but)
        .filter_map(|path| Some((fs::metadata(path.join(saved::STATE)).ok()?.modified().ok()?, path)))
        .collect();
    found.sort();
    let over = (found.len() + 1).saturating_sub(KEPT);
    for (used, path) in found.into_iter().take(over) {
        if used.elapsed().is_ok_and(|age| age > WHILE) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_nobody_has_used_for_a_while_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let make = |number: usize, age: u64| {
            let folder = dir.path().join(cache::FOLDER).join(format!("{PREFIX}{number}"));
            fs::create_dir_all(&folder).unwrap();
            let file = File::create(folder.join(saved::STATE)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
            folder
        };
        let (old, older, fresh) = (make(0, 5000), make(1, 6000), make(2, 0));
        forget(dir.path(), &fresh);
        assert!(older.exists(), "there are few");
        let used: Vec<PathBuf> = (3..3 + KEPT).map(|number| make(number, 5)).collect();
        touch(&old);
        forget(dir.path(), &fresh);
        assert!(!older.exists() && old.exists() && fresh.exists());
        assert!(used.iter().all(|path| path.exists()), "those are in use");
    }
}
