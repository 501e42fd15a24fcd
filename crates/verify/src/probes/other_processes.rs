//! The agent, and whatever else runs inside as somebody else.

use std::os::fd::AsFd;

use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use sloplet_sys::attempt::Call;

use crate::part::{Miss, Parts, done, listed, nonempty, openable, reached};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "other-processes",
    ids: &[15],
    tries: "trace the agent, read and write its memory, steal its descriptors, read its files in /proc",
    why: "whoever reads the agent's memory or has its descriptors is the agent",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(settings: &Settings, parts: &mut Parts) {
    let victim = settings.victim;
    let address = if settings.address > 0 { settings.address } else { 0x40_0000 };
    parts.add("ptrace attach", move |_| done(Call::PtraceAttach(victim)));
    parts.add("ptrace seize", move |_| done(Call::PtraceSeize(victim)));
    parts.add("process_vm_readv", move |_| reached(Call::ProcessVmRead { pid: victim, address }));
    parts.add("process_vm_writev", move |_| reached(Call::ProcessVmWrite { pid: victim }));
    parts.optional("kcmp", move |_| reached(Call::Kcmp(victim)));
    parts.add("pidfd_getfd", move |_| {
        let fd = pidfd_open(pid(victim)?, PidfdFlags::empty())?;
        pidfd_getfd(&fd, 0, PidfdGetfdFlags::empty())?;
        Ok("stole a descriptor".into())
    });
    parts.optional("process_madvise", move |_| {
        let fd = pidfd_open(pid(victim)?, PidfdFlags::empty())?;
        reached(Call::ProcessMadvise(fd.as_fd()))
    });
    parts.add("open mem", move |_| openable(format!("/proc/{victim}/mem"), OFlags::RDWR));
    parts.add("open mem of its task", move |_| openable(format!("/proc/{victim}/task/{victim}/mem"), OFlags::RDONLY));
    // To be seen is not to be taken over: on the host's kernel it tells about the host's binary, on another about nothing.
    // Whether a secret of the host is among it, `host-secrets` asks.
    let mut parts = parts.of_kernel("processes");
    for name in ["environ", "maps", "auxv", "smaps"] {
        parts.add(format!("read {name}"), move |_| nonempty(format!("/proc/{victim}/{name}")));
    }
    for name in ["io", "syscall", "stack", "pagemap"] {
        parts.optional(format!("read {name}"), move |_| nonempty(format!("/proc/{victim}/{name}")));
    }
    for name in ["fd", "fdinfo", "root", "cwd"] {
        parts.add(format!("list {name}"), move |_| listed(format!("/proc/{victim}/{name}")));
    }
    for name in ["root", "cwd", "exe"] {
        parts.add(format!("name of {name}"), move |_| {
            Ok(std::fs::read_link(format!("/proc/{victim}/{name}"))?.display().to_string())
        });
    }
}

fn pid(number: i32) -> Result<Pid, Miss> {
    Pid::from_raw(number).ok_or(Miss::Found("no process".into()))
}
