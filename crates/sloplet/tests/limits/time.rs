//! `--timeout`, exit statuses, signals.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{Running, Sloplet};
use crate::for_everybody;

#[test]
fn the_time_ends_everything() {
    for_everybody(|sloplet| {
        for script in [
            "sleep 1000",
            "setsid sleep 1000 & (setsid sh -c 'sleep 1000' &); exec sleep 1000",
            "trap '' TERM INT HUP QUIT; while :; do sleep 1000; done",
            "sleep 1000 & kill -STOP $!; kill -STOP $$; sleep 1000",
            "while :; do :; done",
        ] {
            let ended = sloplet.sh(&["--timeout", "700ms"], script).expect_code(124);
            assert_eq!(
                ended.stderr, "sloplet: the time of 700ms was over: everything inside was killed (--timeout)\n",
                "{}: {ended}",
                sloplet.name
            );
            assert!(ended.took >= Duration::from_millis(700), "{ended}");
        }
        let json = sloplet.sh(&["--timeout", "700ms", "--json"], "echo before; sleep 1000").expect_code(124).json();
        assert_eq!((&json["timed_out"], &json["stdout"]), (&true.into(), &"before\n".into()), "{json}");
        sloplet.sh(&["--timeout", "30s"], "sleep 0.8").expect_code(0);
    });
}

#[test]
fn exit_statuses() {
    for_everybody(|sloplet| {
        for (script, code) in [
            ("exit 0", 0),
            ("exit 1", 1),
            ("exit 42", 42),
            ("exit 255", 255),
            ("kill -TERM $$", 143),
            ("kill -KILL $$", 137),
            ("kill -SEGV $$", 139),
            ("touch /tmp/x; /tmp/x", 126),
            ("nosuch-program", 127),
        ] {
            sloplet.sh(&[], script).expect_code(code);
        }
        let kill = sloplet.sh(&[], "kill -KILL $$");
        assert_eq!(kill.stderr, "", "not for want of memory: {kill}");
        for (command, code) in [("/etc/passwd", 126), ("/tmp", 126), ("nosuch-program", 127), ("/no/such/program", 127)]
        {
            let ended = sloplet.run(&[], &[command]).expect_code(code);
            assert!(ended.stderr.starts_with(&format!("sloplet: {command}: ")), "{ended}");
            assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
        }
        for words in [
            &["run"][..],
            &["run", "--"],
            &["run", "--memory", "lots", "--", "true"],
            &["run", "--memory", "1KiB", "--", "true"],
            &["run", "--timeout", "-1s", "--", "true"],
            &["run", "--no-such-flag", "--", "true"],
            &["run", "--image", "no-such-image", "--", "true"],
            &["run", "--image", "/no/such/file.tar", "--", "true"],
            &["run", "--mount", "/no/such/folder:/x", "--", "true"],
            &["run", "--mount", "/etc:/x", "--", "true"],
            &["run", "--user", "nobody-by-that-name", "--", "true"],
            &["run", "--workdir", "/no/such/folder", "--", "true"],
            &["nonsense"],
        ] {
            let ended = sloplet.invoke(words).finish().expect_code(125);
            assert!(!ended.stderr.trim().is_empty() && ended.stdout.is_empty(), "{ended}");
        }
    });
}

/// Starts a command that says when it is ready, and waits for that.
fn started(sloplet: &Sloplet, script: &str) -> Running {
    let file = sloplet.folder("ready");
    let ready = file.join("ready");
    let _ = std::fs::remove_file(&ready);
    let mount = format!("{}:/ready:rw", file.display());
    let running = sloplet.invoke_run(&["--mount", &mount], &["sh", "-c", script]).start();
    let since = Instant::now();
    while !ready.exists() {
        assert!(since.elapsed() < Duration::from_secs(20), "the command does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    running
}

#[test]
fn an_interrupt_is_for_the_command() {
    for_everybody(|sloplet| {
        let polite =
            started(sloplet, "trap 'echo got it; exit 33' INT; touch /ready/ready; while :; do sleep 0.05; done");
        polite.signal(Signal::INT);
        let ended = polite.finish().expect_code(33);
        assert_eq!(ended.word(), "got it", "{}: {ended}", sloplet.name);

        // Not a shell: it takes an interrupt during a child that survived it for the child's business.
        let program = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); open('/ready/ready', 'w'); time.sleep(1000)";
        let plain = started(sloplet, &format!("exec python3 -c \"{program}\""));
        plain.signal(Signal::INT);
        plain.finish().expect_code(130);

        // The second one is for the sandbox.
        let stubborn = started(sloplet, "trap '' INT; touch /ready/ready; while :; do sleep 1; done");
        stubborn.signal(Signal::INT);
        std::thread::sleep(Duration::from_millis(200));
        stubborn.signal(Signal::INT);
        stubborn.finish().expect_code(130);
    });
}

#[test]
fn a_request_to_terminate_ends_the_sandbox_and_cleans_up() {
    for_everybody(|sloplet| {
        for signal in [Signal::TERM, Signal::HUP] {
            let running = started(sloplet, "trap '' TERM HUP; setsid sleep 1000 & touch /ready/ready; sleep 1000");
            running.signal(signal);
            let ended = running.finish();
            assert!(ended.code > 128 || ended.signal.is_some(), "not a success: {ended}");
        }
    });
}
