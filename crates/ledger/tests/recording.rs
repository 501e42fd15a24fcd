//! Recording, reading, watching.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use common::{all, assert_sound, event, fill, segment, small};
use sloplet_ledger::event::{ApiCall, Oversize, PolicyChanged};
use sloplet_ledger::{Event, Filter, Follow, Ledger, Options, REDACTED, Reader};

#[test]
fn nothing_is_touched_before_the_first_record() {
    let data = tempfile::tempdir().unwrap();
    let ledger = Ledger::new(data.path(), Options::default());
    ledger.flush().unwrap();
    assert_eq!(ledger.query(Filter::default()).unwrap().count(), 0);
    assert_eq!(ledger.last_seq().unwrap(), 0);
    drop(ledger);
    assert!(!data.path().join("ledger").exists());
    assert!(assert_sound(data.path()).records == 0);
}

#[test]
fn records_come_back_as_they_were() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), Options::default(), 9);
    let records = all(data.path());
    assert_eq!(records.len(), 9);
    for (at, record) in (0..).zip(&records) {
        assert_eq!(record.seq, at + 1);
        assert_eq!(record.event(), event(at));
        assert_eq!(record.actor, "test");
        let line: serde_json::Value = serde_json::from_str(record.line()).unwrap();
        assert_eq!(line["event"]["kind"], record.kind);
        assert_eq!(line["hash"], record.hash);
    }
    let report = assert_sound(data.path());
    assert_eq!((report.records, report.signed_seq, report.last_seq), (9, 9, 9));
    assert_eq!(report.last_hash, records[8].hash);
}

#[test]
fn only_the_owner_can_read_it() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), Options::default(), 1);
    let mode = |path: &str| data.path().join(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("ledger"), 0o700);
    for file in ["ledger/key", "ledger/heads", "ledger/00000001.log", "ledger/lock"] {
        assert_eq!(mode(file), 0o600, "{file}");
    }
}

#[test]
fn segments_follow_one_another() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), small(), 50);
    fill(data.path(), small(), 50);
    let report = assert_sound(data.path());
    assert_eq!(report.records, 100);
    assert!(report.segments > 5, "{}", report.segments);
    let seqs: Vec<u64> = all(data.path()).iter().map(|record| record.seq).collect();
    assert_eq!(seqs, (1..=100).collect::<Vec<_>>());
}

#[test]
fn filters_select() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), small(), 60);
    let get = |filter| Reader::new(data.path(), filter).map(|record| record.unwrap().seq).collect::<Vec<_>>();
    let even = get(Filter { sandbox: Some("even".into()), ..Filter::default() });
    assert_eq!(even, (1..=60).step_by(2).collect::<Vec<_>>());
    assert_eq!(get(Filter { kinds: vec!["egress".into()], limit: Some(2), ..Filter::default() }), [3, 6]);
    for after in [0, 1, 17, 58, 59, 60, 99] {
        assert_eq!(get(Filter { after_seq: after, ..Filter::default() }), (after + 1..=60).collect::<Vec<_>>());
    }
    let times: Vec<u64> = all(data.path()).iter().map(|record| record.time_ms).collect();
    let (first, last) = (times[0], times[59]);
    assert_eq!(get(Filter { since_ms: Some(first), until_ms: Some(last + 1), ..Filter::default() }).len(), 60);
    assert!(get(Filter { until_ms: Some(first), ..Filter::default() }).is_empty());
    assert!(get(Filter { since_ms: Some(last + 1), ..Filter::default() }).is_empty());
}

#[test]
fn a_long_segment_is_entered_in_the_middle() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), Options::default(), 3000);
    assert!(segment(data.path(), 1).metadata().unwrap().len() > 500_000);
    for after in [0, 1, 700, 1499, 2998, 2999, 3000] {
        let filter = Filter { after_seq: after, ..Filter::default() };
        let seqs: Vec<u64> = Reader::new(data.path(), filter).map(|record| record.unwrap().seq).collect();
        assert_eq!(seqs, (after + 1..=3000).collect::<Vec<_>>());
    }
}

#[test]
fn a_follower_sees_other_ledgers_write() {
    let data = tempfile::tempdir().unwrap();
    let mut follow = Follow::open(data.path(), Filter { sandbox: Some("odd".into()), ..Filter::default() });
    assert!(follow.next_within(Duration::from_millis(1)).unwrap().is_none());
    for round in 0..3 {
        fill(data.path(), small(), 20);
        for at in 0..10 {
            let record = follow.next_within(Duration::from_secs(30)).unwrap().unwrap();
            assert_eq!(record.seq, round * 20 + at * 2 + 2);
        }
    }
    assert!(follow.next_within(Duration::from_millis(1)).unwrap().is_none());
}

#[tokio::test]
async fn a_follower_can_be_awaited() {
    let data = tempfile::tempdir().unwrap();
    let ledger = Ledger::new(data.path(), Options::default());
    let mut follow = ledger.follow(Filter::default());
    let writer = ledger.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(60)).await;
        writer.record(None, "test", Event::note("later")).unwrap();
    });
    assert_eq!(follow.next().await.unwrap().event(), Event::note("later"));
}

#[tokio::test]
async fn subscribers_see_this_process() {
    let data = tempfile::tempdir().unwrap();
    let ledger = Ledger::new(data.path(), Options::default());
    let mut watch = ledger.subscribe();
    for at in 0..5 {
        ledger.record(None, "test", event(at)).unwrap();
    }
    for at in 0..5 {
        let record = watch.recv().await.unwrap();
        assert_eq!((record.seq, record.event()), (at + 1, event(at)));
    }
}

#[test]
fn heads_are_signed_without_being_asked() {
    let data = tempfile::tempdir().unwrap();
    let ledger = Ledger::new(data.path(), Options { sign_every: Duration::from_millis(10), ..Options::default() });
    ledger.record(None, "test", Event::note("a")).unwrap();
    let signed = || sloplet_ledger::last_head(data.path()).unwrap().is_some_and(|head| head.seq == 1);
    let start = std::time::Instant::now();
    while !signed() {
        assert!(start.elapsed() < Duration::from_secs(60), "no head was written");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn secrets_do_not_reach_the_file() {
    let data = tempfile::tempdir().unwrap();
    let ledger = Ledger::new(data.path(), Options::default());
    let secret = "sk-\"very\"-secret-0001";
    assert!(ledger.redactor().add(secret));
    ledger.record(Some(secret), secret, Event::note(format!("curl -H 'x-api-key: {secret}'"))).unwrap();
    let value = serde_json::json!({"deep": [{"er": format!("https://u:{secret}@host/")}]});
    ledger.record(None, "test", Event::PolicyChanged(PolicyChanged { value, ..Default::default() })).unwrap();
    ledger.record(None, "test", Event::note("nothing secret")).unwrap();
    drop(ledger);
    assert_sound(data.path());
    let text = std::fs::read_to_string(segment(data.path(), 1)).unwrap();
    assert!(!text.contains("very"), "{text}");
    let records = all(data.path());
    assert_eq!(records[0].event(), Event::note(format!("curl -H 'x-api-key: {REDACTED}'")));
    assert_eq!((records[0].sandbox.as_deref(), records[0].actor.as_str()), (Some(REDACTED), REDACTED));
    assert_eq!(records[2].event(), Event::note("nothing secret"));
}

#[test]
fn unknown_kinds_are_kept_and_shown() {
    let data = tempfile::tempdir().unwrap();
    let later = serde_json::json!({"kind": "teleported", "to": ["mars"], "n": 1.5});
    let ledger = Ledger::new(data.path(), Options::default());
    ledger.record(None, "test", Event::Unknown(later.clone())).unwrap();
    drop(ledger);
    assert_sound(data.path());
    let records = all(data.path());
    assert_eq!(records[0].kind, "teleported");
    assert_eq!(records[0].event(), Event::Unknown(later));
}

#[test]
fn hostile_sizes_stay_bounded() {
    let data = tempfile::tempdir().unwrap();
    let ledger = Ledger::new(data.path(), Options::default());
    let huge = "\u{1b}\u{0}x".repeat(1 << 20);
    ledger.record(Some(&huge), &huge, Event::note(huge.as_str())).unwrap();
    let path = huge.as_str().into();
    ledger.record(None, "test", Event::ApiCall(ApiCall { path, ..Default::default() })).unwrap();
    let value = serde_json::json!([huge]);
    ledger.record(None, "test", Event::PolicyChanged(PolicyChanged { value, ..Default::default() })).unwrap();
    drop(ledger);
    assert_sound(data.path());
    let records = all(data.path());
    assert!(records.iter().all(|record| record.line().len() < 64 * 1024));
    assert!(records[0].line().contains(" bytes]"));
    assert!(matches!(records[2].event(), Event::Oversize(Oversize { bytes, .. }) if bytes > 1 << 20));
}

#[test]
fn a_folder_that_cannot_be_made_is_told_and_noted() {
    let data = tempfile::tempdir().unwrap();
    // A file where the folder should be: nothing can be written until it goes.
    std::fs::write(data.path().join("ledger"), "").unwrap();
    let ledger = Ledger::new(data.path(), Options::default());
    let _ = ledger.record(None, "test", Event::note("lost"));
    assert!(ledger.drain().is_err());
    let told = ledger.record(None, "test", Event::note("kept")).unwrap_err().to_string();
    assert!(told.contains("cannot be written"), "{told}");
    assert!(ledger.drain().is_err());
    std::fs::remove_file(data.path().join("ledger")).unwrap();
    ledger.drain().unwrap();
    ledger.record(None, "test", Event::note("well again")).unwrap();
    ledger.flush().unwrap();
    assert_sound(data.path());
    let kinds: Vec<Event> = all(data.path()).iter().map(|record| record.event()).collect();
    assert!(kinds.contains(&Event::note("well again")));
    let unwritten = kinds.iter().filter_map(|event| match event {
        Event::Recovered(recovered) => Some(recovered.unwritten_records),
        _ => None,
    });
    let written = kinds.iter().filter(|event| matches!(event, Event::Note(_))).count() as u64;
    assert_eq!(written + unwritten.sum::<u64>(), 3, "every record is written or counted: {kinds:?}");
}

#[test]
fn a_full_disk_is_told_and_noted() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), Options::default(), 3);
    // The next segment is on a full disk.
    std::os::unix::fs::symlink("/dev/full", segment(data.path(), 2)).unwrap();
    let ledger = Ledger::new(data.path(), Options::default());
    let _ = ledger.record(None, "test", event(0));
    let told = ledger.flush().unwrap_err().to_string();
    assert!(told.contains("No space left"), "{told}");
    std::fs::remove_file(segment(data.path(), 2)).unwrap();
    ledger.flush().unwrap();
    ledger.record(None, "test", event(1)).unwrap();
    ledger.flush().unwrap();
    let report = assert_sound(data.path());
    let events: Vec<Event> = all(data.path()).iter().skip(3).map(|record| record.event()).collect();
    let first_was_kept = events == [event(0), event(1)];
    let first_was_counted =
        matches!(&events[..], [Event::Recovered(note), last] if note.unwritten_records == 1 && *last == event(1));
    assert!(first_was_kept || first_was_counted, "{events:?}");
    assert_eq!(report.signed_seq, report.last_seq);
}
