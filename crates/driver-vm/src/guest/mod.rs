//! Inside the machine: this program as its first process.
//!
//! It loads modules, mounts disks, and then does what it does on a host: it makes one sandbox of namespaces, whose agent the
//! host talks to through a port of the machine. So all that holds in a sandbox without a machine holds in one with it, and
//! whoever breaks out of it has only reached a kernel of his own.
//!
//! - [`mounts`]: the way from the kernel's first root to one of ours; disks.
//! - [`ports`]: the machine's port. [`keeper`]: what the host asks for. [`archive`]: what was written. [`outlets`]: the way out.

pub mod archive;
pub mod keeper;
pub mod mounts;
pub mod outlets;
pub mod ports;

use std::io::Write;

use sloplet_spawner::launcher::Forked;
use sloplet_spawner::server::Haste;

use crate::relay;

/// The hidden subcommand that the kernel starts this program with.
pub const SUBCOMMAND: &str = "__guest";

/// The word after the subcommand that makes this program catch a machine's state, beside QEMU.
pub const CATCH: &str = "catch";

/// Hands what comes to a port of loopback to standard output, after a line that says that it listens.
fn catch(port: &str) -> std::io::Result<()> {
    let port: u16 = port.parse().map_err(std::io::Error::other)?;
    let listener = std::net::TcpListener::bind(("127.0.0.1", port))?;
    let mut output = std::io::stdout().lock();
    output.write_all(b"ready\n")?;
    output.flush()?;
    let (mut stream, _) = listener.accept()?;
    std::io::copy(&mut stream, &mut output)?;
    output.flush()
}

/// The first process of a machine. Returns only to tell what went wrong; the kernel then stops the machine.
pub fn main() -> String {
    let words: Vec<String> = std::env::args().skip(2).collect();
    if let Some((word, words)) = words.split_first()
        && word == relay::WORD
    {
        match relay::main(words) {
            Ok(code) => std::process::exit(code),
            Err(error) => return format!("the relay beside QEMU: {error}"),
        }
    }
    if std::env::args().nth(2).as_deref() == Some(CATCH) {
        let caught = catch(&std::env::args().nth(3).unwrap_or_default());
        return caught.err().map(|error| error.to_string()).unwrap_or_default();
    }
    let begun = mounts::settle().and_then(|()| {
        // As long as there is one thread only.
        let forked = Forked::fork(Haste::None).map_err(|problem| std::io::Error::other(problem.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(keeper::run(forked))
    });
    match begun {
        Ok(()) => "the keeper ended".into(),
        Err(error) => format!("the guest cannot start: {error}"),
    }
}
