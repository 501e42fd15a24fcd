//! Pseudo-terminals.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use sloplet_wire::TerminalSize;

/// Opens a pair: the agent's end (non-blocking) and the program's. Acting as the program's user makes that user own it.
pub(crate) fn open(size: TerminalSize) -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    // Not by name: what /dev/pts/N names is up to whoever is root inside.
    let program = match rustix::pty::ioctl_tiocgptpeer(&master, flags) {
        Err(Errno::NOTTY | Errno::INVAL) => by_name(&master)?,
        program => program?,
    };
    resize(&master, size)?;
    let status = rustix::fs::fcntl_getfl(&master)?;
    rustix::fs::fcntl_setfl(&master, status | OFlags::NONBLOCK)?;
    Ok((master, program))
}

/// For kernels that know no better way (gVisor). What root inside may have put there instead is at least a device.
fn by_name(master: &OwnedFd) -> Result<OwnedFd, Errno> {
    let name = rustix::pty::ptsname(master, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let program = rustix::fs::open(name, flags, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&program)?.st_mode);
    if kind == FileType::CharacterDevice { Ok(program) } else { Err(Errno::NXIO) }
}

/// Sets the size; the kernel tells the foreground process group with SIGWINCH.
pub(crate) fn resize(terminal: impl AsFd, size: TerminalSize) -> Result<(), Errno> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(terminal, size)
}
