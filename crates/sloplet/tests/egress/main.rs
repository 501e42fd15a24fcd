//! The only way out: real sandboxes in front of a world of the test's own.
//!
//! - [`rules`]: what may be reached, and what may not.
//! - [`programs`]: programs that know nothing of it.
//! - [`probes`]: attempts to get around it.
//! - [`serving`]: sandboxes that stay.
//! - [`secrets`]: keys and money.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod probes;
mod programs;
mod rules;
mod secrets;
mod serving;

use common::{Ended, Host, Sloplet, World};
use serde_json::Value;

/// sloplet as root and as an ordinary user, in this world; in the inner loop only as an ordinary user.
fn both(host: &Host, world: &World) -> Vec<Sloplet> {
    let root = (!common::fast()).then(|| host.root());
    root.into_iter().chain([host.user()]).map(|sloplet| world.around(sloplet)).collect()
}

/// Runs a program of Python with the helpers of `inside.py`; what it shows.
#[track_caller]
fn python(sloplet: &Sloplet, world: &World, options: &[&str], program: &str) -> Value {
    shown(sloplet.run(&[options, &[world.mount().as_str()]].concat(), &["python3", "-c", &inside(program)]))
}

/// The same outside of any sandbox.
#[track_caller]
fn python_outside(sloplet: &Sloplet, world: &World, program: &str) -> Value {
    let program = inside(program).replace("/world", world.dir.join("share").to_str().unwrap());
    shown(sloplet.other_program(&["/usr/bin/python3", "-B", "-c", &program]).finish())
}

fn inside(program: &str) -> String {
    format!("import sys; sys.dont_write_bytecode = True; sys.path.insert(0, '/world')\nfrom inside import *\n{program}")
}

#[track_caller]
fn shown(ended: Ended) -> Value {
    let ended = ended.expect_code(0);
    let out = ended.out();
    let line = out.lines().last().unwrap_or_else(|| panic!("nothing was shown: {ended}"));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {ended}"))
}

/// Where to, and what must come of it inside.
type Case<'a> = (&'a str, u16, &'a str);

/// Checks every case from inside; outside, all of them must work.
#[track_caller]
fn check(sloplet: &Sloplet, world: &World, options: &[&str], cases: &[Case<'_>]) {
    let targets: Vec<(&str, u16)> = cases.iter().map(|(host, port, _)| (*host, *port)).collect();
    let program = format!("show([reach(host, port) for host, port in {}])", serde_json::to_string(&targets).unwrap());
    let without = python_outside(sloplet, world, &program);
    let within = python(sloplet, world, options, &program);
    for (number, (host, port, expected)) in cases.iter().enumerate() {
        assert_eq!(without[number], "ok", "{host}:{port} does not even work outside ({})", sloplet.name);
        assert_eq!(within[number], *expected, "{host}:{port} ({})", sloplet.name);
    }
}
