//! Retention, outputs, exports.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::{Duration, SystemTime};

use common::{all, assert_sound, check, event, fill, segment, small};
use sloplet_ledger::event::Pruned;
use sloplet_ledger::{
    Defect, Event, Filter, KEPT_HEAD, KEPT_TAIL, Known, Ledger, LedgerError, Options, Output, OutputDigest, Reader,
    Retention, export_jsonl, export_otlp, verify,
};

const NOTHING: Retention = Retention { max_age: None, max_bytes: None };

fn size(data: &std::path::Path) -> u64 {
    (1..100).filter_map(|number| Some(segment(data, number).metadata().ok()?.len())).sum()
}

#[test]
fn pruning_keeps_the_proof() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), small(), 40);
    let ledger = Ledger::new(data.path(), small());
    let old = ledger.head().unwrap();
    let before = size(data.path());
    assert_eq!(ledger.prune(&NOTHING).unwrap().files, 0);

    let removed = ledger.prune(&Retention { max_bytes: Some(5000), ..NOTHING }).unwrap();
    assert!(removed.files > 2 && removed.bytes > 5000, "{removed:?}");
    assert!(!segment(data.path(), 1).exists());
    assert!(size(data.path()) <= before - removed.bytes + 1000);
    let report = assert_sound(data.path());
    let checkpoint = report.pruned.unwrap();
    assert_eq!(u64::from(checkpoint.segment), removed.files);
    assert_eq!(report.first_seq, checkpoint.seq + 1);
    let records = all(data.path());
    let note = Pruned { through_segment: checkpoint.segment, through_seq: checkpoint.seq, bytes: removed.bytes };
    assert_eq!(records.last().unwrap().event(), Event::Pruned(note));

    // Writing, pruning and verifying go on.
    fill(data.path(), small(), 20);
    assert_sound(data.path());
    ledger.prune(&Retention { max_age: Some(Duration::ZERO), ..NOTHING }).unwrap();
    assert_sound(data.path());
    let known = Known { heads: vec![old.clone()], ..Known::default() };
    assert!(verify(data.path(), &known).unwrap().is_sound(), "a head from before what was pruned is no lie");
    ledger.record(None, "test", event(0)).unwrap();
    drop(ledger);
    assert_sound(data.path());
}

#[test]
fn only_the_ledger_itself_can_prune() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), small(), 40);
    let ledger = Ledger::new(data.path(), small());
    ledger.prune(&Retention { max_bytes: Some(8000), ..NOTHING }).unwrap();
    let checkpoint = assert_sound(data.path()).pruned.unwrap();
    let path = data.path().join("ledger/pruned");
    let good = std::fs::read_to_string(&path).unwrap();

    // One more segment than was pruned, with or without a note that says so.
    let next = segment(data.path(), checkpoint.segment + 1);
    let content = std::fs::read(&next).unwrap();
    std::fs::remove_file(&next).unwrap();
    let missing = |defect: &Defect| matches!(defect, Defect::MissingSegments { .. });
    assert!(check(data.path()).problems.iter().any(|problem| missing(&problem.defect)));
    let from = format!("\"segment\":{}", checkpoint.segment);
    std::fs::write(&path, good.replace(&from, &format!("\"segment\":{}", checkpoint.segment + 1))).unwrap();
    assert!(check(data.path()).problems.iter().any(|problem| problem.defect == Defect::BadCheckpoint));
    std::fs::write(&next, content).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(check(data.path()).problems.iter().any(|problem| missing(&problem.defect)));

    // As it was; and a segment that a killed pruner left behind does no harm.
    std::fs::write(&path, good).unwrap();
    assert_sound(data.path());
    std::fs::write(segment(data.path(), checkpoint.segment), "left over\n").unwrap();
    assert_sound(data.path());
    ledger.prune(&NOTHING).unwrap();
    assert!(!segment(data.path(), checkpoint.segment).exists());
    assert_sound(data.path());
}

#[test]
fn young_segments_stay() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), small(), 40);
    let ledger = Ledger::new(data.path(), small());
    let removed = ledger.prune(&Retention { max_age: Some(Duration::from_secs(3600)), ..NOTHING }).unwrap();
    assert_eq!(removed.files, 0);
    assert!(assert_sound(data.path()).pruned.is_none());
}

fn output(content: &[u8]) -> Output {
    let mut digest = OutputDigest::default();
    digest.push(content);
    digest.finish()
}

#[test]
fn outputs_are_stored_once_and_checked() {
    let data = tempfile::tempdir().unwrap();
    let outputs = Ledger::new(data.path(), Options::default()).outputs();
    let text = output("hello ".repeat(10_000).as_bytes());
    outputs.save(&text).unwrap();
    outputs.save(&text).unwrap();
    let loaded = outputs.load(&text.sha256).unwrap().unwrap();
    assert!(loaded.complete && loaded.content == text.kept);
    let file = data.path().join(format!("ledger/outputs/{}/{}.z", &text.sha256[..2], text.sha256));
    assert!(file.metadata().unwrap().len() < 1000, "it is compressed");
    assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);

    let long = output(&vec![b'x'; 3 << 20]);
    outputs.save(&long).unwrap();
    let loaded = outputs.load(&long.sha256).unwrap().unwrap();
    assert!(!loaded.complete && loaded.content == long.kept && long.truncated);
    assert_eq!(long.summary(true).bytes, 3 << 20);

    assert_eq!(outputs.load(&"0".repeat(64)).unwrap(), None);
    assert!(matches!(outputs.load("../../../etc/passwd"), Err(LedgerError::BadDigest(_))));
    std::fs::copy(data.path().join(format!("ledger/outputs/{}/{}.cut.z", &long.sha256[..2], long.sha256)), &file)
        .unwrap();
    assert!(matches!(outputs.load(&text.sha256), Err(LedgerError::DamagedOutput(_))));
}

#[test]
fn outputs_lose_secrets() {
    let data = tempfile::tempdir().unwrap();
    let ledger = Ledger::new(data.path(), Options::default());
    ledger.redactor().add("hunter2hunter2");
    let echoed = output(b"your key is hunter2hunter2\n\xff");
    ledger.outputs().save(&echoed).unwrap();
    let loaded = ledger.outputs().load(&echoed.sha256).unwrap().unwrap();
    assert_eq!(loaded.content, b"your key is [redacted]\n\xff");
    assert!(!loaded.complete);

    // Where the middle is left out, parts may be left of one.
    let mut digest = OutputDigest::default();
    digest.push(&vec![b'x'; KEPT_HEAD - 7]);
    digest.push(b"hunter2hunter2");
    digest.push(&vec![b'y'; 1000]);
    digest.push(b"hunter2hunter2");
    digest.push(&vec![b'z'; KEPT_TAIL - 7]);
    let split = digest.finish();
    assert!(split.truncated && split.kept.windows(7).filter(|part| part == b"hunter2").count() == 2);
    ledger.outputs().save(&split).unwrap();
    let loaded = ledger.outputs().load(&split.sha256).unwrap().unwrap();
    assert!(!loaded.content.windows(7).any(|part| part == b"hunter2"));
}

#[test]
fn old_outputs_go_first() {
    let data = tempfile::tempdir().unwrap();
    let outputs = Ledger::new(data.path(), Options::default()).outputs();
    let all: Vec<Output> = (0..10_u8).map(|at| output(&[at; 100])).collect();
    for (output, hours) in all.iter().zip((1..=10).rev()) {
        outputs.save(output).unwrap();
        let name = format!("ledger/outputs/{}/{}.z", &output.sha256[..2], output.sha256);
        let file = std::fs::File::options().write(true).open(data.path().join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
    }
    let left = || all.iter().map(|output| outputs.load(&output.sha256).unwrap().is_some()).collect::<Vec<_>>();
    let age = Duration::from_secs(7 * 3600 + 1800);
    let removed = outputs.prune(&Retention { max_age: Some(age), ..NOTHING }).unwrap();
    assert_eq!(removed.files, 3);
    assert_eq!(left(), [[false; 3].as_slice(), &[true; 7]].concat());
    let one = removed.bytes / 3;
    outputs.prune(&Retention { max_bytes: Some(one * 3), ..NOTHING }).unwrap();
    assert!(left()[9] && !left()[3]);
    // Saving again makes it young.
    outputs.save(&all[8]).unwrap();
    outputs.prune(&Retention { max_bytes: Some(one), ..NOTHING }).unwrap();
    assert!(left()[8] && !left()[9]);
}

#[test]
fn lines_are_exported_as_they_are() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), small(), 30);
    let mut out = Vec::new();
    let exported = export_jsonl(Reader::new(data.path(), Filter::default()), &mut out).unwrap();
    assert_eq!((exported.records, exported.damaged), (30, 0));
    let files: Vec<u8> =
        (1..100).flat_map(|number| std::fs::read(segment(data.path(), number)).unwrap_or_default()).collect();
    assert!(out == files);

    let mut broken = common::lines(&segment(data.path(), 1));
    broken[1] = "not a record".into();
    common::write_lines(&segment(data.path(), 1), &broken);
    let exported = export_jsonl(Reader::new(data.path(), Filter::default()), std::io::sink()).unwrap();
    assert_eq!((exported.records, exported.damaged), (29, 1));
}

#[test]
fn collectors_get_their_format() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), Options::default(), 300);
    let mut out = Vec::new();
    let exported = export_otlp(Reader::new(data.path(), Filter::default()), &mut out).unwrap();
    assert_eq!(exported.records, 300);
    let requests: Vec<serde_json::Value> = out
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(requests.len(), 2);
    let logs = &requests[0]["resourceLogs"][0];
    let service = serde_json::json!({"key": "service.name", "value": {"stringValue": "sloplet"}});
    assert_eq!(logs["resource"]["attributes"][0], service);
    assert_eq!(logs["scopeLogs"][0]["scope"]["name"], "sloplet.ledger");
    let records = logs["scopeLogs"][0]["logRecords"].as_array().unwrap();
    assert_eq!(records.len(), 256);
    let first = &all(data.path())[0];
    assert_eq!(records[0]["timeUnixNano"], format!("{}000000", first.time_ms));
    assert_eq!((&records[0]["severityNumber"], &records[2]["severityNumber"]), (&9.into(), &13.into()));
    assert_eq!(records[1]["eventName"], "sloplet.exec_started");
    assert_eq!(records[0]["attributes"][0], serde_json::json!({"key": "sloplet.seq", "value": {"intValue": "1"}}));
    let fields = records[1]["body"]["kvlistValue"]["values"].as_array().unwrap();
    let argv = fields.iter().find(|field| field["key"] == "argv").unwrap();
    assert_eq!(argv["value"]["arrayValue"]["values"][0]["stringValue"], "sh");
}
