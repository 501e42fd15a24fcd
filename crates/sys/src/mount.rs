//! `mount_setattr(2)`: what rustix's mount module lacks.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Mount attributes, `MOUNT_ATTR_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes(u64);

impl Attributes {
    /// Read-only.
    pub const READ_ONLY: Self = Self(libc::MOUNT_ATTR_RDONLY);
    /// Set-user-ID bits are ignored.
    pub const NO_SUID: Self = Self(libc::MOUNT_ATTR_NOSUID);
    /// Device files are dead.
    pub const NO_DEV: Self = Self(libc::MOUNT_ATTR_NODEV);
    /// Programs cannot be started from it.
    pub const NO_EXEC: Self = Self(libc::MOUNT_ATTR_NOEXEC);
}

impl std::ops::BitOr for Attributes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Adds attributes to the mount at `mount` (and to all below it if `recursive`), makes its propagation private, and, if
/// given, shifts the ownership of its files by the id mapping of a user namespace.
pub fn set_attributes(
    mount: BorrowedFd<'_>,
    add: Attributes,
    recursive: bool,
    idmap: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let attr = MountAttr {
        attr_set: add.0 | if idmap.is_some() { libc::MOUNT_ATTR_IDMAP } else { 0 },
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: idmap.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    change(mount, if recursive { libc::AT_RECURSIVE } else { 0 }, &attr)
}

/// Takes attributes from the mount at `mount`.
pub fn clear_attributes(mount: BorrowedFd<'_>, remove: Attributes) -> io::Result<()> {
    change(mount, 0, &MountAttr { attr_set: 0, attr_clr: remove.0, propagation: 0, userns_fd: 0 })
}

fn change(mount: BorrowedFd<'_>, flags: libc::c_int, attr: &MountAttr) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | flags;
    // SAFETY: the path is a constant C string and `attr` lives across the call, which reads exactly its size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The kernel's `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}
