//! What is on the engine, and whose it is.
//!
//! Every container has a label with its owner. A process that makes some has a locked file of that name in `docker/owners` of
//! the data folder: whoever finds one that is not locked knows that its owner died, and asks the engine for what it left.
//! Nobody asks an engine that nothing was made on. Lasting containers belong to the data folder itself, by a name in `docker/keeper`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bollard::errors::Error;
use bollard::models::ContainerSummary;
use bollard::query_parameters::{
    ListContainersOptions, ListVolumesOptions, RemoveContainerOptions, RemoveVolumeOptions,
};
use rustix::fs::{FlockOperation, flock};

use crate::host::status;

/// Whose a container is.
pub const OWNER: &str = "sloplet.owner";

/// The sandbox that a container is.
pub const SANDBOX: &str = "sloplet.sandbox";

/// That a container has a way out.
pub const EGRESS: &str = "sloplet.egress";

/// A volume with an agent.
pub const AGENT: &str = "sloplet.agent";

/// The folder of all that is kept about engines.
pub fn folder(data: &Path) -> PathBuf {
    data.join("docker")
}

/// The folder of what is laid over the roots of an owner's containers, one folder for each.
pub fn files(data: &Path, owner: &str) -> PathBuf {
    folder(data).join("files").join(owner)
}

/// This process, as owner of containers that die with it.
#[derive(Debug)]
pub struct Owner {
    /// Its name.
    pub name: String,
    file: PathBuf,
    files: PathBuf,
    _lock: File,
}

impl Owner {
    /// Says that there will be some.
    pub fn register(data: &Path) -> io::Result<Self> {
        let folder = folder(data).join("owners");
        fs::create_dir_all(&folder)?;
        loop {
            let name = sloplet_engine::engine::new_id();
            let file = folder.join(&name);
            let lock = File::options().create_new(true).write(true).mode(0o600).open(&file)?;
            flock(&lock, FlockOperation::LockExclusive)?;
            // Somebody may have taken it for a dead one's in between.
            if file.exists() {
                return Ok(Self { files: files(data, &name), name, file, _lock: lock });
            }
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Those of containers are removed with them.
        let _ = fs::remove_dir(&self.files);
        let _ = fs::remove_file(&self.file);
    }
}

/// Names of owners that died, with their files.
pub fn dead(data: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder(data).join("owners")).into_iter().flatten().flatten();
    let dead = entries.filter_map(|entry| {
        let lock = File::open(entry.path()).ok()?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some((entry.file_name().into_string().ok()?, entry.path()))
    });
    dead.collect()
}

/// The owner of the lasting containers of this data folder, if there ever were some.
pub fn keeper(data: &Path) -> Option<String> {
    fs::read_to_string(folder(data).join("keeper")).ok().filter(|name| !name.is_empty())
}

/// The same; made if need be.
pub fn make_keeper(data: &Path) -> io::Result<String> {
    if let Some(name) = keeper(data) {
        return Ok(name);
    }
    let folder = folder(data);
    fs::create_dir_all(&folder)?;
    let name = sloplet_engine::engine::new_id();
    let draft = folder.join(format!("keeper.{name}"));
    fs::write(&draft, &name)?;
    // Another process may have been quicker: then its name counts.
    let linked = fs::hard_link(&draft, folder.join("keeper"));
    fs::remove_file(&draft)?;
    match linked {
        Ok(()) => Ok(name),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            keeper(data).ok_or_else(|| io::Error::other("the name of the lasting containers' owner is empty"))
        }
        Err(error) => Err(error),
    }
}

/// All containers of an owner, running or not.
pub async fn containers(client: &bollard::Docker, owner: &str) -> Result<Vec<ContainerSummary>, Error> {
    let filters = HashMap::from([("label".to_owned(), vec![format!("{OWNER}={owner}")])]);
    let options = ListContainersOptions { all: true, filters: Some(filters), ..Default::default() };
    client.list_containers(Some(options)).await
}

/// Kills and removes a container; does not mind if it is gone or going.
pub async fn remove(client: &bollard::Docker, id: &str) -> Result<(), Error> {
    let options = RemoveContainerOptions { force: true, v: true, ..Default::default() };
    match client.remove_container(id, Some(options)).await {
        Err(error) if status(&error) == Some(404) => Ok(()),
        // Somebody else removes it: it is gone when nobody finds it any more.
        Err(error) if status(&error) == Some(409) => wait_until_gone(client, id).await,
        other => other,
    }
}

async fn wait_until_gone(client: &bollard::Docker, id: &str) -> Result<(), Error> {
    for _ in 0..3000 {
        match client.inspect_container(id, None).await {
            Err(error) if status(&error) == Some(404) => return Ok(()),
            _ => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
        }
    }
    let options = RemoveContainerOptions { force: true, v: true, ..Default::default() };
    client.remove_container(id, Some(options)).await
}

/// Removes agents' volumes but this one; those in use stay.
pub async fn remove_old_agents(client: &bollard::Docker, but: &str) -> Result<usize, Error> {
    let filters = HashMap::from([("label".to_owned(), vec![AGENT.to_owned()])]);
    let listed = client.list_volumes(Some(ListVolumesOptions { filters: Some(filters) })).await?;
    let mut removed = 0;
    for volume in listed.volumes.unwrap_or_default() {
        if volume.name != but && client.remove_volume(&volume.name, None::<RemoveVolumeOptions>).await.is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_are_told_from_the_living() {
        let data = tempfile::tempdir().unwrap();
        assert!(dead(data.path()).is_empty());
        let living = Owner::register(data.path()).unwrap();
        assert!(dead(data.path()).is_empty());
        let gone = folder(data.path()).join("owners/gone");
        fs::write(&gone, "").unwrap();
        assert_eq!(dead(data.path()), [("gone".to_owned(), gone)]);
        let file = folder(data.path()).join("owners").join(&living.name);
        assert!(file.exists());
        drop(living);
        assert!(!file.exists());
    }

    #[test]
    fn the_keeper_keeps_its_name() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(keeper(data.path()), None);
        let name = make_keeper(data.path()).unwrap();
        assert_eq!((make_keeper(data.path()).unwrap(), keeper(data.path())), (name.clone(), Some(name)));
    }
}
