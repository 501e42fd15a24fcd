//! A server that is told where to die.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use sloplet_engine::failpoint::{ANY, Point, VARIABLE};

use super::operations::{self, IT, Operation};
use super::truth::{self, listed, state};
use crate::common::kept::kept;
use crate::common::leaks::Leaks;
use crate::common::machines::first_processes;
use crate::common::{Host, PATIENCE, Server, Sloplet, until};

/// An operation is over when no step follows for so long. Files of a paused sandbox are saved half a second later.
const QUIET: Duration = Duration::from_millis(1200);

/// A step: a point, and how often it was reached.
pub type Step = (String, usize);

pub struct Trial {
    host: Host,
    leaks: Leaks,
    sloplet: Sloplet,
    served: Option<Server>,
    /// Whose sandboxes they are.
    key: String,
    reached: PathBuf,
    /// What is on the disk when nothing was made.
    layers: BTreeSet<String>,
    pub kills: usize,
    pub killed_at: BTreeMap<String, usize>,
}

impl Trial {
    pub fn new() -> Self {
        let host = Host::shared();
        let (leaks, reached) = (host.leaks(), host.dir().join("points.reached"));
        let sloplet = host.root().with(VARIABLE, reached.to_str().unwrap());
        let served = Server::start_with(&sloplet, &[]);
        let key = served.key.clone();
        let mut trial = Self {
            host,
            leaks,
            sloplet,
            served: Some(served),
            key,
            reached,
            layers: BTreeSet::new(),
            kills: 0,
            killed_at: BTreeMap::new(),
        };
        // Makes the layer of the host's programs.
        operations::create(trial.served());
        trial.clean_up("at first");
        trial.layers = kept(&trial.sloplet.data);
        trial
    }

    /// Ends it: nothing is left on the host.
    pub fn end(mut self) {
        self.served.take().unwrap().end();
        self.leaks.assert_none_new_after_a_server();
    }

    fn served(&self) -> &Server {
        self.served.as_ref().unwrap()
    }

    fn has_died(&mut self) -> bool {
        self.served.as_mut().unwrap().has_died()
    }

    /// Forgets what was reached, and says where to die.
    fn arm(&self, step: Option<(&str, usize)>) {
        let armed = self.reached.with_extension("armed");
        let _ = fs::remove_file(&armed);
        let _ = fs::remove_file(&self.reached);
        if let Some((name, count)) = step {
            // Whole or not at all: the server may look at any moment.
            let written = armed.with_extension("written");
            fs::write(&written, format!("{name}:{count}")).unwrap();
            fs::rename(written, armed).unwrap();
        }
    }

    fn reached(&self) -> Vec<String> {
        fs::read_to_string(&self.reached).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// The points that were reached, each as often.
    fn steps(&self) -> Vec<Step> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let count = |name: String| {
            let count = counts.entry(name.clone()).or_default();
            *count += 1;
            (name, *count)
        };
        self.reached().into_iter().map(count).collect()
    }

    /// Waits until nothing more is done.
    fn quiet(&mut self) {
        let (mut seen, mut since) = (self.reached().len(), Instant::now());
        while since.elapsed() < QUIET && !self.has_died() {
            thread::sleep(Duration::from_millis(20));
            let now = self.reached().len();
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
    }

    /// Brings about what an operation begins with; what goes on behind it is over.
    fn prepare(&self, operation: &Operation) {
        self.arm(None);
        (operation.before)(self.served());
        until(&format!("{}: what goes on before is over", operation.name), || {
            let mut reached = self.reached().into_iter();
            operation.behind.iter().all(|point| reached.any(|name| name == point.name()))
        });
    }

    /// Carries out an operation whole; the steps that it takes.
    pub fn trace(&mut self, operation: &Operation) -> Vec<Step> {
        self.prepare(operation);
        self.arm(None);
        (operation.act)(self.served());
        self.quiet();
        let steps = self.steps();
        self.check_end(operation, operation.name);
        self.clean_up(operation.name);
        steps
    }

    /// Carries it out until a step, where the server dies, and looks at what the next one makes of it. That one dies, too, at
    /// the step of this number, if it gets so far.
    pub fn die_at(&mut self, operation: &Operation, (point, count): &Step, again: Option<usize>) {
        let when = format!("{} until {point} ({count}), again {again:?}", operation.name);
        self.prepare(operation);
        self.arm(Some((point, *count)));
        (operation.act)(self.served());
        self.await_death(operation);
        self.note_kill();
        self.start(again);
        // Time may go on meanwhile: the next look tells.
        let between = state(self.served());
        assert!(operation.between.contains(&between.as_str()), "{when}: it is {between}");
        truth::check(&self.host, self.served(), &when);
        until(&format!("{when}: it holds"), || (operation.holds)(self.served()));
        (operation.act)(self.served());
        self.check_end(operation, &when);
        self.check_mark(operation, &when);
        self.clean_up(&when);
    }

    /// Waits until the server has died; or the operation is over, if it took other steps this time.
    fn await_death(&mut self, operation: &Operation) {
        let started = Instant::now();
        while !self.has_died() && started.elapsed() < PATIENCE {
            let reply = self.served().ask("GET", IT, None);
            let over = match reply.status {
                404 => operation.after == operations::GONE,
                200 => reply.json()["state"] == operation.after,
                _ => false,
            };
            if over {
                return self.quiet();
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Counts the death of a server; one that lives still is killed.
    fn note_kill(&mut self) {
        let mut served = self.served.take().unwrap();
        if served.has_died() {
            self.count_kill();
        }
        served.kill();
    }

    fn count_kill(&mut self) {
        self.kills += 1;
        let name = self.reached().pop().expect("a point where it died");
        assert!(Point::ALL.iter().any(|known| known.name() == name), "a point that is listed: {name}");
        *self.killed_at.entry(name).or_default() += 1;
    }

    /// Starts another server in place of one that has died; the first that is started dies at the step of this number. Tells
    /// whether it did.
    fn start(&mut self, dies_at: Option<usize>) -> bool {
        self.arm(dies_at.map(|count| (ANY, count)));
        let mut served = Server::try_start_again(&self.sloplet, &self.key);
        let died = served.as_mut().is_none_or(Server::has_died);
        if died {
            assert!(dies_at.is_some(), "the server does not start");
            self.count_kill();
            if let Some(served) = served {
                served.kill();
            }
            self.arm(None);
            served = Server::try_start_again(&self.sloplet, &self.key);
        }
        self.arm(None);
        self.served = Some(served.expect("a server that starts"));
        died
    }

    /// It became what it is to be, and all that is told is true.
    #[track_caller]
    fn check_end(&self, operation: &Operation, when: &str) {
        until(&format!("{when}: it becomes {}", operation.after), || state(self.served()) == operation.after);
        until(&format!("{when}: it is done"), || (operation.done)(self.served()));
        until(&format!("{when}: it holds"), || (operation.holds)(self.served()));
        truth::check(&self.host, self.served(), when);
    }

    /// What it had written is there.
    #[track_caller]
    fn check_mark(&self, operation: &Operation, when: &str) {
        if operation.after == operations::GONE || !operation.marked {
            return;
        }
        if operation.after != "running" {
            self.served().ask("POST", &format!("{IT}/resume"), None).expect(200);
        }
        let said = self.served().ask("POST", &format!("{IT}/exec"), Some(json!({"command": "cat ~/mark"})));
        assert_eq!(said.expect(200).json()["stdout"], "kept\n", "{when}: what it wrote is lost");
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
        for template in served.ask_e2b("GET", "/templates", &json!({})).expect(200).json().as_array().unwrap() {
            let path = format!("/templates/{}", template["templateID"].as_str().unwrap());
            let reply = served.ask_e2b("DELETE", &path, &json!({}));
            assert!(reply.status < 300, "{when}: {path} cannot be removed: {}", reply.text());
        }
        until(&format!("{when}: no machine is left"), || first_processes(&self.host).is_empty());
        let started = Instant::now();
        while !self.layers.is_empty() && kept(&self.sloplet.data) != self.layers {
            let left = kept(&self.sloplet.data);
            let new: Vec<_> = left.symmetric_difference(&self.layers).collect();
            assert!(started.elapsed() < PATIENCE, "{when}: left on the disk: {new:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// A server that finds what an earlier one left: a sandbox that runs, one that is paused, one that is stopped, a machine
    /// that waits, and one without a record. It dies at the step of this number, if it gets so far: whether it did.
    pub fn die_while_starting(&mut self, step: usize) -> bool {
        let when = format!("a start until step {step}");
        operations::running(self.served());
        for (name, then) in [("other", "pause"), ("third", ""), ("rests", "stop")] {
            let body = json!({"name": name, "image": "host", "memory": "64MiB", "timeout": "5h"});
            self.served().ask("POST", "/sandboxes", Some(body)).expect(201);
            if !then.is_empty() {
                self.served().ask("POST", &format!("/sandboxes/{name}/{then}"), None).expect(200);
            }
        }
        operations::fill_pool(self.served());
        self.arm(Some((Point::AfterRecordRemoved.name(), 1)));
        self.served().ask("DELETE", "/sandboxes/third", None);
        until("the server dies", || self.has_died());
        self.note_kill();
        let died = self.start(Some(step));
        assert_eq!(state(self.served()), "running", "{when}");
        for (name, wanted) in [("other", "paused"), ("rests", "stopped")] {
            let told = self.served().ask("GET", &format!("/sandboxes/{name}"), None).expect(200).json();
            assert_eq!(told["state"], wanted, "{when}");
        }
        assert_eq!(listed(self.served(), "/sandboxes").len(), 3, "{when}");
        until(&format!("{when}: the pool is filled"), || operations::is_filled(self.served()));
        truth::check(&self.host, self.served(), &when);
        self.clean_up(&when);
        died
    }
}
