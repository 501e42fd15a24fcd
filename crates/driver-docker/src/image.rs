//! Images of the engine's: finding one by name, and what is in it. All of that is the image's word: hostile, merely well-formed.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::DownloadFromContainerOptions;
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use sloplet_engine::DriverError;
use sloplet_image::{Image, ImageConfig};

use crate::failed;
use crate::host::{explain, status};
use crate::owner::{self, OWNER};

/// Bytes of a file of an image that are looked at.
const MOST: usize = 4 << 20;

/// Whoever asked is to ask for something else.
fn refused(step: String, detail: impl Into<String>) -> DriverError {
    DriverError::Refused { step, detail: detail.into() }
}

/// An image by its name. It must be there.
pub async fn find(client: &bollard::Docker, name: &str) -> Result<Image, DriverError> {
    let step = format!("use the image '{name}'");
    if name == "host" {
        let detail =
            "the docker driver starts from the engine's images: name one with --image, like --image debian:stable-slim";
        return Err(refused(step, detail));
    }
    if name.is_empty()
        || name.contains(|letter: char| letter.is_whitespace() || letter.is_control() || "?#%".contains(letter))
    {
        return Err(refused(step, "that is no name of an image"));
    }
    let found = match client.inspect_image(name).await {
        Ok(found) => found,
        Err(error) if status(&error) == Some(404) => {
            return Err(refused(step, format!("the engine does not have it: run 'docker pull {name}' first")));
        }
        Err(error) => return Err(failed(&step, explain(&error))),
    };
    let names = found.repo_tags.iter().chain(&found.repo_digests).flatten();
    if !is_among(name, names.map(String::as_str)) {
        return Err(refused(step, "images are found by their whole names, not by ids"));
    }
    let config = found.config.unwrap_or_default();
    let pair = |text: &String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let wish = |text: Option<String>| text.filter(|text| !text.is_empty());
    let mut image = Image::of_folders(
        name,
        Vec::new(),
        Vec::new(),
        ImageConfig {
            env: config.env.unwrap_or_default().iter().filter_map(pair).collect(),
            workdir: wish(config.working_dir),
            user: wish(config.user),
            entrypoint: config.entrypoint.unwrap_or_default(),
            cmd: config.cmd.unwrap_or_default(),
            start: None,
            ready: None,
        },
    );
    image.digest = found.id.unwrap_or_default();
    image.size_bytes = found.size.unwrap_or_default().try_into().unwrap_or_default();
    Ok(image)
}

/// Whether a name is one of an image's own: the engine would also find it by a part of its id.
fn is_among<'n>(name: &str, mut own: impl Iterator<Item = &'n str>) -> bool {
    fn plain(name: &str) -> &str {
        let name = name.strip_prefix("docker.io/").unwrap_or(name);
        name.strip_prefix("library/").unwrap_or(name)
    }
    // A name by tag and digest stands for the digest.
    let wanted = match name.split_once('@') {
        Some((tagged, digest)) => {
            let (folder, last) = tagged.rsplit_once('/').map_or(("", tagged), |(folder, last)| (folder, last));
            let last = last.split(':').next().unwrap_or(last);
            let slash = if folder.is_empty() { "" } else { "/" };
            format!("{folder}{slash}{last}@{digest}")
        }
        None if name.rsplit('/').next().is_some_and(|last| last.contains(':')) => name.to_owned(),
        None => format!("{name}:latest"),
    };
    own.any(|own| plain(own) == plain(&wanted))
}

/// What is known of an image's files, remembered by the image's digest.
pub struct Files<'a> {
    client: &'a bollard::Docker,
    digest: &'a str,
    owner: &'a str,
    cache: PathBuf,
}

impl<'a> Files<'a> {
    /// Those of the image with this digest.
    pub fn new(client: &'a bollard::Docker, digest: &'a str, owner: &'a str, data: &Path) -> Self {
        let name: String = digest.chars().filter(char::is_ascii_alphanumeric).take(80).collect();
        Self { client, digest, owner, cache: owner::folder(data).join("images").join(name) }
    }

    /// Paths that the image wants to be volumes.
    pub async fn volumes(&self) -> Result<Vec<String>, DriverError> {
        let place = self.cache.join("volumes.json");
        if let Some(known) = fs::read(&place).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
            return Ok(known);
        }
        let step = "look at the image";
        let found = self.client.inspect_image(self.digest).await.map_err(|error| failed(step, explain(&error)))?;
        let volumes = found.config.and_then(|config| config.volumes).unwrap_or_default();
        self.keep(&place, serde_json::to_vec(&volumes).unwrap_or_default()).map_err(|error| failed(step, error))?;
        Ok(volumes)
    }

    /// The content of files, as far as the image has them.
    pub async fn read(&self, paths: &[&str]) -> Result<HashMap<String, Vec<u8>>, DriverError> {
        let step = "look into the image";
        let (mut known, mut unknown) = (HashMap::new(), Vec::new());
        for path in paths {
            match self.look_up(path) {
                Some(Some(content)) => drop(known.insert((*path).to_owned(), content)),
                Some(None) => {}
                None => unknown.push(*path),
            }
        }
        if unknown.is_empty() {
            return Ok(known);
        }
        // A container that is never started is the only way to look.
        let body = ContainerCreateBody {
            image: Some(self.digest.to_owned()),
            entrypoint: Some(vec!["/".into()]),
            labels: Some(HashMap::from([(OWNER.to_owned(), self.owner.to_owned())])),
            host_config: Some(HostConfig { network_mode: Some("none".into()), ..Default::default() }),
            ..Default::default()
        };
        let made = self.client.create_container(None, body).await.map_err(|error| failed(step, explain(&error)))?;
        let looked = async {
            for path in unknown {
                let content = self.download(&made.id, path).await?;
                let (there, absent) = self.places(path);
                match &content {
                    Some(content) => self.keep(&there, content.clone())?,
                    None => self.keep(&absent, Vec::new())?,
                }
                known.extend(content.map(|content| (path.to_owned(), content)));
            }
            Ok::<_, io::Error>(())
        };
        let looked = looked.await;
        owner::remove(self.client, &made.id).await.map_err(|error| failed(step, explain(&error)))?;
        looked.map_err(|error| failed(step, error))?;
        Ok(known)
    }

    fn places(&self, path: &str) -> (PathBuf, PathBuf) {
        let digest: String = Sha256::digest(path).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        (self.cache.join(&digest), self.cache.join(format!("{digest}.absent")))
    }

    fn look_up(&self, path: &str) -> Option<Option<Vec<u8>>> {
        let (there, absent) = self.places(path);
        fs::read(there).ok().map(Some).or_else(|| absent.exists().then_some(None))
    }

    fn keep(&self, place: &Path, content: Vec<u8>) -> io::Result<()> {
        fs::create_dir_all(&self.cache)?;
        let draft = place.with_extension(format!("{}.draft", std::process::id()));
        fs::write(&draft, content)?;
        fs::rename(&draft, place)
    }

    async fn download(&self, container: &str, path: &str) -> io::Result<Option<Vec<u8>>> {
        let options = DownloadFromContainerOptions { path: path.to_owned() };
        let mut stream = self.client.download_from_container(container, Some(options));
        let mut archive = Vec::new();
        while let Some(part) = stream.next().await {
            match part {
                Ok(part) => archive.extend_from_slice(&part),
                Err(error) if status(&error) == Some(404) => return Ok(None),
                Err(error) => return Err(io::Error::other(explain(&error))),
            }
            if archive.len() > MOST + 64 * 1024 {
                return Ok(None);
            }
        }
        let mut archive = tar::Archive::new(&archive[..]);
        for entry in archive.entries()? {
            let entry = entry?;
            if entry.header().entry_type().is_file() {
                let mut content = Vec::new();
                entry.take(MOST as u64).read_to_end(&mut content)?;
                return Ok(Some(content));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_found_by_their_whole_names_and_not_by_ids() {
        let id = "sha256:4bcff63911fcb4448bd4fdacec207030997caf25e9bea4045fa6c8c44de311d1";
        let digest = format!("registry.example.com/a/b@{id}");
        let own = ["debian:stable-slim", "registry.example.com/a/b:latest", "localhost:5000/x:latest", &digest];
        for name in [
            "debian:stable-slim",
            "docker.io/library/debian:stable-slim",
            "registry.example.com/a/b",
            "registry.example.com/a/b:latest",
            "localhost:5000/x",
            &digest,
            &digest.replace('@', ":1@"),
        ] {
            assert!(is_among(name, own.into_iter()), "{name}");
        }
        for name in ["4bcff63911fc", "4bcf", id, "sha256", "debian", "b", "a/b", "x", "4bcff63911fc:latest"] {
            assert!(!is_among(name, own.into_iter()), "{name}");
        }
        assert!(!is_among("4bcff63911fc", std::iter::empty()), "an image without a name");
    }
}
