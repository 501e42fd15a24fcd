//! Lifetimes.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Host, Server};

fn state(served: &Server, id: &str) -> Option<String> {
    let list = served.json(&["ls", "--all"]);
    let found = list.as_array().unwrap().iter().find(|one| one["id"] == id)?;
    Some(found["state"].as_str().unwrap().to_owned())
}

#[track_caller]
fn wait_for(served: &Server, id: &str, wanted: Option<&str>) {
    let started = Instant::now();
    loop {
        let now = state(served, id);
        if now.as_deref() == wanted {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "it is {now:?}, not {wanted:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn time_ends_a_sandbox_or_pauses_it_and_can_be_extended() {
    let host = Host::shared();
    let leaks = host.leaks();
    let served = Server::start_with(&host.root(), &[]);
    let make = |options: &[&str]| served.command(&[&["create"], options].concat()).expect_code(0).word();
    let short = make(&["--timeout", "2s"]);
    let pausing = make(&["--timeout", "2s", "--pause-on-timeout"]);
    let extended = make(&["--timeout", "2s"]);
    let idle = make(&["--idle-timeout", "1s", "--auto-resume"]);
    served.command(&["timeout", &extended, "1h"]).expect_code(0);
    served.command(&["exec", &pausing, "--", "sh", "-c", "echo kept > file"]).expect_code(0);
    wait_for(&served, &short, None);
    wait_for(&served, &pausing, Some("paused"));
    wait_for(&served, &idle, Some("paused"));
    assert_eq!(state(&served, &extended).as_deref(), Some("running"));
    served.command(&["exec", &pausing, "--", "true"]).expect_code(125).expect_said("paused");
    served.command(&["resume", &pausing]).expect_code(0);
    let kept = served.command(&["exec", &pausing, "--", "cat", "file"]).expect_code(0);
    assert_eq!(kept.word(), "kept");
    // Traffic wakes this one.
    served.command(&["exec", &idle, "--", "true"]).expect_code(0);
    served.end_with_its_sandboxes();
    leaks.assert_none_new_after_a_server();
}

#[test]
fn time_goes_on_while_there_is_no_server() {
    let host = Host::shared();
    let leaks = host.leaks();
    let sloplet = host.root();
    let served = Server::start_with(&sloplet, &[]);
    let make = |options: &[&str]| served.command(&[&["create"], options].concat()).expect_code(0).word();
    let short = make(&["--timeout", "3s"]);
    let pausing = make(&["--timeout", "3s", "--pause-on-timeout"]);
    let long = make(&["--timeout", "1h"]);
    served.kill();
    thread::sleep(Duration::from_secs(7));
    let served = Server::start_with(&sloplet, &[]);
    assert_eq!(state(&served, &short), None);
    assert_eq!(state(&served, &pausing).as_deref(), Some("paused"));
    assert_eq!(state(&served, &long).as_deref(), Some("running"));
    served.command(&["resume", &pausing]).expect_code(0);
    served.command(&["exec", &pausing, "--", "true"]).expect_code(0);
    served.end_with_its_sandboxes();
    leaks.assert_none_new_after_a_server();
}

#[test]
fn a_stopped_sandbox_keeps_its_files_and_nothing_else() {
    let host = Host::shared();
    let leaks = host.leaks();
    let sloplet = host.root();
    let served = Server::start_with(&sloplet, &[]);
    let id = served.command(&["create"]).expect_code(0).word();
    served.command(&["exec", &id, "--", "sh", "-c", "echo kept > file"]).expect_code(0);
    served.command(&["exec", "-d", &id, "--", "sleep", "1000"]).expect_code(0);
    served.command(&["stop", &id]).expect_code(0);
    assert_eq!(state(&served, &id).as_deref(), Some("stopped"));
    served.command(&["exec", &id, "--", "true"]).expect_code(125);
    // It has no machine, so nothing of it can die with the server.
    served.kill();
    let served = Server::start_with(&sloplet, &[]);
    served.command(&["resume", &id]).expect_code(0);
    let kept = served.command(&["exec", &id, "--", "sh", "-c", "cat file; pgrep sleep || echo alone"]).expect_code(0);
    assert_eq!(kept.out(), "kept\nalone\n");
    served.end_with_its_sandboxes();
    leaks.assert_none_new_after_a_server();
}

/// Programs tell machines apart by an id that images for many machines have an empty file for.
#[test]
fn forks_are_other_machines() {
    let host = Host::shared();
    let served = Server::start_with(&host.root(), &[]);
    let id_of = |sandbox: &str| served.command(&["exec", sandbox, "--", "cat", "/etc/machine-id"]).expect_code(0).out();
    let first = served.command(&["create"]).expect_code(0).word();
    let install = ["exec", "--user", "root", &first, "--", "sh", "-c", "echo installed > /etc/machine-id"];
    served.command(&install).expect_code(0);
    let forks: Vec<String> =
        served.command(&["fork", &first, "--count", "2"]).expect_code(0).out().lines().map(str::to_owned).collect();
    let ids: Vec<String> = forks.iter().map(|fork| id_of(fork)).collect();
    for id in &ids {
        assert!(id.len() == 33 && id.trim_end().bytes().all(|byte| byte.is_ascii_hexdigit()), "{id:?}");
    }
    assert!(ids.len() == 2 && ids[0] != ids[1], "{ids:?}");
    let forged = "echo forged > /etc/machine-id; umount /etc/machine-id; rm -f /etc/machine-id";
    served.command(&["exec", "--user", "root", &forks[0], "--", "sh", "-c", forged]);
    assert_eq!(id_of(&forks[0]), ids[0]);
    served.command(&["stop", &forks[0]]).expect_code(0);
    served.command(&["resume", &forks[0]]).expect_code(0);
    assert_eq!(id_of(&forks[0]), ids[0], "it is the same sandbox");
    assert_eq!(id_of(&first), "installed\n");
    served.end_with_its_sandboxes();
}

/// Programs tell by the boot id whether a machine was started anew.
#[test]
fn every_machine_has_a_boot_id_of_its_own() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let served = Server::start_with(&sloplet, &[]);
        let boot_id = |id: &str| {
            let read =
                served.command(&["exec", id, "--", "cat", "/proc/sys/kernel/random/boot_id"]).expect_code(0).out();
            assert!(read.len() == 37 && read.ends_with('\n') && read.chars().nth(14) == Some('4'), "{read:?}");
            read
        };
        let [one, two] = [(); 2].map(|()| served.command(&["create"]).expect_code(0).word());
        let first = boot_id(&one);
        assert_ne!(first, boot_id(&two));
        assert_ne!(first, std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap());
        served.command(&["pause", &one]).expect_code(0);
        served.command(&["resume", &one]).expect_code(0);
        assert_eq!(boot_id(&one), first, "it is the same machine");
        served.command(&["stop", &one]).expect_code(0);
        served.command(&["resume", &one]).expect_code(0);
        assert_ne!(boot_id(&one), first, "it is another machine");
        let forged = "id=/proc/sys/kernel/random/boot_id; echo x > $id; umount $id; mount --bind /etc/passwd $id";
        let user = if sloplet.account.is_none() { "root" } else { "user" };
        served.command(&["exec", "--user", user, &two, "--", "sh", "-c", forged]);
        assert_eq!(boot_id(&two).len(), 37);
        served.end_with_its_sandboxes();
    }
}

#[test]
fn time_can_stop_a_sandbox() {
    let host = Host::shared();
    let served = Server::start_with(&host.root(), &[]);
    let wish = serde_json::json!({"timeout": "2s", "on_timeout": "stop"});
    let made = served.ask("POST", "/sandboxes", Some(wish)).expect(201).json();
    let path = format!("/sandboxes/{}", made["id"].as_str().unwrap());
    let started = Instant::now();
    while served.ask("GET", &path, None).expect(200).json()["state"] != "stopped" {
        assert!(started.elapsed() < Duration::from_secs(20), "it was not stopped");
        thread::sleep(Duration::from_millis(50));
    }
    served.ask("POST", &format!("{path}/resume"), None).expect(200);
    served.ask("DELETE", &path, None).expect(204);
    served.end_with_its_sandboxes();
}
