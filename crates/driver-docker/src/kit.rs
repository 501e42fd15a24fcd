//! The agent's program, in a volume of the engine's: copied there once for each build, shown read-only in every container.

use std::collections::HashMap;
use std::path::Path;

use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType, MountVolumeOptions, VolumeCreateRequest};
use bollard::query_parameters::UploadToContainerOptions;
use sha2::{Digest, Sha256};

use crate::owner::{self, AGENT, OWNER};

/// Where it is seen inside.
pub const PLACE: &str = "/.sloplet";

/// The program's name there.
pub const PROGRAM: &str = "agent";

/// The folder there that the agent's door is in: a place of its own to write to.
pub const DOOR: &str = "door";

/// The volume for a program.
pub fn volume(program: &Path) -> String {
    let digest = Sha256::digest(sloplet_spawner::build::of(program));
    let digits: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("sloplet-agent-{digits}")
}

/// The volume, as a container sees it.
pub fn mount(volume: &str, read_only: bool) -> Mount {
    let labels = HashMap::from([(AGENT.to_owned(), String::new())]);
    Mount {
        target: Some(PLACE.into()),
        source: Some(volume.to_owned()),
        typ: Some(MountType::VOLUME),
        read_only: Some(read_only),
        volume_options: Some(MountVolumeOptions { no_copy: Some(true), labels: Some(labels), ..Default::default() }),
        ..Default::default()
    }
}

/// Copies the program there, by way of a container that is never started. Others may do the same at the same time: each
/// puts a file of its own, and the last to be done gives it the name.
pub async fn fill(
    client: &bollard::Docker,
    volume: &str,
    image: &str,
    owner: &str,
    archive: Vec<u8>,
) -> Result<(), Error> {
    let labels = HashMap::from([(AGENT.to_owned(), String::new())]);
    let request = VolumeCreateRequest { name: Some(volume.to_owned()), labels: Some(labels), ..Default::default() };
    client.create_volume(request).await?;
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![format!("{PLACE}/{PROGRAM}")]),
        labels: Some(HashMap::from([(OWNER.to_owned(), owner.to_owned())])),
        host_config: Some(HostConfig {
            network_mode: Some("none".into()),
            mounts: Some(vec![mount(volume, false)]),
            ..Default::default()
        }),
        ..Default::default()
    };
    let made = client.create_container(None, body).await?;
    let options = UploadToContainerOptions { path: PLACE.into(), ..Default::default() };
    let put = client.upload_to_container(&made.id, Some(options), bollard::body_full(archive.into())).await;
    let removed = owner::remove(client, &made.id).await;
    put.and(removed)
}

/// What is put there.
pub fn archive(program: &Path) -> std::io::Result<Vec<u8>> {
    let content = std::fs::read(program)?;
    let mut archive = tar::Builder::new(Vec::with_capacity(content.len() + 4096));
    let header = |kind: tar::EntryType, mode: u32, size: usize| {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header
    };
    // What is mounted there gets the same permissions from some runtimes.
    archive.append_data(&mut header(tar::EntryType::Directory, 0o710, 0), format!("{DOOR}/"), &[][..])?;
    let own = format!("{PROGRAM}.{}", sloplet_engine::engine::new_id());
    archive.append_data(&mut header(tar::EntryType::Regular, 0o555, content.len()), &own, &content[..])?;
    archive.append_link(&mut header(tar::EntryType::Link, 0o555, 0), PROGRAM, &own)?;
    archive.into_inner()
}
