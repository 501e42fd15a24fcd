//! What the host asks of the guest.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::system::RebootCommand;
use rustix::time::{ClockId, Timespec, clock_settime};
use sloplet_driver_namespaces::Namespaces;
use sloplet_engine::driver::When;
use sloplet_engine::{Driver, Machine, MachineState, PutFile, Wanted};
use sloplet_image::{HostBind, Image};
use sloplet_policy::Span;
use sloplet_spawner::launcher::Forked;
use tokio::io::DuplexStream;
use tokio::sync::{Mutex, OnceCell, mpsc, watch};

use super::mounts::DisksDriver;
use super::outlets::{self, Pipe};
use super::ports::{self, Visitor};
use super::{identity, mounts, whole};
use crate::mux::{Mux, Opened, Side, Stream};
use crate::talk::{self, Answer, Ask, Order, Resume, Used};

/// This program; its file is gone, the link still names it.
const PROGRAM: &str = "/proc/self/exe";

/// What is to be in the machine.
pub enum Inside {
    /// A sandbox, whose spawner this is.
    Sandbox(Forked),
    /// An init system, which the first process becomes.
    Whole(UnixStream),
}

/// Answers until the machine is stopped.
pub async fn run(inside: Inside, disks: Option<DisksDriver>) -> io::Result<()> {
    let (visitors, mut comers) = mpsc::unbounded_channel();
    ports::serve(talk::PORT, visitors)?;
    let (pipe, current) = watch::channel(None);
    let (opened, mut streams) = mpsc::unbounded_channel();
    let keeper = Arc::new(Keeper {
        inside: Mutex::new(Some(inside)),
        disks: Mutex::new(disks),
        machine: OnceCell::new(),
        driver: OnceCell::new(),
        held: Mutex::new(false),
        files: Mutex::default(),
        pipe: current,
    });
    // Heard by whoever boots a machine to have it saved before anybody has come.
    let _ = std::io::Write::write_all(&mut io::stdout(), &[super::WAITS, b"\n"].concat());
    loop {
        tokio::select! {
            Some(Visitor { incoming, outgoing }) = comers.recv() => {
                pipe.send_replace(Some(Mux::start(Side::Guest, incoming, outgoing, opened.clone())));
            }
            Some(Opened { purpose, stream }) = streams.recv() => match purpose.as_str() {
                talk::CONTROL => {
                    let (ours, theirs) = tokio::io::duplex(64 * 1024);
                    tokio::spawn(stream.carry(theirs));
                    tokio::spawn(keeper.clone().converse(ours));
                }
                talk::AGENT => {
                    tokio::spawn(keeper.clone().lead(stream));
                }
                _ => drop(stream),
            },
            else => return Ok(()),
        }
    }
}

struct Keeper {
    inside: Mutex<Option<Inside>>,
    /// To be loaded before disks are looked for.
    disks: Mutex<Option<DisksDriver>>,
    driver: OnceCell<Namespaces>,
    machine: OnceCell<Box<dyn Machine>>,
    /// Whether the host wants the sandbox to stand still.
    held: Mutex<bool>,
    /// Files that the host has put into the sandbox's root.
    files: Mutex<Vec<talk::PutFile>>,
    pipe: Pipe,
}

impl Keeper {
    async fn converse(self: Arc<Self>, mut stream: DuplexStream) -> io::Result<()> {
        loop {
            let answer = match talk::receive(&mut stream).await? {
                Ask::Begin(order) => self.begin(*order).await.map(|()| Answer::Done),
                Ask::Usage => self.usage().await,
                Ask::Resume(resume) => self.resumed(resume).await.map(|()| Answer::Done),
                Ask::Hold(still) => self.hold(still).await.map(|()| Answer::Done),
                Ask::Save => self.save(&mut stream).await,
            };
            let failed =
                |error: io::Error| Answer::Failed { step: "do that in the guest".into(), detail: error.to_string() };
            talk::send(&mut stream, &answer.unwrap_or_else(failed)).await?;
        }
    }

    fn machine(&self) -> io::Result<&dyn Machine> {
        self.machine.get().map(|machine| &**machine).ok_or_else(|| io::Error::other("there is no sandbox"))
    }

    /// Leads a stream to the agent. If that cannot be, whoever opened it sees it end.
    async fn lead(self: Arc<Self>, stream: Stream) -> io::Result<()> {
        let connected = self.machine()?.connect().await;
        stream.carry(connected.map_err(|error| io::Error::other(error.to_string()))?).await
    }

    async fn hold(&self, still: bool) -> io::Result<()> {
        let mut held = self.held.lock().await;
        self.machine()?.pause(still).await.map_err(|error| io::Error::other(error.to_string()))?;
        *held = still;
        Ok(())
    }

    /// Sends what was written, while nothing changes.
    async fn save(&self, stream: &mut DuplexStream) -> io::Result<Answer> {
        let held = self.held.lock().await;
        let other = |error: sloplet_engine::DriverError| io::Error::other(error.to_string());
        self.machine()?.pause(true).await.map_err(other)?;
        let sent = super::archive::send(&mounts::device("disk")?, stream).await;
        self.machine()?.pause(*held).await.map_err(other)?;
        sent.map(Answer::Saved)
    }

    async fn begin(&self, order: Order) -> io::Result<()> {
        if self.machine.initialized() {
            return Err(io::Error::other("there is a sandbox already"));
        }
        if let Some(driver) = self.disks.lock().await.take() {
            driver.load()?;
        }
        let mut layers = Vec::new();
        for number in 0..order.layers {
            let target = PathBuf::from(format!("/layers/{number}"));
            mounts::disk(&format!("l{number}"), &target)?;
            layers.push(target);
        }
        for (number, path) in order.system.iter().enumerate() {
            mounts::disk(&format!("s{number}"), Path::new(path))?;
        }
        let mut spec = order.spec;
        for (number, (bind, name)) in spec.mounts.iter_mut().zip(&order.mounts).enumerate() {
            let target = PathBuf::from(format!("/mounts/{number}"));
            mounts::disk(&format!("m{number}"), &target)?;
            bind.from = name.as_ref().map_or(target.clone(), |name| target.join(name));
        }
        // The host keeps its time.
        spec.limits.timeout = Span(Duration::from_secs(100 * 365 * 86_400));
        spec.best_effort = false;
        let bind = |path: &String| HostBind { source: path.into(), target: path.into() };
        let binds = order.system.iter().map(bind).collect();
        let image = Image::of_folders(&spec.image, layers, binds, order.config);
        self.files.lock().await.clone_from(&order.files);
        let files = order.files.into_iter().map(translate).collect::<io::Result<Vec<_>>>()?;
        let wanted = Wanted {
            id: &order.id,
            spec: &spec,
            image: &image,
            egress: order.egress,
            files: &files,
            memory: None,
            claimable: false,
            ear: false,
        };
        let forked = match self.inside.lock().await.take() {
            Some(Inside::Sandbox(forked)) => forked,
            Some(Inside::Whole(first)) => {
                let (whole, outlets) = whole::begin(first, wanted).await?;
                outlets.map_or(Ok(()), |outlets| outlets::pass_on(outlets, &self.pipe))?;
                let _ = self.machine.set(Box::new(whole));
                return Ok(());
            }
            None => return Err(io::Error::other("what was begun has failed")),
        };
        let run = Path::new("/run/sloplet");
        let mut driver = Namespaces::new(Path::new(PROGRAM), run, Path::new("/tmp"), 1).lasting();
        driver = driver.on_device(&mounts::device("disk")?);
        driver = driver.with_forked(forked);
        let machine = driver.create_lasting(wanted).await.map_err(|error| io::Error::other(error.to_string()))?;
        if let Some(outlets) = machine.take_outlets() {
            outlets::pass_on(outlets, &self.pipe)?;
        }
        // A machine without its sandbox is of no use: the host sees it end.
        let mut state = machine.state();
        tokio::spawn(async move {
            let _ = state.wait_for(|state| matches!(state, MachineState::Ended(_))).await;
            rustix::fs::sync();
            rustix::system::reboot(RebootCommand::Restart)
        });
        let _ = self.machine.set(machine);
        let _ = self.driver.set(driver);
        Ok(())
    }

    /// Makes this machine another than the one that it was saved from.
    async fn resumed(&self, resume: Resume) -> io::Result<()> {
        set_clock(resume.now);
        stir(&resume.entropy)?;
        let Some((hostname, new)) = resume.identity else { return Ok(()) };
        let pid = self.machine()?.pid().ok_or_else(|| io::Error::other("the sandbox has no first process"))?;
        let old = std::mem::replace(&mut *self.files.lock().await, new.clone());
        tokio::task::spawn_blocking(move || identity::renew(pid, &hostname, &old, &new))
            .await
            .map_err(io::Error::other)?
    }

    async fn usage(&self) -> io::Result<Answer> {
        let usage = self.machine()?.usage().await.map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Answer::Usage(Used {
            memory: usage.memory,
            memory_peak: usage.memory_peak,
            pids: usage.pids,
            disk_used: usage.disk_used,
            disk_total: usage.disk_total,
            files_used: usage.files_used,
            files_total: usage.files_total,
            cache: usage.cache,
        }))
    }
}

pub(super) fn translate(file: talk::PutFile) -> io::Result<PutFile> {
    let odd = || io::Error::other("a file in a form that is not understood");
    let when = |word: &str| match word {
        "always" => Ok(When::Always),
        "absent" => Ok(When::Absent),
        "present" => Ok(When::Present),
        _ => Err(odd()),
    };
    let places = file.places.into_iter().map(|(path, word)| Ok((path, when(&word)?))).collect::<io::Result<_>>()?;
    let digits = file.content.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let content = digits.map(byte).collect::<Option<Vec<u8>>>().ok_or_else(odd)?;
    Ok(PutFile { places, content, after: file.after, mode: file.mode })
}

/// Sets the guest's clock, if it is off by more than a moment.
fn set_clock(now: Duration) {
    let own = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    if own.abs_diff(now) > Duration::from_millis(50) {
        let time = Timespec { tv_sec: now.as_secs() as i64, tv_nsec: now.subsec_nanos().into() };
        let _ = clock_settime(ClockId::Realtime, time);
    }
}

/// Two machines that go on from the same moment must not draw the same numbers.
fn stir(entropy: &[u8]) -> io::Result<()> {
    let mut pool = std::fs::OpenOptions::new().write(true).open("/dev/urandom")?;
    std::io::Write::write_all(&mut pool, entropy)?;
    sloplet_sys::random::reseed(&pool)
}
