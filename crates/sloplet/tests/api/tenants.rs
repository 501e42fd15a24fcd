//! What keys have of a server, and what is another's.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::http::{self, Reply};
use crate::common::{Host, Server};

/// Builds take a while on a machine that does other things, too.
const PATIENCE: Duration = Duration::from_secs(180);

/// A request to E2B's API.
fn ask(server: &Server, key: &str, method: &str, path: &str, body: &Value) -> Reply {
    let (address, body) = (&server.address, body.to_string());
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nX-API-KEY: {key}\r\nConnection: close\r\n");
    let length = body.len();
    let request = format!("{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
    http::exchange(address, request.as_bytes())
}

/// Begins a build; where its status is.
fn build(server: &Server, key: &str, name: &str, recipe: &Value) -> String {
    let begun = ask(server, key, "POST", "/v3/templates", &json!({"name": name})).expect(202).json();
    let (template, build) = (begun["templateID"].as_str().unwrap(), begun["buildID"].as_str().unwrap());
    ask(server, key, "POST", &format!("/v2/templates/{template}/builds/{build}"), recipe).expect(202);
    format!("/templates/{template}/builds/{build}/status")
}

/// Waits until a build has ended; all that is told of it.
fn ended(server: &Server, key: &str, status: &str) -> Value {
    let started = Instant::now();
    loop {
        let told = ask(server, key, "GET", status, &json!({})).expect(200).json();
        if told["status"] == "ready" || told["status"] == "error" {
            return told;
        }
        assert!(started.elapsed() < PATIENCE, "the build does not end: {told}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_key_reaches_nothing_near_the_server_by_pulling_an_image() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let key = server.new_key(&["tenant"]);
    let registry = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = registry.local_addr().unwrap().port();
    for (name, place) in [("address", "127.0.0.1"), ("name", "localhost")] {
        let status = build(&server, &key, name, &json!({"fromImage": format!("{place}:{port}/ssrf:1")}));
        let told = ended(&server, &key, &status);
        assert_eq!(told["status"], "error", "{told}");
        assert!(told["reason"]["message"].as_str().unwrap().contains("loopback"), "{told}");
    }
    registry.set_nonblocking(true).unwrap();
    assert!(registry.accept().is_err(), "somebody came to the registry");
    server.end();
}

#[test]
fn builds_count_for_their_owners_quota() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let key = server.new_key(&["tenant", "--max-sandboxes", "1"]);
    let made = server.ask_as(&key, "POST", "/sandboxes", Some(json!({}))).expect(201).json();
    let told = ended(&server, &key, &build(&server, &key, "one", &json!({"fromImage": "host"})));
    assert_eq!(told["status"], "error", "{told}");
    assert!(told["reason"]["message"].as_str().unwrap().contains("may have 1 sandboxes"), "{told}");
    server.ask_as(&key, "DELETE", &format!("/sandboxes/{}", made["id"].as_str().unwrap()), None).expect(204);
    let told = ended(&server, &key, &build(&server, &key, "one", &json!({"fromImage": "host"})));
    assert_eq!(told["status"], "ready", "{told}");
    server.end();
}

#[test]
fn one_keys_sleeping_builds_do_not_hold_up_anothers() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let (sleeper, other) = (server.new_key(&["sleeper"]), server.new_key(&["other"]));
    let sleeps = json!({"fromImage": "host", "steps": [{"type": "RUN", "args": ["sleep 3000"]}]});
    let begun: Vec<String> = (0..5).map(|n| build(&server, &sleeper, &format!("sleeps-{n}"), &sleeps)).collect();
    let told = ended(&server, &other, &build(&server, &other, "quick", &json!({"fromImage": "host"})));
    assert_eq!(told["status"], "ready", "{told}");
    for status in begun {
        let template = status.split('/').nth(2).unwrap();
        ask(&server, &sleeper, "DELETE", &format!("/templates/{template}"), &json!({}));
    }
    server.end();
}

#[test]
fn keys_use_the_walls_that_the_operator_lists() {
    let host = Host::shared();
    let options = ["--destroy-on-exit", "--drivers", "namespaces", "--min-isolation", "container"];
    let server = Server::start_with(&host.root(), &options);
    let key = server.new_key(&["tenant"]);
    let weak = server.ask_as(&key, "POST", "/sandboxes", Some(json!({"isolation": "process"}))).expect(201).json();
    assert_eq!(weak["isolation"], "container", "what asks for less gets the least");
    let unlisted = json!({"driver": "crun"});
    server.ask_as(&key, "POST", "/sandboxes", Some(unlisted.clone())).expect_refusal(403);
    server.ask_as(&key, "PUT", "/pools/p", Some(unlisted.clone())).expect_refusal(403);
    // Whoever runs the server may use what it has; that may be without crun.
    assert_ne!(server.ask("POST", "/sandboxes", Some(unlisted)).status, 403);
    server.end();
}

#[test]
fn code_for_an_interpreter_fills_the_record_no_faster_than_other_calls() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let (flood, other) = (server.new_key(&["flood"]), server.new_key(&["other"]));
    let made = server.ask_as(&flood, "POST", "/sandboxes", Some(json!({}))).expect(201).json();
    let place = format!("49999-{}.localhost", made["id"].as_str().unwrap());
    let code = json!({"code": "x".repeat(65_000)}).to_string();
    let head = format!("POST /execute HTTP/1.1\r\nHost: {place}\r\nX-API-KEY: {flood}\r\nConnection: close\r\n");
    let length = code.len();
    let request = format!("{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{code}");
    // Nobody listens there: it counts before that is known.
    let sent = (0..5000).take_while(|_| http::exchange(&server.address, request.as_bytes()).status != 429).count();
    assert!((400..5000).contains(&sent), "{sent} were let through");
    server.ask_as(&other, "POST", "/sandboxes", Some(json!({}))).expect(201);
    server.end();
}
