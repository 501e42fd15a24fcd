//! Processes of the host.

use rustix::process::{Pid, PidfdFlags, Resource, getpriority_process, pidfd_open, prlimit, test_kill_process};
use rustix::thread::sched_getaffinity;
use sloplet_sys::attempt::{Call, attempt};

use sloplet_policy::Feature;

use crate::part::{Miss, Parts, contains, head, nothing};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "host-processes",
    ids: &[16],
    tries: "list, signal, inspect and limit a process of the host by its pid",
    why: "processes that are seen can be attacked: a pid namespace of its own shows none",
    needs: &[],
    kind: Kind::Attempts { parts, refusals: &[3] }, // ESRCH
};

fn parts(_: &Settings, parts: &mut Parts) {
    parts.add("signal", |settings| {
        test_kill_process(pid(settings)?)?;
        match is_host(settings, settings.host_process) {
            true => Ok("it can be signalled".into()),
            false => nothing("another process here"),
        }
    });
    parts.add("list", |settings| {
        let mut count = 0;
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            count += 1;
            if is_host(settings, number) {
                return Ok(format!("process {number}"));
            }
        }
        nothing(format!("{count} processes, none the host's"))
    });
    parts.optional("limits", |settings| {
        guarded(settings, |pid| {
            prlimit(Some(pid), Resource::Nofile, rustix::process::getrlimit(Resource::Nofile)).map(drop)
        })
    });
    // Whoever shares the host's process ids can ask whether there is such a process.
    let mut parts = parts.of_claim(Feature::OwnRoot);
    parts.add("priority", |settings| guarded(settings, |pid| getpriority_process(Some(pid)).map(drop)));
    parts.add("scheduler", |settings| guarded(settings, |pid| sched_getaffinity(Some(pid)).map(drop)));
    parts.add("session", |settings| {
        guarded(settings, |pid| attempt(Call::GetSession(pid.as_raw_nonzero().get())).map(drop))
    });
    parts.add("pidfd", |settings| guarded(settings, |pid| pidfd_open(pid, PidfdFlags::empty()).map(drop)));
}

fn pid(settings: &Settings) -> Result<Pid, Miss> {
    Pid::from_raw(settings.host_process).ok_or(Miss::Found("no process".into()))
}

/// A pid may be another process inside: only the marker tells.
fn is_host(settings: &Settings, number: i32) -> bool {
    head(format!("/proc/{number}/cmdline"), 65536).is_ok_and(|line| contains(&line, settings.marker.as_bytes()))
}

fn guarded<E>(settings: &Settings, action: impl Fn(Pid) -> Result<(), E>) -> crate::part::Tried
where
    Miss: From<E>,
{
    action(pid(settings)?)?;
    if settings.inside
        && head(format!("/proc/{}/cmdline", settings.host_process), 65536).is_ok()
        && !is_host(settings, settings.host_process)
    {
        return nothing("another process here");
    }
    Ok("answered".into())
}
