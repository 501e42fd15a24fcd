//! Spawners that are killed or hang, and a server that may have few files open.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::common::machines::first_processes;
use crate::common::{Host, Server, until, until_within};

const PATIENCE: Duration = Duration::from_secs(120);

/// What the server removes by itself it looks for every 15 s.
#[track_caller]
fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    until_within(PATIENCE, what, holds);
}

/// The spawners of a server: its children that run the same program.
pub fn spawners(served: &Server) -> Vec<Pid> {
    crate::common::spawners::of(served.pid())
}

/// The records of spawners, each a folder.
fn owners(served: &Server) -> Vec<PathBuf> {
    let run = sloplet_sys::private::run_folder(&served.sloplet.run_dir, &served.sloplet.data).unwrap();
    fs::read_dir(run).unwrap().flatten().map(|entry| entry.path()).filter(|path| path.join("lock").exists()).collect()
}

fn make(served: &Server) -> String {
    served.command(&["create", "--memory", "64MiB", "--timeout", "never"]).expect_code(0).word()
}

fn state_of(served: &Server, id: &str) -> String {
    let all = served.json(&["ls", "--all"]);
    let found = all.as_array().unwrap().iter().find(|one| one["id"] == id || one["name"] == id);
    found.map_or_else(|| "forgotten".to_owned(), |one| one["state"].as_str().unwrap().to_owned())
}

#[test]
fn what_killed_spawners_leave_is_removed_by_the_server_itself() {
    let host = Host::shared();
    let served = Server::start(&host.root());
    let lost: Vec<String> = (0..4).map(|_| make(&served)).collect();
    let (killed, left) = (spawners(&served), owners(&served));
    assert!(!killed.is_empty() && !left.is_empty(), "{killed:?} {left:?}");
    killed.iter().for_each(|pid| kill_process(*pid, Signal::KILL).unwrap());
    wait_until("the server knows", || lost.iter().all(|id| state_of(&served, id) == "failed"));
    // A record goes after its control groups; a lease that has no owner any more goes after the record.
    wait_until("records are removed", || left.iter().all(|folder| !folder.exists()));
    let leases = served.sloplet.run_dir.join("uids");
    let ownerless = || fs::read_dir(&leases).unwrap().flatten().any(|lease| !lease.path().exists());
    wait_until("leases are released", || !ownerless());
    served.command(&["exec", &make(&served), "--", "true"]).expect_code(0);
    served.end();
}

#[test]
fn a_spawner_that_hangs_is_replaced_and_a_failed_sandbox_gives_its_volume_back() {
    let host = Host::shared();
    let served = Server::start(&host.root());
    served.command(&["volume", "create", "held"]).expect_code(0);
    let id = served.command(&["create", "--timeout", "never", "--volume", "held:/held"]).expect_code(0).word();
    let hung = spawners(&served);
    hung.iter().for_each(|pid| kill_process(*pid, Signal::STOP).unwrap());
    // Each that hangs is found out by somebody who waits for it, but not for long.
    let started = Instant::now();
    let mut made = None;
    while made.is_none() && started.elapsed() < Duration::from_secs(300) {
        let ended = served.invoke(&["create", "--timeout", "never"]).within(Duration::from_secs(120)).finish();
        made = (ended.code == 0).then(|| ended.word());
    }
    let made = made.expect("no sandbox can be made any more");
    served.command(&["exec", &made, "--", "true"]).expect_code(0);
    let failed = || state_of(&served, &id) == "failed";
    if !failed() {
        served.invoke(&["rm", &id]).within(Duration::from_secs(150)).finish().expect_code(0);
    }
    served.invoke(&["volume", "rm", "held"]).finish().expect_code(0);
    assert!(hung.iter().all(|pid| !spawners(&served).contains(pid)), "{hung:?} are still there");
    served.end();
}

#[test]
fn a_spawner_that_hangs_holds_up_neither_a_removal_nor_the_next_start() {
    let host = Host::shared();
    let sloplet = host.root();
    let served = Server::start_with(&sloplet, &[]);
    let hang = |served: &Server| {
        let hung = spawners(served);
        assert!(!hung.is_empty());
        hung.iter().for_each(|pid| kill_process(*pid, Signal::STOP).unwrap());
        hung
    };
    let lives = |pid: &Pid| fs::exists(format!("/proc/{}/exe", pid.as_raw_nonzero())).unwrap_or(false);
    let with_volume = |served: &Server, name: &str| {
        served.command(&["create", "--timeout", "never", "--name", name, "--volume", "held:/held"]).expect_code(0);
    };
    served.command(&["volume", "create", "held"]).expect_code(0);
    with_volume(&served, "one");
    hang(&served);
    served.invoke(&["rm", "one"]).within(PATIENCE).finish().expect_code(0);
    until("its machine is gone", || first_processes(&host).is_empty());
    with_volume(&served, "two");
    // Its spawner outlives the server, but does not answer the next.
    let (hung, key) = (hang(&served), served.key.clone());
    served.kill();
    let served = Server::try_start_again(&sloplet, &key).expect("a server that starts");
    assert_eq!(state_of(&served, "two"), "failed");
    until("its machine is gone", || first_processes(&host).is_empty());
    until("its spawner is gone", || !hung.iter().any(lives));
    served.command(&["rm", "two"]).expect_code(0);
    with_volume(&served, "three");
    served.command(&["exec", "three", "--", "touch", "/held/it"]).expect_code(0);
    served.end_with_its_sandboxes();
}

/// Descriptors that the server has open.
fn descriptors(served: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/fd", served.pid().as_raw_nonzero())).unwrap().count()
}

#[test]
fn a_sandbox_takes_four_descriptors_of_the_server_and_gives_them_back() {
    const COUNT: usize = 10;
    // A stream to its agent, a listener for what it wants from the outside, and a resolver for each family.
    const EACH: usize = 4;
    let host = Host::shared();
    let served = Server::start(&host.root());
    let more = || (0..COUNT).map(|_| make(&served)).collect::<Vec<_>>();
    // The first ones bring along what all share.
    let first = more();
    served.command(&["exec", &first[0], "--", "true"]).expect_code(0);
    let settled = || {
        // Connections of clients close a moment later than their answers arrive.
        let mut least = descriptors(&served);
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(50));
            least = least.min(descriptors(&served));
        }
        least
    };
    let before = settled();
    let second = more();
    second.iter().for_each(|id| drop(served.command(&["exec", id, "--", "true"]).expect_code(0)));
    until("each takes no more than that", || descriptors(&served) <= before + EACH * COUNT);
    let taken = settled() - before;
    println!("{COUNT} sandboxes take {taken} descriptors");
    second.iter().for_each(|id| drop(served.command(&["rm", id]).expect_code(0)));
    until("all are given back", || descriptors(&served) <= before);
    served.end();
}

#[test]
fn with_few_descriptors_a_sandbox_too_many_is_refused_and_no_other_ends() {
    let host = Host::shared();
    let root = host.root();
    // The soft limit is raised, the hard one is reached.
    let served = Server::start_under(&root, &["prlimit", "--nofile=40:200"], &["--destroy-on-exit"]);
    let wish = json!({"timeout": "1h"});
    let (mut made, mut refused) = (Vec::new(), None);
    for _ in 0..150 {
        let reply = served.ask("POST", "/sandboxes", Some(wish.clone()));
        match reply.status {
            201 => made.push(reply.json()["id"].as_str().unwrap().to_owned()),
            _ => {
                refused = Some(reply);
                break;
            }
        }
    }
    let refused = refused.expect("more sandboxes than descriptors");
    assert_eq!(refused.status, 503, "after {}: {refused:?}", made.len());
    assert!(refused.json()["message"].as_str().unwrap().contains("ulimit -n"), "{refused:?}");
    assert!(made.len() > 10, "only {}", made.len());
    for id in &made {
        assert_eq!(served.ask("GET", &format!("/sandboxes/{id}"), None).json()["state"], "running");
    }
    for id in [&made[0], &made[made.len() - 1]] {
        let ran = served.ask("POST", &format!("/sandboxes/{id}/exec"), Some(json!({"command": "echo hi"})));
        assert_eq!(ran.json()["stdout"], "hi\n", "{ran:?}");
    }
    for id in &made[..5] {
        served.ask("DELETE", &format!("/sandboxes/{id}"), None).expect(204);
    }
    assert_eq!(served.ask("POST", "/sandboxes", Some(wish)).status, 201);
    served.end();
}
