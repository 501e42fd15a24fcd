//! Terminals: typing into those of others.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::ioctl_tiocsctty;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::tcgetwinsize;
use sloplet_sys::attempt::{Call, attempt, ignore_hangups, leave_session};

use crate::part::{Miss, Parts, PartsOf, nothing, openable, reached};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "terminals",
    ids: &[25],
    tries: "push characters into a terminal (TIOCSTI), steer consoles, open the host's terminals",
    why: "CVE-2017-5226: what is typed into the user's terminal, the user's shell executes",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[5, 6] }, // EIO, ENXIO
};

fn parts(_: &Settings, parts: &mut Parts) {
    of_kernel(&mut parts.of_kernel("terminals"));
    parts.add("the host's pseudo-terminal", |settings| {
        // That there is one says nothing: those inside have such names, too, and what cannot be opened is no way out.
        let path = format!("/dev/pts/{}", settings.terminal);
        let opened = rustix::fs::open(&path, OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK, Mode::empty())?;
        let size = tcgetwinsize(&opened)?;
        match (size.ws_row, size.ws_col) == settings.terminal_size {
            true => Ok(path),
            false => nothing("a terminal of that name, of its own"),
        }
    });
}

fn of_kernel(parts: &mut PartsOf<'_>) {
    // TIOCSTI can be switched off for all, which is well.
    parts.optional("TIOCSTI", |_| {
        let (_controller, terminal) = own_terminal()?;
        Ok(format!("returned {}", attempt(Call::Ioctl { fd: terminal.as_fd(), request: 0x5412 })?))
    });
    parts.optional("TIOCSTI by high bits", |_| {
        // CVE-2019-10063
        let (_controller, terminal) = own_terminal()?;
        Ok(format!("returned {}", attempt(Call::Ioctl { fd: terminal.as_fd(), request: 0x5412 | 1 << 32 })?))
    });
    for (name, request) in [("TIOCLINUX", 0x541c), ("TIOCSETD", 0x5423), ("TIOCVHANGUP", 0x5437)] {
        parts.add(name, move |_| {
            let (_controller, terminal) = own_terminal()?;
            reached(Call::Ioctl { fd: terminal.as_fd(), request })
        });
    }
    parts.optional("consoles", |_| {
        let names = std::fs::read_dir("/dev")?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let starts = ["tty", "vcs", "console", "hvc"];
        let found: Vec<String> =
            names.filter(|name| name != "tty" && starts.iter().any(|start| name.starts_with(start))).take(4).collect();
        if found.is_empty() { nothing("none") } else { Ok(found.join(", ")) }
    });
    parts.optional("the host's terminal", |_| openable("/dev/tty", OFlags::RDWR));
}

/// A terminal that controls this process, as TIOCSTI wants it.
fn own_terminal() -> Result<(OwnedFd, OwnedFd), Miss> {
    ignore_hangups();
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&controller)?;
    unlockpt(&controller)?;
    let terminal = rustix::fs::open(ptsname(&controller, Vec::new())?, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())?;
    leave_session();
    ioctl_tiocsctty(&terminal)?;
    Ok((controller, terminal))
}
