//! Whatever is done to the files, verification finds it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;
use std::sync::LazyLock;

use common::{all, assert_sound, check, fill, heads, lines, segment, small, write_lines};
use proptest::prelude::*;
use sloplet_ledger::{Defect, Known, Ledger, Options, sha256, verify};

/// A ledger of a few segments, made once and copied.
static SAMPLE: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let data = tempfile::tempdir().unwrap();
    for _ in 0..4 {
        fill(data.path(), small(), 5);
    }
    assert_sound(data.path());
    data
});

fn sample() -> tempfile::TempDir {
    let data = tempfile::tempdir().unwrap();
    std::fs::create_dir(data.path().join("ledger")).unwrap();
    for file in std::fs::read_dir(SAMPLE.path().join("ledger")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), data.path().join("ledger").join(file.file_name())).unwrap();
    }
    data
}

fn segments(data: &Path) -> u32 {
    (1..).take_while(|number| segment(data, *number).exists()).last().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_changed_byte_is_found(file in 0_u32..100, at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let data = sample();
        let path = match file % (segments(data.path()) + 1) {
            0 => heads(data.path()),
            number => segment(data.path(), number),
        };
        let mut content = std::fs::read(&path).unwrap();
        let at = at.index(content.len());
        prop_assume!(content[at] != byte);
        content[at] = byte;
        std::fs::write(&path, content).unwrap();
        let report = check(data.path());
        prop_assert!(!report.is_sound(), "byte {at} of {}", path.display());
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let found = report.problems.iter().any(|problem| {
            // A last line without its end is found by the head that speaks for it.
            problem.file == name || matches!(problem.defect, Defect::CutOff { .. })
        });
        prop_assert!(found, "{:?}", report.problems);
    }

    #[test]
    fn any_removed_line_is_found(number in any::<u32>(), at in any::<prop::sample::Index>()) {
        let data = sample();
        let path = segment(data.path(), number % segments(data.path()) + 1);
        let mut lines = lines(&path);
        lines.remove(at.index(lines.len()));
        write_lines(&path, &lines);
        prop_assert!(!check(data.path()).is_sound());
    }

    #[test]
    fn any_repeated_or_moved_line_is_found(
        from in any::<(u32, prop::sample::Index)>(),
        to in any::<(u32, prop::sample::Index)>(),
        repeat in any::<bool>(),
    ) {
        let data = sample();
        let count = segments(data.path());
        let (from_path, to_path) = (segment(data.path(), from.0 % count + 1), segment(data.path(), to.0 % count + 1));
        let mut source = lines(&from_path);
        let (from, to) = (from.1.index(source.len()), to.1);
        let line = if repeat { source[from].clone() } else { source.remove(from) };
        write_lines(&from_path, &source);
        let mut target = lines(&to_path);
        let to = to.index(target.len() + 1);
        prop_assume!(repeat || from_path != to_path || from != to);
        // The last line of a segment may as well be the first of the next: that is no change of the chain.
        prop_assume!(repeat || from_path == to_path);
        target.insert(to, line);
        write_lines(&to_path, &target);
        prop_assert!(!check(data.path()).is_sound());
    }

    #[test]
    fn any_two_swapped_lines_are_found(number in any::<u32>(), a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>()) {
        let data = sample();
        let path = segment(data.path(), number % segments(data.path()) + 1);
        let mut lines = lines(&path);
        let (a, b) = (a.index(lines.len()), b.index(lines.len()));
        prop_assume!(a != b);
        lines.swap(a, b);
        write_lines(&path, &lines);
        prop_assert!(!check(data.path()).is_sound());
    }

    #[test]
    fn any_cut_end_is_found(keep in any::<prop::sample::Index>()) {
        let data = sample();
        let path = segment(data.path(), segments(data.path()));
        let length = std::fs::metadata(&path).unwrap().len();
        let keep = keep.index(usize::try_from(length).unwrap()) as u64;
        std::fs::File::options().write(true).open(&path).unwrap().set_len(keep).unwrap();
        prop_assert!(!check(data.path()).is_sound());
    }
}

#[test]
fn the_place_is_told() {
    let data = sample();
    let path = segment(data.path(), 2);
    let mut changed = lines(&path);
    let seq = all(data.path()).iter().find(|record| record.line() == changed[1]).unwrap().seq;
    changed[1] = changed[1].replacen("\"actor\":\"test\"", "\"actor\":\"best\"", 1);
    write_lines(&path, &changed);
    let report = check(data.path());
    assert_eq!(report.problems.len(), 1, "{:#?}", report.problems);
    let problem = &report.problems[0];
    assert_eq!((problem.file.as_str(), problem.line, problem.seq), ("00000002.log", Some(2), Some(seq)));
    assert_eq!(problem.defect, Defect::Altered);
    assert_eq!(
        problem.to_string(),
        format!("00000002.log, line 2, record {seq}: the record was changed after it was written")
    );
}

#[test]
fn removed_segments_are_found() {
    let count = segments(sample().path());
    assert!(count >= 4);
    for number in 1..=count {
        let data = sample();
        std::fs::remove_file(segment(data.path(), number)).unwrap();
        let report = check(data.path());
        let expected = |defect: &Defect| match defect {
            Defect::MissingSegments { from, to } => *from == number && *to == number,
            Defect::CutOff { .. } => number == count,
            _ => false,
        };
        assert!(report.problems.iter().any(|problem| expected(&problem.defect)), "{number}: {:#?}", report.problems);
    }
    let data = sample();
    (1..=count).for_each(|number| std::fs::remove_file(segment(data.path(), number)).unwrap());
    assert!(!check(data.path()).is_sound());
}

#[test]
fn exchanged_segments_are_found() {
    let data = sample();
    let [one, two, aside] = [segment(data.path(), 1), segment(data.path(), 2), data.path().join("aside")];
    std::fs::rename(&one, &aside).unwrap();
    std::fs::rename(&two, &one).unwrap();
    std::fs::rename(&aside, &two).unwrap();
    assert!(!check(data.path()).is_sound());
}

/// Rewrites all records from `first` on, hashes and all, as one without the key could.
fn forge(data: &Path, first: u64, change: impl Fn(&str) -> Option<String>) {
    let mut prev = "0".repeat(64);
    let mut seq = 0;
    for number in 1..=segments(data) {
        let path = segment(data, number);
        let mut out = Vec::new();
        for line in lines(&path) {
            let record: serde_json::Value = serde_json::from_str(&line).unwrap();
            let old = record["seq"].as_u64().unwrap();
            let Some(line) = (if old == first { change(&line) } else { Some(line) }) else { continue };
            seq += 1;
            let body = &line[..line.len() - r#","hash":""}"#.len() - 64];
            let body = body.replacen(&format!("\"seq\":{old}"), &format!("\"seq\":{seq}"), 1);
            let body = body.replacen(record["prev"].as_str().unwrap(), &prev, 1);
            prev = sha256(body.as_bytes());
            out.push(format!("{body},\"hash\":\"{prev}\"}}"));
        }
        write_lines(&path, &out);
    }
}

#[test]
fn a_rewritten_chain_is_not_the_signed_one() {
    let data = sample();
    forge(data.path(), 0, |_| None);
    assert_sound(data.path());
    forge(data.path(), 7, |line| Some(line.replacen("\"actor\":\"test\"", "\"actor\":\"best\"", 1)));
    let report = check(data.path());
    assert!(!report.is_sound());
    assert!(report.problems.iter().all(|problem| problem.defect == Defect::NotAsSigned), "{:#?}", report.problems);
    // There is a head every five records.
    assert_eq!(report.problems[0].seq, Some(10));

    let data = sample();
    forge(data.path(), 7, |_| None);
    assert!(!check(data.path()).is_sound());
}

#[test]
fn heads_cannot_be_made_up_or_removed() {
    let data = sample();
    std::fs::remove_file(heads(data.path())).unwrap();
    assert_eq!(check(data.path()).problems[0].defect, Defect::NoHeads);

    let data = sample();
    let other = tempfile::tempdir().unwrap();
    fill(other.path(), small(), 20);
    std::fs::copy(heads(other.path()), heads(data.path())).unwrap();
    assert_eq!(check(data.path()).problems[0].defect, Defect::BadHead);

    let data = sample();
    let mut repeated = lines(&heads(data.path()));
    repeated.push(repeated[1].clone());
    write_lines(&heads(data.path()), &repeated);
    assert_eq!(check(data.path()).problems[0].defect, Defect::MisplacedHead);

    let data = sample();
    std::fs::remove_file(data.path().join("ledger/key.pub")).unwrap();
    assert_eq!(check(data.path()).problems[0].defect, Defect::NoKey);
}

#[test]
fn a_head_kept_elsewhere_proves_more() {
    let data = tempfile::tempdir().unwrap();
    let ledger = Ledger::new(data.path(), small());
    for at in 0..10 {
        ledger.record(None, "test", common::event(at)).unwrap();
    }
    let head = ledger.head().unwrap();
    assert_eq!(head.seq, 10);
    let key = ledger.public_key().unwrap();
    drop(ledger);
    fill(data.path(), small(), 10);
    // As text and back, as it would be kept.
    let head = serde_json::from_str(&serde_json::to_string(&head).unwrap()).unwrap();
    let known = Known { key: Some(key.to_string().parse().unwrap()), heads: vec![head] };
    let report = verify(data.path(), &known).unwrap();
    assert!(report.is_sound(), "{:#?}", report.problems);

    // The end and all heads that spoke for it: nothing in the folder tells.
    let last = segments(data.path());
    (2..=last).for_each(|number| std::fs::remove_file(segment(data.path(), number)).unwrap());
    write_lines(&heads(data.path()), &lines(&heads(data.path()))[..1]);
    assert!(check(data.path()).is_sound());
    let report = verify(data.path(), &known).unwrap();
    assert_eq!(report.problems[0].defect, Defect::ForeignHead);

    // All of it replaced, by one who has a key of his own.
    std::fs::remove_dir_all(data.path().join("ledger")).unwrap();
    fill(data.path(), small(), 20);
    assert!(check(data.path()).is_sound());
    assert!(!verify(data.path(), &known).unwrap().is_sound());
    assert!(!verify(data.path(), &Known { key: None, ..known }).unwrap().is_sound());
}

#[test]
fn tampering_stays_visible_when_writing_goes_on() {
    // The last line is damaged, then more is recorded.
    let data = sample();
    let path = segment(data.path(), segments(data.path()));
    let mut changed = lines(&path);
    let last = changed.len() - 1;
    changed[last] = changed[last].replacen("test", "best", 1);
    write_lines(&path, &changed);
    fill(data.path(), Options::default(), 3);
    let report = check(data.path());
    assert!(report.problems.iter().any(|problem| problem.defect == Defect::Altered), "{:#?}", report.problems);
    assert_eq!(report.last_seq, 24, "three records and a note of what was found");

    // The end is removed, then more is recorded: numbers are not given again.
    let data = sample();
    let path = segment(data.path(), segments(data.path()));
    let kept = lines(&path);
    write_lines(&path, &kept[..kept.len() - 1]);
    fill(data.path(), Options::default(), 3);
    let report = check(data.path());
    let missing = Defect::Missing { from: 20, to: 20 };
    assert!(report.problems.iter().any(|problem| problem.defect == missing), "{:#?}", report.problems);
}

#[test]
fn a_record_exchanged_for_a_sound_one_is_found() {
    let data = sample();
    let path = segment(data.path(), 1);
    let mut changed = lines(&path);
    let body = changed[1].split(",\"hash\":").next().unwrap().replacen("\"actor\":\"test\"", "\"actor\":\"best\"", 1);
    changed[1] = format!("{body},\"hash\":\"{}\"}}", sha256(body.as_bytes()));
    write_lines(&path, &changed);
    let report = check(data.path());
    assert_eq!(report.problems.len(), 1, "{:#?}", report.problems);
    assert_eq!((report.problems[0].line, &report.problems[0].defect), (Some(3), &Defect::Unlinked));
}

#[test]
fn a_changed_last_byte_is_found() {
    let last = segments(sample().path());
    for file in 0..=last {
        let data = sample();
        let path = if file == 0 { heads(data.path()) } else { segment(data.path(), file) };
        let mut content = std::fs::read(&path).unwrap();
        assert_eq!(content.pop(), Some(b'\n'));
        content.push(b'x');
        std::fs::write(&path, content).unwrap();
        assert!(!check(data.path()).is_sound(), "{}", path.display());
    }
}
