//! Single attempts. Each runs in a process of its own: some change or end the one that makes them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};
use sloplet_policy::Feature;
use sloplet_sys::attempt::{Call, attempt};
use sloplet_sys::clone::{SingleThreaded, exit_now};

use crate::settings::Settings;

/// How long an attempt may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most bytes of an answer.
const ANSWER: u64 = 64 * 1024;

/// The attempt found nothing.
#[derive(Debug)]
pub enum Miss {
    /// It says what it found instead.
    Found(String),
    /// The kernel refused.
    Refused(io::Error),
}

impl From<io::Error> for Miss {
    fn from(error: io::Error) -> Self {
        Self::Refused(error)
    }
}

impl From<Errno> for Miss {
    fn from(error: Errno) -> Self {
        Self::Refused(error.into())
    }
}

/// What came of an attempt: what it saw, if it took effect.
pub type Tried = Result<String, Miss>;

/// Nothing was found, with words why.
pub fn nothing<T>(words: impl Into<String>) -> Result<T, Miss> {
    Err(Miss::Found(words.into()))
}

/// An attempt.
pub type Action = Box<dyn Fn(&Settings) -> Tried>;

/// What an attempt that takes effect inside has an effect on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Of {
    /// The host, or what a sandbox promises whatever kernel it has: a breach.
    #[default]
    Host,
    /// The kernel that answers the sandbox. That is the host's, and the effect a breach, unless the wall has a kernel of its
    /// own: then the effect is on that one and says nothing about the host.
    Kernel {
        /// What of the kernel, as a plural.
        what: String,
        /// Whether a canary on the host watches the same thing of the host's kernel: then that one decides.
        watched: bool,
    },
    /// What a wall hides only if it claims a feature: a breach where it does.
    Claim(Feature),
}

/// The attempts of one probe.
#[derive(Default)]
pub struct Parts(Vec<Part>);

struct Part {
    name: String,
    optional: bool,
    of: Of,
    action: Action,
}

impl Parts {
    /// One that must take effect on every host.
    pub fn add(&mut self, name: impl Into<String>, action: impl Fn(&Settings) -> Tried + 'static) {
        self.push(name.into(), false, Of::Host, Box::new(action));
    }

    /// One that needs something not every host has: a device, an option of the kernel.
    pub fn optional(&mut self, name: impl Into<String>, action: impl Fn(&Settings) -> Tried + 'static) {
        self.push(name.into(), true, Of::Host, Box::new(action));
    }

    /// Attempts on something (a plural) of the kernel that answers: see [`Of::Kernel`].
    pub fn of_kernel(&mut self, what: &str) -> PartsOf<'_> {
        self.of(Of::Kernel { what: what.to_owned(), watched: false })
    }

    /// The same, where a canary watches that something of the host's kernel.
    pub fn of_watched_kernel(&mut self, what: &str) -> PartsOf<'_> {
        self.of(Of::Kernel { what: what.to_owned(), watched: true })
    }

    /// Attempts that only a wall with this feature must withstand.
    pub fn of_claim(&mut self, feature: Feature) -> PartsOf<'_> {
        self.of(Of::Claim(feature))
    }

    /// Attempts with effects of this kind.
    pub fn of(&mut self, of: Of) -> PartsOf<'_> {
        PartsOf { of, parts: self }
    }

    fn push(&mut self, name: String, optional: bool, of: Of, action: Action) {
        self.0.push(Part { name, optional, of, action });
    }

    /// Makes them all, one after the other.
    pub fn run(&self, probe: &str, settings: &Settings, mut tell: impl FnMut(Answer)) {
        for Part { name, optional, of, action } in &self.0 {
            let (did, errno, saw) = run_alone(|| action(settings));
            let (probe, part, of) = (probe.to_owned(), name.clone(), of.clone());
            tell(Answer { probe, part, optional: *optional, of, did, errno, saw });
        }
    }
}

/// Attempts on something else than the host as such, to be added to the others.
pub struct PartsOf<'p> {
    parts: &'p mut Parts,
    of: Of,
}

impl PartsOf<'_> {
    /// One that must take effect on every host.
    pub fn add(&mut self, name: impl Into<String>, action: impl Fn(&Settings) -> Tried + 'static) {
        self.parts.push(name.into(), false, self.of.clone(), Box::new(action));
    }

    /// One that needs something not every host has.
    pub fn optional(&mut self, name: impl Into<String>, action: impl Fn(&Settings) -> Tried + 'static) {
        self.parts.push(name.into(), true, self.of.clone(), Box::new(action));
    }
}

/// What one attempt answered. From inside, it is not to be trusted beyond what an attacker gains by lying: nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Whose attempt.
    pub probe: String,
    /// Which.
    pub part: String,
    /// Whether hosts may lack what it needs.
    pub optional: bool,
    /// What an effect is on. From inside, this counts for nothing.
    #[serde(default)]
    pub of: Of,
    /// Whether it took effect; nothing if the attempt itself is broken.
    pub did: Option<bool>,
    /// The kernel's refusal.
    pub errno: Option<i32>,
    /// What it saw.
    pub saw: String,
}

type Outcome = (Option<bool>, Option<i32>, String);

/// Runs an attempt in a forked process and reads its answer.
fn run_alone(action: impl FnOnce() -> Tried) -> Outcome {
    match try_alone(action) {
        Ok(outcome) => outcome,
        Err(error) => (None, None, format!("the attempt could not be made: {error}")),
    }
}

fn try_alone(action: impl FnOnce() -> Tried) -> io::Result<Outcome> {
    let thread = SingleThreaded::prove()?;
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let Some(pid) = thread.fork_plainly()? else {
        drop(reader);
        let outcome: Outcome = match action() {
            Ok(saw) => (Some(true), None, saw),
            Err(Miss::Found(saw)) => (Some(false), None, saw),
            Err(Miss::Refused(error)) => (Some(false), error.raw_os_error(), error.to_string()),
        };
        let text = serde_json::to_vec(&outcome).unwrap_or_default();
        let _ = File::from(writer).write_all(&text);
        exit_now(0)
    };
    drop(writer);
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("no pid"))?;
    let mut text = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    let mut reader = File::from(reader);
    let mut chunk = [0u8; 4096];
    let mut late = false;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&wait)) {
            Ok(0) => {
                late = true;
                let _ = kill_process(pid, Signal::KILL);
                break;
            }
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        let count = reader.read(&mut chunk)?;
        if count == 0 || text.len() as u64 > ANSWER {
            break;
        }
        text.extend_from_slice(&chunk[..count]);
    }
    let status = waitpid(Some(pid), WaitOptions::empty())?.map(|(_, status)| status);
    if let Ok(outcome) = serde_json::from_slice::<Outcome>(&text) {
        return Ok(outcome);
    }
    if late {
        return Ok((Some(false), None, "no answer in time".to_owned()));
    }
    match status.and_then(|status| status.terminating_signal()) {
        Some(signal) => Ok((Some(false), None, format!("killed by signal {signal}"))),
        None => Ok((None, None, "the attempt ended without an answer".to_owned())),
    }
}

/// Whether a system call gets past the door, whatever the code behind it then says.
pub fn reached(call: Call<'_>) -> Tried {
    match attempt(call) {
        Ok(value) => Ok(format!("returned {value}")),
        Err(error) if is_closed(&error) => Err(error.into()),
        Err(error) => Ok(format!("was carried out: {error}")),
    }
}

/// A system call that must succeed.
pub fn done(call: Call<'_>) -> Tried {
    Ok(format!("returned {}", attempt(call)?))
}

fn is_closed(error: &io::Error) -> bool {
    let closed = [Errno::PERM, Errno::ACCESS, Errno::NOSYS];
    error.raw_os_error().is_some_and(|code| closed.iter().any(|errno| errno.raw_os_error() == code))
}

/// Opens a file and closes it again.
pub fn openable(path: impl AsRef<Path>, flags: OFlags) -> Tried {
    let path = path.as_ref();
    rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?;
    Ok(format!("opened {}", path.display()))
}

/// Opens for writing.
pub fn writable(path: impl AsRef<Path>) -> Tried {
    openable(path, OFlags::WRONLY)
}

/// Up to so many bytes of a file.
pub fn head(path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>, Miss> {
    let mut bytes = Vec::new();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path.as_ref(), flags, Mode::empty())?);
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file that has content.
pub fn nonempty(path: impl AsRef<Path>) -> Tried {
    match head(path, 4096)? {
        bytes if bytes.is_empty() => nothing("empty"),
        bytes => Ok(format!("{} bytes: {}", bytes.len(), shown(&bytes))),
    }
}

/// A file that holds a text.
pub fn seen_in(path: impl AsRef<Path>, text: &str) -> Tried {
    let path = path.as_ref();
    match contains(&head(path, 1 << 22)?, text.as_bytes()) {
        true => Ok(format!("in {}", path.display())),
        false => nothing("not there"),
    }
}

/// A folder that has something in it.
pub fn listed(path: impl AsRef<Path>) -> Tried {
    let names: Vec<String> =
        std::fs::read_dir(path)?.flatten().take(4).map(|entry| entry.file_name().to_string_lossy().into()).collect();
    if names.is_empty() { nothing("empty") } else { Ok(names.join(", ")) }
}

/// Whether bytes occur in bytes.
pub fn contains(hay: &[u8], needle: &[u8]) -> bool {
    !needle.is_empty() && hay.windows(needle.len()).any(|window| window == needle)
}

/// The beginning of what may be anything.
pub fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(48)]).escape_debug().to_string()
}

/// A mount namespace to play in, on the host; inside that fails, and the attempt goes on without.
pub fn private_mounts() {
    use rustix::mount::{MountPropagationFlags, mount_change};
    const MOUNT: u64 = 0x20000;
    const USER: u64 = 0x1000_0000;
    if attempt(Call::Unshare(MOUNT)).is_ok() || attempt(Call::Unshare(MOUNT | USER)).is_ok() {
        let _ = mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC);
    }
}

/// A folder for the length of an attempt.
pub struct Place(pub std::path::PathBuf);

impl Place {
    /// A new one.
    pub fn make() -> Result<Self, Miss> {
        let path = std::env::temp_dir().join(format!("sloplet-attempt-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The link that names a descriptor of this process.
pub fn by_descriptor(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}
