//! What a server tells, and what there is.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::operations::{GONE, IT};
use crate::common::machines::{first_processes, is_frozen};
use crate::common::{Host, PATIENCE, Server};

/// What the server says that the sandbox is.
#[track_caller]
pub fn state(served: &Server) -> String {
    let reply = served.ask("GET", IT, None);
    match reply.status {
        404 => GONE.to_owned(),
        200 => reply.json()["state"].as_str().unwrap().to_owned(),
        status => panic!("{status}: {}", reply.text()),
    }
}

#[track_caller]
pub fn listed(served: &Server, path: &str) -> Vec<Value> {
    let answer = served.ask("GET", path, None).expect(200).json();
    let list = answer.get("sandboxes").or(answer.get("pools")).unwrap_or(&answer);
    list.as_array().unwrap_or_else(|| panic!("no list: {answer}")).clone()
}

/// Machines: how many, and how many of them stand still.
type Machines = (usize, usize);

/// Those that there are to be, by the word of the server.
#[track_caller]
fn told(served: &Server) -> Machines {
    let sandboxes = listed(served, "/sandboxes");
    let are = |state: &str| sandboxes.iter().filter(|sandbox| sandbox["state"] == state).count();
    let waiting = |pool: &Value| pool["metrics"]["ready"].as_u64().unwrap() as usize;
    let ready = listed(served, "/pools").iter().map(waiting).sum::<usize>();
    (are("running") + are("paused") + ready, are("paused"))
}

fn there(host: &Host) -> Machines {
    let machines = first_processes(host);
    (machines.len(), machines.iter().filter(|pid| is_frozen(**pid)).count())
}

/// There are as many machines as the server says, as many stand still, and what runs can be used.
#[track_caller]
pub fn check(host: &Host, served: &Server, when: &str) {
    let started = Instant::now();
    loop {
        // In this order: what is told may change while it is counted.
        let (before, there, after) = (told(served), there(host), told(served));
        if before == there && there == after {
            break;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "{when}: {before:?} machines (and frozen ones) are told, {there:?} are there"
        );
        thread::sleep(Duration::from_millis(50));
    }
    for sandbox in listed(served, "/sandboxes") {
        let (id, state) = (sandbox["id"].as_str().unwrap(), sandbox["state"].as_str().unwrap());
        assert!(matches!(state, "running" | "paused" | "stopped"), "{when}: {sandbox}");
        let exec = served.ask("POST", &format!("/sandboxes/{id}/exec"), Some(json!({"command": "true"})));
        assert!(exec.status < 500, "{when}: {}", exec.text());
        // Its time may be over by now.
        let again = served.ask("GET", &format!("/sandboxes/{id}"), None);
        let is_still = again.status == 200 && again.json()["state"] == state;
        if sandbox["timeout"] != "1s" && is_still {
            assert_eq!(exec.status == 200, state == "running", "{when}: it is {state}: {}", exec.text());
        }
    }
}
