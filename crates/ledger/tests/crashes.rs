//! Several processes at once, and processes that die.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{all, assert_sound, check, event, fill, segment, small};
use sloplet_ledger::event::Recovered;
use sloplet_ledger::{Event, Ledger, Options, Reader};

/// Not a test of its own: the others run this program again with it.
#[test]
#[ignore = "a child of the other tests"]
fn child() {
    let data = std::env::var_os("LEDGER_DATA").unwrap();
    let name = std::env::var("LEDGER_NAME").unwrap();
    let count: u64 = std::env::var("LEDGER_COUNT").unwrap().parse().unwrap();
    let options = Options { segment_bytes: 20_000, sign_every: Duration::from_millis(5), ..Options::default() };
    let ledger = Ledger::new(Path::new(&data), options);
    for at in 0..count {
        ledger.record(Some(&name), "child", event(at)).unwrap();
        if at % 50 == 0 {
            // Small batches, so that the processes take turns.
            ledger.drain().unwrap();
        }
    }
}

fn start(data: &Path, name: &str, count: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env("LEDGER_DATA", data)
        .env("LEDGER_NAME", name)
        .env("LEDGER_COUNT", count.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn processes_share_one_chain() {
    let data = tempfile::tempdir().unwrap();
    let names = ["a", "b", "c"];
    let mut children: Vec<Child> = names.iter().map(|name| start(data.path(), name, 1000)).collect();
    while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
        // Also while they write.
        assert_sound(data.path());
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let report = assert_sound(data.path());
    assert_eq!(report.records, 3000);
    assert_eq!(report.signed_seq, 3000);
    assert!(report.segments > 10);
    let records = all(data.path());
    for name in names {
        let events: Vec<Event> = records
            .iter()
            .filter(|record| record.sandbox.as_deref() == Some(name))
            .map(|record| record.event())
            .collect();
        assert!(events == (0..1000).map(event).collect::<Vec<_>>(), "{name}'s records are all there, in order");
    }
}

#[test]
fn a_killed_writer_breaks_nothing() {
    let data = tempfile::tempdir().unwrap();
    for round in 0..8 {
        let before = Reader::new(data.path(), Default::default()).last_seq().unwrap();
        let mut child = start(data.path(), "doomed", u64::MAX);
        // It must be in the middle of writing.
        while Reader::new(data.path(), Default::default()).last_seq().unwrap() < before + 100 + round * 37 {
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let report = check(data.path());
        assert!(report.is_sound(), "{:#?}", report.problems);
        fill(data.path(), Options::default(), 2);
        assert!(assert_sound(data.path()).last_seq >= before + 102);
    }
    let seqs: Vec<u64> = all(data.path()).iter().map(|record| record.seq).collect();
    assert!(seqs == (1..=seqs.len() as u64).collect::<Vec<_>>());
}

/// A ledger whose last three records no head speaks for, as after a crash.
fn unsigned_tail(options: Options) -> (tempfile::TempDir, u64, u64) {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), options.clone(), 4);
    let heads = std::fs::read(common::heads(data.path())).unwrap();
    let path = segment(data.path(), 1);
    let signed = path.metadata().unwrap().len();
    fill(data.path(), options, 3);
    std::fs::write(common::heads(data.path()), heads).unwrap();
    let length = path.metadata().unwrap().len();
    (data, signed, length)
}

#[test]
fn a_crash_at_any_byte_is_mended() {
    let (data, signed, length) = unsigned_tail(Options::default());
    let path = segment(data.path(), 1);
    let content = std::fs::read(&path).unwrap();
    let heads = std::fs::read(common::heads(data.path())).unwrap();
    for cut in signed..=length {
        let kept = &content[..usize::try_from(cut).unwrap()];
        std::fs::write(&path, kept).unwrap();
        std::fs::write(common::heads(data.path()), &heads).unwrap();
        let complete = kept.iter().filter(|byte| **byte == b'\n').count() as u64;
        let torn = kept.iter().rev().take_while(|byte| **byte != b'\n').count() as u64;

        let report = check(data.path());
        assert!(report.is_sound(), "cut at {cut}: {:#?}", report.problems);
        assert_eq!((report.records, report.torn_bytes), (complete, torn));
        assert_eq!(all(data.path()).len() as u64, complete, "half a record is not read");

        let ledger = Ledger::new(data.path(), Options::default());
        ledger.record(None, "test", Event::note("after")).unwrap();
        drop(ledger);
        assert_eq!(assert_sound(data.path()).torn_bytes, 0);
        let events: Vec<Event> =
            all(data.path()).iter().skip(usize::try_from(complete).unwrap()).map(|record| record.event()).collect();
        let recovered = Event::Recovered(Recovered { torn_bytes: torn, ..Recovered::default() });
        let expected = if torn > 0 { vec![recovered, Event::note("after")] } else { vec![Event::note("after")] };
        assert_eq!(events, expected, "cut at {cut}");
    }
}

#[test]
fn a_torn_head_is_mended() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), Options::default(), 3);
    let path = common::heads(data.path());
    let whole = std::fs::read(&path).unwrap();
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for cut in (first..whole.len()).step_by(7) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        assert_sound(data.path());
        let ledger = Ledger::new(data.path(), Options::default());
        assert_eq!(ledger.head().unwrap().seq, 3);
        assert_eq!(assert_sound(data.path()).signed_seq, 3);
    }
}

#[test]
fn a_crash_between_segments_is_mended() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), small(), 20);
    let next = (1..).find(|number| !segment(data.path(), *number).exists()).unwrap();
    for content in ["", "{\"seq\":21,\"ti"] {
        std::fs::write(segment(data.path(), next), content).unwrap();
        assert_sound(data.path());
        fill(data.path(), Options::default(), 1);
        let last = all(data.path()).pop().unwrap();
        assert_eq!(last.event(), event(0));
        assert_sound(data.path());
        std::fs::write(segment(data.path(), next), "").unwrap();
        std::fs::write(common::heads(data.path()), common::lines(&common::heads(data.path()))[..2].join("\n") + "\n")
            .unwrap();
    }
}

#[test]
fn a_writer_survives_the_loss_of_its_file() {
    let data = tempfile::tempdir().unwrap();
    let ledger = Ledger::new(data.path(), Options::default());
    ledger.record(None, "test", Event::note("one")).unwrap();
    ledger.flush().unwrap();
    std::fs::remove_file(segment(data.path(), 1)).unwrap();
    ledger.record(None, "test", Event::note("two")).unwrap();
    ledger.flush().unwrap();
    let records = all(data.path());
    assert_eq!(records[0].event(), Event::Recovered(Recovered { lost_records: 1, ..Recovered::default() }));
    assert_eq!((records[1].seq, records[1].event()), (3, Event::note("two")));
    assert!(!check(data.path()).is_sound());
}

#[test]
fn a_writer_survives_the_loss_of_its_folder() {
    let data = tempfile::tempdir().unwrap();
    let ledger = Ledger::new(data.path(), Options::default());
    ledger.record(None, "test", Event::note("one")).unwrap();
    ledger.flush().unwrap();
    std::fs::remove_dir_all(data.path().join("ledger")).unwrap();
    ledger.record(None, "test", Event::note("two")).unwrap();
    ledger.flush().unwrap();
    assert_sound(data.path());
    assert_eq!(all(data.path()).pop().unwrap().event(), Event::note("two"));
}

#[test]
fn a_long_torn_record_is_cut_off_whole() {
    let data = tempfile::tempdir().unwrap();
    fill(data.path(), Options::default(), 2);
    let mut file = std::fs::File::options().append(true).open(segment(data.path(), 1)).unwrap();
    let torn = format!("{{\"seq\":3,\"event\":{{\"text\":\"{}", "x".repeat(200_000));
    std::io::Write::write_all(&mut file, torn.as_bytes()).unwrap();
    assert_eq!(assert_sound(data.path()).torn_bytes, torn.len() as u64);
    fill(data.path(), Options::default(), 1);
    assert_eq!(assert_sound(data.path()).torn_bytes, 0);
    assert_eq!(all(data.path()).len(), 4);
}
