//! A spawner for the tests, on a host as this driver is made for: a seccomp filter refuses everything that has to do
//! with namespaces and mounts.

use std::os::fd::AsFd;
use std::process::ExitCode;

use sloplet_sys::filter::{self, SockFilter};

fn main() -> ExitCode {
    let prepared = forbid_namespaces().and_then(|()| std::io::stdin().as_fd().try_clone_to_owned());
    match prepared {
        Ok(control) => {
            ExitCode::from(sloplet_spawner::server::serve(control, sloplet_spawner::server::Haste::None) as u8)
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// Before hostile code runs, that is: what the sandbox's own filter refuses proves nothing about its making.
fn forbid_namespaces() -> std::io::Result<()> {
    let forbidden = [
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_fsopen,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
    ];
    let line = |code: u32, k: u32, jt: u8| SockFilter { code: code as u16, jt, jf: 0, k };
    let mut program = vec![line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (number, call) in forbidden.iter().enumerate() {
        let to_refusal = (forbidden.len() - number) as u8;
        program.push(line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32, to_refusal));
    }
    program.push(line(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0));
    program.push(line(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0));
    if !rustix::process::geteuid().is_root() {
        filter::no_new_privs()?;
    }
    filter::install(&program)
}
