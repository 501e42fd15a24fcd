//! What was removed is gone from the disk, by the server itself: nobody has to run `sloplet gc`.

use std::collections::BTreeSet;
use std::thread;

use serde_json::json;

use crate::common::kept::kept;
use crate::common::machines::kill_and_await;
use crate::common::{Host, PATIENCE, Server, until_within};
use crate::spawners::spawners;

/// How much is in a sandbox whose snapshot is interrupted, in MiB.
const LARGE: usize = 200;

struct Disk<'a> {
    served: &'a Server,
    at_first: BTreeSet<String>,
}

impl<'a> Disk<'a> {
    /// What is there when nothing was made but the layer of the host's programs.
    fn of(served: &'a Server) -> Self {
        served.ask("POST", "/sandboxes", Some(json!({"name": "first"}))).expect(201);
        served.ask("DELETE", "/sandboxes/first", None).expect(204);
        Self { served, at_first: kept(&served.sloplet.data) }
    }

    /// Waits until nothing more is there. Twice as long as usual: the server looks every 15 s.
    #[track_caller]
    fn expect_nothing_left(&self, when: &str) {
        let now = || kept(&self.served.sloplet.data);
        let mut last = BTreeSet::new();
        let told = format!("after {when} only {:?} is left", self.at_first);
        until_within(2 * PATIENCE, &told, || {
            let left = now();
            if left != last {
                eprintln!("after {when}: {:?}", left.symmetric_difference(&self.at_first).collect::<Vec<_>>());
                last = left;
            }
            last == self.at_first
        });
    }
}

fn make(served: &Server, name: &str, image: &str) {
    served.ask("POST", "/sandboxes", Some(json!({"name": name, "image": image, "timeout": "1h"}))).expect(201);
    let write = json!({"command": format!("echo {name} > ~/{name}")});
    served.ask("POST", &format!("/sandboxes/{name}/exec"), Some(write)).expect(200);
}

fn snapshot(served: &Server, sandbox: &str, name: &str) {
    served.ask("POST", &format!("/sandboxes/{sandbox}/snapshot"), Some(json!({"name": name}))).expect(201);
}

#[track_caller]
fn remove(served: &Server, paths: &[&str]) {
    paths.iter().for_each(|path| drop(served.ask("DELETE", path, None).expect(204)));
}

fn build(served: &Server, name: &str) {
    let begun = served.ask_e2b("POST", "/v3/templates", &json!({"name": name})).expect(202).json();
    let (template, build) = (begun["templateID"].as_str().unwrap(), begun["buildID"].as_str().unwrap());
    let recipe = json!({"fromImage": "host", "steps": [
        {"type": "RUN", "args": ["echo one > ~/one"]}, {"type": "RUN", "args": ["echo two > ~/two"]},
    ]});
    served.ask_e2b("POST", &format!("/v2/templates/{template}/builds/{build}"), &recipe).expect(202);
    let status = format!("/templates/{template}/builds/{build}/status");
    until_within(PATIENCE, "the template is built", || {
        served.ask_e2b("GET", &status, &json!({})).expect(200).json()["status"] == "ready"
    });
}

#[test]
fn layers_of_what_was_removed_are_removed_by_the_server_itself() {
    let host = Host::shared();
    let served = Server::start_with(&host.root(), &[]);
    let disk = Disk::of(&served);
    // Snapshots on snapshots; the lower ones go while what is above them is in use.
    make(&served, "a", "host");
    snapshot(&served, "a", "s1");
    make(&served, "b", "s1");
    snapshot(&served, "b", "s2");
    make(&served, "c", "s2");
    remove(&served, &["/snapshots/s1", "/sandboxes/a", "/snapshots/s2", "/sandboxes/b"]);
    let said = served.ask("POST", "/sandboxes/c/exec", Some(json!({"command": "cat ~/a ~/b ~/c"}))).expect(200);
    assert_eq!(said.json()["stdout"], "a\nb\nc\n", "what is in use stays");
    for (what, path) in
        [("stop", "/sandboxes/c/stop"), ("resume", "/sandboxes/c/resume"), ("pause", "/sandboxes/c/pause")]
    {
        assert_eq!(served.ask("POST", path, None).status, 200, "{what}");
    }
    served.ask("POST", "/sandboxes/c/fork", Some(json!({"name": "d"}))).expect(201);
    remove(&served, &["/sandboxes/c", "/sandboxes/d"]);
    disk.expect_nothing_left("snapshots and sandboxes were removed");
    build(&served, "t");
    let made = served.ask_e2b("POST", "/sandboxes", &json!({"templateID": "t"})).expect(201).json();
    assert!(served.ask_e2b("DELETE", "/templates/t", &json!({})).status < 300);
    remove(&served, &[&format!("/sandboxes/{}", made["sandboxID"].as_str().unwrap())]);
    disk.expect_nothing_left("a template was removed");
    served.end_with_its_sandboxes();
}

#[test]
fn layers_that_killed_spawners_and_interrupted_snapshots_leave_are_removed_by_the_server_itself() {
    let host = Host::shared();
    let served = Server::start_with(&host.root(), &[]);
    let disk = Disk::of(&served);
    make(&served, "a", "host");
    snapshot(&served, "a", "s1");
    make(&served, "b", "s1");
    kill_and_await(&spawners(&served));
    let failed = |name: &str| served.ask("GET", &format!("/sandboxes/{name}"), None).json()["state"] == "failed";
    until_within(PATIENCE, "the server knows", || failed("a") && failed("b"));
    remove(&served, &["/sandboxes/a", "/sandboxes/b", "/snapshots/s1"]);
    disk.expect_nothing_left("its spawner was killed");
    // The spawner dies in the middle of a copy; whoever asked for it is told, or was just in time.
    make(&served, "large", "host");
    let fill = json!({"command": format!("head -c {LARGE}M /dev/urandom > ~/large")});
    served.ask("POST", "/sandboxes/large/exec", Some(fill)).expect(200);
    thread::scope(|scope| {
        let asked = scope.spawn(|| served.ask("POST", "/sandboxes/large/snapshot", Some(json!({"name": "s2"}))).status);
        let begun = |line: &String| line.starts_with("images/tmp/");
        until_within(PATIENCE, "the copy begins", || {
            asked.is_finished() || kept(&served.sloplet.data).iter().any(begun)
        });
        kill_and_await(&spawners(&served));
        let status = asked.join().unwrap();
        assert!(status == 201 || status >= 400, "{status}");
    });
    until_within(PATIENCE, "the server knows", || failed("large"));
    for snapshot in served.ask("GET", "/snapshots", None).expect(200).json().as_array().unwrap() {
        remove(&served, &[&format!("/snapshots/{}", snapshot["id"].as_str().unwrap())]);
    }
    remove(&served, &["/sandboxes/large"]);
    disk.expect_nothing_left("a snapshot was interrupted");
    served.end_with_its_sandboxes();
}
