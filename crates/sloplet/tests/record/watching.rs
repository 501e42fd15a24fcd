//! `sloplet watch`, on a real terminal and as lines.

use std::fs;
use std::io::{BufRead, BufReader};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Host, Server};

#[test]
fn the_screen_shows_what_happens_and_goes_away() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let server = Server::start(&sloplet);
        server.command(&["create", "--name", "my"]).expect_code(0);
        let hostile = "\u{1b}]0;pwned\u{7}\u{1b}[2Jplain";
        server.command(&["exec", "my", "--", "sh", "-c", "exit 7", hostile]).expect_code(7);
        server.command(&["exec", "-d", "my", "--", "sleep", "1234"]).expect_code(0);
        let driver = host.dir().join("terminal.py");
        fs::write(&driver, include_str!("../probes/terminal.py")).unwrap();
        let steps = json!([
            ["resize", 40, 160],
            ["expect", "SANDBOXES"],
            ["expect", "exit 7"],
            ["expect", "sleep 1234"],
            ["expect", "mem ["],
            ["type", "q"],
            ["end"],
        ]);
        let (driver, binary, steps) = (driver.to_str().unwrap(), host.binary().to_str().unwrap(), steps.to_string());
        let words = ["python3", "-B", driver, &steps, binary, "--no-autostart", "watch"];
        let result = sloplet.other_program(&words).finish().expect_code(0).json();
        let shown = result["shown"].as_str().unwrap();
        assert_eq!(result["problem"], Value::Null, "{shown:?}");
        assert_eq!((&result["code"], &result["restored"]), (&0.into(), &true.into()), "{shown:?}");
        assert!(shown.ends_with("\u{1b}[?1049l"), "the screen stayed: {shown:?}");
        assert!(shown.contains("plain") && !shown.contains("\u{1b}]0;"), "{shown:?}");
        // It is nothing for a pipe.
        let piped = server.command(&["watch"]).expect_code(125);
        assert!(piped.stderr.contains("needs a terminal"), "{piped}");
        server.command(&["watch", "nobody"]).expect_code(125);
        server.end();
    }
}

#[test]
fn programs_watch_lines() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    for name in ["my", "other"] {
        server.command(&["create", "--name", name]).expect_code(0);
    }
    let mut watch = server.invoke(&["watch", "my", "--json"]).unread_stdout().start();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    // It hears from its start on, so again and again until it does.
    let server_thread = server.sloplet.clone();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let busy = std::thread::spawn(move || {
        while stopped.try_recv().is_err() {
            for name in ["other", "my"] {
                server_thread.invoke(&["--no-autostart", "exec", name, "--", "echo", name]).finish().expect_code(0);
            }
        }
    });
    for _ in 0..8 {
        let line = lines.next().unwrap().unwrap();
        let record: Value = serde_json::from_str(&line).unwrap();
        assert!(!line.contains("other"), "{line}");
        assert!(record["seq"].as_u64().is_some() && record["event"]["kind"].is_string(), "{line}");
    }
    stop.send(()).unwrap();
    busy.join().unwrap();
    watch.signal(Signal::TERM);
    drop(lines);
    let _ = watch.finish();
    server.end();
}
