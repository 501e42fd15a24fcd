//! From a description to a running sandbox.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};
use sloplet_client::{Agent, ClientError};
use sloplet_image::{Image, ImageError, Store};
use sloplet_policy::protect::{ProtectError, Protected};
use sloplet_policy::spec::SpecError;
use sloplet_policy::{Capability, DriverReport, Feature, Isolation, Spec};

use crate::driver::{Driver, DriverError};
use crate::places::Places;
use crate::sandbox::Sandbox;

/// Makes sandboxes.
pub struct Engine {
    places: Places,
    drivers: Vec<Box<dyn Driver>>,
    images: OnceLock<Store>,
    host: Mutex<Option<(Image, Instant)>>,
}

/// The image made of the host's own programs.
const HOST: &str = "host";

/// Why there is no sandbox. Nothing was made, or all of it is removed again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The description makes no sense.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A mount is not allowed.
    #[error(transparent)]
    Protected(#[from] ProtectError),
    /// A mount that this user may not read.
    #[error("cannot mount '{}': {}", .0.display(), .1)]
    Unreadable(PathBuf, std::io::Error),
    /// No wall of that kind.
    #[error("isolation '{0}' is not available in this build: use {1}")]
    NoDriver(Isolation, String),
    /// The wall does not work here.
    #[error("isolation '{isolation}' does not work on this host: {reason} (see 'sloplet doctor')")]
    Unavailable {
        /// What was asked.
        isolation: Isolation,
        /// Why not.
        reason: String,
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
        Self { places, drivers, images: OnceLock::new(), host: Mutex::default() }
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
        self.drivers.iter().map(|driver| driver.report()).collect()
    }

    /// Removes what earlier runs left behind; returns how many things that were.
    pub fn collect(&self) -> Result<usize, DriverError> {
        self.drivers.iter().map(|driver| driver.collect()).sum()
    }

    /// Makes a sandbox and waits until its agent serves.
    pub async fn create(&self, mut spec: Spec) -> Result<Sandbox, EngineError> {
        spec.check()?;
        let driver = self.driver(spec.isolation)?;
        driver.prepare(&spec);
        self.check_mounts(&mut spec)?;
        if spec.image.contains('/') {
            self.check_source(Path::new(&spec.image))?;
        }
        let unenforced = check_features(&spec, &driver.report(), &driver.required())?;
        let image = self.resolve(&spec.image)?;
        let lease = image.lease()?;
        let id = new_id();
        let machine = driver.create(&id, &spec, &image).await?;
        let started = Instant::now();
        let agent = match machine.connect().await {
            Ok(stream) => Agent::connect(stream).await.map_err(EngineError::from),
            Err(error) => Err(error.into()),
        };
        match agent {
            Ok(agent) => Ok(Sandbox::new(id, spec, image, lease, machine, agent, unenforced, started)),
            Err(error) => {
                let _ = machine.destroy().await;
                Err(error)
            }
        }
    }

    /// Shim.
    pub async fn create_lasting(
        &self,
        id: String,
        mut spec: Spec,
        image: Image,
        volumes: Vec<sloplet_policy::Bind>,
    ) -> Result<Sandbox, EngineError> {
        let driver = self.driver(spec.isolation)?;
        let lease = image.lease()?;
        spec.check()?;
        spec.mounts.extend(volumes);
        let machine = driver.create(&id, &spec, &image).await?;
        let agent = Agent::connect(machine.connect().await?).await?;
        Ok(Sandbox::new(id, spec, image, lease, machine, agent, Vec::new(), Instant::now()))
    }

    /// Shim.
    pub async fn adopt(&self) -> Result<crate::driver::Adoption, DriverError> {
        Ok(crate::driver::Adoption::default())
    }

    /// Shim.
    pub async fn take_over(
        &self,
        adopted: crate::driver::Adopted,
        spec: Spec,
        image: Image,
    ) -> Result<Sandbox, EngineError> {
        let lease = image.lease()?;
        let agent = Agent::connect(adopted.machine.connect().await?).await?;
        Ok(Sandbox::new(adopted.id, spec, image, lease, adopted.machine, agent, Vec::new(), Instant::now()))
    }

    /// Finds an image. Whether the `host` image is still up to date takes some sixty looks at the host's files: once a
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

    /// Ends helper processes and waits for them.
    pub fn shut_down(&self) {
        self.drivers.iter().for_each(|driver| driver.shut_down());
    }

    fn driver(&self, isolation: Isolation) -> Result<&dyn Driver, EngineError> {
        let found = self.drivers.iter().find(|driver| driver.isolation() == isolation);
        found.map(AsRef::as_ref).ok_or_else(|| {
            let names: Vec<&str> = self.drivers.iter().map(|driver| driver.isolation().name()).collect();
            EngineError::NoDriver(isolation, names.join(" or "))
        })
    }

    /// Replaces what is to be mounted by its real path, refusing protected places.
    fn check_mounts(&self, spec: &mut Spec) -> Result<(), EngineError> {
        if spec.mounts.is_empty() {
            return Ok(());
        }
        let protected = self.protected();
        for mount in &mut spec.mounts {
            mount.from = protected.check(&mount.from)?;
            // It would be empty inside, without a word why.
            let wanted = if mount.from.is_dir() { Access::READ_OK | Access::EXEC_OK } else { Access::READ_OK };
            access(&mount.from, wanted).map_err(|error| EngineError::Unreadable(mount.from.clone(), error.into()))?;
        }
        Ok(())
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
        Protected::for_host(home.as_deref(), &[self.places.data.clone(), self.places.run.clone()])
    }
}

/// Refuses a sandbox whose limits would not hold here; with `best_effort`, returns what does not.
fn check_features(spec: &Spec, report: &DriverReport, required: &[Feature]) -> Result<Vec<Capability>, EngineError> {
    if let Some(reason) = &report.unavailable {
        return Err(EngineError::Unavailable { isolation: spec.isolation, reason: reason.clone() });
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
