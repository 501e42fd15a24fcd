//! The kernel's random numbers.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const RNDRESEEDCRNG: libc::c_ulong = 0x5207;

/// Lets the generator begin anew with all that its pool has got; `pool` is `/dev/urandom`. Only for root.
pub fn reseed(pool: &File) -> io::Result<()> {
    // SAFETY: RNDRESEEDCRNG takes no argument.
    match unsafe { libc::ioctl(pool.as_raw_fd(), RNDRESEEDCRNG) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
