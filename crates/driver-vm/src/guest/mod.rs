//! Inside the machine: this program as its first process.
//!
//! It loads modules, mounts disks, and then does what it does on a host: it makes one sandbox of namespaces, whose agent the
//! host talks to through a port of the machine. So all that holds in a sandbox without a machine holds in one with it, and
//! whoever breaks out of it has only reached a kernel of his own.
//!
//! - [`mounts`]: the way from the kernel's first root to one of ours; disks.
//! - [`ports`]: the machine's port. [`keeper`]: what the host asks for. [`archive`]: what was written. [`outlets`]: the way out.
//! - [`whole`]: a machine with an init system in place of a sandbox.
//! - [`identity`]: what tells a machine from the one that it was saved from.

pub mod archive;
pub mod identity;
pub mod keeper;
pub mod mounts;
pub mod outlets;
pub mod ports;
pub mod whole;

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use sloplet_spawner::launcher::Forked;
use sloplet_spawner::server::Haste;

use self::keeper::Inside;
use crate::relay;

/// The hidden subcommand that the kernel starts this program with.
pub const SUBCOMMAND: &str = "__guest";

/// The word after the subcommand that makes this program catch a machine's state, beside QEMU.
pub const CATCH: &str = "catch";

/// What it says when it listens.
pub const READY: &[u8] = b"ready\n";

/// What a machine says on its console when it waits for its first visitor.
pub const WAITS: &[u8] = b"the machine waits";

/// The word that makes it send what is in a file.
pub const SEND: &str = "send";

/// The word that makes this program, as the first process of a machine, say that it runs, and end the machine.
pub const PROBE: &str = "probe";

/// Hands what comes to a port of loopback to standard output, after a line that says that it listens.
fn catch(port: &str) -> io::Result<()> {
    let port: u16 = port.parse().map_err(io::Error::other)?;
    let listener = std::net::TcpListener::bind(("127.0.0.1", port))?;
    let mut output = io::stdout().lock();
    output.write_all(READY)?;
    output.flush()?;
    let (mut stream, _) = listener.accept()?;
    io::copy(&mut stream, &mut output)?;
    output.flush()
}

/// Writes what is in a file to standard output, but for what is zero: stretches, each after its place and length.
fn send(path: &str) -> io::Result<()> {
    const PAGE: usize = 4096;
    const EMPTY: &[u8] = &[0; PAGE];
    let file = fs::File::open(path)?;
    let mut output = io::stdout().lock();
    let (size, mut at) = (file.metadata()?.len(), 0);
    let mut space = vec![0; 256 * PAGE];
    while at < size {
        at = match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            Ok(found) => found / PAGE as u64 * PAGE as u64,
            Err(_) => break, // holes up to the end
        };
        let count = file.read_at(&mut space, at)?;
        if count == 0 {
            break;
        }
        let mut begun = 0;
        let pages = space[..count].chunks(PAGE).map(|page| page != &EMPTY[..page.len()]).chain([false]);
        for (number, full) in pages.enumerate() {
            let here = (number * PAGE).min(count);
            if full {
                continue;
            }
            if begun < here {
                output.write_all(&(at + begun as u64).to_le_bytes())?;
                output.write_all(&((here - begun) as u64).to_le_bytes())?;
                output.write_all(&space[begun..here])?;
            }
            begun = here + PAGE;
        }
        at += count as u64;
    }
    output.flush()
}

/// What is done beside QEMU, or nothing if these words do not ask for it. An error is for whoever asked.
fn beside(words: &[String]) -> Option<io::Result<i32>> {
    let (word, rest) = words.split_first()?;
    match (word.as_str(), rest) {
        (relay::WORD, words) => Some(relay::main(words)),
        (CATCH, [port]) => Some(catch(port).map(|()| 0)),
        (SEND, [path]) => Some(send(path).map(|()| 0)),
        _ => None,
    }
}

/// The first process of a machine. Returns only to tell what went wrong; the kernel then stops the machine.
pub fn main() -> String {
    let words: Vec<String> = std::env::args().skip(2).collect();
    if words.first().is_some_and(|word| word == PROBE) {
        // The kernel ends the machine when its first process ends.
        return crate::kvm::WORDS.into();
    }
    match beside(&words) {
        Some(Ok(code)) => std::process::exit(code),
        Some(Err(error)) => return format!("beside QEMU: {error}"),
        None => {}
    }
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    if words.first().is_some_and(|word| word == whole::WORD) {
        let failed = whole::first_process().err().map(|error| error.to_string());
        return format!("the guest cannot start: {}", failed.unwrap_or_default());
    }
    if words.first().is_some_and(|word| word == whole::KEEPER) {
        let kept = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from).and_then(|first| {
            let _ = fs::write("/proc/self/oom_score_adj", "-1000");
            runtime()?.block_on(keeper::run(Inside::Whole(first), mounts::DisksDriver::found()))
        });
        return format!("the keeper ended: {kept:?}");
    }
    let begun = mounts::settle().and_then(|disks| {
        // As long as there is one thread only.
        let forked = Forked::fork(Haste::None).map_err(|problem| io::Error::other(problem.to_string()))?;
        runtime()?.block_on(keeper::run(Inside::Sandbox(forked), disks))
    });
    match begun {
        Ok(()) => "the keeper ended".into(),
        Err(error) => format!("the guest cannot start: {error}"),
    }
}
