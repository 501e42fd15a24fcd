//! The operations of a server, each as a test carries it out.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sloplet_engine::failpoint::Point;

use super::truth::{listed, state};
use crate::common::http::Reply;
use crate::common::{PATIENCE, Server};

/// The sandbox that each operation is about.
pub const IT: &str = "/sandboxes/it";

/// The state of a sandbox that there is not.
pub const GONE: &str = "gone";

pub struct Operation {
    pub name: &'static str,
    /// Brings about what it begins with.
    pub before: fn(&Server),
    /// What goes on afterwards, in this order, and is not to be taken for a step of the operation.
    pub behind: &'static [Point],
    /// The sandbox has written something by then, which it must keep.
    pub marked: bool,
    /// Carries it out, or what is left of it.
    pub act: fn(&Server),
    /// What the sandbox may be in between, by the word of the next server.
    pub between: &'static [&'static str],
    /// What it is in the end.
    pub after: &'static str,
    /// What else is so in the end.
    pub done: fn(&Server) -> bool,
    /// What is so whenever a server has started.
    pub holds: fn(&Server) -> bool,
}

const PLAIN: Operation = Operation {
    name: "",
    before: |_| (),
    behind: &[],
    marked: false,
    act: |_| (),
    between: &[GONE],
    after: GONE,
    done: |_| true,
    holds: |_| true,
};

/// Operations on a sandbox that runs and goes on running.
const ON_RUNNING: Operation =
    Operation { before: running, marked: true, between: &["running"], after: "running", ..PLAIN };

/// A paused sandbox's files are saved a moment later.
const SAVED: &[Point] = &[Point::AfterFreeze, Point::AfterImage, Point::AfterRecord];

pub const OPERATIONS: &[Operation] = &[
    Operation { name: "create", act: create, between: &[GONE, "running"], after: "running", ..PLAIN },
    Operation {
        name: "create with a volume",
        before: a_volume,
        act: with_volume,
        between: &[GONE, "running"],
        after: "running",
        ..PLAIN
    },
    Operation { name: "exec", act: exec, ..ON_RUNNING },
    Operation { name: "process", act: process, holds: processes_are_told, ..ON_RUNNING },
    Operation { name: "pause", act: pause, between: &["running", "paused"], after: "paused", ..ON_RUNNING },
    Operation {
        name: "resume a paused one",
        before: paused,
        behind: SAVED,
        act: resume,
        between: &["running", "paused"],
        ..ON_RUNNING
    },
    Operation {
        name: "resume a stopped one",
        before: stopped,
        act: resume,
        between: &["stopped", "running"],
        ..ON_RUNNING
    },
    Operation { name: "stop", act: stop, between: &["running", "paused", "stopped"], after: "stopped", ..ON_RUNNING },
    Operation { name: "remove a running one", act: remove, between: &["running", GONE], after: GONE, ..ON_RUNNING },
    Operation {
        name: "remove a paused one",
        before: paused,
        behind: SAVED,
        act: remove,
        between: &["paused", GONE],
        after: GONE,
        ..ON_RUNNING
    },
    Operation {
        name: "remove a stopped one",
        before: stopped,
        act: remove,
        between: &["stopped", GONE],
        after: GONE,
        ..ON_RUNNING
    },
    Operation { name: "snapshot", act: snapshot, done: |served| has(served, "/snapshots", 1), ..ON_RUNNING },
    Operation {
        name: "snapshot removal",
        before: a_snapshot,
        act: |served| drop(tried(served, "DELETE", "/snapshots/s", None)),
        done: |served| has(served, "/snapshots", 0),
        ..ON_RUNNING
    },
    Operation { name: "fork", act: fork, done: |served| listed(served, "/sandboxes").len() >= 2, ..ON_RUNNING },
    Operation { name: "time-out", act: time_out, between: &["running", GONE], after: GONE, ..ON_RUNNING },
    Operation {
        name: "time-out that stops",
        before: to_be_stopped,
        act: time_out_or_stop,
        between: &["running", "paused", "stopped"],
        after: "stopped",
        ..ON_RUNNING
    },
    Operation { name: "pool", act: fill, done: is_filled, ..PLAIN },
    Operation {
        name: "pool removal",
        before: fill,
        act: |served| drop(tried(served, "DELETE", "/pools/p", None)),
        done: |served| has(served, "/pools", 0),
        ..PLAIN
    },
    Operation { name: "claim", before: fill, act: claim, between: &[GONE, "running"], after: "running", ..PLAIN },
    Operation {
        name: "claim with a volume",
        before: pool_and_volume,
        act: with_volume,
        between: &[GONE, "running"],
        after: "running",
        ..PLAIN
    },
    Operation {
        name: "volume",
        act: |served| drop(tried(served, "POST", "/volumes", Some(json!({"name": "vol"})))),
        done: |served| has(served, "/volumes", 1),
        holds: volumes_can_be_used,
        ..PLAIN
    },
    Operation {
        name: "volume of a size",
        act: |served| drop(tried(served, "POST", "/volumes", Some(json!({"name": "vol", "size": "16MiB"})))),
        done: |served| has(served, "/volumes", 1),
        holds: volumes_can_be_used,
        ..PLAIN
    },
    Operation {
        name: "volume removal",
        before: a_volume,
        act: |served| drop(tried(served, "DELETE", "/volumes/vol", None)),
        done: |served| has(served, "/volumes", 0),
        holds: volumes_can_be_used,
        ..PLAIN
    },
    Operation { name: "template", act: build, done: can_be_used, holds: builds_are_over, ..PLAIN },
    Operation {
        name: "template removal",
        before: build,
        act: |served| drop(e2b(served, "DELETE", "/templates/t", &json!({}))),
        done: |served| e2b(served, "GET", "/templates/aliases/t", &json!({})).status == 404,
        holds: builds_are_over,
        ..PLAIN
    },
];

/// Asks for something that may be done already, or kill the server. What it answers is no failure of its own.
#[track_caller]
fn tried(served: &Server, method: &str, path: &str, body: Option<Value>) -> Reply {
    let reply = served.ask(method, path, body);
    assert!(reply.status < 500, "{method} {path}: {} {}", reply.status, reply.text());
    reply
}

#[track_caller]
fn e2b(served: &Server, method: &str, path: &str, body: &Value) -> Reply {
    let reply = served.ask_e2b(method, path, body);
    assert!(reply.status < 500, "{method} {path}: {} {}", reply.status, reply.text());
    reply
}

#[track_caller]
fn has(served: &Server, path: &str, count: usize) -> bool {
    listed(served, path).len() == count
}

fn make(served: &Server, more: Value) -> Reply {
    let mut body = json!({"name": "it", "image": "host", "memory": "64MiB", "timeout": "5h"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    tried(served, "POST", "/sandboxes", Some(body))
}

pub fn create(served: &Server) {
    make(served, json!({}));
}

fn with_volume(served: &Server) {
    make(served, json!({"volumes": [{"volume": "vol", "path": "/vol"}]}));
}

fn claim(served: &Server) {
    make(served, json!({"pool": "p"}));
}

/// Runs, and has written something.
#[track_caller]
pub fn running(served: &Server) {
    make(served, json!({})).expect(201);
    mark(served);
}

#[track_caller]
fn to_be_stopped(served: &Server) {
    make(served, json!({"on_timeout": "stop"})).expect(201);
    mark(served);
}

#[track_caller]
fn mark(served: &Server) {
    served.ask("POST", &format!("{IT}/exec"), Some(json!({"command": "echo kept > ~/mark; sync ~/mark"}))).expect(200);
}

#[track_caller]
fn paused(served: &Server) {
    running(served);
    pause(served);
    assert_eq!(state(served), "paused");
}

#[track_caller]
fn stopped(served: &Server) {
    running(served);
    stop(served);
    assert_eq!(state(served), "stopped");
}

#[track_caller]
fn a_snapshot(served: &Server) {
    running(served);
    snapshot(served);
}

#[track_caller]
fn of_it(served: &Server, what: &str, body: Option<Value>) {
    tried(served, "POST", &format!("{IT}/{what}"), body);
}

fn exec(served: &Server) {
    of_it(served, "exec", Some(json!({"command": "echo more >> ~/more"})));
}

fn process(served: &Server) {
    of_it(served, "processes", Some(json!({"command": ["sleep", "1000"]})));
}

/// The processes that are told are those that there are.
fn processes_are_told(served: &Server) -> bool {
    let told = served.ask("GET", &format!("{IT}/processes"), None).expect(200).json();
    let told = told.get("processes").unwrap_or(&told).to_string().matches("\"sleep\"").count();
    let count = json!({"command": "cat /proc/[0-9]*/comm | grep -c '^sleep$'"});
    let there = served.ask("POST", &format!("{IT}/exec"), Some(count)).expect(200).json();
    there["stdout"].as_str().unwrap().trim() == told.to_string()
}

fn pause(served: &Server) {
    of_it(served, "pause", None);
}

fn resume(served: &Server) {
    of_it(served, "resume", None);
}

fn stop(served: &Server) {
    of_it(served, "stop", None);
}

fn remove(served: &Server) {
    tried(served, "DELETE", IT, None);
}

fn snapshot(served: &Server) {
    of_it(served, "snapshot", Some(json!({"name": "s"})));
}

fn fork(served: &Server) {
    of_it(served, "fork", Some(json!({"name": "fork"})));
}

fn time_out(served: &Server) {
    tried(served, "PATCH", IT, Some(json!({"timeout": "1s"})));
}

/// The server that was to stop it may have died when it was paused, which it stays then until somebody wants something else.
fn time_out_or_stop(served: &Server) {
    if tried(served, "PATCH", IT, Some(json!({"timeout": "1s"}))).status == 200 && state(served) == "paused" {
        stop(served);
    }
}

fn fill(served: &Server) {
    let body = json!({"image": "host", "memory": "64MiB", "target_ready": 1, "max_ready": 1, "adaptive": false});
    let made = tried(served, "PUT", "/pools/p", Some(body));
    if made.status != 0 {
        assert!(made.status < 300, "{}", made.text());
        tried(served, "POST", "/pools/p/fill", Some(json!({})));
    }
}

pub fn fill_pool(served: &Server) {
    fill(served);
}

pub fn is_filled(served: &Server) -> bool {
    let pools = listed(served, "/pools");
    pools.len() == 1 && pools[0]["metrics"]["ready"] == 1
}

#[track_caller]
fn pool_and_volume(served: &Server) {
    a_volume(served);
    fill(served);
}

#[track_caller]
fn a_volume(served: &Server) {
    served.ask("POST", "/volumes", Some(json!({"name": "vol"}))).expect(201);
}

/// A sandbox can have each volume that is told.
fn volumes_can_be_used(served: &Server) -> bool {
    for volume in listed(served, "/volumes") {
        let body = json!({
            "name": "user", "image": "host", "memory": "64MiB",
            "volumes": [{"volume": volume["id"], "path": "/vol"}],
        });
        served.ask("POST", "/sandboxes", Some(body)).expect(201);
        let written = served.ask("POST", "/sandboxes/user/exec", Some(json!({"command": "echo it > /vol/it"})));
        assert_eq!(written.expect(200).json()["exit_code"], 0);
        served.ask("DELETE", "/sandboxes/user", None).expect(204);
    }
    true
}

/// Builds a template, as far as that goes.
fn build(served: &Server) {
    let begun = e2b(served, "POST", "/v3/templates", &json!({"name": "t"}));
    if begun.status != 202 {
        return;
    }
    let begun = begun.json();
    let (template, build) = (begun["templateID"].as_str().unwrap(), begun["buildID"].as_str().unwrap());
    let recipe = json!({
        "fromImage": "host", "force": true, "steps": [{"type": "RUN", "args": ["echo built > ~/built"]}],
    });
    e2b(served, "POST", &format!("/v2/templates/{template}/builds/{build}"), &recipe);
    let (status, started) = (format!("/templates/{template}/builds/{build}/status"), Instant::now());
    loop {
        let told = e2b(served, "GET", &status, &json!({}));
        if told.status != 200 || ["ready", "error"].iter().any(|state| told.json()["status"] == *state) {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "the build does not end: {}", told.text());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Templates that are told can be used.
fn can_be_used(served: &Server) -> bool {
    let made = e2b(served, "POST", "/sandboxes", &json!({"templateID": "t"})).expect(201).json();
    let path = format!("/sandboxes/{}", made["sandboxID"].as_str().unwrap());
    let said = served.ask("POST", &format!("{path}/exec"), Some(json!({"command": "cat ~/built"}))).expect(200);
    assert_eq!(said.json()["stdout"], "built\n");
    served.ask("DELETE", &path, None).expect(204);
    true
}

/// No build is told to go on that nobody carries on; what is told to be ready has a name.
fn builds_are_over(served: &Server) -> bool {
    let templates = e2b(served, "GET", "/templates", &json!({})).expect(200).json();
    for template in templates.as_array().unwrap() {
        let status = template["buildStatus"].as_str().unwrap_or_default();
        assert!(["ready", "error", "waiting"].contains(&status), "{template}");
        let usable = e2b(served, "GET", "/templates/aliases/t", &json!({})).status == 200;
        assert!(usable || status != "ready", "{template}");
    }
    true
}
