//! Sockets for addresses that are not this host's: what rustix's socket options lack.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Lets a socket have any address as its own, and be chosen by TPROXY rules; what is accepted from it, too. Needs
/// `CAP_NET_ADMIN` over its network namespace.
pub fn make_transparent(socket: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
    let (level, name) =
        if ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT) } else { (libc::IPPROTO_IP, libc::IP_TRANSPARENT) };
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads one `c_int`, whose size is passed and which lives across the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
