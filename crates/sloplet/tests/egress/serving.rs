//! Sandboxes that stay: their rules are changed while they run, and kept whatever happens to them and to the server.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Ended, Host, Invocation, Server, Sloplet, World, built, fast, tools};
use crate::{both, inside};

/// How long something that is bound to happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "it does not happen: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A command with the server's key, to be started: the same one that the test asks with.
pub fn invoke(served: &Server, words: &[&str]) -> Invocation {
    let url = format!("http://{}", served.address);
    served.invoke(words).env("SLOPLET_URL", &url).env("SLOPLET_API_KEY", &served.key)
}

/// The same, to its end.
pub fn command(served: &Server, words: &[&str]) -> Ended {
    invoke(served, words).finish()
}

/// Removes its sandboxes and ends the server.
#[track_caller]
pub fn end(served: Server) {
    command(&served, &["rm", "--all"]).expect_code(0);
    served.end_with_its_sandboxes();
}

/// Kills the server and starts another one, for the same key.
pub fn restart(served: Server) -> Server {
    let (sloplet, key) = (served.sloplet.clone(), served.key.clone());
    served.kill();
    start_for(&sloplet, key)
}

/// A server for a key that an earlier one gave out.
fn start_for(sloplet: &Sloplet, key: String) -> Server {
    let mut served = Server::start_with(sloplet, &[]);
    served.key = key;
    served
}

/// What a program with the helpers of `inside.py` shows in a sandbox.
#[track_caller]
pub fn exec(served: &Server, id: &str, program: &str) -> Value {
    crate::shown(command(served, &["exec", id, "--", "python3", "-c", &inside(program)]))
}

#[track_caller]
fn create(served: &Server, world: &World, options: &[&str]) -> String {
    let mount = world.mount();
    command(served, &[&["create", "--timeout=never", &mount][..], options].concat()).expect_code(0).word()
}

#[track_caller]
fn set_rules(served: &Server, id: &str, rules: Value) {
    served.ask("PUT", &format!("/sandboxes/{id}/network"), Some(rules)).expect(200);
}

/// Two hosts, of which the first is usually allowed.
const TRY: &str = "show([reach('example.com', 80), reach('example.org', 80)])";

#[test]
fn rules_are_changed_on_a_running_sandbox() {
    let host = Host::shared();
    let world = World::new(&host);
    for sloplet in both(&host, &world) {
        let served = Server::start(&sloplet);
        // Even one that was made without any.
        let id = create(&served, &world, &[]);
        assert_eq!(exec(&served, &id, TRY), json!(["no name", "no name"]));
        set_rules(&served, &id, json!({"allow": ["example.com", "example.org:7"]}));
        assert_eq!(exec(&served, &id, TRY), json!(["ok", "denied"]));
        // A connection that stands when it is no longer allowed is cut; one that still is goes on.
        let holds = "
import os, sys
fine, bad = connect('example.com', 80), connect('example.org', 7)
bad.sendall(b'ping')
bad.recv(10)
open('/tmp/holds', 'w').close()
bad.settimeout(120)
show([attempt(lambda: bad.recv(10).decode() or 'closed'), request(fine, 'example.com')])";
        let holding =
            invoke(&served, &["exec", &id, "--", "python3", "-c", &inside(holds)]).within(PATIENCE * 3).start();
        until("it holds its connections", || {
            command(&served, &["exec", &id, "--", "test", "-e", "/tmp/holds"]).code == 0
        });
        set_rules(&served, &id, json!({"allow": ["example.com"]}));
        assert_eq!(crate::shown(holding.finish()), json!(["refused", "ok"]), "{}", sloplet.name);
        set_rules(&served, &id, json!({"internet": true, "deny": ["example.com"]}));
        assert_eq!(exec(&served, &id, TRY), json!(["no name", "ok"]));
        let way = served.ask("GET", &format!("/sandboxes/{id}/network"), None).expect(200).json();
        assert_eq!(way["rules"]["deny"], json!(["example.com"]));
        assert!(
            way["traffic"]["connections"].as_u64() >= Some(5) && way["traffic"]["bytes_down"].as_u64() > Some(0),
            "{way}"
        );
        for (bad, said) in [
            (json!({"allow": ["*"]}), "--allow-internet"),
            (json!({"allow": ["http://example.com/"]}), "example.com"),
            (json!({"alow": []}), "alow"),
            (json!({"host_ports": [0]}), "port"),
        ] {
            let message = served.ask("PUT", &format!("/sandboxes/{id}/network"), Some(bad)).expect_refusal(400);
            assert!(message.contains(said), "{message}");
        }
        assert_eq!(exec(&served, &id, TRY), json!(["no name", "ok"]), "what was refused changed nothing");
        end(served);
    }
}

#[test]
fn what_is_near_the_server_is_for_its_owner() {
    let host = Host::shared();
    let world = World::new(&host);
    let sloplet = world.around(host.root());
    let served = Server::start(&sloplet);
    let key = served.new_key(&["other", "--scope", "use"]);
    let make = |key: &str, network: Value| served.ask_as(key, "POST", "/sandboxes", Some(json!({"network": network})));
    for near in [
        json!({"allow": ["10.0.0.0/8"]}),
        json!({"allow": ["169.254.169.254"]}),
        json!({"ask": ["192.168.77.7:22"]}),
        json!({"allow": [crate::common::world::NEAR]}),
        json!({"host_ports": [22]}),
    ] {
        make(&key, near.clone()).expect_refusal(403);
        make(&served.key, near).expect(201);
    }
    // A wide network opens what is public in it.
    let wide = make(&key, json!({"allow": ["0.0.0.0/1:*", "128.0.0.0/1:*"]})).expect(201).json();
    let id = wide["id"].as_str().unwrap();
    let fetch = |url: &str| {
        let body = json!({"command": ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", url]});
        let reply = served.ask_as(&key, "POST", &format!("/sandboxes/{id}/exec"), Some(body)).expect(200).json();
        reply["stdout"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(fetch("http://45.33.10.1/"), "200");
    for private in ["http://169.254.169.254/", "http://10.20.0.5/", "http://192.168.77.7/", "http://10.99.7.2/"] {
        assert_eq!(fetch(private), "403", "{private}");
    }
    end(served);
}

#[test]
fn rules_outlive_pauses_forks_stops_and_the_server() {
    let host = Host::alone();
    let leaks = host.leaks();
    {
        let world = World::new(&host);
        for sloplet in both(&host, &world) {
            let served = Server::start_with(&sloplet, &[]);
            let id =
                create(&served, &world, &["--allow=example.com", "--allow=example.org:7", "--deny=bad.example.com"]);
            let expected = json!(["ok", "denied"]);
            assert_eq!(exec(&served, &id, TRY), expected);
            // A connection that stands over a pause goes on.
            let holds = "
import time
held = connect('example.org', 7)
open('/tmp/holds', 'w').close()
while not os.path.exists('/tmp/go'): time.sleep(0.1)
held.sendall(b'still here')
show(held.recv(100).decode())";
            let holding =
                invoke(&served, &["exec", &id, "--", "python3", "-c", &inside(holds)]).within(PATIENCE * 3).start();
            until("it holds", || command(&served, &["exec", &id, "--", "test", "-e", "/tmp/holds"]).code == 0);
            command(&served, &["pause", &id]).expect_code(0);
            let fork = command(&served, &["fork", &id]).expect_code(0).word();
            command(&served, &["resume", &id]).expect_code(0);
            command(&served, &["exec", &id, "--", "touch", "/tmp/go"]).expect_code(0);
            assert_eq!(crate::shown(holding.finish()), "still here", "{}", sloplet.name);
            assert_eq!(exec(&served, &id, TRY), expected, "after a pause ({})", sloplet.name);
            assert_eq!(exec(&served, &fork, TRY), expected, "in a fork ({})", sloplet.name);
            served.ask("POST", &format!("/sandboxes/{fork}/stop"), None).expect(200);
            command(&served, &["resume", &fork]).expect_code(0);
            assert_eq!(exec(&served, &fork, TRY), expected, "after a stop ({})", sloplet.name);
            // While there is no server nothing goes out; with the next one, everything as before.
            let tries = "
import time
while True:
    outcome = reach('example.com', 80)
    with open('/tmp/tries', 'a') as file:
        file.write(outcome + '\\n')
    time.sleep(0.1)";
            let script = "python3 -c \"$0\" >/dev/null 2>&1 & echo $!";
            command(&served, &["exec", &id, "--", "sh", "-c", script, &inside(tries)]).expect_code(0);
            until("it tries", || command(&served, &["exec", &id, "--", "grep", "-q", "ok", "/tmp/tries"]).code == 0);
            let key = served.key.clone();
            served.kill();
            thread::sleep(Duration::from_millis(500));
            world.forget();
            thread::sleep(Duration::from_millis(1000));
            assert_eq!(world.seen(), Vec::<Value>::new(), "something went out without a server ({})", sloplet.name);
            let served = start_for(&sloplet, key);
            command(&served, &["exec", &id, "--", "sh", "-c", ": >/tmp/tries"]).expect_code(0);
            until("it reaches it again", || {
                command(&served, &["exec", &id, "--", "grep", "-q", "ok", "/tmp/tries"]).code == 0
            });
            assert_eq!(exec(&served, &id, TRY), expected, "after kill -9 ({})", sloplet.name);
            set_rules(&served, &id, json!({"allow": ["example.org"]}));
            assert_eq!(exec(&served, &id, TRY), json!(["no name", "ok"]), "{}", sloplet.name);
            end(served);
        }
    }
    leaks.assert_none_new_after_a_server();
}

#[test]
fn people_are_asked() {
    let host = Host::shared();
    let world = World::new(&host);
    let sloplet = world.around(host.user());
    let served = Server::start(&sloplet);
    let id = create(&served, &world, &["--ask=example.com", "--ask=example.org:7", "--ask-timeout=90s"]);
    let way = served.ask("GET", &format!("/sandboxes/{id}/network"), None).expect(200).json();
    assert_eq!(way["rules"]["ask_timeout"], "1m30s");
    let waiting = || served.ask("GET", "/approvals", None).expect(200).json()["approvals"].as_array().unwrap().clone();
    let answered = |answer: &str| {
        let program = inside("show(reach('example.com', 80))");
        let trying = invoke(&served, &["exec", &id, "--", "python3", "-c", &program]).within(PATIENCE * 2).start();
        until("it asks", || !waiting().is_empty());
        let asked = waiting().remove(0);
        assert_eq!(
            (&asked["name"], &asked["port"], &asked["rule"]),
            (&json!("example.com"), &json!(80), &json!("example.com"))
        );
        assert_eq!(
            asked["sandbox"].as_str().unwrap(),
            command(&served, &["ls", "--json"]).json()[0]["id"].as_str().unwrap()
        );
        world.forget();
        assert_eq!(world.seen(), Vec::<Value>::new());
        let path = format!("/approvals/{}", asked["id"]);
        let stranger = served.new_key(&[&format!("stranger-{answer}"), "--scope", "use"]);
        served.ask_as(&stranger, "POST", &path, Some(json!({"answer": "always"}))).expect_refusal(404);
        served.ask("POST", &path, Some(json!({"answer": answer}))).expect(204);
        served.ask("POST", &path, Some(json!({"answer": answer}))).expect_refusal(404);
        crate::shown(trying.finish())
    };
    assert_eq!(answered("deny"), "denied");
    assert_eq!(answered("once"), "ok");
    assert_eq!(answered("always"), "ok");
    assert_eq!(exec(&served, &id, "show(reach('example.com', 80))"), "ok", "nobody is asked again");
    assert!(waiting().is_empty());
    // New rules, new answers.
    set_rules(&served, &id, json!({"ask": ["example.com"]}));
    assert_eq!(answered("deny"), "denied");
    // Who says nothing says no, after as long as the rules give them.
    set_rules(&served, &id, json!({"ask": ["example.com"], "ask_timeout": "1s"}));
    assert_eq!(exec(&served, &id, "show(reach('example.com', 80))"), "denied");
    assert!(waiting().is_empty());
    for (bad, said) in [("500ms", "1s to 24h"), ("2d", "1s to 24h"), ("soon", "like 90s")] {
        let rules = json!({"ask": ["example.com"], "ask_timeout": bad});
        let message = served.ask("PUT", &format!("/sandboxes/{id}/network"), Some(rules)).expect_refusal(400);
        assert!(message.contains(said), "{message}");
    }
    end(served);
    // Where there is nobody to ask, the answer is no.
    let program = inside("show(reach('example.com', 80))");
    let binary = host.binary().to_str().unwrap();
    let words =
        ["setsid", "--wait", binary, "run", "--ask=example.com", &world.mount(), "--", "python3", "-c", &program];
    assert_eq!(crate::shown(sloplet.other_program(&words).finish()), "denied");
}

#[test]
fn e2bs_package_sets_rules() {
    if fast() {
        return; // needs an image that takes minutes to build
    }
    let host = Host::shared();
    let python = tools::python("e2b-python");
    built::copy_to(&host.root(), "base");
    let world = World::new(&host);
    let sloplet = world.around(host.root());
    for internet in [false, true] {
        let options: &[&str] = if internet { &["--allow-internet"] } else { &[] };
        let served = Server::start_with(&sloplet, options);
        let url = format!("http://{}", served.address);
        let output = Command::new(&python)
            .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_network.py"])
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/egress/python"))
            .env("E2B_API_URL", &url)
            .env("E2B_SANDBOX_URL", &url)
            .env("E2B_API_KEY", &served.key)
            .env("SERVED_INTERNET", if internet { "1" } else { "" })
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap();
        let said = [String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)].concat();
        println!("{said}");
        end(served);
        assert!(output.status.success(), "the package's tests failed, see above");
    }
}
