//! Output and input: floods, long lines, bytes that are not text, and who reads them.

use std::fs::File;
use std::io::Write;
use std::process::Command;

use crate::common::{Host, rounds};
use crate::for_everybody;

const MIB: u64 = 1 << 20;

/// What sloplet itself may hold, however much passes through it.
const BOUNDED_KIB: u64 = 64 << 10;

#[test]
fn a_flood_is_cut_at_the_limit_and_that_is_said() {
    for_everybody(|sloplet| {
        let options = ["--output-limit", "1MiB", "--timeout", "2s"];
        let ended = sloplet.run(&options, &["yes"]).expect_code(124);
        assert_eq!(ended.stdout_bytes, MIB, "{}", sloplet.name);
        assert!(ended.stdout.chunks(2).all(|line| line == b"y\n"));
        assert!(ended.stderr.contains("output beyond 1MiB was dropped (--output-limit)"), "{ended}");
        assert!(ended.peak_rss_kib < BOUNDED_KIB, "{} KiB", ended.peak_rss_kib);

        // Both streams count together, and the command goes on to its end.
        let both = sloplet.sh(&["--output-limit", "1KiB"], "head -c 800 /dev/zero; head -c 800 /dev/zero >&2; exit 5");
        let both = both.expect_code(5).expect_said("(--output-limit)");
        let errors = both.stderr.bytes().filter(|byte| *byte == 0).count() as u64;
        assert_eq!(both.stdout_bytes + errors, 1024, "{both}");

        let whole = sloplet.sh(&["--output-limit", "2MiB"], "head -c 1M /dev/zero").expect_code(0);
        assert_eq!((whole.stdout_bytes, whole.stderr.as_str()), (MIB, ""), "{whole}");
    });
}

#[test]
fn one_endless_line_passes_in_bounded_memory() {
    let size = rounds(1024, 128) as u64;
    for_everybody(|sloplet| {
        let script = format!("head -c {size}M /dev/zero");
        let options = ["--output-limit", "2GiB"];
        let ended = sloplet.sh(&options, &script).expect_code(0);
        assert_eq!(ended.stdout_bytes, size * MIB, "{}", sloplet.name);
        assert!(ended.peak_rss_kib < BOUNDED_KIB, "{} KiB", ended.peak_rss_kib);
        let captured =
            sloplet.sh(&["--json", "--output-limit", "2GiB"], "head -c 100M /dev/zero | tr '\\0' x").expect_code(0);
        let told = captured.json();
        assert_eq!(told["truncated"], true, "more than is captured");
        assert_eq!(told["stdout"].as_str().unwrap().len() as u64, 64 * MIB);
    });
}

#[test]
fn json_holds_any_bytes() {
    for_everybody(|sloplet| {
        let script = r"printf 'a\377\376b\033[31mred\0end'; printf 'e\200' >&2; exit 9";
        let ended = sloplet.sh(&["--json"], script).expect_code(9);
        assert_eq!(ended.out().lines().count(), 1, "one line: {ended}");
        assert!(!ended.stdout.contains(&0x1b), "nothing in it steers a terminal");
        let told = ended.json();
        assert_eq!(told["stdout"], "a\u{fffd}\u{fffd}b\u{1b}[31mred\0end");
        assert_eq!(told["stderr"], "e\u{fffd}");
        assert_eq!(
            (&told["exit_code"], &told["timed_out"], &told["truncated"]),
            (&9.into(), &false.into(), &false.into())
        );
    });
}

#[test]
fn without_json_bytes_pass_unchanged() {
    for_everybody(|sloplet| {
        let ended = sloplet.sh(&[], r"printf 'a\377\0\r\nb'; printf 'e' >&2").expect_code(0);
        assert_eq!((ended.stdout.as_slice(), ended.stderr.as_str()), (&b"a\xff\0\r\nb"[..], "e"));
    });
}

#[test]
fn input_is_passed_on() {
    let host = Host::shared();
    let leaks = host.leaks();
    let megabytes = 50;
    // Bytes that do not repeat at any boundary of a buffer.
    let bytes: Vec<u8> = (0..megabytes * 1_000_000u64).map(|n| (n.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    let path = host.dir().join("input");
    File::create(&path).unwrap().write_all(&bytes).unwrap();
    let expected = Command::new("sha256sum").stdin(File::open(&path).unwrap()).output().unwrap().stdout;
    for sloplet in [host.root(), host.user()] {
        let sum = sloplet.invoke_run(&[], &["sha256sum"]).input(bytes.clone()).finish().expect_code(0);
        assert_eq!(sum.stdout, expected, "{}: through a pipe: {sum}", sloplet.name);
        let sum =
            sloplet.invoke_run(&[], &["sha256sum"]).input_file(File::open(&path).unwrap()).finish().expect_code(0);
        assert_eq!(sum.stdout, expected, "{}: from a file: {sum}", sloplet.name);
        let back = sloplet.invoke_run(&[], &["cat"]).input(bytes.clone()).finish().expect_code(0);
        assert!(back.stdout == bytes, "{}: there and back", sloplet.name);
        assert!(back.peak_rss_kib < BOUNDED_KIB, "{} KiB", back.peak_rss_kib);
        // A command that does not want its input ends all the same.
        let ignored = sloplet.invoke_run(&[], &["true"]).input(bytes.clone()).finish().expect_code(0);
        assert_eq!(ignored.stdout, b"", "{ignored}");
        let closed =
            sloplet.invoke_run(&[], &["sh", "-c", "exec 0<&-; sleep 0.3; echo fine"]).input(bytes.clone()).finish();
        assert_eq!(closed.expect_code(0).word(), "fine");
        let nothing = sloplet.run(&[], &["cat"]).expect_code(0);
        assert_eq!(nothing.stdout, b"");
    }
    leaks.assert_none_new();
}

#[test]
fn a_reader_that_goes_away_ends_the_command() {
    for_everybody(|sloplet| {
        let mut running = sloplet.invoke_run(&[], &["yes"]).unread_stdout().start();
        drop(running.stdout.take());
        running.finish().expect_code(141);
    });
}

#[test]
fn a_reader_that_pauses_does_not_stop_the_clock() {
    for_everybody(|sloplet| {
        let running = sloplet.invoke_run(&["--timeout", "1s"], &["yes"]).unread_stdout().start();
        let ended = running.finish().expect_code(124).expect_said("(--timeout)");
        assert!(ended.peak_rss_kib < BOUNDED_KIB, "{} KiB", ended.peak_rss_kib);
    });
}
