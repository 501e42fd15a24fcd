//! From a description to a running sandbox.
//!
//! - `walls`, `checking`: which wall, and whether it may and can be. `settling`: what makes it somebody's. `claiming`: what makes
//!   one that waited what its claimer asks for.
//! - `error`, `ids`: what they are called.

mod checking;
mod claiming;
mod error;
mod ids;
mod settling;
mod walls;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sloplet_client::Agent;
use sloplet_image::{Image, ImageConfig, ImageError, Lease, Leases, Pattern, SnapshotStaging, Store};
use sloplet_ledger::Ledger;
use sloplet_policy::protect::Protected;
use sloplet_policy::{Bind, Capability, Radius, Spec};
use tracing::Instrument as _;

use crate::allowance::Allowances;
use crate::data::{self, DataError, Masked};
use crate::driver::{
    Adopted, Adoption, CheckpointReport, Driver, DriverError, Extras, Machine, SnapshotReport, Wanted,
};
use crate::failpoint::{Point, reach};
use crate::outward::{Common, Patron};
use crate::places::Places;
use crate::sandbox::Sandbox;
pub use error::EngineError;
pub use ids::{new_id, new_secret};

/// Makes sandboxes.
pub struct Engine {
    places: Places,
    drivers: Vec<Box<dyn Driver>>,
    images: OnceLock<Store>,
    leases: Leases,
    host: Mutex<Option<(Image, Instant)>>,
    ledger: Ledger,
    common: Common,
    radius: Arc<Radius>,
    allowances: Allowances,
}

/// Where the memory of a saved sandbox is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedMemory {
    /// The only wall behind which it can go on.
    pub driver: String,
    /// The folder that the wall has filled.
    pub folder: PathBuf,
}

/// Whether an agent's greeting is waited for.
#[derive(Debug, Clone, Copy)]
enum Greeting {
    Now,
    Later,
}

/// The image made of the host's own programs.
const HOST: &str = "host";

/// Characters of an id: it is part of host names and of names of sockets.
const MAX_ID: usize = 48;

impl Engine {
    /// An engine with these walls.
    pub fn new(places: Places, drivers: Vec<Box<dyn Driver>>) -> Self {
        let ledger = Ledger::new(&places.data, sloplet_ledger::Options::default());
        Self {
            places,
            drivers,
            images: OnceLock::new(),
            leases: Leases::default(),
            host: Mutex::default(),
            ledger,
            common: Common::default(),
            radius: Arc::default(),
            allowances: Allowances::default(),
        }
    }

    /// The same engine, which holds at most so many bytes in memory for those who use its sandboxes.
    pub fn buffering(self, bytes: u64) -> Self {
        Self { allowances: Allowances::new(bytes), ..self }
    }

    /// What clients may make it hold in memory.
    pub fn allowances(&self) -> &Allowances {
        &self.allowances
    }

    /// The same engine, which keeps every sandbox away from what `radius` lists, whoever asks.
    pub fn protecting(self, radius: Radius) -> Self {
        let home = std::env::home_dir();
        Self { radius: Arc::new(radius.at_home(home.as_deref())), ..self }
    }

    /// What every sandbox is kept away from.
    pub fn radius(&self) -> &Radius {
        &self.radius
    }

    /// Where it keeps things.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// The images.
    pub fn images(&self) -> Result<&Store, ImageError> {
        if let Some(store) = self.images.get() {
            return Ok(store);
        }
        let store = Store::open(&self.places.data)?;
        Ok(self.images.get_or_init(|| store))
    }

    /// Makes a file that holds an empty disk, for a volume.
    pub fn make_disk(&self, file: &Path, bytes: u64) -> Result<(), EngineError> {
        Ok(self.usual()?.make_disk(file, bytes)?)
    }

    /// Removes a folder that sandboxes could write to, whoever inside owns what is in it.
    pub fn remove_folder(&self, folder: &Path) -> Result<(), DriverError> {
        self.usual().map_or(Ok(()), |driver| driver.remove_folder(folder))
    }

    /// Removes what earlier runs left behind; returns how many things that were.
    pub fn collect(&self) -> Result<usize, DriverError> {
        let removed: usize = self.drivers.iter().map(|driver| driver.collect()).sum::<Result<_, _>>()?;
        Ok(removed + data::sweep(&self.places.data))
    }

    /// Makes a sandbox and waits until its agent serves.
    pub async fn create(&self, spec: Spec, patron: &Patron) -> Result<Sandbox, EngineError> {
        self.settle(self.make(spec, patron).await?, patron).await
    }

    /// The same, but does not wait for its agent: requests to it do. If its walls cannot be built, they fail.
    pub async fn begin(&self, spec: Spec, patron: &Patron) -> Result<Sandbox, EngineError> {
        self.settle(self.bring_up(spec, patron, Greeting::Later).await?, patron).await
    }

    /// A sandbox with its way out still shut: see [`Self::settle`].
    pub async fn make(&self, spec: Spec, patron: &Patron) -> Result<Sandbox, EngineError> {
        self.bring_up(spec, patron, Greeting::Now).await
    }

    async fn bring_up(&self, mut spec: Spec, patron: &Patron, greeting: Greeting) -> Result<Sandbox, EngineError> {
        let id = new_id();
        let mut extras = patron.extras(&id, &spec)?;
        let (driver, unenforced) = self.check(&mut spec, &mut extras)?;
        let image = self.image_of(&spec).await?;
        self.check_image(&image)?;
        let lease = self.leases.take(&image)?;
        // Has its names until the end: everything must be mounted then.
        let mut masked = self.mask(&id, &spec).await?;
        let greeting = if masked.binds.is_empty() { greeting } else { Greeting::Now };
        spec.mounts.append(&mut masked.binds);
        let machine = driver.create(wanted(&id, &spec, &image, &extras, None)).await?;
        let sandbox = self.greet(greeting, id, spec, image, lease, machine, unenforced, patron).await?;
        Ok(sandbox.with_masked(std::mem::take(&mut masked.done)))
    }

    /// Makes a sandbox that outlives this engine, with an id (letters and digits) that nobody else has, from an image that
    /// was [resolved](Self::resolve) for it. `volumes` are mounts out of the engine's own folders. Dropping it does not
    /// destroy it. Its way out stays shut until it is [settled](Self::settle).
    pub async fn create_lasting(
        &self,
        id: String,
        spec: Spec,
        image: Image,
        volumes: Vec<Bind>,
        patron: &Patron,
    ) -> Result<Sandbox, EngineError> {
        self.lasting(id, spec, image, volumes, None, patron).await
    }

    /// The same, but its processes go on from what [`Self::checkpoint`] has saved: `memory`, and the image of that moment.
    /// The description must be that of the sandbox which was saved.
    pub async fn restore_lasting(
        &self,
        id: String,
        spec: Spec,
        image: Image,
        volumes: Vec<Bind>,
        memory: &SavedMemory,
        patron: &Patron,
    ) -> Result<Sandbox, EngineError> {
        let asked = self.driver(&spec)?.name();
        if asked != memory.driver {
            return Err(EngineError::ForeignMemory { saved: memory.driver.clone(), asked: asked.to_owned() });
        }
        self.lasting(id, spec, image, volumes, Some(&memory.folder), patron).await
    }

    async fn lasting(
        &self,
        id: String,
        mut spec: Spec,
        image: Image,
        volumes: Vec<Bind>,
        memory: Option<&Path>,
        patron: &Patron,
    ) -> Result<Sandbox, EngineError> {
        if id.is_empty() || id.len() > MAX_ID || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(EngineError::BadId(id.escape_debug().take(100).collect()));
        }
        let span =
            tracing::debug_span!("create", sandbox.id = id, sandbox.image = image.name, error = tracing::field::Empty);
        let making = async {
            let mut extras = patron.extras(&id, &spec)?;
            let (driver, unenforced) = self.check(&mut spec, &mut extras)?;
            self.check_image(&image)?;
            // Not before the check: those folders are protected from everybody else.
            spec.mounts.extend(volumes);
            let lease = self.leases.take(&image)?;
            let mut masked = self.mask(&id, &spec).await?;
            spec.mounts.append(&mut masked.binds);
            reach(Point::BeforeMachine);
            let machine = driver.create_lasting(wanted(&id, &spec, &image, &extras, memory)).await?;
            reach(Point::AfterMachine);
            let sandbox = self.greet(Greeting::Now, id, spec, image, lease, machine, unenforced, patron).await?;
            reach(Point::AfterGreeting);
            Ok(sandbox.with_masked(std::mem::take(&mut masked.done)))
        };
        told(span, making).await
    }

    /// Takes over the lasting sandboxes of an engine that is gone. Each becomes a [`Sandbox`] again with
    /// [`Self::take_over`], or can be [destroyed](crate::Machine::destroy).
    pub async fn adopt(&self) -> Result<Adoption, DriverError> {
        let mut all = Adoption::default();
        for driver in &self.drivers {
            let adopted = driver.adopt().await?;
            all.living.extend(adopted.living);
            all.ended.extend(adopted.ended);
        }
        reach(Point::AfterAdoption);
        Ok(all)
    }

    /// An adopted sandbox, given what it was made of; its way out is shut until it is [opened](Self::open_way_out). Does not wait for its agent, which may be frozen: requests to it do.
    pub async fn take_over(
        &self,
        adopted: Adopted,
        mut spec: Spec,
        image: Image,
        patron: &Patron,
    ) -> Result<Sandbox, EngineError> {
        let driver = self.driver(&spec)?;
        // What it was shown may be gone from the host since; it still has it.
        let _ = self.find_devices(&mut spec, driver);
        let unenforced = driver.report().lacking(&driver.required()).into_iter().cloned().collect();
        let lease = self.leases.take(&image)?;
        let Adopted { id, machine, age, .. } = adopted;
        let agent = Agent::connect_later(machine.connect().await?);
        let started = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
        let standing = self.standing(&id, &spec, patron);
        Ok(Sandbox::new(id, spec, image, lease, machine, agent, unenforced, started, standing)
            .protecting(self.radius.clone()))
    }

    /// Saves what was written in a lasting sandbox as an image, on top of the one it started from. It stands still while
    /// that is copied. Should not be given up half-way: the sandbox stays frozen until the copy is finished nevertheless.
    pub async fn snapshot(
        &self,
        sandbox: &Sandbox,
        name: Option<&str>,
        config: ImageConfig,
    ) -> Result<(Image, SnapshotReport), EngineError> {
        let span = tracing::debug_span!(
            "snapshot",
            sandbox.id = sandbox.id(),
            bytes = tracing::field::Empty,
            error = tracing::field::Empty,
        );
        told(span, self.take_snapshot(sandbox, name, config, &[])).await
    }

    /// As [`Self::snapshot`], without what fits one of the patterns.
    pub async fn snapshot_without(
        &self,
        sandbox: &Sandbox,
        name: Option<&str>,
        config: ImageConfig,
        excluded: &[Pattern],
    ) -> Result<(Image, SnapshotReport), EngineError> {
        self.take_snapshot(sandbox, name, config, excluded).await
    }

    /// Copies what a sandbox has written, of one moment: a layer on top of the image it started from, gone when dropped.
    pub async fn written(&self, sandbox: &Sandbox) -> Result<(SnapshotStaging, SnapshotReport), EngineError> {
        let staging = self.images()?.snapshot_staging()?;
        let target = staging.dir().map_err(|error| {
            EngineError::Driver(DriverError::Failed { step: "take a snapshot".into(), detail: error.to_string() })
        })?;
        reach(Point::BeforeCopy);
        let report = sandbox.machine().snapshot(target).await?;
        reach(Point::AfterCopy);
        Ok((staging, report))
    }

    async fn take_snapshot(
        &self,
        sandbox: &Sandbox,
        name: Option<&str>,
        config: ImageConfig,
        excluded: &[Pattern],
    ) -> Result<(Image, SnapshotReport), EngineError> {
        let store = self.images()?;
        let (mut staging, mut report) = self.written(sandbox).await?;
        if !excluded.is_empty() {
            let patterns = excluded.to_vec();
            let work = tokio::task::spawn_blocking(move || staging.exclude(&patterns).map(|bytes| (staging, bytes)));
            let failed = |detail: String| DriverError::Failed { step: "leave files out of a snapshot".into(), detail };
            let done = work.await.map_err(|error| failed(error.to_string()))?;
            let (kept, bytes) = done.map_err(|error| failed(error.to_string()))?;
            staging = kept;
            report.bytes = report.bytes.saturating_sub(bytes);
        }
        tracing::Span::current().record("bytes", report.bytes);
        let (store, name, base) = (store.clone(), name.map(str::to_owned), sandbox.image().clone());
        // Usually a rename; now and then a copy of many layers.
        let keep = move || store.commit_snapshot(staging, name.as_deref(), &base, config, report.bytes);
        let kept = tokio::task::spawn_blocking(keep)
            .await
            .map_err(|error| DriverError::Failed { step: "keep a snapshot".into(), detail: error.to_string() })?;
        reach(Point::AfterImage);
        Ok((kept?, report))
    }

    /// Saves a lasting sandbox's processes with their memory in `folder`, which must not exist yet, and its files as an
    /// image, both of one moment. [`Self::restore_lasting`] makes others that go on from there.
    pub async fn checkpoint(
        &self,
        sandbox: &Sandbox,
        folder: &Path,
        name: Option<&str>,
        config: ImageConfig,
    ) -> Result<(Image, SavedMemory, CheckpointReport), EngineError> {
        let failed = |step: &str, error: &dyn std::fmt::Display| DriverError::Failed {
            step: step.to_owned(),
            detail: error.to_string(),
        };
        let driver = self.driver(sandbox.spec())?.name().to_owned();
        let store = self.images()?;
        let staging = store.snapshot_staging()?;
        let target = staging.dir().map_err(|error| failed("take a snapshot", &error))?;
        let parent = folder.parent().unwrap_or(Path::new("/"));
        let private = |path: &Path, recursive| {
            std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
                .recursive(recursive)
                .create(path)
                .map_err(|error| failed(&format!("make {}", path.display()), &error))
        };
        private(parent, true)?;
        private(folder, false)?;
        let saving = async {
            let report = sandbox.machine().checkpoint(folder, target).await?;
            let (store, name, base) = (store.clone(), name.map(str::to_owned), sandbox.image().clone());
            let keep = move || store.commit_snapshot(staging, name.as_deref(), &base, config, report.files.bytes);
            let kept = tokio::task::spawn_blocking(keep).await.map_err(|error| failed("keep a snapshot", &error))?;
            Ok::<_, EngineError>((kept?, report))
        };
        match saving.await {
            Ok((image, report)) => Ok((image, SavedMemory { driver, folder: folder.to_owned() }, report)),
            Err(error) => {
                let _ = std::fs::remove_dir_all(folder);
                Err(error)
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "called from two places")]
    async fn greet(
        &self,
        greeting: Greeting,
        id: String,
        spec: Spec,
        image: Image,
        lease: Lease,
        machine: Box<dyn Machine>,
        unenforced: Vec<Capability>,
        patron: &Patron,
    ) -> Result<Sandbox, EngineError> {
        let started = Instant::now();
        let agent = match machine.connect().await {
            Ok(stream) => match greeting {
                Greeting::Now => Agent::connect(stream).await.map_err(EngineError::from),
                Greeting::Later => Ok(Agent::connect_later(stream)),
            },
            Err(error) => Err(error.into()),
        };
        match agent {
            Ok(agent) => {
                let standing = self.standing(&id, &spec, patron);
                Ok(Sandbox::new(id, spec, image, lease, machine, agent, unenforced, started, standing)
                    .protecting(self.radius.clone()))
            }
            Err(error) => {
                let _ = machine.destroy().await;
                Err(error)
            }
        }
    }

    /// Finds the image that a description names: among those of its wall, if that has some of its own.
    pub async fn image_of(&self, spec: &Spec) -> Result<Image, EngineError> {
        match self.driver(spec)?.find_image(&spec.image) {
            Some(finding) => Ok(finding.await?),
            None => Ok(self.resolve(&spec.image)?),
        }
    }

    /// Whether the wall that a description asks for starts from images of its own, and knows none of the store's.
    pub fn has_own_images(&self, spec: &Spec) -> Result<bool, EngineError> {
        Ok(self.driver(spec)?.find_image(&spec.image).is_some())
    }

    /// Keeps the layers of an image from being removed.
    pub fn lease(&self, image: &Image) -> Result<Lease, ImageError> {
        self.leases.take(image)
    }

    /// Finds an image of the store. Whether the `host` image is still up to date takes some sixty looks at the host's files: once a
    /// second is enough.
    pub fn resolve(&self, name: &str) -> Result<Image, ImageError> {
        if name != HOST {
            return self.images()?.resolve(name);
        }
        let mut recent = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((image, when)) = &*recent
            && when.elapsed() < Duration::from_secs(1)
        {
            return Ok(image.clone());
        }
        let image = self.images()?.resolve(name)?;
        *recent = Some((image.clone(), Instant::now()));
        Ok(image)
    }

    /// Ends helper processes and waits for them; everything is written down and signed then.
    pub fn shut_down(&self) {
        let flushed = self.ledger.flush_soon();
        self.drivers.iter().for_each(|driver| driver.shut_down());
        if let Err(error) = flushed.wait() {
            tracing::error!(%error, "the last of what happened is not in the record");
        }
    }

    /// Masks what is to go in masked.
    async fn mask(&self, id: &str, spec: &Spec) -> Result<Masked, EngineError> {
        if spec.data.is_empty() {
            return Ok(Masked::default());
        }
        let home = std::env::home_dir();
        let own = [self.places.data.clone(), self.places.run.clone()];
        let rules = data::Rules { host: Protected::for_host(home.as_deref(), &own), all: self.protected() };
        let (place, id, mounts) = (self.places.data.clone(), id.to_owned(), spec.data.clone());
        let masking = tokio::task::spawn_blocking(move || data::mask(&place, &id, &mounts, &rules));
        let broken = |error| Box::new(DataError::Folder(std::io::Error::other(error)));
        Ok(masking.await.map_err(broken)??)
    }
}

fn wanted<'a>(
    id: &'a str,
    spec: &'a Spec,
    image: &'a Image,
    extras: &'a Extras,
    memory: Option<&'a Path>,
) -> Wanted<'a> {
    Wanted {
        id,
        spec,
        image,
        egress: extras.egress,
        files: &extras.files,
        memory,
        claimable: extras.claimable,
        ear: extras.ear,
    }
}

/// Does something within a span, which tells why if it fails.
pub(crate) async fn told<T, E: std::fmt::Display>(
    span: tracing::Span,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let done = work.instrument(span.clone()).await;
    if let Err(error) = &done {
        span.record("error", tracing::field::display(error));
    }
    done
}
