//! The agent as a program, for walls that start a file: a kernel in user space, a virtual machine, a container engine.
//!
//! ```text
//! __agent serve (--listen PATH | --device PATH | --fd N | --stdio)... --user NAME | --fixed NAME:HOME
//!               [--root PATH] [--filter] [--allowlist] [--confine] [--closed PATH] [--score N]
//! __agent relay PATH
//! ```
//! - `--fd` is a connected stream socket, inherited; `--device` a character device such as a virtio port, used again for
//!   each host that opens its other end; `--listen` a socket, in a folder that only the agent's user may enter.
//!   `--stdio` is the standard input and output, of whatever kind.
//! - `--user` says whom commands are by default, where the agent is root and can become anybody; `--fixed` is for an agent
//!   that is, and stays, one user.
//! - `--filter` keeps commands from setting set-ID bits, where they can write to folders of the host.
//! - `--allowlist` puts the agent, and so all commands, under the filter of a container, where whoever started it has not.
//! - `--confine` gives up, for the agent and all that it starts, what walls that share the host's kernel forbid.
//! - `--closed` names a copy of this program that nobody inside can read: the agent goes on as that one, with its score for the
//!   out-of-memory killer (`--score`) open already, for the copy could not open it.
//! - `relay` joins its standard input and output to an agent that listens, for hosts that have no other way to reach it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use sloplet_sys::clone::SingleThreaded;
use sloplet_sys::filter::SockFilter;

use crate::{Config, Identity, door, serve};

/// The hidden subcommand of a binary that is also an agent.
pub const SUBCOMMAND: &str = "__agent";

/// What the program can be asked for that others know how to do.
#[derive(Debug, Clone, Copy)]
pub struct Measures {
    /// Makes the filter that keeps commands from setting set-ID bits.
    pub set_id: fn() -> Vec<SockFilter>,
    /// The filter of a container.
    pub container: fn() -> &'static [SockFilter],
    /// Gives up what walls that share the host's kernel forbid; told whether commands are filtered further.
    pub confine: fn(bool) -> io::Result<()>,
}

/// Runs the program. The process must have one thread.
pub fn main(words: &[String], measures: Measures) -> io::Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["relay", path] => relay(&UnixStream::connect(path)?),
        ["serve", before @ .., "--closed", closed] => Err(go_on_as(closed, before)),
        ["serve", options @ ..] => serve(config(options, measures)?),
        _ => Err(io::Error::other("what to do is missing: serve or relay")),
    }
}

fn config(options: &[&str], measures: Measures) -> io::Result<Config> {
    let thread = SingleThreaded::prove()?;
    let mut config = Config {
        stream: None,
        pipes: None,
        device: None,
        listener: None,
        door: None,
        identity: Identity::Switch { default_user: "root".into() },
        root: PathBuf::from("/"),
        oom_score: own_score().ok(),
        command_filter: None,
        spare_filter: None,
    };
    let (mut allowlist, mut confined, mut options) = (false, false, options.iter());
    while let Some(option) = options.next() {
        match *option {
            "--filter" => config.command_filter = Some((measures.set_id)()),
            "--allowlist" => allowlist = true,
            "--confine" => confined = true,
            "--stdio" => config.pipes = Some(standard_streams()?),
            _ => {}
        }
        if matches!(*option, "--filter" | "--allowlist" | "--confine" | "--stdio") {
            continue;
        }
        let value = options.next().ok_or_else(|| io::Error::other(format!("{option} needs a value")))?;
        match *option {
            "--listen" => {
                config.listener = Some(door::listen(Path::new(value))?);
                config.door = Some(value.into());
            }
            "--device" => config.device = Some(value.into()),
            "--fd" => {
                let number = value.parse().map_err(|_| io::Error::other(format!("--fd {value}: not a number")))?;
                config.stream = Some(thread.inherited(number)?);
            }
            "--user" => config.identity = Identity::Switch { default_user: (*value).to_owned() },
            "--fixed" => {
                let (name, home) = value.split_once(':').unwrap_or((value, "/"));
                let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
                config.identity = Identity::Fixed { uid, gid, name: name.to_owned(), home: home.into() };
            }
            "--root" => config.root = value.into(),
            "--score" => {
                let number = value.parse().map_err(|_| io::Error::other(format!("--score {value}: not a number")))?;
                config.oom_score = Some(thread.inherited(number)?.into());
            }
            _ => return Err(io::Error::other(format!("{option} is not known"))),
        }
    }
    if config.stream.is_none() && config.pipes.is_none() && config.device.is_none() && config.listener.is_none() {
        return Err(io::Error::other("a stream is missing: --listen, --device, --fd or --stdio"));
    }
    // While there is somebody to be told of a failure.
    if confined {
        (measures.confine)(config.command_filter.is_some())?;
    }
    // Nobody inside may look into the agent, where that is up to it.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // Whoever started it must not wait for the end of these.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    thread.replace_standard_fds(null.as_fd())?;
    if allowlist {
        sloplet_sys::filter::no_new_privs()?;
        sloplet_sys::filter::install((measures.container)())?;
    }
    Ok(config)
}

/// The score of this process, to be read and written. It stays that of the process when it executes another program.
fn own_score() -> io::Result<File> {
    File::options().read(true).write(true).open("/proc/self/oom_score_adj")
}

/// Executes another copy of this program; returns only if that fails.
fn go_on_as(closed: &str, options: &[&str]) -> io::Error {
    let mut command = Command::new(closed);
    command.args([SUBCOMMAND, "serve"]).args(options);
    let score = own_score().and_then(|score| {
        rustix::io::fcntl_setfd(&score, rustix::io::FdFlags::empty())?;
        Ok(score)
    });
    if let Ok(score) = &score {
        command.args(["--score", &score.as_raw_fd().to_string()]);
    }
    command.exec()
}

/// Copies of the standard input and output. They are the agent's alone: a process that passed bytes on between them and a
/// socket could be killed by whoever is the same user.
fn standard_streams() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok((io::stdin().as_fd().try_clone_to_owned()?, io::stdout().as_fd().try_clone_to_owned()?))
}

/// Copies in both directions until both have ended.
fn relay(socket: &UnixStream) -> io::Result<()> {
    let (input, output) = (io::stdin(), io::stdout());
    let (input, output) = (input.as_fd(), output.as_fd());
    let mut buffer = vec![0; 256 * 1024];
    let (mut up, mut down) = (true, true);
    while down {
        // A closed input would be ready for ever.
        let mut waiting = vec![PollFd::new(socket, PollFlags::IN)];
        if up {
            waiting.push(PollFd::from_borrowed_fd(input, PollFlags::IN));
        }
        match poll(&mut waiting, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready.get(1) == Some(&true) && !copy(input, socket.as_fd(), &mut buffer)? {
            up = false;
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
        if ready.first() == Some(&true) && !copy(socket.as_fd(), output, &mut buffer)? {
            down = false;
        }
    }
    Ok(())
}

/// Copies what one read brings; `false` at the end.
fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<bool> {
    let length = match rustix::io::read(from, &mut *buffer) {
        Ok(0) | Err(Errno::CONNRESET) => return Ok(false),
        Ok(length) => length,
        Err(Errno::INTR | Errno::AGAIN) => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    let mut rest = &buffer[..length];
    while !rest.is_empty() {
        match rustix::io::write(to, rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}
