//! From a description to a running sandbox.

mod settling;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};
use sloplet_client::{Agent, ClientError};
use sloplet_image::{Image, ImageConfig, ImageError, Lease, Leases, Store};
use sloplet_ledger::{Ledger, LedgerError};
use sloplet_policy::protect::{ProtectError, Protected};
use sloplet_policy::radius::RadiusError;
use sloplet_policy::spec::SpecError;
use sloplet_policy::{Bind, Capability, DriverReport, Feature, Isolation, Radius, Spec};
use tracing::Instrument as _;

use crate::cdi::{Cdi, CdiError};
use crate::data::{self, DataError, Masked};
use crate::driver::{
    Adopted, Adoption, CheckpointReport, Driver, DriverError, Extras, Machine, SnapshotReport, Wanted,
};
use crate::outward::private::PrivateError;
use crate::outward::{Common, Patron};
use crate::places::Places;
use crate::sandbox::Sandbox;

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

/// Why there is no sandbox. Nothing was made, or all of it is removed again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The description makes no sense.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// An id that cannot be one.
    #[error("'{0}' cannot be the id of a sandbox: it must be of 1 to {MAX_ID} letters and digits")]
    BadId(String),
    /// A mount is not allowed.
    #[error(transparent)]
    Protected(#[from] ProtectError),
    /// A variable or a host of the blast radius.
    #[error(transparent)]
    Secret(#[from] RadiusError),
    /// A mount that this user may not read.
    #[error("cannot mount '{}': {}", .0.display(), .1)]
    Unreadable(PathBuf, std::io::Error),
    /// No wall of that kind.
    #[error("isolation '{0}' is not available in this build: use {1}")]
    NoDriver(Isolation, String),
    /// No wall of that name.
    #[error("there is no driver '{0}': use {1}")]
    UnknownDriver(String, String),
    /// A saved memory that belongs to another wall.
    #[error("this snapshot's memory is of the driver '{saved}', and cannot go on behind '{asked}'")]
    ForeignMemory {
        /// Of the snapshot.
        saved: String,
        /// What was asked.
        asked: String,
    },
    /// The wall does not work here.
    #[error("{asked} does not work on this host: {reason} (see 'sloplet doctor')")]
    Unavailable {
        /// What was asked for: a wall by its name, or a level.
        asked: String,
        /// Why not.
        reason: String,
    },
    /// A device that cannot be shown.
    #[error(transparent)]
    Device(#[from] CdiError),
    /// A wall that shows no devices.
    #[error("the driver '{driver}' cannot show a sandbox devices of the host (--gpu): {reason}")]
    NoDevices {
        /// Its name.
        driver: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// A limit would not hold.
    #[error("{}", unenforceable(.0))]
    Unenforceable(Vec<Capability>),
    /// The image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The wall.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The agent.
    #[error(transparent)]
    Agent(#[from] ClientError),
    /// Its secrets.
    #[error(transparent)]
    Private(#[from] PrivateError),
    /// What LLM calls cost.
    #[error("the price list cannot be used: {0}")]
    Prices(String),
    /// The way out.
    #[error("cannot open the sandbox's way out: {0}")]
    Outward(std::io::Error),
    /// A file that goes in masked.
    #[error(transparent)]
    Data(#[from] Box<DataError>),
    /// It could not be written down, so it was not done.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

fn unenforceable(missing: &[Capability]) -> String {
    let reasons: Vec<String> = missing.iter().map(|c| format!("{} ({})", c.feature, c.detail)).collect();
    let mut text = format!("this host cannot enforce: {}", reasons.join("; "));
    if let Some(remedy) = missing.iter().find_map(|c| c.remedy.as_ref()) {
        text.push_str(&format!("; {remedy}"));
    }
    text.push_str("; or accept that with --best-effort");
    text
}

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
        }
    }

    /// The same engine, which keeps every sandbox away from what `radius` lists, whoever asks.
    pub fn protecting(self, radius: Radius) -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        Self { radius: Arc::new(radius.at_home(home.as_deref())), ..self }
    }

    /// What every sandbox is kept away from.
    pub fn radius(&self) -> &Radius {
        &self.radius
    }

    /// The walls, by name and level.
    pub fn walls(&self) -> impl Iterator<Item = (&'static str, Isolation)> + '_ {
        self.drivers.iter().map(|driver| (driver.name(), driver.isolation()))
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

    /// What each wall enforces on this host.
    pub fn reports(&self) -> Vec<DriverReport> {
        let reports = self.drivers.iter().map(|driver| {
            let mut report = driver.report();
            report.capabilities.extend([driver.egress(), devices_of(driver.as_ref())]);
            report
        });
        reports.collect()
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
            // Not before the check: those folders are protected from everybody else.
            spec.mounts.extend(volumes);
            let lease = self.leases.take(&image)?;
            let mut masked = self.mask(&id, &spec).await?;
            spec.mounts.append(&mut masked.binds);
            let machine = driver.create_lasting(wanted(&id, &spec, &image, &extras, memory)).await?;
            let sandbox = self.greet(Greeting::Now, id, spec, image, lease, machine, unenforced, patron).await?;
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
        told(span, self.take_snapshot(sandbox, name, config)).await
    }

    async fn take_snapshot(
        &self,
        sandbox: &Sandbox,
        name: Option<&str>,
        config: ImageConfig,
    ) -> Result<(Image, SnapshotReport), EngineError> {
        let store = self.images()?;
        let staging = store.snapshot_staging()?;
        let target = staging.dir().map_err(|error| {
            EngineError::Driver(DriverError::Failed { step: "take a snapshot".into(), detail: error.to_string() })
        })?;
        let report = sandbox.machine().snapshot(target).await?;
        tracing::Span::current().record("bytes", report.bytes);
        let (store, name, base) = (store.clone(), name.map(str::to_owned), sandbox.image().clone());
        // Usually a rename; now and then a copy of many layers.
        let keep = move || store.commit_snapshot(staging, name.as_deref(), &base, config, report.bytes);
        let kept = tokio::task::spawn_blocking(keep)
            .await
            .map_err(|error| DriverError::Failed { step: "keep a snapshot".into(), detail: error.to_string() })?;
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

    /// Whether a sandbox like this may and can be; returns what of it would not hold. Mounts become real paths.
    fn check(&self, spec: &mut Spec, extras: &mut Extras) -> Result<(&dyn Driver, Vec<Capability>), EngineError> {
        spec.check()?;
        let driver = self.driver(spec)?;
        spec.isolation = driver.isolation();
        extras.egress &= driver.spares_outlets() || spec.reaches_out();
        driver.prepare(spec);
        if !spec.lacks("protected-env") {
            self.radius.check_env(&spec.env)?;
        }
        self.radius.check_spec(spec)?;
        self.check_mounts(spec)?;
        if spec.image.contains('/') {
            self.check_source(Path::new(&spec.image))?;
        }
        let (mut report, mut required) = (driver.report(), driver.required());
        if extras.egress {
            report.capabilities.push(driver.egress());
            required.push(Feature::Egress);
        }
        let unenforced = check_features(spec, &report, &required)?;
        self.find_devices(spec, driver)?;
        Ok((driver, unenforced))
    }

    /// Finds the devices that a description names, and gives their variables to its commands.
    fn find_devices(&self, spec: &mut Spec, driver: &dyn Driver) -> Result<(), EngineError> {
        if spec.gpu.is_empty() {
            return Ok(());
        }
        driver.shows_devices().map_err(|reason| EngineError::NoDevices { driver: driver.name(), reason })?;
        spec.devices = Cdi::of_host()?.resolve(&spec.gpu)?;
        // Before the user's own, which count.
        spec.env.splice(0..0, spec.devices.env.clone());
        Ok(())
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
        flushed.wait();
    }

    /// The wall that a description asks for: by name, or the first of that strength.
    fn driver(&self, spec: &Spec) -> Result<&dyn Driver, EngineError> {
        let found = match &spec.driver {
            Some(name) => self.drivers.iter().find(|driver| driver.name() == name),
            None => self.usual_drivers().find(|driver| driver.isolation() == spec.isolation),
        };
        found.map(AsRef::as_ref).ok_or_else(|| match &spec.driver {
            Some(name) => {
                let names: Vec<&str> = self.drivers.iter().map(|driver| driver.name()).collect();
                EngineError::UnknownDriver(name.escape_debug().take(100).collect(), names.join(" or "))
            }
            None => {
                let mut names: Vec<&str> = self.usual_drivers().map(|driver| driver.isolation().name()).collect();
                names.dedup();
                EngineError::NoDriver(spec.isolation, names.join(" or "))
            }
        })
    }

    /// The walls that a level alone can stand for.
    fn usual_drivers(&self) -> impl Iterator<Item = &Box<dyn Driver>> {
        self.drivers.iter().filter(|driver| !driver.only_by_name())
    }

    /// The wall that volumes are made for.
    fn usual(&self) -> Result<&dyn Driver, EngineError> {
        self.driver(&Spec::default())
    }

    /// The name of the wall that a description asks for.
    pub fn driver_name(&self, spec: &Spec) -> Result<&'static str, EngineError> {
        Ok(self.driver(spec)?.name())
    }

    /// How strong the wall is that a description asks for.
    pub fn isolation_of(&self, spec: &Spec) -> Result<Isolation, EngineError> {
        Ok(self.driver(spec)?.isolation())
    }

    /// What the wall that a description asks for enforces on this host.
    pub fn report(&self, spec: &Spec) -> Result<DriverReport, EngineError> {
        let driver = self.driver(spec)?;
        let mut report = driver.report();
        report.capabilities.extend([driver.egress(), devices_of(driver)]);
        Ok(report)
    }

    /// Replaces what is to be mounted by its real path, refusing protected places.
    fn check_mounts(&self, spec: &mut Spec) -> Result<(), EngineError> {
        if spec.mounts.is_empty() {
            return Ok(());
        }
        let protected = self.protected();
        let unprotected = spec.lacks("protected-paths");
        for mount in &mut spec.mounts {
            if unprotected {
                continue;
            }
            mount.from = protected.check(&mount.from)?;
            // It would be empty inside, without a word why.
            let wanted = if mount.from.is_dir() { Access::READ_OK | Access::EXEC_OK } else { Access::READ_OK };
            access(&mount.from, wanted).map_err(|error| EngineError::Unreadable(mount.from.clone(), error.into()))?;
        }
        Ok(())
    }

    /// Masks what is to go in masked.
    async fn mask(&self, id: &str, spec: &Spec) -> Result<Masked, EngineError> {
        if spec.data.is_empty() {
            return Ok(Masked::default());
        }
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let own = [self.places.data.clone(), self.places.run.clone()];
        let rules = data::Rules { host: Protected::for_host(home.as_deref(), &own), all: self.protected() };
        let (place, id, mounts) = (self.places.data.clone(), id.to_owned(), spec.data.clone());
        let masking = tokio::task::spawn_blocking(move || data::mask(&place, &id, &mounts, &rules));
        let broken = |error| Box::new(DataError::Folder(std::io::Error::other(error)));
        Ok(masking.await.map_err(broken)??)
    }

    /// Refuses to make an image of a folder that may not be shown inside: that would be showing it.
    pub fn check_source(&self, source: &Path) -> Result<(), ProtectError> {
        if source.is_dir() {
            self.protected().check(source)?;
        }
        Ok(())
    }

    fn protected(&self) -> Protected {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let own = [self.places.data.clone(), self.places.run.clone()];
        Protected::for_host(home.as_deref(), &own).with(&self.radius.paths)
    }
}

fn wanted<'a>(
    id: &'a str,
    spec: &'a Spec,
    image: &'a Image,
    extras: &'a Extras,
    memory: Option<&'a Path>,
) -> Wanted<'a> {
    Wanted { id, spec, image, egress: extras.egress, files: &extras.files, memory }
}

/// Which devices a wall can show.
fn devices_of(driver: &dyn Driver) -> Capability {
    let missing = |reason: String, remedy| Capability::missing(Feature::Devices, reason, remedy);
    if let Err(reason) = driver.shows_devices() {
        return missing(reason.to_owned(), None);
    }
    match Cdi::of_host().map(|cdi| cdi.names()) {
        Ok(names) if names.is_empty() => missing(
            "this host has no CDI specification".to_owned(),
            Some("for a GPU of NVIDIA: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
        ),
        Ok(names) => Capability::enforced(Feature::Devices, format!("for those that ask: {}", names.join(", "))),
        Err(error) => missing(error.to_string(), None),
    }
}

/// Refuses a sandbox whose limits would not hold here; with `best_effort`, returns what does not.
fn check_features(spec: &Spec, report: &DriverReport, required: &[Feature]) -> Result<Vec<Capability>, EngineError> {
    if let Some(reason) = &report.unavailable {
        let asked = match &spec.driver {
            Some(name) => format!("driver '{name}'"),
            None => format!("isolation '{}'", spec.isolation),
        };
        return Err(EngineError::Unavailable { asked, reason: reason.clone() });
    }
    let missing: Vec<Capability> = report.lacking(required).into_iter().cloned().collect();
    if missing.is_empty() || spec.best_effort {
        return Ok(missing);
    }
    Err(EngineError::Unenforceable(missing))
}

/// Sixteen random letters and digits; no hyphens, so that `<port>-<id>` can be taken apart.
pub fn new_id() -> String {
    random_bytes::<16>()
        .map(|byte| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte % 32)]))
        .iter()
        .collect()
}

/// Forty random hexadecimal digits: whoever knows them may do something.
pub fn new_secret() -> String {
    random_bytes::<20>().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0u8; N];
    // Fails only before the pool is ready, long before a user can start a program.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes
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
