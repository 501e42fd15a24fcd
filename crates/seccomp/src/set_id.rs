//! A second, small filter for commands that may write to a folder of the host: no set-user-ID or set-group-ID files.
//!
//! What a sandbox writes to a writable mount belongs, outside, to the folder's owner. A set-user-ID program left there
//! would let whoever executes it on the host become that owner. Bits that cannot be set cannot be left behind.
//!
//! `openat2` takes its mode through a pointer, which a filter cannot follow: it is answered with `ENOSYS`, as by an older
//! kernel. The agent, which needs it, is not under this filter.

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO,
    sock_filter,
};

use crate::SockFilter;

/// Set-user-ID and set-group-ID.
const SET_ID: u32 = 0o6000;

/// Flags with which opening may make a file: `O_CREAT`, and what distinguishes `O_TMPFILE` from `O_DIRECTORY`.
const MAKES: u32 = 0o100 | 0o20_000_000;

/// Offsets in the kernel's `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARGUMENTS: u32 = 16;

/// Calls with a mode: number, its argument, and the argument with flags that decide whether the mode counts.
const CALLS: &[(i64, u32, Option<u32>)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1, None),
    (libc::SYS_fchmod, 1, None),
    (libc::SYS_fchmodat, 2, None),
    (FCHMODAT2, 2, None),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1, None),
    (libc::SYS_mknodat, 2, None),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1, None),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 2, Some(1)),
    (libc::SYS_openat, 3, Some(2)),
];

/// The same on every architecture, like all newer calls.
const FCHMODAT2: i64 = 452;

/// The program. Calls of other architectures are the main filter's business, which refuses them all.
pub fn program() -> Vec<SockFilter> {
    let mut program = vec![load(NUMBER)];
    for (number, mode, flags) in CALLS {
        // The accumulator still holds the number unless this call matches, and then nothing else does.
        let mut check = Vec::new();
        if let Some(flags) = flags {
            check.push(load(argument(*flags)));
            // Without any of them: over the three below, to `allow`.
            check.push(jump(BPF_JSET, MAKES, 0, 3));
        }
        check.extend([load(argument(*mode)), jump(BPF_JSET, SET_ID, 0, 1), refuse(libc::EPERM), allow()]);
        program.push(jump(BPF_JEQ, *number as u32, 0, check.len() as u8));
        program.extend(check);
    }
    program.push(jump(BPF_JEQ, libc::SYS_openat2 as u32, 0, 1));
    program.extend([refuse(libc::ENOSYS), allow()]);
    program
}

/// The low half of an argument; modes and flags are 32 bits wide, and the kernel ignores the rest.
fn argument(index: u32) -> u32 {
    ARGUMENTS + 8 * index + if cfg!(target_endian = "big") { 4 } else { 0 }
}

fn load(offset: u32) -> SockFilter {
    sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

fn jump(test: u32, value: u32, on_true: u8, on_false: u8) -> SockFilter {
    sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt: on_true, jf: on_false, k: value }
}

fn refuse(errno: i32) -> SockFilter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: SECCOMP_RET_ERRNO | errno as u32 }
}

fn allow() -> SockFilter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: SECCOMP_RET_ALLOW }
}
