//! The program that runs as the agent: its file must not be had, in any way.

use rustix::fs::OFlags;

use crate::part::{Miss, Parts, by_descriptor, openable, writable};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "agent-binary",
    ids: &[1],
    tries: "open, name and execute /proc/1/exe, the host's own binary that serves inside",
    why: "CVE-2019-5736: a container overwrote the host's runc through it",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[] },
};

fn parts(settings: &Settings, parts: &mut Parts) {
    let exe = format!("/proc/{}/exe", settings.victim);
    let path = exe.clone();
    parts.add("open to read", move |_| openable(&path, OFlags::RDONLY));
    let path = exe.clone();
    parts.add("open as a path", move |_| openable(&path, OFlags::PATH));
    let path = exe.clone();
    parts.add("its name", move |_| Ok(std::fs::read_link(&path)?.display().to_string()));
    let path = exe.clone();
    parts.add("execute", move |_| {
        let output = std::process::Command::new(&path).arg("--version").output()?;
        Ok(format!("ran: {}", String::from_utf8_lossy(&output.stdout).trim()))
    });
    parts.add("open to write by its descriptor", move |_| {
        let fd = rustix::fs::open(&exe, OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
        match writable(by_descriptor(&fd)) {
            // It was about to be written, were it not running.
            Err(Miss::Refused(error)) if error.raw_os_error() == Some(rustix::io::Errno::TXTBSY.raw_os_error()) => {
                Ok("open but for it running".into())
            }
            other => other,
        }
    });
}
