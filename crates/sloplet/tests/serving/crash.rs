//! kill -9 of the server at any moment.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::{Host, Server, Sloplet, rounds};

/// Starts a process that goes on counting, and tells its pid. Slowly: there are a hundred of them.
const COUNTER: &str = "(i=0; while sleep 2; do i=$((i+1)); echo $i > count; done) >/dev/null 2>&1 & echo $!";

fn ids(served: &Server) -> BTreeMap<String, String> {
    let list = served.json(&["ls"]);
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(|one| (text(&one["id"]), text(&one["state"]))).collect()
}

fn make(served: &Server, count: usize) -> BTreeMap<String, String> {
    // Several at a time, as clients do.
    thread::scope(|scope| {
        let makers: Vec<_> = (0..4)
            .map(|maker| {
                scope.spawn(move || {
                    let mine = (maker..count).step_by(4).map(|_| {
                        let id = served
                            .command(&["create", "--memory", "64MiB", "--timeout", "never"])
                            .expect_code(0)
                            .word();
                        let pid = served.command(&["exec", &id, "--", "sh", "-c", COUNTER]).expect_code(0).word();
                        (id, pid)
                    });
                    mine.collect::<Vec<_>>()
                })
            })
            .collect();
        makers.into_iter().flat_map(|maker| maker.join().unwrap()).collect()
    })
}

fn survive(sloplet: &Sloplet, count: usize) {
    let served = Server::start_with(sloplet, &[]);
    let counters = make(&served, count);
    let paused: Vec<&String> = counters.keys().step_by(10).collect();
    for id in &paused {
        served.command(&["pause", id]).expect_code(0);
    }
    // Half-made ones, and a snapshot under way, at the moment of the kill.
    let busy = counters.keys().nth(1).unwrap();
    let half_made: Vec<_> = (0..4)
        .map(|number| match number {
            0 => served.invoke(&["snapshot", busy]).start(),
            _ => served.invoke(&["create", "--timeout", "never"]).start(),
        })
        .collect();
    thread::sleep(Duration::from_millis(15));
    served.kill();
    for one in half_made {
        let _ = one.finish();
    }
    let restarted = Instant::now();
    let served = Server::start_with(sloplet, &[]);
    let all = ids(&served);
    let first = counters.keys().nth(1).unwrap();
    served.command(&["exec", first, "--", "true"]).expect_code(0);
    assert!(restarted.elapsed() < Duration::from_secs(20), "it took {:?}", restarted.elapsed());
    for (id, pid) in &counters {
        let state = all.get(id).unwrap_or_else(|| panic!("sandbox {id} is lost; there are {all:?}"));
        if paused.contains(&id) {
            assert_eq!(state, "paused");
            served.command(&["resume", id]).expect_code(0);
        } else {
            assert_eq!(state, "running");
        }
        // The same process is still there.
        served.command(&["exec", id, "--", "sh", "-c", &format!("kill -0 {pid}")]).expect_code(0);
    }
    // And goes on, also where it was frozen.
    for id in [first, paused[0]] {
        let script = "before=$(cat count); for i in $(seq 100); do sleep 0.1; [ \"$(cat count)\" = \"$before\" ] || exit 0; done; exit 1";
        served.command(&["exec", id, "--", "sh", "-c", script]).expect_code(0);
    }
    // What is neither was finished before the kill, and works.
    for id in all.keys().filter(|id| !counters.contains_key(*id)) {
        served.command(&["exec", id, "--", "true"]).expect_code(0);
    }
    served.end_with_its_sandboxes();
}

#[test]
fn sandboxes_outlive_a_killed_server_with_their_processes() {
    let host = Host::alone();
    let leaks = host.leaks();
    survive(&host.root(), rounds(100, 10));
    survive(&host.user(), 10);
    leaks.assert_none_new_after_a_server();
}

#[test]
fn sandboxes_outlive_a_server_that_was_asked_to_end_unless_that_is_not_wanted() {
    let host = Host::shared();
    let leaks = host.leaks();
    let sloplet = host.root();
    let served = Server::start_with(&sloplet, &[]);
    let id = served.command(&["create"]).expect_code(0).word();
    served.end();
    let served = Server::start_with(&sloplet, &["--destroy-on-exit"]);
    served.command(&["exec", &id, "--", "true"]).expect_code(0);
    served.end();
    let served = Server::start_with(&sloplet, &[]);
    assert_eq!(ids(&served), BTreeMap::new());
    served.end_with_its_sandboxes();
    leaks.assert_none_new_after_a_server();
}

#[test]
fn output_offsets_outlive_a_killed_server_and_what_is_lost_is_told() {
    let host = Host::shared();
    let sloplet = host.root();
    let mut served = Server::start_with(&sloplet, &[]);
    let key = served.key.clone();
    served.ask("POST", "/sandboxes", Some(json!({"name": "it", "timeout": "1h"}))).expect(201);
    // More than anybody keeps inside, and both channels.
    let script =
        "seq 1 60000; echo flood >&2; i=0; while sleep 0.2; do i=$((i+1)); echo tick $i; echo tock $i >&2; done";
    let started = served.ask("POST", "/sandboxes/it/processes", Some(json!({"command": ["sh", "-c", script]})));
    let path = format!("/sandboxes/it/processes/{}/output", started.expect(201).json()["pid"]);
    // What was written, by the word of the first server.
    let (mut written, mut last) = (String::new(), String::new());
    let mut events = served.events(&path, "");
    while !written.contains("tock 2\n") {
        let event = events.next().expect("more output");
        assert_eq!(event.data["offset"].as_u64(), Some(written.len() as u64), "nothing is lost while somebody reads");
        written.push_str(event.data["text"].as_str().unwrap());
        last = event.id;
    }
    served.kill();
    served = Server::start_with(&sloplet, &[]);
    served.key = key;
    let restarted = Instant::now();
    while served.ask("GET", path.trim_end_matches("/output"), None).status != 200 {
        assert!(restarted.elapsed() < Duration::from_secs(30), "the process is not found again");
        thread::sleep(Duration::from_millis(20));
    }
    let seen = written.len();
    let mut events = served.events(&path, &format!("Last-Event-ID: {last}\r\n"));
    while !written.contains("tock 4\n") {
        let event = events.next().expect("more output");
        assert_eq!(event.data["offset"].as_u64(), Some(written.len() as u64), "{event:?}");
        written.push_str(event.data["text"].as_str().unwrap());
    }
    for line in ["tick 3\n", "tock 3\n", "tick 4\n", "tock 4\n"] {
        assert_eq!(written[seen..].matches(line).count() + written[..seen].matches(line).count(), 1, "{line}");
    }
    // From the beginning: the bytes that are still there have the offsets that they had.
    let mut events = served.events(&path, "");
    let gap = events.next().unwrap();
    assert_eq!((gap.name.as_str(), gap.data["from"].as_u64()), ("gap", Some(0)), "{gap:?}");
    let mut at = gap.data["to"].as_u64().unwrap() as usize;
    assert!(at > 0 && at < seen, "{gap:?}");
    while at < seen {
        let event = events.next().unwrap();
        let text = event.data["text"].as_str().unwrap();
        assert_eq!(event.data["offset"].as_u64(), Some(at as u64));
        let common = text.len().min(written.len() - at);
        assert_eq!(text[..common], written[at..at + common], "at {at}");
        at += text.len();
    }
    served.end_with_its_sandboxes();
}

#[test]
fn a_second_server_for_the_same_data_is_refused() {
    let host = Host::shared();
    let sloplet = host.root();
    let served = Server::start_with(&sloplet, &[]);
    let ended = sloplet.invoke(&["serve", "--listen", "127.0.0.1:0"]).finish();
    ended.expect_code(125).expect_said("in use by another server");
    served.command(&["ls"]).expect_code(0);
    served.end_with_its_sandboxes();
}

#[test]
fn a_server_that_others_could_reach_must_be_meant() {
    let host = Host::shared();
    let ended = host.root().invoke(&["serve", "--listen", "0.0.0.0:0"]).finish();
    ended.expect_code(125).expect_said("--public");
}
