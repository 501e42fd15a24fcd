//! From a spec to a bundle's `config.json`.

use rustix::process::Resource;
use serde_json::{Value, json};
use sloplet_agent::program::SUBCOMMAND;
use sloplet_driver_namespaces::planning::{OPEN_FILES, default_user, host_folder};
use sloplet_engine::Wanted;
use sloplet_policy::Spec;
use sloplet_policy::weakness::PIDS_BEYOND;
use sloplet_spawner::container::procfs::{MASKED_FILES, MASKED_FOLDERS, READ_ONLY};
use sloplet_spawner::container::{LOCKED, MESSAGES};
use sloplet_spawner::runtime::house::places;
use sloplet_spawner::runtime::inside::KIT;

use crate::flavour::Flavour;

/// What root inside keeps; the same as in a container.
const CAPABILITIES: [&str; 11] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_SETFCAP",
];

/// The configuration. The agent speaks on its standard input, or, if it is to last, listens.
pub fn config(flavour: Flavour, wanted: &Wanted<'_>, lasting: bool) -> Value {
    let Wanted { spec, image, egress, .. } = wanted;
    let mut agent = vec![format!("{KIT}/agent"), SUBCOMMAND.to_owned(), "serve".to_owned()];
    match lasting {
        true => agent.extend(["--listen".to_owned(), format!("{KIT}/door/agent")]),
        false => agent.extend(["--fd".to_owned(), "0".to_owned()]),
    }
    agent.extend(["--user".to_owned(), default_user(spec, image)]);
    if spec.mounts.iter().any(|mount| mount.writable) && !spec.lacks("set-id-filter") {
        agent.push("--filter".to_owned());
    }
    let mut capabilities = CAPABILITIES.to_vec();
    if !flavour.has_kernel() {
        // For the agent to confine itself, before it serves anybody.
        agent.extend(["--confine".to_owned(), "--closed".to_owned(), format!("{KIT}/closed")]);
        capabilities.push("CAP_SYS_ADMIN");
    }
    let limit = |kind: &str, value: u64| json!({"type": kind, "hard": value, "soft": value});
    let mut namespaces = vec!["pid", "ipc", "uts", "mount"];
    if flavour.has_kernel() && !egress {
        namespaces.push("network");
    }
    let namespaces: Vec<Value> = namespaces.into_iter().map(|kind| json!({"type": kind})).collect();
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0},
            "args": agent,
            "env": [],
            "cwd": "/",
            "noNewPrivileges": false,
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            "rlimits": [
                // The agent is another user's, and counts, too.
                limit("RLIMIT_NPROC", u64::from(pids(spec).saturating_sub(1).max(1))),
                limit("RLIMIT_NOFILE", at_most(Resource::Nofile, OPEN_FILES)),
                limit("RLIMIT_CORE", 0),
                limit("RLIMIT_MEMLOCK", at_most(Resource::Memlock, LOCKED)),
                limit("RLIMIT_MSGQUEUE", at_most(Resource::Msgqueue, MESSAGES)),
            ],
        },
        "root": {"path": places::ROOT, "readonly": false},
        "hostname": spec.hostname,
        "mounts": mounts(flavour, wanted, lasting),
        "linux": linux(flavour, namespaces),
    })
}

/// Processes inside; many where a test of the verifier takes that bound away.
pub fn pids(spec: &Spec) -> u32 {
    spec.limits.pids + if spec.lacks("pids") { PIDS_BEYOND } else { 0 }
}

/// A kernel of its own has nothing to hide of the host's.
fn linux(flavour: Flavour, namespaces: Vec<Value>) -> Value {
    let paths = |names: &[&str]| names.iter().map(|name| format!("/proc/{name}")).collect::<Vec<_>>();
    let masked = [paths(&MASKED_FILES), paths(&MASKED_FOLDERS)].concat();
    match flavour.has_kernel() {
        true => json!({"namespaces": namespaces}),
        false => json!({
            "namespaces": namespaces,
            "maskedPaths": masked,
            "readonlyPaths": paths(&READ_ONLY),
        }),
    }
}

fn mounts(flavour: Flavour, wanted: &Wanted<'_>, lasting: bool) -> Vec<Value> {
    let mut shm = vec!["nosuid".to_owned(), "nodev".into(), "mode=1777".into()];
    shm.push(format!("size={}", wanted.spec.limits.memory.0 / 2));
    let mut terminals = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"].to_vec();
    if !flavour.has_kernel() {
        // The host has a number of them for all.
        terminals.push("max=64");
        shm.push("nr_inodes=16384".into());
    }
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=1m"]}),
        json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": terminals}),
        json!({"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs", "options": shm}),
        bind(KIT, places::KIT, false),
    ];
    if flavour.has_kernel() {
        mounts.push(bind("/tmp", places::TEMPORARY, true));
    }
    if lasting {
        mounts.push(bind(&format!("{KIT}/door"), places::DOOR, true));
    }
    let spec = wanted.spec;
    let place = |number: usize| format!("{}/{number}", places::MOUNTS);
    let open = spec.lacks("read-only-mounts");
    mounts.extend(
        spec.shown()
            .enumerate()
            .map(|(number, mount)| bind(&mount.to.display().to_string(), &place(number), mount.writable || open)),
    );
    let weakness = host_folder(|protection| spec.lacks(protection));
    mounts.extend(weakness.map(|(_, inside)| bind(inside, &place(spec.shown().count()), false)));
    mounts
}

fn bind(to: &str, from: &str, writable: bool) -> Value {
    let mode = if writable { "rw" } else { "ro" };
    json!({"destination": to, "type": "bind", "source": from, "options": ["rbind", "nosuid", "nodev", mode]})
}

/// As much as this user may have, at most.
fn at_most(resource: Resource, wanted: u64) -> u64 {
    rustix::process::getrlimit(resource).maximum.map_or(wanted, |hard| hard.min(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sloplet_policy::Bind;

    #[test]
    fn a_bundle_has_what_the_spec_says_and_no_more() {
        let image: sloplet_image::Image = serde_json::from_value(json!({
            "name": "x", "digest": "x", "layers": [], "binds": [], "config": {}, "size_bytes": 0, "created": 0,
            "skipped_entries": 0,
        }))
        .unwrap();
        let mount = Bind { from: "/data".into(), to: "/inside".into(), ..Bind::default() };
        let spec = Spec { mounts: vec![mount], hostname: "box".into(), ..Spec::default() };
        let wanted = Wanted {
            id: "a",
            spec: &spec,
            image: &image,
            egress: false,
            files: &[],
            memory: None,
            claimable: false,
            ear: false,
        };
        let config = config(Flavour::Runsc, &wanted, false);
        let args: Vec<&str> = config["process"]["args"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
        assert_eq!(args, ["/dev/.sloplet/agent", SUBCOMMAND, "serve", "--fd", "0", "--user", "1000:1000"]);
        assert_eq!(config["hostname"], "box");
        let all = config["mounts"].as_array().unwrap();
        let shown = all.iter().find(|mount| mount["destination"] == "/inside").unwrap();
        assert_eq!((&shown["source"], &shown["options"][3]), (&json!("/mounts/0"), &json!("ro")));
        assert!(!all.iter().any(|mount| mount["source"] == "/door"), "{all:?}");
        assert!(!config.to_string().contains("CAP_SYS_ADMIN"));

        // On the host's kernel: what tells of the host is hidden, and the agent gives up what it needs for a moment only.
        let config = super::config(Flavour::Crun, &wanted, true);
        let args: Vec<&str> = config["process"]["args"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
        let listening = ["/dev/.sloplet/agent", SUBCOMMAND, "serve", "--listen", "/dev/.sloplet/door/agent"];
        assert_eq!(args[..5], listening);
        assert_eq!(args[7..], ["--confine", "--closed", "/dev/.sloplet/closed"]);
        let masked = config["linux"]["maskedPaths"].as_array().unwrap();
        assert!(masked.contains(&json!("/proc/kcore")) && masked.contains(&json!("/proc/acpi")), "{masked:?}");
        assert!(config["linux"]["readonlyPaths"].as_array().unwrap().contains(&json!("/proc/sys")));
        let namespaces = config["linux"]["namespaces"].to_string();
        assert!(!namespaces.contains("network") && !namespaces.contains("user"), "both are around it: {namespaces}");
    }
}
