//! The driver.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::{ContainerSummary, ContainerSummaryStateEnum};
use sloplet_engine::driver::When;
use sloplet_engine::{
    Adopted, Adoption, Driver, DriverError, End, Machine, Overdue, Pending, PutFile, Unsupported, Wanted,
};
use sloplet_image::Image;
use sloplet_policy::{Capability, DriverReport, Isolation};

use crate::host::{self, Host, explain, status};
use crate::image::{self, Files};
use crate::machine::{self, Contained};
use crate::owner::{self, EGRESS, Owner, SANDBOX};
use crate::probe::{self, Found};
use crate::stream::Attached;
use crate::{container, egress, failed, filter, kit, report};

/// Its name.
pub const NAME: &str = "docker";

/// How long cleaning up may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The list of users of an image.
const PASSWD: &str = "/etc/passwd";

/// Makes sandboxes out of a container engine's containers.
pub struct Docker {
    host: Host,
    agent: PathBuf,
    data_dir: PathBuf,
    found: OnceLock<Found>,
    owner: Mutex<Option<Owner>>,
}

impl Docker {
    /// A driver for the engine that the environment names, with `agent` (a static binary with the agent's subcommand) in
    /// every container.
    pub fn new(agent: &Path, data_dir: &Path) -> Self {
        Self::at(Host::usual(), agent, data_dir)
    }

    /// The same for another engine.
    pub fn at(host: Host, agent: &Path, data_dir: &Path) -> Self {
        Self {
            host,
            agent: agent.to_owned(),
            data_dir: data_dir.to_owned(),
            found: OnceLock::new(),
            owner: Mutex::default(),
        }
    }

    /// What the engine is. One that is not there is looked for again.
    fn found(&self) -> Result<&Found, String> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let found = probe::found(&self.host, &self.data_dir)?;
        Ok(self.found.get_or_init(|| found))
    }

    fn client(&self) -> Result<bollard::Docker, DriverError> {
        let step = "reach the Docker engine";
        let found = self.found().map_err(|reason| failed(step, reason))?;
        self.host.client(found.api()).map_err(|error| failed(step, explain(&error)))
    }

    /// The owner of what is made now.
    fn owner(&self, lasting: bool) -> Result<String, DriverError> {
        let step = "note what is made on the engine";
        if lasting {
            return owner::make_keeper(&self.data_dir).map_err(|error| failed(step, error));
        }
        let mut owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        match &*owner {
            Some(owner) => Ok(owner.name.clone()),
            None => {
                let made = Owner::register(&self.data_dir).map_err(|error| failed(step, error))?;
                let name = made.name.clone();
                *owner = Some(made);
                Ok(name)
            }
        }
    }

    async fn bring_up(&self, wanted: Wanted<'_>, lasting: bool) -> Result<Box<dyn Machine>, DriverError> {
        if wanted.memory.is_some() {
            return Err(Unsupported("go on from a saved memory").into());
        }
        let client = self.client()?;
        let owner = self.owner(lasting)?;
        let inside = Files::new(&client, &wanted.image.digest, &owner, &self.data_dir);
        let volumes = inside.volumes().await?;
        let passwd = inside.read(&[PASSWD]).await?.remove(PASSWD).unwrap_or_default();
        let user = container::user(&wanted, &passwd)?;
        let rootless = self.found().is_ok_and(|found| found.rootless);
        container::check_mounts(&wanted.spec.mounts, &self.host, &user, rootless)?;
        let folder = owner::files(&self.data_dir, &owner).join(wanted.id);
        let files = self.put(&wanted, &inside, &folder).await;
        let agent = kit::volume(&self.agent);
        let filter = self.filter();
        let made = async {
            let filter = filter?;
            let files = files?;
            let parts = container::Parts {
                user: &user,
                agent: &agent,
                volumes: &volumes,
                files: &files,
                filter: filter.as_deref(),
                owner: &owner,
                lasting,
                podman: self.found().is_ok_and(|found| found.podman),
            };
            let body = container::body(&wanted, &parts);
            match start(&client, &wanted, &body).await {
                // No agent there yet, or none any more.
                Err(Trouble { agent: true, .. }) => {
                    let program = self.agent.clone();
                    let archive = tokio::task::spawn_blocking(move || kit::archive(&program)).await;
                    let archive = archive.map_err(|error| failed("read the agent's program", error))?;
                    let archive = archive.map_err(|error| failed("read the agent's program", error))?;
                    let filled = kit::fill(&client, &agent, &wanted.image.digest, &owner, archive).await;
                    filled.map_err(|error| failed("copy the agent to the engine", explain(&error)))?;
                    start(&client, &wanted, &body).await.map_err(|trouble| trouble.error)
                }
                other => other.map_err(|trouble| trouble.error),
            }
        };
        let (id, first) = match made.await {
            Ok(made) => made,
            Err(error) => {
                let _ = std::fs::remove_dir_all(&folder);
                return Err(error);
            }
        };
        let (outlets, pid) = match wanted.egress {
            true => match egress::open(&client, &id, false).await {
                Ok((outlets, pid)) => (Some(outlets), Some(pid)),
                Err(error) => {
                    let _ = owner::remove(&client, &id).await;
                    let _ = std::fs::remove_dir_all(&folder);
                    return Err(error);
                }
            },
            false => (None, egress::process(&client, &id).await),
        };
        if let Some(pid) = pid
            && let Err(error) = container::check_shown(&wanted.spec.mounts, pid)
        {
            let _ = owner::remove(&client, &id).await;
            let _ = std::fs::remove_dir_all(&folder);
            return Err(error);
        }
        let machine = Contained::new(machine::Parts {
            client,
            container: id,
            first: Some(first),
            lasting,
            frozen: false,
            files: Some(folder),
            outlets,
            pid,
        });
        machine.count_down(Some(wanted.spec.limits.timeout.0), Overdue::Destroy);
        Ok(Box::new(machine))
    }

    /// The filter of system calls: Docker takes its text, Podman the name of a file on its host.
    fn filter(&self) -> Result<Option<String>, DriverError> {
        let step = "make the filter of system calls";
        let text = filter::text().map_err(|error| failed(step, error))?;
        if !self.found().is_ok_and(|found| found.podman) {
            return Ok(Some(text));
        }
        if self.host.socket().is_none() {
            return Ok(None);
        }
        let path = owner::folder(&self.data_dir).join("filter.json");
        if std::fs::read_to_string(&path).is_ok_and(|known| known == text) {
            return Ok(Some(path.display().to_string()));
        }
        let draft = path.with_extension(format!("{}.draft", std::process::id()));
        let written = write(&draft, text.as_bytes(), 0o644).and_then(|()| std::fs::rename(&draft, &path));
        written.map_err(|error| failed(step, error))?;
        Ok(Some(path.display().to_string()))
    }

    /// Writes the files that are laid over the root to a folder, and returns them with their places.
    async fn put(
        &self,
        wanted: &Wanted<'_>,
        inside: &Files<'_>,
        folder: &Path,
    ) -> Result<Vec<(String, String)>, DriverError> {
        let step = "put files into the container's root";
        let mut placed = Vec::new();
        for (number, file) in wanted.files.iter().enumerate() {
            let places = chosen(file, inside).await?;
            if places.is_empty() {
                continue;
            }
            if self.host.socket().is_none() {
                let detail = format!("the engine at {} may be on another host, with other files", self.host.name());
                return Err(failed(step, detail));
            }
            let mut content = Vec::new();
            let after: Vec<&str> = file.after.iter().map(String::as_str).collect();
            let mut known = inside.read(&after).await?;
            content.extend(after.iter().find_map(|path| known.remove(*path)).unwrap_or_default());
            content.extend_from_slice(&file.content);
            let path = folder.join(number.to_string());
            write(&path, &content, file.mode).map_err(|error| failed(step, error))?;
            placed.extend(places.into_iter().map(|place| (path.display().to_string(), place)));
        }
        Ok(placed)
    }

    async fn take_over(&self) -> Result<Adoption, DriverError> {
        let mut adoption = Adoption::default();
        // Nobody is asked where nothing was made.
        let Some(keeper) = owner::keeper(&self.data_dir) else { return Ok(adoption) };
        let Ok(client) = self.client() else { return Ok(adoption) };
        let step = "look for containers of an earlier server";
        let all = owner::containers(&client, &keeper).await.map_err(|error| failed(step, explain(&error)))?;
        for found in all {
            let Some(container) = found.id.clone() else { continue };
            let sandbox = found.labels.as_ref().and_then(|labels| labels.get(SANDBOX)).cloned();
            match (sandbox, living(&found)) {
                (Some(id), Some(frozen)) => {
                    let has_way = found.labels.as_ref().is_some_and(|labels| labels.contains_key(EGRESS));
                    let way = match has_way {
                        true => egress::open(&client, &container, true).await.ok(),
                        false => None,
                    };
                    let (outlets, pid) = match way {
                        Some((outlets, pid)) => (Some(outlets), Some(pid)),
                        None => (None, egress::process(&client, &container).await),
                    };
                    let machine = Contained::new(machine::Parts {
                        client: client.clone(),
                        container,
                        first: None,
                        lasting: true,
                        frozen,
                        files: Some(owner::files(&self.data_dir, &keeper).join(&id)),
                        outlets,
                        pid,
                    });
                    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
                    let made = Duration::from_secs(found.created.unwrap_or_default().try_into().unwrap_or_default());
                    let age = now.saturating_sub(made);
                    let machine = Box::new(machine);
                    adoption.living.push(Adopted { id, machine, frozen, age, same_build: false });
                }
                (sandbox, None) => {
                    let removed = owner::remove(&client, &container).await;
                    removed.map_err(|error| failed("remove a container", explain(&error)))?;
                    if let Some(id) = sandbox {
                        let _ = std::fs::remove_dir_all(owner::files(&self.data_dir, &keeper).join(&id));
                        adoption.ended.push((id, End::default()));
                    }
                }
                // Was never to be started.
                (None, Some(_)) => {}
            }
        }
        Ok(adoption)
    }

    async fn clean_up(&self, client: bollard::Docker, dead: Vec<(String, PathBuf)>) -> Result<usize, Error> {
        let mut removed = 0;
        for (name, file) in dead {
            for left in owner::containers(&client, &name).await? {
                let Some(id) = left.id else { continue };
                owner::remove(&client, &id).await?;
                removed += 1;
            }
            let _ = std::fs::remove_dir_all(owner::files(&self.data_dir, &name));
            let _ = std::fs::remove_file(file);
        }
        let current = kit::volume(&self.agent);
        Ok(removed + owner::remove_old_agents(&client, &current).await?)
    }
}

/// Whether a container that was found lives, and if, whether it is frozen.
fn living(found: &ContainerSummary) -> Option<bool> {
    match found.state {
        Some(ContainerSummaryStateEnum::RUNNING | ContainerSummaryStateEnum::RESTARTING) => Some(false),
        Some(ContainerSummaryStateEnum::PAUSED) => Some(true),
        _ => None,
    }
}

/// Where a file is to be put.
async fn chosen(file: &PutFile, inside: &Files<'_>) -> Result<Vec<String>, DriverError> {
    let paths: Vec<&str> = file.places.iter().map(|(path, _)| path.as_str()).collect();
    if let Some(path) = paths.iter().find(|path| !path.starts_with('/') || path.split('/').any(|part| part == "..")) {
        return Err(failed(
            "put files into the container's root",
            format!("'{path}' is no absolute path without '..'"),
        ));
    }
    let conditional: Vec<&str> =
        file.places.iter().filter(|(_, when)| *when != When::Always).map(|(path, _)| path.as_str()).collect();
    let known = inside.read(&conditional).await?;
    let fits = |(path, when): &&(String, When)| match when {
        When::Always => true,
        When::Present => known.contains_key(path),
        When::Absent => known.get(path).is_none_or(Vec::is_empty),
    };
    Ok(file.places.iter().filter(fits).map(|(path, _)| path.clone()).collect())
}

fn write(path: &Path, content: &[u8], mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, content)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

/// Why a container did not start.
struct Trouble {
    error: DriverError,
    /// For want of an agent.
    agent: bool,
}

impl Trouble {
    fn new(step: &str, error: impl std::fmt::Display) -> Self {
        Self { error: failed(step, error), agent: false }
    }
}

/// Makes a container and starts it, with a stream to its first process. If that fails, nothing is left.
async fn start(
    client: &bollard::Docker,
    wanted: &Wanted<'_>,
    body: &bollard::models::ContainerCreateBody,
) -> Result<(String, Attached), Trouble> {
    let step = "make the container";
    let options = bollard::query_parameters::CreateContainerOptions {
        name: Some(format!("sloplet-{}", wanted.id)),
        ..Default::default()
    };
    let made = client.create_container(Some(options), body.clone()).await;
    let made = made.map_err(|error| Trouble::new(step, explain(&error)))?;
    let started = async {
        // What the engine says it will not enforce is not enforced.
        if let Some(warning) = made.warnings.first().filter(|_| !wanted.spec.best_effort) {
            let detail = format!("the engine says: {}; accept that with --best-effort", warning.trim());
            return Err(Trouble::new(step, detail));
        }
        // Podman prepares a container already when it is attached to.
        let trouble = |step: &str, error: Error| {
            let detail = explain(&error);
            let agent = status(&error).is_some() && detail.contains(kit::PLACE);
            Trouble { error: failed(step, detail), agent }
        };
        let first = Attached::to_container(client, &made.id).await;
        let first = first.map_err(|error| trouble("attach to the container", error))?;
        let started = client.start_container(&made.id, None).await;
        started.map_err(|error| trouble("start the container", error))?;
        Ok(first)
    };
    match started.await {
        Ok(first) => Ok((made.id.clone(), first)),
        Err(trouble) => {
            let _ = owner::remove(client, &made.id).await;
            Err(trouble)
        }
    }
}

impl Driver for Docker {
    fn name(&self) -> &'static str {
        NAME
    }

    fn isolation(&self) -> Isolation {
        Isolation::Container
    }

    fn report(&self) -> DriverReport {
        report::report(&self.host, self.found())
    }

    fn egress(&self) -> Capability {
        egress::capability(&self.host, self.found())
    }

    /// Making one means waiting for the engine once more.
    fn spares_outlets(&self) -> bool {
        false
    }

    fn find_image<'a>(&'a self, name: &'a str) -> Option<Pending<'a, Result<Image, DriverError>>> {
        Some(Box::pin(async move { image::find(&self.client()?, name).await }))
    }

    fn create<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        Box::pin(self.bring_up(wanted, false))
    }

    fn create_lasting<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        Box::pin(self.bring_up(wanted, true))
    }

    fn adopt(&self) -> Pending<'_, Result<Adoption, DriverError>> {
        Box::pin(self.take_over())
    }

    fn collect(&self) -> Result<usize, DriverError> {
        let dead = owner::dead(&self.data_dir);
        if dead.is_empty() {
            return Ok(0);
        }
        // An engine that is not there is asked when it is.
        let Ok(client) = self.client() else { return Ok(0) };
        host::ask(PATIENCE, self.clean_up(client, dead)).map_err(|error| failed("clean up on the Docker engine", error))
    }

    fn shut_down(&self) {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
