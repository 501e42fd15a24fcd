//! Attempts to get out of a sandbox, each of which works on the host and none of which may work inside: the probes in
//! `probes/`, as an ordinary user inside and as root inside, in sandboxes of root and of an ordinary user.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;
mod probes;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Host, Sloplet};
use rustix::fs::FileType;

use probes::{Probes, bare_root, problems};

/// All of them but `kill_all`, which kills the prober, too, and what host_image.rs looks for.
const PROBES: [&str; 29] = [
    "agent_binary",
    "inherited_descriptors",
    "release_agent",
    "kernel_settings",
    "masked_files",
    "namespaces",
    "mounts",
    "enter_namespaces",
    "climb_out",
    "file_handles",
    "other_processes",
    "host_processes",
    "keyrings",
    "kernel_interfaces",
    "kernel_power",
    "clocks",
    "sockets",
    "other_doors",
    "personalities",
    "terminals",
    "set_id_programs",
    "devices",
    "host_sockets",
    "shared_memory",
    "cgroups",
    "propagation",
    "read_only_files",
    "environment",
    "sweep",
];

/// Kinds of sandboxes, by options of `run`: the host's image as an ordinary user and as root inside (which it has only in
/// sandboxes of root), and another image as both.
fn kinds(host: &Host, sloplet: &Sloplet) -> Vec<Vec<String>> {
    let image = host.dir().join(sloplet.name).join("bare");
    bare_root(&image);
    let image = image.to_str().unwrap();
    let mut kinds = vec![vec!["--user", "user"]];
    if sloplet.account.is_none() {
        kinds.push(vec!["--user", "root"]);
    }
    for user in ["user", "root"] {
        kinds.push(vec!["--user", user, "--image", image, "--mount", "/usr:/usr:ro"]);
    }
    kinds.into_iter().map(|options| options.into_iter().map(str::to_owned).collect()).collect()
}

fn assert_contained(host: &Host, sloplet: &Sloplet) {
    let mut probes = Probes::plant(host, sloplet);
    let sweep = host.dir().join("sweep");
    fs::create_dir(&sweep).unwrap();
    fs::write(sweep.join("secret"), &probes.secret).unwrap();
    probes.set(serde_json::json!({"sweep": [sweep]}));
    let unconfined = probes.on_host(&host.root(), &PROBES);
    let mut all = Vec::new();
    for options in kinds(host, sloplet) {
        let inside = probes.inside(sloplet, host, &words(&options), &PROBES);
        let found = problems(&unconfined, &inside);
        all.extend(found.into_iter().map(|problem| format!("run {}: {problem}", options.join(" "))));
        assert!(probes.host_process_is_alive(), "a process of the host died");
        let file = fs::read_to_string(probes.dir.join("read-only")).unwrap();
        assert_eq!(file, "may be read, must not be changed", "run {}", options.join(" "));
    }
    assert!(all.is_empty(), "sandbox of {}: {} problems:\n{}", sloplet.name, all.len(), all.join("\n"));
    let conclusive = unconfined.values().filter(|verdict| verdict.did == Some(true)).count();
    assert!(conclusive > 150, "only {conclusive} attempts work on this host: too few to tell anything");
}

fn words(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

#[test]
fn what_works_on_the_host_fails_in_a_sandbox_of_root() {
    let host = Host::shared();
    assert_contained(&host, &host.root());
}

#[test]
fn what_works_on_the_host_fails_in_a_sandbox_of_an_ordinary_user() {
    let host = Host::shared();
    assert_contained(&host, &host.user());
}

#[test]
fn kill_all_ends_inside() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let mut probes = Probes::plant(&host, &sloplet);
        // First on the host, as a user who has one process.
        let mut victim = Command::new("setpriv")
            .args(["--reuid", "61234", "--regid", "61234", "--clear-groups", "sleep", "60"])
            .spawn()
            .unwrap();
        let path = format!("/proc/{}/status", victim.id());
        wait_until("the victim is another user", || {
            fs::read_to_string(&path).is_ok_and(|status| field(&status, "Uid:").trim().starts_with("61234"))
        });
        let unconfined = probes.on_host(&host.root(), &["kill_all"]);
        assert!(unconfined.values().all(|verdict| verdict.did == Some(true)), "inconclusive: {unconfined:?}");
        let status = victim.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "inconclusive: {status}");
        for options in kinds(&host, &sloplet) {
            let ended = probes.run_inside(&sloplet, &host, &words(&options), &["kill_all"]);
            // The prober's parent dies of it, its own sandbox's agent does not: that one reports the death.
            assert_eq!(ended.code, 137, "{ended}");
            assert!(probes.host_process_is_alive(), "{ended}");
        }
    }
}

/// CVE-2019-5736: the kernel looks up the interpreter of a script while the process still is a fork of the agent, so that
/// this names the agent's own file, which is the host's.
#[test]
fn a_script_cannot_run_the_agents_own_program() {
    let host = Host::shared();
    let dir = host.dir().join("scripts");
    fs::create_dir(&dir).unwrap();
    let script = dir.join("script");
    let sandboxes = [host.root(), host.user()].map(|sloplet| (sloplet.clone(), kinds(&host, &sloplet)));
    for interpreter in ["/proc/self/exe", "/proc/thread-self/exe", "/proc/1/exe"] {
        fs::write(&script, format!("#!{interpreter}\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        if interpreter != "/proc/1/exe" {
            // Unconfined, it runs whoever executes it: this very test, with the script as the name of a test.
            let done = Command::new(&script).output().unwrap();
            let text = String::from_utf8_lossy(&done.stdout).into_owned();
            assert!(text.contains("running 0 tests"), "inconclusive: {text:?}");
        }
        // Also where the binary lies in a folder that is shown inside.
        let installed = Path::new("/usr/local/bin").join(host.dir().file_name().unwrap());
        fs::copy(host.binary(), &installed).unwrap();
        let _removed = Removed(installed.clone());
        for binary in [host.binary(), &installed] {
            let before = fingerprint(binary);
            for (sloplet, kinds) in &sandboxes {
                for options in kinds {
                    let mount = format!("{}:/scripts:ro", dir.display());
                    let start = [binary.to_str().unwrap(), "run", "--mount", &mount];
                    let all = [&start, words(options).as_slice(), &["--", "/scripts/script"]].concat();
                    let ended = sloplet.other_program(&all).finish().expect_code(126);
                    assert_eq!(ended.stdout, b"", "{ended}");
                    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
                    assert!(!ended.stderr.contains("Usage"), "{ended}");
                }
            }
            assert_eq!(fingerprint(binary), before, "{} was changed", binary.display());
        }
    }
}

/// CVE-2024-21626: a working directory given as a descriptor that the runtime holds.
#[test]
fn a_descriptor_of_the_agent_is_no_way_out() {
    let host = Host::shared();
    let sandboxes = [host.root(), host.user()].map(|sloplet| (sloplet.clone(), kinds(&host, &sloplet)));
    let canary = host.dir().join("canary");
    fs::write(&canary, "of the host").unwrap();
    let up = format!("{}{}", "../".repeat(30), canary.to_str().unwrap().trim_start_matches('/'));
    let relative = canary.to_str().unwrap().trim_start_matches('/').to_owned();
    // Unconfined, a descriptor of a folder that is not closed is one.
    let attempt = format!("cat {up} || cat {relative}");
    let unconfined =
        host.root().other_program(&["sh", "-c", &format!("exec 7</; cd /proc/self/fd/7 && {attempt}")]).finish();
    assert_eq!(unconfined.out(), "of the host", "inconclusive: {unconfined}");
    for (sloplet, kinds) in &sandboxes {
        let strongest = words(kinds.last().unwrap()); // root inside
        for fd in (3..16).chain([100, 1000]) {
            for folder in [format!("/proc/self/fd/{fd}"), format!("/proc/1/fd/{fd}")] {
                let options = [strongest.as_slice(), &["--workdir", &folder]].concat();
                let ended = sloplet.run(&options, &["sh", "-c", &attempt]);
                assert!(!ended.out().contains("of the host"), "{ended}");
                assert_ne!(ended.code, 0, "{ended}");
            }
        }
    }
}

#[test]
fn capabilities_and_filters_are_as_the_profile_says() {
    let host = Host::shared();
    // chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, sys_chroot, setfcap
    let root_inside: u64 = [0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31].iter().map(|bit| 1u64 << bit).sum();
    for sloplet in [host.root(), host.user()] {
        let probes = Probes::plant(&host, &sloplet);
        for options in kinds(&host, &sloplet) {
            let verdicts = probes.inside(&sloplet, &host, &words(&options), &["privileges"]);
            let status: serde_json::Value = serde_json::from_str(&verdicts.values().next().unwrap().saw).unwrap();
            let (is_root, only_user) = (options[1] == "root", sloplet.account.is_some() && options.len() == 2);
            let field = |name: &str| status[name].as_str().unwrap().to_owned();
            let set = |name: &str| u64::from_str_radix(&field(name), 16).unwrap();
            let expected = if is_root { root_inside } else { 0 };
            assert_eq!(set("CapEff"), expected, "{options:?} {status:#}");
            assert_eq!(set("CapPrm"), expected, "{options:?} {status:#}");
            assert_eq!(set("CapBnd"), if only_user { 0 } else { root_inside }, "{options:?} {status:#}");
            assert_eq!((set("CapInh"), set("CapAmb")), (0, 0), "{options:?} {status:#}");
            assert_eq!(field("Seccomp"), "2", "{options:?} {status:#}");
            // Who can become nobody else needs no new privileges; with others there, sudo is to work.
            assert_eq!(field("NoNewPrivs") == "1", only_user, "{options:?} {status:#}");
            let ids = if is_root { "0\t0\t0\t0" } else { "1000\t1000\t1000\t1000" };
            assert_eq!((field("Uid").as_str(), field("Gid").as_str()), (ids, ids), "{options:?} {status:#}");
        }
    }
}

/// Root inside, and whoever becomes root inside by a set-user-ID file of their own, is nobody on the host.
#[test]
fn root_inside_is_nobody_outside() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let marker = format!("marker-{}-{}", std::process::id(), sloplet.name);
        // A set-user-ID copy of a shell, started by an ordinary user inside. Then a file capability, which is refused
        // or means nothing outside.
        let script = format!(
            "cp /usr/bin/python3 /tmp/powerful && chmod 4755 /tmp/powerful && \
             exec setpriv --reuid 1000 --regid 1000 --clear-groups /tmp/powerful -c '
import os, time
os.setresuid(0, 0, 0)
print(os.getresuid(), flush=True)
marker = \"{marker}\"
time.sleep(60)'"
        );
        let kinds = kinds(&host, &sloplet);
        let as_root = words(kinds.last().unwrap());
        let mut running = sloplet.invoke_run(&as_root, &["sh", "-c", &script]).unread_stdout().start();
        let mut line = String::new();
        let stdout = running.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        assert_eq!(line.trim(), "(0, 0, 0)", "the set-user-ID file works inside: {}", running.finish());
        let seen = processes_with(&marker);
        let inside: Vec<_> = seen.iter().filter(|status| status.contains("\nNSpid:\t") && nested(status)).collect();
        assert!(!inside.is_empty(), "{seen:?}");
        for status in inside {
            let uid = field(status, "Uid:").split_whitespace().next().unwrap().parse::<u32>().unwrap();
            match &sloplet.account {
                // A range of ids that nobody has.
                None => assert!(uid >= 65_536 && !has_name(uid), "{status}"),
                Some(account) => assert!(uid == account.uid || uid >= 65_536 && !has_name(uid), "{status}"),
            }
        }
        running.signal(rustix::process::Signal::TERM);
        running.finish();
    }
}

/// What is made in a writable mount belongs to the mount's owner (or to nobody); there are no devices in it.
#[test]
fn a_writable_mount_gives_nothing_away() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let shared = sloplet.folder("shared");
        let (uid, gid) = sloplet.account.as_ref().map_or((0, 0), |account| (account.uid, account.gid));
        let mount = format!("{}:/shared:rw", shared.display());
        let script =
            "cd /shared && echo made > plain; mknod disk b 8 0; mknod null c 1 3; ln -s /etc/shadow link; mkfifo fifo";
        for options in kinds(&host, &sloplet) {
            let options = [words(&options).as_slice(), &["--mount", &mount]].concat();
            let ended = sloplet.sh(&options, script).expect_code(0);
            let files = files_of(&shared);
            assert!(files.iter().any(|(path, _)| path.ends_with("link")), "nothing was written: {ended}");
            for (path, meta) in files {
                let kind = FileType::from_raw_mode(meta.mode());
                assert!(!matches!(kind, FileType::BlockDevice | FileType::CharacterDevice), "{path:?}: {ended}");
                let of_owner = (meta.uid(), meta.gid()) == (uid, gid);
                let of_nobody = !has_name(meta.uid()) && meta.uid() >= 65_536;
                assert!(of_owner || of_nobody, "{path:?} belongs to {}:{}: {ended}", meta.uid(), meta.gid());
                fs::remove_file(&path).unwrap();
            }
        }
    }
}

/// A program with the set-user-ID bit that is left in a mount, and belongs to the mount's owner outside, would make that
/// owner of whoever executes it there.
#[test]
fn no_set_id_program_is_left_in_a_writable_mount() {
    let host = Host::shared();
    let ways = [
        "cp /usr/bin/id program && chmod 6755 program",
        "python3 -c 'import os; os.umask(0); os.open(\"program\", os.O_CREAT | os.O_WRONLY, 0o6755)'",
        "python3 -c 'import os; os.umask(0); os.mknod(\"program\", 0o106755)'",
        "cp /usr/bin/id program && python3 -c 'import os; fd = os.open(\"program\", 0); os.fchmod(fd, 0o6755)'",
        "cp /usr/bin/id /tmp/id && chmod 6755 /tmp/id && cp -p /tmp/id program",
        "cp /usr/bin/id /tmp/id && chmod 6755 /tmp/id && tar -C /tmp -cf - id | tar -xpf - && mv id program",
    ];
    let mut found = Vec::new();
    for sloplet in [host.root(), host.user()] {
        let shared = sloplet.folder("shared");
        let mount = format!("{}:/shared:rw", shared.display());
        let mut kinds = kinds(&host, &sloplet);
        for options in [kinds.remove(0), kinds.pop().unwrap()] {
            for way in ways {
                let options = [words(&options).as_slice(), &["--mount", &mount, "--workdir", "/shared"]].concat();
                sloplet.sh(&options, way);
                for (path, meta) in files_of(&shared) {
                    if meta.mode() & 0o6000 != 0 && has_name(meta.uid()) {
                        let (mode, uid) = (meta.mode() & 0o7777, meta.uid());
                        found.push(format!("{mode:o} of user {uid}, by {} inside: {way}", options[1]));
                    }
                    fs::remove_file(&path).unwrap();
                }
            }
        }
    }
    assert!(found.is_empty(), "set-user-ID files on the host, made from inside:\n{}", found.join("\n"));
}

fn files_of(folder: &Path) -> Vec<(PathBuf, fs::Metadata)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), fs::symlink_metadata(path).unwrap())).collect()
}

fn processes_with(marker: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(marker) {
            found.extend(fs::read_to_string(entry.path().join("status")));
        }
    }
    found
}

/// Whether it lives in a PID namespace of its own.
fn nested(status: &str) -> bool {
    field(status, "NSpid:").split_whitespace().count() > 1
}

fn field<'s>(status: &'s str, name: &str) -> &'s str {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default()
}

fn has_name(uid: u32) -> bool {
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    passwd.lines().any(|line| line.split(':').nth(2) == Some(&uid.to_string()))
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Content and mode.
fn fingerprint(path: &Path) -> (Vec<u8>, u32) {
    (fs::read(path).unwrap(), fs::metadata(path).unwrap().mode())
}

/// A file that is removed at the end, come what may.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
