//! What happens to sandboxes when their engine is gone.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::common::{Host, Sloplet, rounds};
use crate::engine::{Engine, find, is_alive, until};

fn both(host: &Host) -> [Sloplet; 2] {
    [host.root(), host.user()]
}

#[test]
fn a_killed_engines_sandboxes_go_on_and_the_next_engine_has_them() {
    let host = Host::alone();
    for sloplet in both(&host) {
        let leaks = host.leaks();
        let mut engine = Engine::start(&host, &sloplet);
        let pid = engine.create("one", "host");
        let frozen_pid = engine.create("two", "host");
        let tied = engine.ask(json!({ "do": "create_tied" }))["pid"].as_i64().unwrap();
        engine.sh("one", "echo kept > /tmp/file");
        let script = "for i in $(seq 30); do echo $i; sleep 0.1; done; exit 7";
        let background = engine.ask(json!({ "do": "background", "id": "one", "script": script }))["pid"].clone();
        engine.ask(json!({ "do": "pause", "id": "two", "frozen": true }));
        engine.kill();
        until("the tied sandbox is gone", || !is_alive(tied));

        let mut engine = Engine::start(&host, &sloplet);
        let adoption = engine.adopt();
        assert_eq!(adoption["living"].as_array().unwrap().len(), 2, "{adoption}");
        let one = find(&adoption, "living", "one").unwrap();
        assert_eq!((&one["pid"], &one["frozen"]), (&json!(pid), &json!(false)));
        let two = find(&adoption, "living", "two").unwrap();
        assert_eq!((&two["pid"], &two["frozen"]), (&json!(frozen_pid), &json!(true)));
        assert_eq!(engine.sh("one", "cat /tmp/file"), "kept");
        let attached = engine.ask(json!({ "do": "attach", "id": "one", "pid": background }));
        let all: String = (1..=30).map(|number| format!("{number}\n")).collect();
        assert_eq!((&attached["code"], attached["out"].as_str()), (&json!(7), Some(all.as_str())));
        engine.ask(json!({ "do": "reconnect", "id": "one" }));
        engine.ask(json!({ "do": "pause", "id": "two", "frozen": false }));
        assert_eq!(engine.sh("two", "echo thawed"), "thawed");
        // Both the same spawner's and a new sandbox.
        engine.create("three", "host");
        // The end of the engine is no reason either.
        engine.end();
        let mut engine = Engine::start(&host, &sloplet);
        assert_eq!(engine.adopt()["living"].as_array().unwrap().len(), 3);
        ["one", "two", "three"].iter().for_each(|id| engine.destroy(id));
        engine.end();
        // The spawner waits for a while before it goes.
        until("nothing is left", || leaks.new_ones().is_empty());
    }
}

#[test]
fn deadlines_are_kept_while_nobody_is_there() {
    let host = Host::alone();
    for sloplet in both(&host) {
        let leaks = host.leaks();
        let mut engine = Engine::start(&host, &sloplet);
        let dying = engine.create("dying", "host");
        engine.create("sleeping", "host");
        engine.create("living", "host");
        engine.ask(json!({ "do": "deadline", "id": "living", "after_ms": 300 }));
        engine.ask(json!({ "do": "deadline", "id": "living" }));
        engine.ask(json!({ "do": "background", "id": "sleeping", "script": "while :; do date +%s%N > /tmp/t; done" }));
        engine.ask(json!({ "do": "deadline", "id": "dying", "after_ms": 2000 }));
        engine.ask(json!({ "do": "deadline", "id": "sleeping", "after_ms": 2000, "freeze": true }));
        engine.kill();
        until("the deadline is kept", || !is_alive(dying));
        thread::sleep(Duration::from_millis(300));
        let mut engine = Engine::start(&host, &sloplet);
        let adoption = engine.adopt();
        assert_eq!(find(&adoption, "ended", "dying").unwrap()["timed_out"], true);
        assert_eq!(find(&adoption, "living", "sleeping").unwrap()["frozen"], true, "{}: {adoption}", sloplet.name);
        assert_eq!(find(&adoption, "living", "living").unwrap()["frozen"], false);
        engine.ask(json!({ "do": "pause", "id": "sleeping", "frozen": false }));
        engine.sh("sleeping", "true");

        // And while somebody is there, who hears of it.
        engine.ask(json!({ "do": "deadline", "id": "sleeping", "after_ms": 200, "freeze": true }));
        assert_eq!(engine.ask(json!({ "do": "wait_frozen", "id": "sleeping" }))["frozen"], true);
        engine.ask(json!({ "do": "deadline", "id": "living", "after_ms": 200 }));
        let end = engine.ask(json!({ "do": "wait_ended", "id": "living" }));
        assert_eq!((&end["timed_out"], &end["lost"]), (&json!(true), &json!(false)));
        // A frozen one can be ended, too.
        engine.destroy("sleeping");
        engine.end();
        until("nothing is left", || leaks.new_ones().is_empty());
    }
}

#[test]
fn a_sandbox_that_was_being_made_is_found_or_leaves_nothing() {
    let host = Host::alone();
    for sloplet in both(&host) {
        let leaks = host.leaks();
        let mut made = 0;
        for round in 0..rounds(30, 10) {
            let mut engine = Engine::start(&host, &sloplet);
            engine.create("first", "host");
            engine.order(&json!({ "do": "create", "id": "second", "image": "host" }));
            thread::sleep(Duration::from_micros(400 * round as u64));
            engine.kill();
            let mut engine = Engine::start(&host, &sloplet);
            let adoption = engine.adopt();
            assert!(find(&adoption, "living", "first").is_some(), "round {round}: {adoption}");
            engine.sh("first", "true");
            engine.destroy("first");
            if find(&adoption, "living", "second").is_some() {
                made += 1;
                engine.destroy("second");
            }
            engine.end();
        }
        assert!(made > 0, "it was killed before anything was made, each time");
        until("nothing is left", || leaks.new_ones().is_empty());
    }
}

#[test]
fn a_spawner_of_another_build_keeps_what_it_has_and_gets_nothing_new() {
    let host = Host::alone();
    let sloplet = host.root();
    let leaks = host.leaks();
    let mut old = Engine::of_build(&host, &sloplet, "old");
    let pid = old.create("old", "host");
    old.kill();
    let mut new = Engine::of_build(&host, &sloplet, "new");
    let adoption = new.adopt();
    assert_eq!(find(&adoption, "living", "old").unwrap()["pid"], pid);
    let new_pid = new.create("new", "host");
    let parent = |pid: i64| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<i64>().ok()).unwrap()
    };
    let (old_spawner, new_spawner) = (parent(pid), parent(new_pid));
    assert_ne!(old_spawner, new_spawner);
    assert_eq!(new.sh("old", "echo still here"), "still here");
    new.destroy("old");
    // It ends with its last sandbox, though it still has an engine.
    until("the old spawner ends", || !is_alive(old_spawner));
    assert!(is_alive(new_spawner));
    new.destroy("new");
    new.end();
    until("nothing is left", || leaks.new_ones().iter().all(|left| left.contains("/data/")));
}

#[test]
fn sandboxes_end_with_their_spawner_and_that_is_told_and_collected() {
    let host = Host::alone();
    for sloplet in both(&host) {
        let leaks = host.leaks();
        let mut engine = Engine::start(&host, &sloplet);
        let pid = engine.create("one", "host");
        // Acting for somebody else makes the kernel forget that the agent is to die with its parent.
        engine.ask(json!({ "do": "home", "id": "one" }));
        for spawner in engine.running.spawners() {
            kill_process(spawner, Signal::KILL).unwrap();
        }
        let end = engine.ask(json!({ "do": "wait_ended", "id": "one" }));
        assert_eq!(end["lost"], true);
        until("the sandbox dies with it", || !is_alive(pid));
        // The next is made by another.
        engine.create("two", "host");
        engine.ask(json!({ "do": "gc" }));
        engine.destroy("two");
        engine.end();
        until("nothing is left", || leaks.new_ones().is_empty());
    }
}

#[test]
fn an_end_by_itself_is_told() {
    let host = Host::shared();
    let mut engine = Engine::start(&host, &host.root());
    let pid = engine.create("one", "host");
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    let end = engine.ask(json!({ "do": "wait_ended", "id": "one" }));
    assert_eq!((&end["timed_out"], &end["lost"]), (&json!(false), &json!(false)));
    let answer = engine.try_ask(json!({ "do": "usage", "id": "one" }));
    assert!(answer["error"].as_str().unwrap().contains("it is gone"), "{answer}");
    let answer = engine.try_ask(json!({ "do": "create", "id": "../x", "image": "host" }));
    assert!(answer["error"].as_str().unwrap().contains("letters and digits"), "{answer}");
    engine.create("two", "host");
    let answer = engine.try_ask(json!({ "do": "create", "id": "two", "image": "host" }));
    assert!(answer["error"].as_str().unwrap().contains("of that id"), "{answer}");
    engine.destroy("two");
    engine.end();
}

#[test]
fn what_a_sandbox_uses_is_told() {
    let host = Host::shared();
    for sloplet in both(&host) {
        let mut engine = Engine::start(&host, &sloplet);
        engine.create("one", "host");
        let before = engine.ask(json!({ "do": "usage", "id": "one" }));
        let of = |usage: &serde_json::Value, name: &str| usage[name].as_u64().unwrap();
        assert_eq!((of(&before, "disk_total"), of(&before, "pids")), (1 << 30, 1), "{before}");
        engine.sh("one", "head -c 20M /dev/zero > /tmp/big; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done");
        let after = engine.ask(json!({ "do": "usage", "id": "one" }));
        assert!(of(&after, "disk_used") - of(&before, "disk_used") >= 20 << 20, "{after}");
        assert!(of(&after, "files_used") > of(&before, "files_used"), "{after}");
        assert!(of(&after, "memory") >= 20 << 20 && of(&after, "memory_peak") >= of(&after, "memory"), "{after}");
        assert!(of(&after, "cpu_us") > of(&before, "cpu_us"), "{before} {after}");
        engine.destroy("one");
        engine.end();
    }
}
