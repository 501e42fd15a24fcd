//! What a connection still has to send: an ioctl that rustix lacks.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes that were written to a TCP socket and that the other end has not yet got.
pub fn undelivered(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one `c_int`, which lives across the call. For sockets, TIOCOUTQ is SIOCOUTQ.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { Ok(usize::try_from(bytes).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}
