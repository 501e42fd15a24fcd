//! Commands and background processes: their streams, their ends, and what is kept for those who come back.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::http::Reply;
use crate::common::{Host, Server};

fn server_with_sandbox(host: &Host) -> Server {
    let server = Server::start(&host.root());
    server.ask("POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201);
    server
}

fn exec(server: &Server, body: Value) -> Value {
    server.ask("POST", "/sandboxes/my/exec", Some(body)).expect(200).json()
}

fn start(server: &Server, body: Value) -> u64 {
    server.ask("POST", "/sandboxes/my/processes", Some(body)).expect(201).json()["pid"].as_u64().unwrap()
}

#[test]
fn a_command_is_run_and_its_end_told_honestly() {
    let host = Host::shared();
    let server = server_with_sandbox(&host);
    let ran = exec(&server, json!({"command": "cat; echo err >&2; exit 3", "stdin": "in"}));
    assert_eq!((&ran["stdout"], &ran["stderr"], &ran["exit_code"]), (&json!("in"), &json!("err\n"), &json!(3)));
    let ran = exec(&server, json!({"command": ["printf", "%s|", "a b", "$HOME"]}));
    assert_eq!(ran["stdout"], "a b|$HOME|");
    let ran = exec(&server, json!({"command": "kill -9 $$"}));
    assert_eq!((&ran["exit_code"], &ran["signal"]), (&json!(137), &json!(9)));
    let ran = exec(&server, json!({"command": "sleep 60", "timeout": "200ms"}));
    assert_eq!(ran["timed_out"], true, "{ran}");
    let ran = exec(&server, json!({"command": "head -c 100000 /dev/zero", "output_limit": "4KiB"}));
    assert_eq!((ran["stdout"].as_str().unwrap().len(), &ran["truncated"]), (4096, &json!(true)));
    let ran = exec(&server, json!({"command": "cat", "stdin_base64": "/wBh"}));
    assert_eq!((&ran["stdout"], &ran["stdout_base64"]), (&json!("\u{fffd}\0a"), &json!("/wBh")));
    let ran = exec(&server, json!({"command": "echo $A; pwd; id -un", "env": {"A": "1"}, "cwd": "/", "user": "root"}));
    assert_eq!(ran["stdout"], "1\n/\nroot\n");
    let big = "x".repeat(5 << 20);
    let ran = exec(&server, json!({"command": "wc -c", "stdin": big}));
    assert_eq!(ran["stdout"].as_str().unwrap().trim(), (5 << 20).to_string());
    let ran = exec(&server, json!({"command": "true", "stdin": "nobody reads this".repeat(100_000)}));
    assert_eq!(ran["exit_code"], 0);
    // As a shell tells it, and never as something that the key may not do.
    for (command, code) in
        [(json!(["nonsense"]), 127), (json!(["/none"]), 127), (json!(["/etc/passwd"]), 126), (json!(["/tmp"]), 126)]
    {
        let ran = exec(&server, json!({"command": command}));
        assert_eq!((&ran["exit_code"], &ran["stdout"]), (&json!(code), &json!("")), "{ran}");
        assert!(ran["stderr"].as_str().unwrap().contains(command[0].as_str().unwrap()), "{ran}");
        let started = server.ask("POST", "/sandboxes/my/processes", Some(json!({"command": command})));
        started.expect_refusal(if code == 127 { 404 } else { 400 });
    }
    // A relative folder is below the one where commands start.
    let ran = exec(&server, json!({"command": "mkdir -p below && cd below && pwd"}));
    assert_eq!(exec(&server, json!({"command": "pwd", "cwd": "below"}))["stdout"], ran["stdout"]);
    server.end();
}

#[test]
fn output_is_replayed_from_an_offset_after_a_disconnect() {
    let host = Host::shared();
    let server = server_with_sandbox(&host);
    let pid = start(&server, json!({"command": "echo one; echo two >&2; read line; echo $line", "stdin": true}));
    let path = format!("/sandboxes/my/processes/{pid}/output");
    let mut events = server.events(&path, "");
    assert_eq!(events.status, 200, "{}", events.headers);
    assert!(events.headers.contains("text/event-stream"), "{}", events.headers);
    let first = events.next().unwrap();
    assert_eq!((first.name.as_str(), &first.data["text"], first.id.as_str()), ("stdout", &json!("one\n"), "4"));
    // The client leaves in the middle, the process goes on.
    drop(events);
    server.send(&server.key, "POST", &format!("/sandboxes/my/processes/{pid}/stdin"), b"three\n").expect(204);
    let rest = server.events(&path, &format!("Last-Event-ID: {}\r\n", first.id)).rest();
    let seen: Vec<_> = rest.iter().map(|event| (event.name.as_str(), event.data["text"].as_str())).collect();
    assert_eq!(seen, [("stderr", Some("two\n")), ("stdout", Some("three\n")), ("exit", None)], "{rest:?}");
    assert_eq!(rest[2].data["exit_code"], 0);
    // In the middle of a chunk, too, and again and again.
    for _ in 0..2 {
        let rest = server.events(&format!("{path}?offset=6"), "").rest();
        assert_eq!(rest[0].data, json!({"offset": 6, "text": "o\n"}));
    }
    // Who has seen the end is told not to come back.
    server.send_with(&path, "Last-Event-ID: end\r\n").expect(204);
    server.send_with(&path, "Last-Event-ID: nonsense\r\n").expect_refusal(400);
    let now = server.events(&format!("{path}?follow=false"), "").rest();
    assert_eq!(now.last().unwrap().name, "exit", "{now:?}");
    server.end();
}

#[test]
fn what_is_no_longer_kept_is_told_as_a_gap() {
    let host = Host::shared();
    let server = server_with_sandbox(&host);
    let pid = start(&server, json!({"command": "head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last"}));
    let path = format!("/sandboxes/my/processes/{pid}");
    while server.ask("GET", &path, None).expect(200).json()["running"] == true {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let events = server.events(&format!("{path}/output"), "").rest();
    assert_eq!(events[0].name, "gap", "{:?}", events[0]);
    let (from, to) = (&events[0].data["from"], events[0].data["to"].as_u64().unwrap());
    assert_eq!(from, 0);
    let kept: u64 = events.iter().filter_map(|event| event.data["text"].as_str()).map(|text| text.len() as u64).sum();
    assert_eq!(to + kept, 5_000_000 + 1 + 5);
    let tail = server.ask("GET", &format!("{path}/logs?tail=1"), None).expect(200);
    assert_eq!(tail.text(), "last\n");
    server.end();
}

#[test]
fn a_background_process_is_listed_signalled_and_its_log_read() {
    let host = Host::shared();
    let server = server_with_sandbox(&host);
    let pid = start(&server, json!({"command": "echo a; echo b; echo c >&2; exec sleep 1000", "tag": "web"}));
    let path = format!("/sandboxes/my/processes/{pid}");
    let mut events = server.events(&format!("{path}/output"), "");
    let mut seen = String::new();
    while !seen.contains('c') {
        seen.push_str(events.next().unwrap().data["text"].as_str().unwrap());
    }
    let logs = |query: &str| server.ask("GET", &format!("{path}/logs{query}"), None).expect(200).text();
    assert_eq!(logs(""), "a\nb\nc\n");
    assert_eq!(logs("?tail=2"), "b\nc\n");
    let all = server.ask("GET", "/sandboxes/my/processes", None).expect(200).json();
    let one = all.as_array().unwrap().iter().find(|one| one["pid"] == pid).unwrap();
    assert_eq!((&one["tag"], &one["managed"], &one["running"]), (&json!("web"), &json!(true), &json!(true)));
    server.ask("POST", &format!("{path}/signal"), Some(json!({"signal": "SIGTERM"}))).expect(204);
    let exit = events.rest().pop().unwrap();
    assert_eq!((exit.name.as_str(), &exit.data["signal"]), ("exit", &json!(15)));
    server.ask("DELETE", &path, None).expect_refusal(404);
    assert_eq!(logs("?follow=true"), "a\nb\nc\n");
    server.ask("GET", "/sandboxes/my/processes/99999", None).expect_refusal(404);
    server.end();
}

#[test]
fn a_terminal_is_resized_and_hung_up() {
    let host = Host::shared();
    let server = server_with_sandbox(&host);
    let body = json!({"command": "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done",
        "tty": {"columns": 100, "rows": 30}});
    let pid = start(&server, body);
    let path = format!("/sandboxes/my/processes/{pid}");
    let mut events = server.events(&format!("{path}/output"), "");
    let first = events.next().unwrap();
    assert_eq!((first.name.as_str(), &first.data["text"]), ("terminal", &json!("30 100\r\n")));
    server.ask("POST", &format!("{path}/resize"), Some(json!({"columns": 90, "rows": 20}))).expect(204);
    assert_eq!(events.next().unwrap().data["text"], "20 90\r\n");
    server.ask("POST", &format!("{path}/resize"), Some(json!({"columns": 0, "rows": 20}))).expect_refusal(400);
    server.ask("DELETE", &path, None).expect(204);
    assert_eq!(events.next().unwrap().data["signal"], 9);
    server.end();
}

#[test]
fn a_client_that_leaves_takes_its_command_along_but_not_its_processes() {
    let host = Host::shared();
    let server = server_with_sandbox(&host);
    let kept = start(&server, json!({"command": "sleep 1000"}));
    let body = json!({"command": "exec sleep 4242"}).to_string();
    let mut stream = crate::common::http::connect(&server.address);
    let request = format!(
        "POST /v1/sandboxes/my/exec HTTP/1.1\r\nHost: x\r\nX-API-KEY: {}\r\nContent-Length: {}\r\n\r\n{body}",
        server.key,
        body.len()
    );
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let runs = || {
        let all = server.ask("GET", "/sandboxes/my/processes", None).expect(200).json();
        all.as_array().unwrap().iter().any(|one| one["command"] == json!(["sleep", "4242"]) && one["running"] == true)
    };
    let wait = |wanted: bool| {
        let started = std::time::Instant::now();
        while runs() != wanted {
            assert!(started.elapsed().as_secs() < 20, "still {}", runs());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    wait(true);
    drop(stream);
    wait(false);
    let one = server.ask("GET", &format!("/sandboxes/my/processes/{kept}"), None).expect(200).json();
    assert_eq!(one["running"], true);
    server.end();
}

#[test]
fn listening_ports_are_found() {
    let host = Host::shared();
    let server = server_with_sandbox(&host);
    assert_eq!(server.ask("GET", "/sandboxes/my/ports", None).expect(200).json(), json!([]));
    let serve =
        "import socket,time\ns=socket.create_server(('127.0.0.1',3456))\nprint('up',flush=True)\ntime.sleep(1000)";
    let pid = start(&server, json!({"command": ["python3", "-c", serve]}));
    assert_eq!(
        server.events(&format!("/sandboxes/my/processes/{pid}/output"), "").next().unwrap().data["text"],
        "up\n"
    );
    let ports = server.ask("GET", "/sandboxes/my/ports", None).expect(200).json();
    assert_eq!(ports[0]["port"], 3456, "{ports}");
    let link = server.ask("POST", "/sandboxes/my/ports/3456/link", None).expect(201).json();
    assert!(link["url"].as_str().unwrap().contains("/3456/"), "{link}");
    server.ask("POST", "/sandboxes/my/ports/0/link", None).expect_refusal(400);
    server.end();
}

#[test]
fn what_a_sandbox_uses_is_told_over_time() {
    let host = Host::shared();
    let server = Server::start_with(&host.root(), &[]);
    server.ask("POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201);
    let busy = json!({"command": "while :; do :; done"});
    server.ask("POST", "/sandboxes/my/processes", Some(busy)).expect(201);
    let started = std::time::Instant::now();
    let samples = loop {
        let samples = server.ask("GET", "/sandboxes/my/metrics", None).expect(200).json();
        if samples.as_array().unwrap().len() >= 2 {
            break samples;
        }
        assert!(started.elapsed() < std::time::Duration::from_secs(60), "{samples}");
        std::thread::sleep(std::time::Duration::from_millis(200));
    };
    let at = |index: usize| samples[index]["time_ms"].as_u64().unwrap();
    assert!(at(0) < at(1));
    assert!(samples[1]["cpu_percent"].as_f64().unwrap() > 1.0, "{samples}");
    assert!(samples[1]["memory_bytes"].as_u64().unwrap() > 0 && samples[1]["pids"].as_u64().unwrap() >= 2, "{samples}");
    let only = |query: &str| {
        let found = server.ask("GET", &format!("/sandboxes/my/metrics?{query}"), None).expect(200).json();
        found.as_array().unwrap().len()
    };
    assert_eq!(only(&format!("from_ms={}&to_ms={}", at(0), at(0))), 1);
    assert_eq!(only(&format!("to_ms={}", at(0) - 1)), 0);
    server.ask("GET", "/sandboxes/my/metrics?from_ms=2&to_ms=1", None).expect_refusal(400);
    server.ask("GET", "/sandboxes/other/metrics", None).expect_refusal(404);
    // One that stands still is not looked at.
    server.ask("POST", "/sandboxes/my/pause", None).expect(200);
    let paused = only("");
    std::thread::sleep(std::time::Duration::from_secs(11));
    assert!(only("") <= paused + 1, "one look may have been under way");
    // The next server knows it, too.
    let (sloplet, key) = (server.sloplet.clone(), server.key.clone());
    server.end();
    let mut server = Server::start_with(&sloplet, &[]);
    server.key = key;
    let started = std::time::Instant::now();
    loop {
        let again = server.ask("GET", "/sandboxes/my/metrics", None).expect(200).json();
        if again[0] == samples[0] && again[1] == samples[1] {
            break;
        }
        assert!(started.elapsed() < std::time::Duration::from_secs(20), "{samples} became {again}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    server.ask("DELETE", "/sandboxes/my", None).expect(204);
    server.end();
}

/// A request for `…/exec` as a form.
fn form(server: &Server, exec: &Value, stdin: &[u8]) -> Reply {
    let head = |name: &str| format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
    let mut body = format!("{}{exec}\r\n{}", head("exec"), head("stdin")).into_bytes();
    body.extend_from_slice(stdin);
    body.extend_from_slice(b"\r\n--b--\r\n");
    let more = format!("Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {}\r\n", body.len());
    server.send_as(&server.key, "POST", "/sandboxes/my/exec", &more, &body)
}

#[test]
fn input_of_any_size_goes_in_whole_and_at_the_pace_of_its_reader() {
    let host = Host::shared();
    let server = server_with_sandbox(&host);
    let bytes: Vec<u8> = (0..32u32 << 20).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    // More than a body of JSON may have.
    let ran = form(&server, &json!({"command": "wc -c; sha256sum </dev/null"}), &bytes).expect(200).json();
    assert!(ran["stdout"].as_str().unwrap().starts_with("33554432\n"), "{ran}");
    // Who does not read is not waited for, and still heard.
    let ran = form(&server, &json!({"command": "seq 1000"}), &bytes).expect(200).json();
    assert!(ran["stdout"].as_str().unwrap().ends_with("1000\n"), "{ran}");
    assert_eq!(form(&server, &json!({"command": ["nonsense"]}), &bytes).expect(200).json()["exit_code"], 127);
    // The same for processes that run in the background.
    let begin = json!({"command": "sleep 0.5; sha256sum >/tmp/sum; wc -c </tmp/sum", "stdin": true});
    let pid = start(&server, begin);
    let path = format!("/sandboxes/my/processes/{pid}");
    server.send(&server.key, "POST", &format!("{path}/stdin?close=true"), &bytes).expect(204);
    let started = Instant::now();
    while server.ask("GET", &path, None).expect(200).json()["running"] == true {
        assert!(started.elapsed() < Duration::from_secs(60), "it does not end");
        thread::sleep(Duration::from_millis(50));
    }
    let inside = exec(&server, json!({"command": "cut -c1-64 /tmp/sum"}))["stdout"].as_str().unwrap().trim().to_owned();
    let file = host.dir().join("sent");
    std::fs::write(&file, &bytes).unwrap();
    let sum = std::process::Command::new("sha256sum").arg(&file).output().unwrap();
    assert!(String::from_utf8_lossy(&sum.stdout).starts_with(&inside) && inside.len() == 64, "{inside}");
    server.end();
}
