//! kill -9 of the server at every step of every operation: what it tells afterwards is what is there.
//!
//! Each operation is carried out once to see which [failpoints](sloplet_engine::failpoint) it reaches; then once more for each of
//! them, and the server kills itself there. `SLOPLET_TEST_KILLS` says how many kills there are to be at least;
//! `SLOPLET_TEST_OPERATIONS` has parts of the names of those operations that are to be tried, with commas between them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::ptr::fn_addr_eq;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sloplet_engine::failpoint::{Point, VARIABLE};

use crate::common::{Host, Server, Sloplet};

/// How long something that is bound to happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An operation is over when no step follows for so long. Files of a paused sandbox are saved half a second later.
const QUIET: Duration = Duration::from_millis(1200);

/// The sandbox that each operation is about.
const IT: &str = "/sandboxes/it";

struct Operation {
    name: &'static str,
    /// Brings about what it begins with.
    before: fn(&Server),
    /// Carries it out, or what is left of it.
    act: fn(&Server),
    /// What the sandbox may be in between, by the word of the next server.
    between: &'static [&'static str],
    /// What it is in the end.
    after: &'static str,
}

const GONE: &str = "gone";

const OPERATIONS: &[Operation] = &[
    Operation { name: "create", before: nothing, act: create, between: &[GONE, "running"], after: "running" },
    Operation {
        name: "create with a volume",
        before: a_volume,
        act: with_volume,
        between: &[GONE, "running"],
        after: "running",
    },
    Operation { name: "pause", before: running, act: pause, between: &["running", "paused"], after: "paused" },
    Operation {
        name: "resume a paused one",
        before: paused,
        act: resume,
        between: &["running", "paused"],
        after: "running",
    },
    Operation {
        name: "resume a stopped one",
        before: stopped,
        act: resume,
        between: &["stopped", "running"],
        after: "running",
    },
    Operation {
        name: "stop",
        before: running,
        act: stop,
        between: &["running", "paused", "stopped"],
        after: "stopped",
    },
    Operation { name: "remove a running one", before: running, act: remove, between: &["running", GONE], after: GONE },
    Operation { name: "remove a paused one", before: paused, act: remove, between: &["paused", GONE], after: GONE },
    Operation { name: "snapshot", before: running, act: snapshot, between: &["running"], after: "running" },
    Operation {
        name: "snapshot removal",
        before: a_snapshot,
        act: remove_snapshot,
        between: &["running"],
        after: "running",
    },
    Operation { name: "fork", before: running, act: fork, between: &["running"], after: "running" },
    Operation { name: "time-out", before: running, act: time_out, between: &["running", GONE], after: GONE },
    Operation {
        name: "time-out that stops",
        before: to_be_stopped,
        act: time_out_or_stop,
        between: &["running", "paused", "stopped"],
        after: "stopped",
    },
    Operation { name: "pool", before: nothing, act: fill, between: &[GONE], after: GONE },
    Operation { name: "pool removal", before: fill, act: remove_pool, between: &[GONE], after: GONE },
    Operation { name: "claim", before: fill, act: claim, between: &[GONE, "running"], after: "running" },
    Operation {
        name: "claim with a volume",
        before: pool_and_volume,
        act: with_volume,
        between: &[GONE, "running"],
        after: "running",
    },
    Operation { name: "volume", before: nothing, act: volume, between: &[GONE], after: GONE },
    Operation { name: "volume removal", before: a_volume, act: remove_volume, between: &[GONE], after: GONE },
];

fn nothing(_: &Server) {}

/// Makes it. The answer does not matter: the server may have died, or it may be there already.
fn make(served: &Server, more: Value) {
    let mut body = json!({"name": "it", "image": "host", "memory": "64MiB", "timeout": "5h"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    served.ask("POST", "/sandboxes", Some(body));
}

fn create(served: &Server) {
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
fn running(served: &Server) {
    create(served);
    mark(served);
}

#[track_caller]
fn to_be_stopped(served: &Server) {
    make(served, json!({"on_timeout": "stop"}));
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
}

#[track_caller]
fn stopped(served: &Server) {
    running(served);
    stop(served);
    assert_eq!(state(served), "stopped");
}

fn a_snapshot(served: &Server) {
    running(served);
    snapshot(served);
}

fn pause(served: &Server) {
    served.ask("POST", &format!("{IT}/pause"), None);
}

fn resume(served: &Server) {
    served.ask("POST", &format!("{IT}/resume"), None);
}

fn stop(served: &Server) {
    served.ask("POST", &format!("{IT}/stop"), None);
}

fn remove(served: &Server) {
    served.ask("DELETE", IT, None);
}

fn snapshot(served: &Server) {
    served.ask("POST", &format!("{IT}/snapshot"), Some(json!({"name": "s"})));
}

fn remove_snapshot(served: &Server) {
    served.ask("DELETE", "/snapshots/s", None);
}

fn fork(served: &Server) {
    served.ask("POST", &format!("{IT}/fork"), Some(json!({"name": "fork"})));
}

fn time_out(served: &Server) {
    served.ask("PATCH", IT, Some(json!({"timeout": "1s"})));
}

/// The server that was to stop it may have died when it was paused, which it stays then until somebody wants something else.
fn time_out_or_stop(served: &Server) {
    if served.ask("PATCH", IT, Some(json!({"timeout": "1s"}))).status == 200 && state(served) == "paused" {
        stop(served);
    }
}

fn fill(served: &Server) {
    let body = json!({"image": "host", "memory": "64MiB", "target_ready": 1, "max_ready": 1, "adaptive": false});
    let made = served.ask("PUT", "/pools/p", Some(body));
    if made.status != 0 {
        assert!(made.status < 300, "{}", made.text());
        served.ask("POST", "/pools/p/fill", Some(json!({})));
    }
}

fn pool_and_volume(served: &Server) {
    a_volume(served);
    fill(served);
}

fn remove_pool(served: &Server) {
    served.ask("DELETE", "/pools/p", None);
}

fn volume(served: &Server) {
    served.ask("POST", "/volumes", Some(json!({"name": "vol"})));
}

#[track_caller]
fn a_volume(served: &Server) {
    served.ask("POST", "/volumes", Some(json!({"name": "vol"}))).expect(201);
}

fn remove_volume(served: &Server) {
    served.ask("DELETE", "/volumes/vol", None);
}

#[track_caller]
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "it does not happen: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// What the server says that it is.
#[track_caller]
fn state(served: &Server) -> String {
    let reply = served.ask("GET", IT, None);
    match reply.status {
        404 => GONE.to_owned(),
        200 => reply.json()["state"].as_str().unwrap().to_owned(),
        status => panic!("{status}: {}", reply.text()),
    }
}

#[track_caller]
fn listed(served: &Server, path: &str) -> Vec<Value> {
    let answer = served.ask("GET", path, None).expect(200).json();
    let list = answer.get("sandboxes").or(answer.get("pools")).unwrap_or(&answer);
    list.as_array().unwrap_or_else(|| panic!("no list: {answer}")).clone()
}

/// Machines that there are to be, by the word of the server.
#[track_caller]
fn machines_told(served: &Server) -> usize {
    let lives = |sandbox: &&Value| sandbox["state"] == "running" || sandbox["state"] == "paused";
    let sandboxes = listed(served, "/sandboxes").iter().filter(lives).count();
    let waiting = |pool: &Value| pool["metrics"]["ready"].as_u64().unwrap() as usize;
    sandboxes + listed(served, "/pools").iter().map(waiting).sum::<usize>()
}

/// Machines that there are: first processes of sandboxes.
fn machines_there(host: &Host) -> usize {
    let first_inside = |pid: &str| {
        let ours = fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == host.binary());
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let inside = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default().to_owned();
        let pids: Vec<&str> = inside.split_whitespace().collect();
        ours && pids.len() > 1 && pids.last() == Some(&"1")
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|pid| first_inside(pid)).count()
}

/// A server that can be told where to die.
struct Trial {
    host: Host,
    sloplet: Sloplet,
    served: Option<Server>,
    /// Whose sandboxes they are.
    key: String,
    reached: PathBuf,
    layers: BTreeSet<String>,
    kills: usize,
    killed_at: BTreeMap<&'static str, usize>,
}

impl Trial {
    fn new() -> Self {
        let host = Host::alone();
        let reached = host.dir().join("points.reached");
        let sloplet = host.root().with(VARIABLE, reached.to_str().unwrap());
        let served = Server::start_with(&sloplet, &[]);
        let (key, served) = (served.key.clone(), Some(served));
        let mut trial =
            Self { host, sloplet, served, key, reached, layers: BTreeSet::new(), kills: 0, killed_at: BTreeMap::new() };
        // Makes the layer of the host's programs.
        create(trial.served());
        trial.clean_up("at first");
        trial.layers = trial.kept();
        trial
    }

    fn served(&self) -> &Server {
        self.served.as_ref().unwrap()
    }

    /// Forgets what was reached, and says where to die.
    fn arm(&self, point: Option<(&str, usize)>) {
        let armed = self.reached.with_extension("armed");
        let _ = fs::remove_file(&armed);
        let _ = fs::remove_file(&self.reached);
        if let Some((name, count)) = point {
            fs::write(armed, format!("{name}:{count}")).unwrap();
        }
    }

    fn reached(&self) -> Vec<String> {
        fs::read_to_string(&self.reached).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Waits until nothing more is done.
    fn quiet(&mut self) {
        let (mut seen, mut since) = (self.reached().len(), Instant::now());
        while since.elapsed() < QUIET && !self.served.as_mut().unwrap().has_died() {
            thread::sleep(Duration::from_millis(20));
            let now = self.reached().len();
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
    }

    /// What is left on the disk beside what is remembered.
    fn kept(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for folder in ["images/layers", "images/names", "images/tmp", "volumes", "memory", "disks"] {
            for entry in fs::read_dir(self.sloplet.data.join(folder)).into_iter().flatten().flatten() {
                found.insert(format!("{folder}/{}", entry.file_name().display()));
            }
        }
        found.retain(|path| !path.starts_with("disks/ext4-"));
        found
    }

    /// Removes everything; nothing may be left.
    #[track_caller]
    fn clean_up(&self, when: &str) {
        let served = self.served();
        let removed = |kind: &str, field: &str| {
            for one in listed(served, &format!("/{kind}")) {
                let id = one[field].as_str().unwrap();
                let reply = served.ask("DELETE", &format!("/{kind}/{id}"), None);
                assert_eq!(reply.status, 204, "{when}: {kind} {id} cannot be removed: {}", reply.text());
            }
        };
        removed("pools", "name");
        removed("sandboxes", "id");
        removed("snapshots", "id");
        removed("volumes", "id");
        until(&format!("{when}: no machine is left"), || machines_there(&self.host) == 0);
        if !self.layers.is_empty() {
            let started = Instant::now();
            while self.kept() != self.layers {
                let left = self.kept();
                let new: Vec<_> = left.symmetric_difference(&self.layers).collect();
                assert!(started.elapsed() < PATIENCE, "{when}: left on the disk: {new:?}");
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Carries out an operation whole; the points that it reaches, each as often.
    fn trace(&mut self, operation: &Operation) -> Vec<(String, usize)> {
        (operation.before)(self.served());
        self.quiet();
        self.arm(None);
        (operation.act)(self.served());
        until(&format!("{} ends", operation.name), || state(self.served()) == operation.after);
        self.quiet();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut steps = Vec::new();
        for name in self.reached() {
            let count = counts.entry(name.clone()).or_default();
            *count += 1;
            steps.push((name, *count));
        }
        self.check_truth(operation.name);
        self.clean_up(operation.name);
        steps
    }

    /// Carries it out until a point, where the server dies, and looks at what the next one makes of it.
    fn die_at(&mut self, operation: &Operation, point: &str, count: usize) {
        let when = format!("{} until {point} ({count})", operation.name);
        (operation.before)(self.served());
        // What goes on behind these is not to be taken for a step of what follows.
        if [paused as fn(&Server), fill, pool_and_volume].iter().any(|before| fn_addr_eq(*before, operation.before)) {
            self.quiet();
        }
        self.arm(Some((point, count)));
        (operation.act)(self.served());
        let started = Instant::now();
        while !self.served.as_mut().unwrap().has_died() && started.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(10));
        }
        self.arm(None);
        self.restart(point);
        // Time may go on meanwhile: the next look tells.
        let between = state(self.served());
        assert!(operation.between.contains(&between.as_str()), "{when}: it is {between}");
        self.check_truth(&when);
        (operation.act)(self.served());
        until(&format!("{when}: it becomes {}", operation.after), || state(self.served()) == operation.after);
        self.check_truth(&when);
        self.check_mark(operation, &when);
        self.clean_up(&when);
    }

    /// Starts another server in place of one that has died, or was to.
    fn restart(&mut self, point: &str) {
        let mut served = self.served.take().unwrap();
        if served.has_died() {
            self.kills += 1;
            let name = Point::ALL.iter().find(|known| known.name() == point).map(|known| known.name());
            *self.killed_at.entry(name.expect("a point that is listed")).or_default() += 1;
        }
        served.kill();
        self.start();
    }

    fn start(&mut self) {
        let mut served = Server::start_with(&self.sloplet, &[]);
        served.key.clone_from(&self.key);
        self.served = Some(served);
    }

    /// There are as many machines as the server says, and what runs can be used.
    #[track_caller]
    fn check_truth(&self, when: &str) {
        let served = self.served();
        let started = Instant::now();
        loop {
            // In this order: what is told may change while it is counted.
            let (told, there, again) = (machines_told(served), machines_there(&self.host), machines_told(served));
            if told == there && there == again {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "{when}: {told} machines are told, {there} are there");
            thread::sleep(Duration::from_millis(50));
        }
        for sandbox in listed(served, "/sandboxes") {
            let (id, state) = (sandbox["id"].as_str().unwrap(), sandbox["state"].as_str().unwrap());
            assert!(matches!(state, "running" | "paused" | "stopped"), "{when}: {sandbox}");
            let exec = served.ask("POST", &format!("/sandboxes/{id}/exec"), Some(json!({"command": "true"})));
            // Its time may be over by now.
            if sandbox["timeout"] != "1s" && self.is_still(id, state) {
                assert_eq!(exec.status == 200, state == "running", "{when}: it is {state}: {}", exec.text());
            }
        }
    }

    fn is_still(&self, id: &str, state: &str) -> bool {
        let reply = self.served().ask("GET", &format!("/sandboxes/{id}"), None);
        reply.status == 200 && reply.json()["state"] == state
    }

    /// What it had written is there.
    #[track_caller]
    fn check_mark(&self, operation: &Operation, when: &str) {
        let marked = [running as fn(&Server), paused, stopped, a_snapshot, to_be_stopped];
        if operation.after == GONE || !marked.iter().any(|before| fn_addr_eq(*before, operation.before)) {
            return;
        }
        if operation.after != "running" {
            self.served().ask("POST", &format!("{IT}/resume"), None).expect(200);
        }
        let said = self.served().ask("POST", &format!("{IT}/exec"), Some(json!({"command": "cat ~/mark"})));
        assert_eq!(said.expect(200).json()["stdout"], "kept\n", "{when}: what it wrote is lost");
    }

    /// Lets a server die while it finds what an earlier one left: one that runs, one that is paused, and a machine without a
    /// record.
    fn die_while_starting(&mut self, point: &str) {
        let when = format!("a start until {point}");
        running(self.served());
        for (name, then) in [("other", "pause"), ("third", "")] {
            let body = json!({"name": name, "image": "host", "memory": "64MiB", "timeout": "5h"});
            self.served().ask("POST", "/sandboxes", Some(body)).expect(201);
            if !then.is_empty() {
                self.served().ask("POST", &format!("/sandboxes/{name}/{then}"), None).expect(200);
            }
        }
        self.quiet();
        self.arm(Some((Point::AfterRecordRemoved.name(), 1)));
        self.served().ask("DELETE", "/sandboxes/third", None);
        let mut served = self.served.take().unwrap();
        until("the server dies", || served.has_died());
        served.kill();
        self.arm(Some((point, 1)));
        let ended = self.sloplet.invoke(&["serve", "--listen", "127.0.0.1:0"]).finish();
        assert_eq!(ended.signal, Some(9), "{when}: {ended}");
        self.arm(None);
        self.kills += 2;
        for name in [Point::AfterRecordRemoved.name(), point] {
            let known = Point::ALL.iter().find(|known| known.name() == name).unwrap();
            *self.killed_at.entry(known.name()).or_default() += 1;
        }
        self.start();
        assert_eq!(state(self.served()), "running", "{when}");
        assert_eq!(listed(self.served(), "/sandboxes").len(), 2, "{when}");
        self.check_truth(&when);
        self.clean_up(&when);
    }
}

#[test]
fn a_server_killed_at_any_step_of_any_operation_tells_the_truth_afterwards() {
    let wanted = std::env::var("SLOPLET_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let some = std::env::var("SLOPLET_TEST_OPERATIONS").unwrap_or_default();
    // Claims, volumes and the start itself only where many kills are asked for.
    let thorough = wanted > 1 || !some.is_empty();
    let more =
        |name: &str| ["pool removal", "claim", "claim with a volume", "volume", "volume removal"].contains(&name);
    let wanted_ones = |name: &str| some.split(',').any(|part| name.contains(part)) && (thorough || !more(name));
    let mut trial = Trial::new();
    let leaks = trial.host.leaks();
    let mut steps = 0;
    while trial.kills < wanted {
        for operation in OPERATIONS.iter().filter(|operation| wanted_ones(operation.name)) {
            let traced = trial.trace(operation);
            assert!(!traced.is_empty(), "{} reaches no point", operation.name);
            steps += traced.len();
            let began = Instant::now();
            let count = traced.len();
            for (point, count) in traced {
                trial.die_at(operation, &point, count);
            }
            eprintln!("{}: {count} steps, {:.1?}", operation.name, began.elapsed());
        }
        let starts = [Point::AfterAdoption, Point::BeforeTakeOver, Point::AfterTakeOver, Point::AfterOrphan];
        for point in starts.into_iter().filter(|_| thorough) {
            trial.die_while_starting(point.name());
        }
        eprintln!("{} kills at {steps} steps so far", trial.kills);
    }
    let never: Vec<&str> =
        Point::ALL.iter().map(|point| point.name()).filter(|name| !trial.killed_at.contains_key(name)).collect();
    assert!(
        never.is_empty() || !some.is_empty() || !thorough,
        "no server died at {never:?}, but at {:?}",
        trial.killed_at
    );
    trial.served.take().unwrap().end();
    drop(leaks);
}
