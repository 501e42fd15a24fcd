//! Installing a seccomp filter. What the filter says is `sloplet-seccomp`'s business.

use std::io;

pub use libc::sock_filter as SockFilter;

/// Gives up, for this thread and all its descendants, to gain rights by executing a set-user-id program or one with
/// file capabilities.
///
/// Needed before [`install`] by whoever lacks `CAP_SYS_ADMIN` in its user namespace.
pub fn no_new_privs() -> io::Result<()> {
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// Puts this process under a seccomp filter, for good: its other threads as well, and everything it will start.
///
/// Fails with `EACCES` without [`no_new_privs`] or `CAP_SYS_ADMIN`, with `EINVAL` for a program the kernel does not
/// accept, and with `EBUSY` if another thread is under a filter that this one is not under. Nothing is installed then.
pub fn install(program: &[SockFilter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // TSYNC, because a filter that covers one thread only covers nothing: the others share its memory. Without the flag
    // a caller that happens to have a second thread would not even notice.
    // SAFETY: the kernel copies `len` instructions from `filter` before the call returns, and writes to neither; both
    // outlive it. A filter changes what later system calls return, which breaks no rule of memory safety.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        )
    };
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        // The id of a thread that could not be brought along.
        _ => Err(io::Error::from_raw_os_error(libc::EBUSY)),
    }
}
