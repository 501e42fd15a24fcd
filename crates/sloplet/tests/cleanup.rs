//! Nothing is left: after many runs, after runs that could not start, and after `kill -9` at any moment plus one `gc`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::thread;
use std::time::{Duration, Instant};

use common::{Host, Running, Sloplet, rounds};
use rustix::process::{Signal, kill_process};

#[test]
fn nothing_is_left_after_many_runs() {
    let host = Host::alone();
    let leaks = host.leaks();
    let each = rounds(500, 25);
    thread::scope(|scope| {
        for sloplet in [host.root(), host.user()] {
            scope.spawn(move || {
                for round in 0..each {
                    let ended = match round % 4 {
                        0 => sloplet.sh(&[], "setsid sleep 1000 & exit 0"),
                        1 => sloplet.sh(&["--memory", "64MiB"], "echo x >/tmp/x; mkdir /tmp/y"),
                        _ => sloplet.run(&[], &["true"]),
                    };
                    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{} run {round}: {ended}", sloplet.name);
                }
            });
        }
    });
    leaks.assert_none_new();
    leaks.assert_no_namespace_for_each(2 * each as u64);
}

/// Whom `kill -9` hits.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Sloplet,
    Spawner,
    Both,
}

#[test]
fn nothing_is_left_after_kill_9_and_one_gc() {
    let host = Host::alone();
    let leaks = host.leaks();
    let mut random = Random(0x5107_1e75);
    for sloplet in [host.root(), host.user()] {
        // The first run makes what is kept; afterwards one run takes about this long.
        sloplet.run(&[], &["true"]).expect_code(0);
        let usual = sloplet.run(&[], &["true"]).expect_code(0).took;
        for victim in [Victim::Sloplet, Victim::Spawner, Victim::Both] {
            let mut points = Vec::new();
            for round in 0..rounds(50, 10) {
                let point = usual.mul_f64(1.2 * random.fraction());
                points.push(point);
                let options: &[&str] = match round % 5 {
                    // As root, on a disk of its own.
                    4 => &["--memory", "64MiB", "--disk", "100MiB"],
                    _ => &[],
                };
                let script = "setsid sleep 1000 & sleep 1000";
                let running = sloplet.invoke_run(options, &["sh", "-c", script]).start();
                kill_at(running, victim, point);
            }
            let gc = sloplet.invoke(&["gc"]).finish().expect_code(0);
            let left = leaks.new_ones();
            assert!(
                left.is_empty(),
                "{} {victim:?} at {points:?}: {gc}left behind:\n{}",
                sloplet.name,
                left.join("\n")
            );
        }
    }
}

fn kill_at(mut running: Running, victim: Victim, point: Duration) {
    let started = Instant::now();
    thread::sleep(point);
    if matches!(victim, Victim::Sloplet) {
        running.signal(Signal::KILL);
        running.finish();
        return;
    }
    // The spawner may not have been started yet, and sloplet starts another one if it loses the first before using it.
    let mut hit = false;
    while running.is_running() && started.elapsed() < Duration::from_secs(20) {
        for pid in running.spawners() {
            let _ = kill_process(pid, Signal::KILL);
            hit = true;
        }
        if hit && matches!(victim, Victim::Both) {
            running.signal(Signal::KILL);
        }
        thread::sleep(Duration::from_micros(200));
    }
    // Without its spawner, sloplet itself must notice and end.
    running.finish();
}

#[test]
fn nothing_is_left_of_a_disk_that_was_being_made() {
    let host = Host::alone();
    let root = host.root();
    root.run(&[], &["true"]).expect_code(0);
    let leaks = host.leaks();
    let mut random = Random(7);
    for round in 0..rounds(40, 10) {
        // A size that was not asked before must be formatted first.
        let size = format!("{}MiB", 200 + round);
        let running = root.invoke_run(&["--memory", "64MiB", "--disk", &size], &["true"]).start();
        kill_at(running, Victim::Sloplet, Duration::from_millis(60).mul_f64(random.fraction()));
    }
    root.invoke(&["gc"]).finish().expect_code(0);
    leaks.assert_none_new();
}

#[test]
fn gc_leaves_the_living_alone() {
    let host = Host::alone();
    let leaks = host.leaks();
    for sloplet in [host.root(), host.user()] {
        let mut living = sloplet.invoke_run(&[], &["cat"]).input_pipe().unread_stdout().start();
        let mut output = BufReader::new(living.stdout.take().unwrap());
        let mut talk = |words: &str| {
            living.stdin.as_mut().unwrap().write_all(words.as_bytes()).unwrap();
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            assert_eq!(line, words, "{}", sloplet.name);
        };
        talk("before\n");
        let dead = sloplet.invoke_run(&[], &["sleep", "1000"]).start();
        kill_at(dead, Victim::Both, Duration::from_millis(100));
        for _ in 0..3 {
            sloplet.invoke(&["gc"]).finish().expect_code(0);
            talk("after\n");
        }
        living.finish().expect_code(0);
    }
    leaks.assert_none_new();
}

#[test]
fn a_sandbox_that_cannot_be_made_leaves_nothing() {
    let host = Host::alone();
    for sloplet in [host.root(), host.user()] {
        sloplet.run(&[], &["true"]).expect_code(0);
        let leaks = host.leaks();
        let closed = host.root().folder("closed");
        std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let broken = sloplet.folder("broken").join("image.tar");
        std::fs::write(&broken, b"this is not a tarball").unwrap();
        let empty = sloplet.folder("empty");
        let closed = format!("{}:/mnt", closed.display());
        let onto_proc = format!("{}:/proc/sys:rw", empty.display());
        let onto_file = format!("{}:/etc/passwd", empty.display());
        let [broken, empty] = [broken, empty].map(|path| path.display().to_string());
        let mut cases = vec![
            vec!["--image", "no-such-image"],
            vec!["--image", &broken],
            vec!["--image", &empty],
            vec!["--mount", "/etc:/mnt"],
            vec!["--mount", "/no/such/folder:/mnt"],
            vec!["--mount", &onto_proc],
            vec!["--mount", &onto_file],
            vec!["--user", "nobody-by-that-name"],
        ];
        if sloplet.account.is_some() {
            cases.push(vec!["--mount", &closed]);
        }
        for options in cases {
            let ended = sloplet.run(&options, &["true"]);
            assert!(ended.code >= 125, "{}: {ended}", sloplet.name);
            assert_eq!(ended.stderr.lines().count(), 1, "one clear line: {ended}");
            let left = leaks.new_ones();
            assert!(left.is_empty(), "{ended}left behind:\n{}", left.join("\n"));
        }
    }
}

#[test]
fn runs_clean_up_after_killed_ones_by_themselves() {
    let host = Host::alone();
    for sloplet in [host.root(), host.user()] {
        sloplet.run(&[], &["true"]).expect_code(0);
        let leaks = host.leaks();
        kill_at(started(&sloplet), Victim::Both, Duration::from_millis(100));
        sloplet.run(&[], &["true"]).expect_code(0);
        leaks.assert_none_new();
    }
}

fn started(sloplet: &Sloplet) -> Running {
    sloplet.invoke_run(&[], &["sleep", "1000"]).start()
}

/// Xorshift: the same points in every run of the test.
struct Random(u32);

impl Random {
    fn fraction(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        f64::from(self.0) / f64::from(u32::MAX)
    }
}
