//! What a wall must offer.
//!
//! A driver brings up a machine whose first program is the agent and hands back a byte stream to it. Commands, files
//! and ports are the agent's business, the same behind every wall.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use sloplet_image::Image;
use sloplet_policy::{Bind, Capability, DriverReport, Feature, Isolation, Limits, Spec};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// A boxed future, so that drivers can be held as trait objects.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Bytes to and from an agent.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A wall.
pub trait Driver: Send + Sync {
    /// Its name, for people and files.
    fn name(&self) -> &'static str;

    /// The level of isolation it provides.
    fn isolation(&self) -> Isolation;

    /// Whether it must be asked for by its name: another wall stands for its level.
    fn only_by_name(&self) -> bool {
        false
    }

    /// What it enforces on this host, and what not. Asked before every start, so it should be cheap.
    fn report(&self) -> DriverReport;

    /// Whether its machines can have a way to the host's egress. Asked only where one is wanted, or a person asks.
    fn egress(&self) -> Capability {
        Capability::missing(Feature::Egress, "not with this driver", None)
    }

    /// Whether its machines can be shown devices of the host, as [`Spec::devices`] says; why not, if not.
    fn shows_devices(&self) -> Result<(), &'static str> {
        Err("not with this driver")
    }

    /// Whether a machine that may reach nothing has a way out nevertheless, for when that changes. A wall to which this would
    /// be dear says no.
    fn spares_outlets(&self) -> bool {
        true
    }

    /// Whether a machine that was made within the first limits can be given the second while it runs, by
    /// [`Machine::set_limits`].
    fn can_change_limits(&self, from: &Limits, to: &Limits) -> bool {
        let _ = (from, to);
        false
    }

    /// Whether a running machine that was made to be [claimed](Wanted::claimable) can be given mounts and a host name, by
    /// [`Machine::attach`].
    fn can_attach(&self) -> bool {
        false
    }

    /// What must hold for a sandbox to be one; without it a start is refused unless the user accepts less.
    fn required(&self) -> Vec<Feature> {
        Limits::features().into_iter().chain([Feature::NoNetwork, Feature::SyscallFilter]).collect()
    }

    /// A sandbox like this will be asked for in a moment: whatever takes time and does not depend on the image can start.
    fn prepare(&self, spec: &Spec) {
        let _ = spec;
    }

    /// Finds an image by its name, where the wall starts from images of its own; elsewhere they are those of the store.
    fn find_image<'a>(&'a self, name: &'a str) -> Option<Pending<'a, Result<Image, DriverError>>> {
        let _ = name;
        None
    }

    /// Brings up a machine. On failure nothing of it is left.
    fn create<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>>;

    /// Brings up a machine that outlives the engine: it goes on when this process ends, however it ends, and a later
    /// engine finds it with [`Self::adopt`]. On failure nothing of it is left.
    fn create_lasting<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        let _ = wanted;
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("keep a sandbox beyond the engine's end"))) })
    }

    /// Takes over the lasting machines of an engine that is gone. Whoever still talks to them is cut off.
    fn adopt(&self) -> Pending<'_, Result<Adoption, DriverError>> {
        Box::pin(async { Ok(Adoption::default()) })
    }

    /// Makes a file that holds an empty disk of so many bytes, for a volume that is not to grow beyond that.
    fn make_disk(&self, file: &Path, bytes: u64) -> Result<(), DriverError> {
        let _ = (file, bytes);
        Err(DriverError::Unsupported(Unsupported("bound the size of a volume")))
    }

    /// Removes a folder that its sandboxes could write to, whoever inside owns what is in it.
    fn remove_folder(&self, folder: &Path) -> Result<(), DriverError> {
        let failed = |error: std::io::Error| DriverError::Failed {
            step: format!("remove {}", folder.display()),
            detail: error.to_string(),
        };
        std::fs::remove_dir_all(folder).map_err(failed)
    }

    /// Removes what earlier runs left behind; returns how many things that were.
    fn collect(&self) -> Result<usize, DriverError> {
        Ok(0)
    }

    /// Ends helpers and waits for them; the last call to a driver.
    fn shut_down(&self) {}
}

/// A wall that others build on, too.
impl<T: Driver + ?Sized> Driver for Arc<T> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn isolation(&self) -> Isolation {
        (**self).isolation()
    }

    fn only_by_name(&self) -> bool {
        (**self).only_by_name()
    }

    fn report(&self) -> DriverReport {
        (**self).report()
    }

    fn egress(&self) -> Capability {
        (**self).egress()
    }

    fn shows_devices(&self) -> Result<(), &'static str> {
        (**self).shows_devices()
    }

    fn spares_outlets(&self) -> bool {
        (**self).spares_outlets()
    }

    fn can_change_limits(&self, from: &Limits, to: &Limits) -> bool {
        (**self).can_change_limits(from, to)
    }

    fn can_attach(&self) -> bool {
        (**self).can_attach()
    }

    fn required(&self) -> Vec<Feature> {
        (**self).required()
    }

    fn prepare(&self, spec: &Spec) {
        (**self).prepare(spec);
    }

    fn find_image<'a>(&'a self, name: &'a str) -> Option<Pending<'a, Result<Image, DriverError>>> {
        (**self).find_image(name)
    }

    fn create<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        (**self).create(wanted)
    }

    fn create_lasting<'a>(&'a self, wanted: Wanted<'a>) -> Pending<'a, Result<Box<dyn Machine>, DriverError>> {
        (**self).create_lasting(wanted)
    }

    fn adopt(&self) -> Pending<'_, Result<Adoption, DriverError>> {
        (**self).adopt()
    }

    fn make_disk(&self, file: &Path, bytes: u64) -> Result<(), DriverError> {
        (**self).make_disk(file, bytes)
    }

    fn remove_folder(&self, folder: &Path) -> Result<(), DriverError> {
        (**self).remove_folder(folder)
    }

    fn collect(&self) -> Result<usize, DriverError> {
        (**self).collect()
    }

    fn shut_down(&self) {
        (**self).shut_down();
    }
}

/// The machine that a driver is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The id of its sandbox.
    pub id: &'a str,
    /// What it is asked to be.
    pub spec: &'a Spec,
    /// What it starts from.
    pub image: &'a Image,
    /// Whether it has a way to the host's egress, see [`Machine::take_outlets`].
    pub egress: bool,
    /// Files that the host puts into its root.
    pub files: &'a [PutFile],
    /// A folder that [`Machine::checkpoint`] of the same driver has filled: the machine goes on from there, on the image
    /// that was saved at the same moment. Many can start from one folder, also at once; none may change it.
    pub memory: Option<&'a Path>,
    /// Whether it waits for somebody who may want mounts and a host name of its own, see [`Machine::attach`].
    pub claimable: bool,
    /// Whether somebody wants to hear which names are asked for where it has no way to the host's egress. Not every wall can.
    pub ear: bool,
}

/// What a sandbox gets besides what its description says; nothing by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extras {
    /// Whether it has a way to the host's egress: sockets for whoever [takes](Machine::take_outlets) them, and inside, a
    /// `resolv.conf` that names the resolver. Nothing goes out as long as nobody accepts.
    pub egress: bool,
    /// Files that the host puts into its root, for nobody inside to change. They are in no snapshot.
    pub files: Vec<PutFile>,
    /// Whether it waits for somebody who may want mounts of its own.
    pub claimable: bool,
    /// Whether names that are asked for are heard without a way out: an outlet with a resolver alone.
    pub ear: bool,
}

/// A file that the host puts into a machine's root, before anything runs there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutFile {
    /// Where it is seen inside: absolute paths without `..`. Symlinks to files are followed, inside the root.
    pub places: Vec<(String, When)>,
    /// What is in it.
    pub content: Vec<u8>,
    /// Files of the image, of which the first that there is (and has at most 4 MiB) comes before the content. A file for
    /// [`When::Absent`] that names itself here is a table of host names: what is there gets the lines that it lacks.
    pub after: Vec<String>,
    /// Its permissions.
    pub mode: u32,
}

/// When a file is put into a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Whatever is there.
    Always,
    /// If nothing is there, or an empty file: as the sandbox's own, for it to change.
    Absent,
    /// If a file is there.
    Present,
}

impl PutFile {
    /// A file that everybody inside may read.
    pub fn new(path: &str, when: When, content: impl Into<Vec<u8>>) -> Self {
        Self { places: vec![(path.to_owned(), when)], content: content.into(), after: Vec::new(), mode: 0o644 }
    }

    /// The table of host names, where a machine finds itself: the image's own, with the lines that it lacks.
    pub fn hosts(hostname: &str) -> Self {
        const PATH: &str = "/etc/hosts";
        let lines = format!("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 {hostname}\n");
        Self { after: vec![PATH.to_owned()], ..Self::new(PATH, When::Absent, lines) }
    }

    /// The id by which programs tell machines apart, where the image has one (or, as images for many machines do, an empty
    /// file for it): that of a sandbox for as long as it lives, and not that of its forks.
    pub fn machine_id(sandbox: &str) -> Self {
        let digest = Sha256::digest(format!("machine-id of {sandbox}"));
        let id: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Self { mode: 0o444, ..Self::new("/etc/machine-id", When::Present, format!("{id}\n")) }
    }

    /// The image's bundle of certificates with more of them (PEM), where distributions and OpenSSL look for it.
    pub fn certificates(more: impl Into<Vec<u8>>) -> Self {
        const DEBIAN: &str = "/etc/ssl/certs/ca-certificates.crt";
        const RED_HAT: &str = "/etc/pki/tls/certs/ca-bundle.crt";
        const OPENSSL: &str = "/etc/ssl/cert.pem";
        let places = [(DEBIAN, When::Always), (OPENSSL, When::Always), (RED_HAT, When::Present)];
        Self {
            places: places.map(|(path, when)| (path.to_owned(), when)).to_vec(),
            content: more.into(),
            after: [DEBIAN, RED_HAT, OPENSSL].map(str::to_owned).to_vec(),
            mode: 0o644,
        }
    }
}

/// Sockets on which the host hears what a machine wants from the outside; none of them blocks. They keep the machine's
/// network namespace in the kernel: to be closed when it ends.
#[derive(Debug)]
pub struct Outlets {
    /// Listeners, for all families together. What is accepted has the address that was wanted as its own (`getsockname`).
    pub listeners: Vec<OwnedFd>,
    /// Datagram sockets that questions to the resolver come to, and that answers are sent from.
    pub resolvers: Vec<OwnedFd>,
}

/// One machine behind a wall.
pub trait Machine: Send + Sync {
    /// A stream to its agent. The first call must work; later ones where the wall can.
    fn connect(&self) -> Pending<'_, Result<Box<dyn ByteStream>, DriverError>>;

    /// Freezes (or thaws) every process in it.
    fn pause(&self, frozen: bool) -> Pending<'_, Result<(), DriverError>> {
        let _ = frozen;
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("pause"))) })
    }

    /// Copies what was written in it to `target`, an empty folder: a layer to be put on top of its image's. It stands
    /// still meanwhile, so that the copy is of one moment. On failure or when given up, something may be left in the
    /// folder.
    fn snapshot(&self, target: OwnedFd) -> Pending<'_, Result<SnapshotReport, DriverError>> {
        let _ = target;
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("take snapshots"))) })
    }

    /// Saves its processes with their memory to `memory`, an empty folder of this engine's, and what was written to
    /// `files`, as [`Self::snapshot`] does, both of the same moment. A wall that keeps its disk with the memory leaves
    /// `files` empty. It goes on afterwards; streams to its agent may break.
    fn checkpoint<'a>(
        &'a self,
        memory: &'a Path,
        files: OwnedFd,
    ) -> Pending<'a, Result<CheckpointReport, DriverError>> {
        let _ = (memory, files);
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("take snapshots with memory"))) })
    }

    /// Replaces its deadline, counted from now; without one, it has none. It holds whatever becomes of the engine.
    fn set_deadline(&self, after: Option<Duration>, overdue: Overdue) -> Pending<'_, Result<(), DriverError>> {
        let _ = (after, overdue);
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("change a sandbox's deadline"))) })
    }

    /// Replaces what bounds it, where [`Driver::can_change_limits`] says so.
    fn set_limits<'a>(&'a self, limits: &'a Limits) -> Pending<'a, Result<(), DriverError>> {
        let _ = limits;
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("change a sandbox's limits"))) })
    }

    /// Shows folders of the host from now on, as if they had been mounted when it was made, and gives it a host name; where
    /// [`Driver::can_attach`] says so, and for a machine that was made to be claimed. Its agent must filter commands first if
    /// one of them is writable. If it fails, the machine is fit for nothing but to be destroyed.
    fn attach<'a>(&'a self, mounts: &'a [Bind], hostname: Option<&'a str>) -> Pending<'a, Result<(), DriverError>> {
        let _ = (mounts, hostname);
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("attach mounts to a sandbox that runs"))) })
    }

    /// What it uses.
    fn usage(&self) -> Pending<'_, Result<Usage, DriverError>> {
        Box::pin(async { Err(DriverError::Unsupported(Unsupported("tell what a sandbox uses"))) })
    }

    /// What it is now, and all that it becomes; any number of watchers.
    fn state(&self) -> watch::Receiver<MachineState>;

    /// Waits until it is gone, by itself or by [`Self::destroy`]. Can be given up and asked again.
    fn ended(&self) -> Pending<'_, End> {
        let mut state = self.state();
        Box::pin(async move {
            let ended = state.wait_for(|state| matches!(state, MachineState::Ended(_))).await.map(|state| *state);
            match ended {
                Ok(MachineState::Ended(end)) => end,
                // Nobody is left to tell.
                _ => End { lost: true, ..End::default() },
            }
        })
    }

    /// Kills everything in it and removes all that it held on the host. Idempotent.
    fn destroy(&self) -> Pending<'_, Result<End, DriverError>>;

    /// Where its commands start and keep their files (`HOME`, `TMPDIR`), for a wall without a root of its own; the image
    /// says so otherwise.
    fn home(&self) -> Option<&str> {
        None
    }

    /// Its way to the host's egress, if it has one; once.
    fn take_outlets(&self) -> Option<Outlets> {
        None
    }

    /// The host's pid of its first process, where there is one.
    fn pid(&self) -> Option<i32> {
        None
    }
}

/// What a machine is at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineState {
    /// Its processes run.
    Running,
    /// All its processes stand still.
    Frozen {
        /// Because its deadline came.
        overdue: bool,
    },
    /// It is gone.
    Ended(End),
}

impl MachineState {
    /// The states of a machine, out of what its keeper tells in words of its own. When that one falls silent, the machine
    /// is lost. Must be called within a runtime.
    pub fn follow<T: Send + Sync + 'static>(
        mut told: watch::Receiver<T>,
        translate: impl Fn(&T) -> Self + Send + 'static,
    ) -> watch::Receiver<Self> {
        let first = translate(&told.borrow_and_update());
        let (sender, receiver) = watch::channel(first);
        tokio::spawn(async move {
            while !matches!(*sender.borrow(), Self::Ended(_)) {
                let next = match told.changed().await {
                    Ok(()) => translate(&told.borrow_and_update()),
                    Err(_) => Self::Ended(End { lost: true, ..End::default() }),
                };
                sender.send_replace(next);
            }
        });
        receiver
    }
}

/// What happens to a machine at its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overdue {
    /// Everything in it is killed.
    Destroy,
    /// It is frozen, and has no deadline any more.
    Freeze,
}

/// What a machine uses; 0 where its host does not count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Processor time so far, in microseconds.
    pub cpu_us: u64,
    /// Bytes of memory, without what the kernel could drop at once. What is written counts, where that is kept in memory.
    pub memory: u64,
    /// The most it ever had, with what the kernel could have dropped.
    pub memory_peak: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Bytes written that are still there.
    pub disk_used: u64,
    /// Bytes it may write.
    pub disk_total: u64,
    /// Files made that are still there.
    pub files_used: u64,
    /// Files it may make.
    pub files_total: u64,
    /// Bytes of memory that hold copies of files on disks.
    pub cache: u64,
}

/// A finished snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotReport {
    /// Bytes of file content, without holes.
    pub bytes: u64,
    /// Files, folders, links and marks of removed ones.
    pub files: u64,
    /// Sockets, which are left out.
    pub skipped: u64,
    /// For how long it stood still because of that; nothing if it was frozen anyway.
    pub frozen_for: Duration,
}

/// A finished snapshot with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckpointReport {
    /// Of the files.
    pub files: SnapshotReport,
    /// Bytes that the memory takes on the host's disk.
    pub memory_bytes: u64,
}

/// What an engine that is gone has left.
#[derive(Default)]
pub struct Adoption {
    /// Machines that live.
    pub living: Vec<Adopted>,
    /// Machines that ended while there was no engine, as far as is known.
    pub ended: Vec<(String, End)>,
}

/// A machine that outlived its engine.
pub struct Adopted {
    /// Its sandbox's id.
    pub id: String,
    /// The machine.
    pub machine: Box<dyn Machine>,
    /// Whether it is frozen.
    pub frozen: bool,
    /// How long ago it was made.
    pub age: Duration,
    /// Whether whoever keeps it is of the same build as this engine, and knows all that this one can ask for.
    pub same_build: bool,
}

/// How a machine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct End {
    /// Processes that were killed for want of memory during its life.
    pub oom_kills: u64,
    /// It was killed because its life was over.
    pub timed_out: bool,
    /// It was killed because it wrote more than it may, where that is watched and not enforced.
    pub over_disk: bool,
    /// Nobody knows: whoever watched over it died (and it with him), or takes orders from another engine now.
    pub lost: bool,
}

/// A wall was asked for something it cannot do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this driver cannot {0}")]
pub struct Unsupported(pub &'static str);

/// What went wrong behind a wall.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// It cannot do that.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The host, or this process, has no room for more at present.
    #[error("cannot {step}: {detail}")]
    Exhausted {
        /// What was tried, as a verb phrase.
        step: String,
        /// Of what there is too little, and what to do.
        detail: String,
    },
    /// What was asked for makes no sense, or is not there.
    #[error("cannot {step}: {detail}")]
    Refused {
        /// What was tried, as a verb phrase.
        step: String,
        /// What is wrong with it, and what to do.
        detail: String,
    },
    /// A step failed.
    #[error("cannot {step}: {detail}")]
    Failed {
        /// What was tried, as a verb phrase.
        step: String,
        /// Why it failed, and what to do.
        detail: String,
    },
}
