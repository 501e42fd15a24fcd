//! Pools: machines that are ready before they are asked for, and are nobody's until then.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod volumes;

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use common::machines::first_processes;
use common::{Host, Server, World, until};

/// Makes a pool, with the server's key, and waits until it is filled.
#[track_caller]
fn filled(served: &Server, name: &str, body: Value) -> Value {
    served.ask("PUT", &format!("/pools/{name}"), Some(body)).expect(200);
    served.ask("POST", &format!("/pools/{name}/fill"), Some(json!({}))).expect(200).json()
}

#[track_caller]
fn pool(served: &Server, name: &str) -> Value {
    served.ask("GET", &format!("/pools/{name}"), None).expect(200).json()
}

#[track_caller]
fn metric(served: &Server, name: &str, which: &str) -> u64 {
    pool(served, name)["metrics"][which].as_u64().unwrap()
}

#[track_caller]
fn claim(served: &Server, body: Value) -> Value {
    served.ask("POST", "/sandboxes", Some(body)).expect(201).json()
}

#[track_caller]
fn sh(served: &Server, sandbox: &Value, script: &str) -> Value {
    let path = format!("/sandboxes/{}/exec", sandbox["id"].as_str().unwrap());
    served.ask("POST", &path, Some(json!({"command": ["sh", "-c", script]}))).expect(200).json()
}

#[track_caller]
fn says(served: &Server, sandbox: &Value, script: &str) -> String {
    let ended = sh(served, sandbox, script);
    assert_eq!(ended["exit_code"], 0, "{ended}");
    ended["stdout"].as_str().unwrap().trim().to_owned()
}

#[test]
fn machines_wait_are_claimed_once_and_are_replaced() {
    let host = Host::shared();
    let leaks = host.leaks();
    for sloplet in [host.root(), host.user()] {
        let served = Server::start(&sloplet);
        let status = filled(&served, "ci", json!({"target_ready": 4, "max_ready": 12}));
        assert_eq!(
            (&status["metrics"]["ready"], &status["sizing"]["bound"]),
            (&json!(4), &json!("target")),
            "{status}"
        );
        assert_eq!(served.ask("GET", "/sandboxes", None).json()["sandboxes"], json!([]), "what waits is nobody's");
        // More at once than there are: nobody gets another's.
        let ids: Vec<String> = thread::scope(|scope| {
            let served = &served;
            let one = move || claim(served, json!({"pool": "ci"}))["id"].as_str().unwrap().to_owned();
            let claimers: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
            claimers.into_iter().map(|claimer| claimer.join().unwrap()).collect()
        });
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 8, "{ids:?}");
        let told = pool(&served, "ci")["metrics"].clone();
        assert!(told["acquires_from_pool"].as_u64() >= Some(4), "{told}");
        assert_eq!((&told["total_acquires"], &told["in_use"]), (&json!(8), &json!(8)), "{told}");
        until("what demand asks for is made", || metric(&served, "ci", "ready") >= 8);
        let sizing = pool(&served, "ci")["sizing"].clone();
        assert_eq!(sizing["bound"], "demand", "{sizing}");
        assert!(sizing["headroom"].as_f64() > Some(0.0), "{sizing}");
        // Without a word of pools, too.
        let before = metric(&served, "ci", "acquires_from_pool");
        assert_eq!(says(&served, &claim(&served, json!({})), "echo hi"), "hi");
        assert_eq!(metric(&served, "ci", "acquires_from_pool"), before + 1);
        served.ask("DELETE", "/pools/ci", None).expect(204);
        served.ask("GET", "/pools/ci", None).expect_refusal(404);
        // Those in use stay.
        let path = format!("/sandboxes/{}/exec", ids[0]);
        served.ask("POST", &path, Some(json!({"command": ["true"]}))).expect(200);
        until("no machine waits", || first_processes(&host).len() == 9);
        served.end();
    }
    leaks.assert_none_new_after_a_server();
}

#[test]
fn a_claim_brings_its_identity_and_finds_nothing_of_before() {
    let host = Host::shared();
    let world = World::new(&host);
    let served = Server::start(&world.around(host.root()));
    filled(&served, "ci", json!({"target_ready": 3, "secrets": true}));
    let secret = "a-value-that-stays-outside-0123456789";
    let asked = |name: &str| {
        json!({
            "pool": "ci", "name": name, "env": {"WHO": name}, "metadata": {"for": name}, "pids": 40, "memory": "3GiB",
            "network": {"allow": ["example.org"]}, "timeout": "10m", "workdir": "/tmp",
            "secrets": [{"name": "TOKEN", "value": secret, "hosts": ["example.com"]}],
        })
    };
    let (one, other) = (claim(&served, asked("one")), claim(&served, asked("other")));
    assert_eq!(metric(&served, "ci", "acquires_from_pool"), 2, "{}", pool(&served, "ci"));
    for name in ["id", "token"] {
        assert_ne!(one[name], other[name]);
    }
    // Counted when all have been listed: a pipe would list what counts, or not yet.
    let show = "echo $WHO $PWD; ls -A ~ /tmp | grep -c . ; all=$(ls /proc); echo \"$all\" | grep -c '^[0-9]'";
    let lines: Vec<String> = says(&served, &one, show).lines().map(str::to_owned).collect();
    assert_eq!(lines[0], "one /tmp");
    let cold = claim(&served, json!({"inodes": 50_000}));
    let fresh: Vec<String> = says(&served, &cold, show).lines().map(str::to_owned).collect();
    assert_eq!(lines[1..], fresh[1..], "no file and no process but in one that was just made");
    // Its limits are the claimer's.
    let forks = "for i in $(seq 60); do sleep 3 & done; wait";
    assert_ne!(sh(&served, &one, forks)["exit_code"], 0, "it may have 40 processes");
    assert_eq!(sh(&served, &cold, forks)["exit_code"], 0);
    // Its rules and secrets, too: the value is put in on the way, and is in neither machine.
    let (inside, its_twin) = (says(&served, &one, "echo $TOKEN"), says(&served, &other, "echo $TOKEN"));
    assert!(inside != its_twin && inside != secret && !inside.is_empty(), "{inside} {its_twin}");
    world.forget();
    let fetch =
        "curl -sS -m 20 -o /dev/null -w '%{http_code}' -H \"authorization: Bearer $TOKEN\" https://example.com/x";
    assert_eq!(says(&served, &one, fetch), "200");
    let seen = world.seen_of("http");
    assert!(seen.iter().any(|call| call["headers"].to_string().contains(secret)), "{seen:?}");
    assert_eq!(says(&served, &one, "curl -sS -m 20 -o /dev/null -w '%{http_code}' http://example.org/"), "200");
    assert_ne!(sh(&served, &cold, "curl -sS -m 20 http://example.org/")["exit_code"], 0);
    // The record begins with the claim.
    let records = served.ask("GET", "/audit?sandbox=one", None).expect(200).json();
    let kinds: Vec<&str> =
        records["records"].as_array().unwrap().iter().filter_map(|one| one["event"]["kind"].as_str()).collect();
    let made = kinds.iter().filter(|kind| **kind == "sandbox_created").count();
    assert_eq!(made, 1, "{kinds:?}");
    assert!(!records.to_string().contains("/bin/true") && !records.to_string().contains("pool:ci"), "{records}");
    // Another key has no part in it.
    let stranger = served.new_key(&["stranger", "--scope", "use"]);
    served.ask_as(&stranger, "POST", "/sandboxes", Some(json!({"pool": "ci"}))).expect_refusal(404);
    served.ask_as(&stranger, "GET", "/pools/ci", None).expect_refusal(404);
    let acquires = metric(&served, "ci", "total_acquires");
    served.ask_as(&stranger, "POST", "/sandboxes", Some(json!({}))).expect(201);
    assert_eq!(metric(&served, "ci", "total_acquires"), acquires);
    served.end();
}

#[test]
fn what_is_not_well_is_replaced_and_never_handed_out() {
    let host = Host::shared();
    let served = Server::start(&host.root());
    filled(&served, "ci", json!({"target_ready": 4, "adaptive": false, "health_check_interval": "1s"}));
    let waiting: Vec<i32> = first_processes(&host).into_iter().collect();
    assert_eq!(waiting.len(), 4);
    let send = |pid: i32, signal| kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    // Two die, one does not answer; and somebody comes just then.
    send(waiting[0], Signal::KILL);
    send(waiting[1], Signal::KILL);
    send(waiting[2], Signal::STOP);
    for _ in 0..4 {
        assert_eq!(says(&served, &claim(&served, json!({"pool": "ci"})), "echo well"), "well");
    }
    until("the ill are gone", || metric(&served, "ci", "health_check_removals") >= 3);
    until("it is full again", || metric(&served, "ci", "ready") == 4);
    assert!(waiting[..3].iter().all(|pid| !first_processes(&host).contains(pid)));
    // Nobody comes: they are found anyway.
    let (in_use, removed) = (first_processes(&host).len() - 4, metric(&served, "ci", "health_check_removals"));
    let newest = *first_processes(&host).iter().next_back().unwrap();
    send(newest, Signal::STOP);
    until("it is found", || metric(&served, "ci", "health_check_removals") > removed);
    until("it is replaced", || metric(&served, "ci", "ready") == 4 && first_processes(&host).len() == in_use + 4);
    served.end();
}

#[test]
fn an_empty_pool_does_what_it_was_told_and_bounds_hold() {
    let host = Host::shared();
    let served = Server::start_with(&host.root(), &["--destroy-on-exit", "--max-warm", "9"]);
    let put = |name: &str, body: Value| served.ask("PUT", &format!("/pools/{name}"), Some(body));
    put("none", json!({"max_ready": 0, "on_empty": "fail"})).expect(200);
    let said = served.ask("POST", "/sandboxes", Some(json!({"pool": "none"}))).expect_refusal(409);
    assert!(said.contains("no machine of pool 'none' is ready") && said.contains("on_empty"), "{said}");
    served.command(&["create", "--pool", "none"]).expect_code(125).expect_said("pool 'none' was not found");
    assert_eq!(metric(&served, "none", "acquires_refused"), 1);
    // What cannot be late-bound is made, and that is told.
    filled(&served, "ci", json!({"target_ready": 2, "adaptive": false, "max_total": 4}));
    let other = claim(&served, json!({"pool": "ci", "user": "root"}));
    assert_eq!(says(&served, &other, "id -u"), "0");
    claim(&served, json!({"pool": "ci", "inodes": 50_000}));
    let told = pool(&served, "ci")["metrics"].clone();
    assert_eq!(told["misfits"], json!({"limits": 1, "user": 1}), "{told}");
    assert_eq!(told["acquires_cold_start"], 2, "{told}");
    // Two in use and two that wait are four.
    let said = served.ask("POST", "/sandboxes", Some(json!({"pool": "ci", "user": "root"}))).expect_refusal(429);
    assert!(said.contains("max_total"), "{said}");
    until("a claim of one that waits takes no more", || metric(&served, "ci", "ready") == 2);
    claim(&served, json!({"pool": "ci"}));
    until("it is not replaced beyond the total", || pool(&served, "ci")["sizing"]["bound"] == "total");
    assert_eq!(metric(&served, "ci", "ready"), 1);
    served.ask("DELETE", "/pools/ci", None).expect(204);
    // A key's quota, the server's bound, and money.
    let few = served.new_key(&["few", "--scope", "use", "--max-sandboxes", "3"]);
    served.ask_as(&few, "PUT", "/pools/mine", Some(json!({"target_ready": 10}))).expect(200);
    let mine = served.ask_as(&few, "POST", "/pools/mine/fill", Some(json!({}))).expect(200).json();
    assert_eq!((&mine["metrics"]["ready"], &mine["sizing"]["bound"]), (&json!(3), &json!("quota")), "{mine}");
    let id =
        served.json(&["key", "ls"]).as_array().unwrap().iter().find(|key| key["label"] == "few").unwrap()["id"].clone();
    served.command(&["key", "rm", id.as_str().unwrap()]).expect_code(0);
    let many = filled(&served, "many", json!({"target_ready": 10}));
    assert_eq!((&many["metrics"]["ready"], &many["sizing"]["bound"]), (&json!(9), &json!("server")), "{many}");
    served.ask("DELETE", "/pools/many", None).expect(204);
    let ceiling = json!({"target_ready": 5, "max_cost_per_hour": 0.1});
    let said = put("dear", ceiling.clone()).expect_refusal(400);
    assert!(said.contains("[compute]"), "{said}");
    fs::write(served.sloplet.data.join("prices.toml"), "[compute]\ncpu_hour = 0.01\nmemory_gib_hour = 0.01\n").unwrap();
    let dear = filled(&served, "dear", ceiling);
    assert_eq!((&dear["metrics"]["ready"], &dear["sizing"]["bound"]), (&json!(2), &json!("cost")), "{dear}");
    let spent = filled(&served, "dear", json!({"target_ready": 5, "max_cost_per_day": 0.0}));
    assert_eq!((&spent["sizing"]["wanted"], &spent["sizing"]["bound"]), (&json!(0), &json!("cost")), "{spent}");
    until("those that wait go", || metric(&served, "dear", "ready") == 0);
    // Prometheus is told under the names that the field knows.
    let key = format!("X-API-KEY: {}\r\n", served.key);
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n{key}Connection: close\r\n\r\n", served.address);
    let page = common::http::exchange(&served.address, request.as_bytes()).expect(200).text();
    for line in [
        "sandbox_pool_ready{pool=\"dear\"",
        "sandbox_pool_wanted{pool=\"dear\"",
        "sandbox_acquire_total{pool=\"none\"",
        "sandbox_acquire_latency_ms_bucket{",
        "sandbox_create_total{",
        "sandbox_scale_events{",
        "bound=\"cost\"} 1",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
    served.end();
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let host = Host::shared();
    let served = Server::start(&host.root());
    for (body, hint) in [
        (json!({"target_ready": 11, "max_ready": 10}), "max_ready"),
        (json!({"target_ready": -1}), "does not fit"),
        (json!({"max_ready": 100_000}), "max_ready"),
        (json!({"target_ready": 1, "min_ready": 2}), "min_ready"),
        (json!({"idle_timeout": "soon"}), "idle_timeout"),
        (json!({"on_empty": "wait"}), "`create` or `fail`"),
        (json!({"memory": "1KiB"}), "memory"),
        (json!({"isolation": "steel"}), "`gvisor`"),
        (json!({"driver": "steel"}), "steel"),
        (json!({"max_cost_per_hour": -1}), "max_cost_per_hour"),
        (json!({"env": {"A": "b"}}), "env"),
        (json!({"hostname": "a b"}), "host name"),
    ] {
        let reply = served.ask("PUT", "/pools/bad", Some(body.clone()));
        let said = if reply.status == 422 { reply.text() } else { reply.expect_refusal(400) };
        assert!(said.contains(hint), "{body}: {said}");
    }
    served.ask("PUT", "/pools/bad", Some(json!({"image": "no-such"}))).expect(200);
    let said = served.ask("POST", "/pools/bad/fill", Some(json!({"timeout": "1h"}))).expect_refusal(400);
    assert!(said.contains("10m"), "{said}");
    served.ask("DELETE", "/pools/bad", None).expect(204);
    for (method, path) in
        [("GET", "/pools/bad"), ("DELETE", "/pools/bad"), ("POST", "/pools/bad/drain"), ("POST", "/pools/bad/fill")]
    {
        let said = served.ask(method, path, None).expect_refusal(404);
        assert!(said.contains("pool 'bad' was not found"), "{said}");
    }
    served.ask("PUT", "/pools/-x", Some(json!({}))).expect_refusal(400);
    // One whose machines cannot be made says why.
    let failing = json!({"image": "no-such", "target_ready": 1, "create_retries": 0, "create_retry_delay": "10ms"});
    served.ask("PUT", "/pools/failing", Some(failing)).expect(200);
    let said = served.ask("POST", "/pools/failing/fill", None).expect_refusal(409);
    assert!(said.contains("0 of 1") && said.contains("no-such"), "{said}");
    assert!(metric(&served, "failing", "failed_creates") >= 1);
    served.command(&["pool", "show", "nope"]).expect_code(125).expect_said("pool 'nope' was not found");
    served.end();
}

#[test]
fn age_idleness_and_owners_who_never_come_back() {
    let host = Host::shared();
    let served = Server::start(&host.root());
    let short = json!({"target_ready": 2, "min_ready": 0, "idle_timeout": "400ms", "cooldown_after_acquire": "400ms",
        "scale_down_delay": "50ms"});
    filled(&served, "idle", json!({"target_ready": 2}));
    served.ask("PUT", "/pools/idle", Some(short)).expect(200);
    until("nobody comes, and nothing is left", || metric(&served, "idle", "ready") == 0);
    let idle = pool(&served, "idle");
    assert_eq!(
        (&idle["sizing"]["bound"], &idle["metrics"]["scale_down_events"]),
        (&json!("idle"), &json!(2)),
        "{idle}"
    );
    // The first who comes waits, and wakes it. They never come back: their sandbox ends by itself.
    let first = claim(&served, json!({"pool": "idle", "timeout": "1s"}));
    assert_eq!(metric(&served, "idle", "acquires_cold_start"), 1);
    until("it is filled again", || metric(&served, "idle", "scale_up_events") >= 4);
    until("the sandbox is gone", || metric(&served, "idle", "in_use") == 0);
    let path = format!("/sandboxes/{}", first["id"].as_str().unwrap());
    served.ask("GET", &path, None).expect_refusal(404);
    served.ask("DELETE", "/pools/idle", None).expect(204);
    served.ask("PUT", "/pools/left", Some(json!({"target_ready": 1, "lease": "1s"}))).expect(200);
    until("a pool whose program was killed goes, too", || {
        served.ask("GET", "/pools", None).json().as_array().unwrap().iter().all(|pool| pool["name"] != "left")
    });
    filled(&served, "old", json!({"target_ready": 2, "max_warm_age": "1s", "hostname": "old"}));
    until("the old are replaced", || metric(&served, "old", "expired") >= 2 && metric(&served, "old", "ready") == 2);
    let drained = served.ask("POST", "/pools/old/drain", None).expect(200).json();
    assert_eq!((&drained["drained"], &drained["metrics"]["ready"]), (&json!(true), &json!(0)), "{drained}");
    assert!(first_processes(&host).is_empty(), "nothing waits");
    served.command(&["pool", "set", "mine", "--target", "1", "--fixed"]).expect_code(0);
    served.command(&["pool", "fill", "mine"]).expect_code(0);
    let shown = served.command(&["pool", "show", "mine"]).expect_code(0).out();
    assert!(shown.contains("1 ready"), "{shown}");
    assert_eq!(served.json(&["pool", "ls"])[0]["config"]["adaptive"], false);
    served.command(&["create", "--pool", "mine", "--name", "my"]).expect_code(0);
    served.command(&["exec", "my", "--", "true"]).expect_code(0);
    served.command(&["pool", "rm", "mine"]).expect_code(0);
    served.end();
}

#[test]
fn a_killed_server_leaves_its_pools_to_the_next() {
    let host = Host::shared();
    let leaks = host.leaks();
    let served = Server::start_with(&host.root(), &[]);
    filled(&served, "ci", json!({"target_ready": 5, "secrets": true, "adaptive": false}));
    let (mine, key) = (claim(&served, json!({"pool": "ci", "env": {"A": "mine"}})), served.key.clone());
    until("it is full", || metric(&served, "ci", "ready") == 5);
    // Somebody claims just then.
    let url = format!("http://{}", served.address);
    let claimer = || served.invoke(&["create", "--pool", "ci"]).env("SLOPLET_URL", &url).env("SLOPLET_API_KEY", &key);
    let claiming: Vec<_> = (0..3).map(|_| claimer().start()).collect();
    thread::sleep(Duration::from_millis(25));
    served.kill();
    claiming.into_iter().for_each(|one| drop(one.finish()));
    let mut served = Server::start_with(&host.root(), &[]);
    served.key = key;
    let status = served.ask("POST", "/pools/ci/fill", None).expect(200).json();
    assert_eq!(status["metrics"]["ready"], 5, "{status}");
    assert!(status["metrics"]["created"].as_u64() <= Some(3), "the others are those of before: {status}");
    let in_use = || served.ask("GET", "/sandboxes", None).json()["sandboxes"].as_array().unwrap().len();
    until("what was half claimed is gone", || first_processes(&host).len() == 5 + in_use());
    assert_eq!(says(&served, &mine, "echo $A"), "mine");
    let secret = json!([{"name": "TOKEN", "value": "0123456789abcdef", "hosts": ["example.com"]}]);
    let claimed = claim(&served, json!({"pool": "ci", "secrets": secret}));
    assert_eq!(metric(&served, "ci", "acquires_from_pool"), 1);
    assert_ne!(says(&served, &claimed, "echo ${TOKEN:?}"), "0123456789abcdef");
    served.ask("DELETE", "/pools/ci", None).expect(204);
    for one in served.ask("GET", "/sandboxes", None).json()["sandboxes"].as_array().unwrap() {
        served.ask("DELETE", &format!("/sandboxes/{}", one["id"].as_str().unwrap()), None).expect(204);
    }
    served.end_with_its_sandboxes();
    leaks.assert_none_new_after_a_server();
}
