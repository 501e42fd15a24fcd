//! What the tests share.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "not every test uses all of it")]

use std::path::{Path, PathBuf};

use sloplet_ledger::event::{Egress, ExecStarted};
use sloplet_ledger::{Event, Filter, Known, Ledger, Options, Reader, Record, Report, verify};

pub fn segment(data: &Path, number: u32) -> PathBuf {
    data.join(format!("ledger/{number:08}.log"))
}

pub fn heads(data: &Path) -> PathBuf {
    data.join("ledger/heads")
}

/// Segments of a few records each.
pub fn small() -> Options {
    Options { segment_bytes: 1500, ..Options::default() }
}

/// Different events, one after the other.
pub fn event(at: u64) -> Event {
    match at % 3 {
        0 => Event::note(format!("note {at} with \"quotes\", ünïcode\nand lines")),
        1 => Event::ExecStarted(ExecStarted {
            exec: format!("e{at}").into(),
            argv: ["sh", "-c", "echo hi"].into_iter().collect(),
            cwd: "/workspace".into(),
            ..ExecStarted::default()
        }),
        _ => Event::Egress(Egress { connection: at, name: Some("example.com".into()), port: 443, ..Egress::default() }),
    }
}

/// Records `count` events in a ledger and closes it.
pub fn fill(data: &Path, options: Options, count: u64) {
    let ledger = Ledger::new(data, options);
    for at in 0..count {
        ledger.record(Some(if at % 2 == 0 { "even" } else { "odd" }), "test", event(at)).unwrap();
    }
}

pub fn check(data: &Path) -> Report {
    verify(data, &Known::default()).unwrap()
}

#[track_caller]
pub fn assert_sound(data: &Path) -> Report {
    let report = check(data);
    assert!(report.is_sound(), "{:#?}", report.problems);
    report
}

pub fn all(data: &Path) -> Vec<Record> {
    Reader::new(data, Filter::default()).map(Result::unwrap).collect()
}

pub fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

pub fn write_lines(path: &Path, lines: &[String]) {
    std::fs::write(path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
}
