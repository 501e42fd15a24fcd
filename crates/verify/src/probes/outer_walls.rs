//! The sandbox's processes, as the host sees them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use sloplet_policy::Feature;

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};
use crate::processes::Process;

pub const PROBE: Probe = Probe {
    name: "outer-walls",
    ids: &[9, 12, 27],
    tries: "find, from the host, a process of the sandbox with a namespace, the root or user ids of the host, or no filter",
    why: "a kernel of its own is a program of the host: whoever takes it over has what that program has",
    needs: &[Feature::OwnRoot],
    kind: Kind::Drill(run),
};

/// Of the host, the least that is nobody's user id.
const NOBODYS: u64 = 65_536;

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let own = Process::tree(std::process::id() as i32);
    let of_own = |own| faults(drill, own, depth(own)).unwrap_or_default();
    let control: Vec<String> = own.iter().take(1).flat_map(of_own).collect();
    if control.is_empty() {
        return Ok(Finding::inconclusive("", "nothing is amiss with a process of the host either"));
    }
    let control = format!("of the verifier itself: {}", control.join(", "));
    let sandbox = drill.sandbox(|_| {}).await?;
    // Something runs in it while it is looked at.
    let running = sandbox.exec(drill.words(&["listen"])).await?;
    let found = sandbox.pid().map(Process::tree).unwrap_or_default();
    let deepest = found.iter().map(depth).max().unwrap_or(0);
    let seen: Vec<(i32, io::Result<Vec<String>>)> =
        found.iter().map(|process| (process.pid, faults(drill, process, deepest))).collect();
    drop(running);
    sandbox.destroy().await?;
    let (mut amiss, mut hidden, mut count) = (Vec::new(), Vec::new(), 0);
    for (pid, faults) in seen {
        match faults {
            Ok(faults) => {
                count += 1;
                amiss.extend(faults.into_iter().map(|fault| format!("process {pid}: {fault}")));
            }
            // It has ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => hidden.push(format!("process {pid}: {error}")),
        }
    }
    Ok(match (amiss.is_empty(), hidden.is_empty(), count) {
        (false, ..) => Finding::breach(control, amiss.join("; ")),
        (true, false, _) => Finding::inconclusive(control, format!("only root can look: {}", hidden.join("; "))),
        (true, true, 0) => Finding::inconclusive(control, "the wall names no process of the host"),
        (true, true, count) => Finding::contained(control, format!("{count} processes, none with any of this")),
    })
}

/// How many pid namespaces a process is in.
fn depth(process: &Process) -> usize {
    process.status().ok().and_then(|status| Some(status.get("NSpid")?.split_whitespace().count())).unwrap_or(0)
}

/// What a process has of the host. `deepest` is the depth of those that somebody inside can see.
fn faults(drill: &Drill<'_>, process: &Process, deepest: usize) -> io::Result<Vec<String>> {
    let claims = |feature| drill.wall.claims(feature);
    let mut found = Vec::new();
    for (kind, claimed) in [
        ("user", claims(Feature::OwnUids)),
        ("mnt", true),
        ("pid", true),
        ("net", claims(Feature::NoNetwork)),
        ("ipc", true),
        ("uts", true),
        ("cgroup", true),
    ] {
        let name = format!("ns/{kind}");
        if claimed && fs::read_link(process.file(&name))? == fs::read_link(format!("/proc/self/{name}"))? {
            found.push(format!("the host's {kind} namespace"));
        }
    }
    let place = |meta: fs::Metadata| (meta.dev(), meta.ino());
    if place(fs::metadata(process.file("root"))?) == place(fs::metadata("/")?) {
        found.push("the host's root".to_owned());
    }
    let status = process.status()?;
    let field = |name: &str| status.get(name).map_or("", String::as_str);
    let ids = field("Uid").split_whitespace().filter_map(|id| id.parse::<u64>().ok());
    if let Some(id) = ids.filter(|id| drill.settings().root && *id < NOBODYS).min().filter(|_| claims(Feature::OwnUids))
    {
        found.push(format!("user id {id} of the host"));
    }
    // Some only wait for a kernel of the sandbox's own, or for a runtime that has made further namespaces: they serve nobody
    // inside.
    let waits = process.has_children && (drill.own_kernel() || depth(process) < deepest);
    if claims(Feature::SyscallFilter) && !waits && field("Seccomp") != "2" {
        found.push("no filter on system calls".to_owned());
    }
    Ok(found)
}
