//! Clients that send nonsense, too much, or nothing: a clear refusal, and everybody else goes on.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::json;

use crate::common::http::{connect, exchange};
use crate::common::{Host, Server};

fn server(host: &Host) -> Server {
    let server = Server::start(&host.root());
    server.ask("POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201);
    server
}

#[track_caller]
fn still_works(server: &Server) {
    let ran = server.ask("POST", "/sandboxes/my/exec", Some(json!({"command": "echo fine"}))).expect(200).json();
    assert_eq!(ran["stdout"], "fine\n");
}

#[test]
fn bodies_that_make_no_sense_are_refused_with_a_hint() {
    let host = Host::shared();
    let server = server(&host);
    let send = |path: &str, body: &[u8]| server.send(&server.key, "POST", path, body).expect_refusal(400);
    for body in [&b"{"[..], b"nonsense", b"[]", b"[null]", b"null", b"\"x\"", b"\xff\xfe", b"{\"name\": }", b"{}{}"] {
        send("/sandboxes", body);
        send("/sandboxes/my/exec", body);
    }
    send("/sandboxes/my/exec", &[b'['; 100_000]);
    let message = send("/sandboxes", br#"{"memroy": "1GiB"}"#);
    assert!(message.contains("memroy") && message.contains("memory"), "{message}");
    for body in [
        json!({"memory": 5}),
        json!({"memory": "lots"}),
        json!({"memory": "1KiB"}),
        json!({"cpus": 0}),
        json!({"cpus": "x"}),
        json!({"pids": -1}),
        json!({"pids": 1}),
        json!({"name": "../x"}),
        json!({"name": ""}),
        json!({"name": "a b"}),
        json!({"name": "-x"}),
        json!({"name": "x".repeat(64)}),
        json!({"timeout": "soon"}),
        json!({"timeout": 5}),
        json!({"env": {"": "x"}}),
        json!({"env": {"A=B": "x"}}),
        json!({"env": {"A": "\u{0}"}}),
        json!({"workdir": "x"}),
        json!({"hostname": "a.b"}),
        json!({"isolation": "none"}),
        json!({"isolation": "vm"}),
        json!({"on_timeout": "explode"}),
        json!({"mounts": [{"from": "relative", "to": "/x"}]}),
        json!({"mounts": [{"from": "/etc/shadow", "to": "/x"}]}),
        json!({"mounts": [{"from": "/usr", "to": "/proc"}]}),
    ] {
        let reply = server.ask("POST", "/sandboxes", Some(body.clone()));
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
    }
    for body in [
        json!({}),
        json!({"command": 5}),
        json!({"command": []}),
        json!({"command": ""}),
        json!({"command": "a\u{0}b"}),
        json!({"command": "x", "timeout": "0s"}),
        json!({"command": "x", "cwd": ""}),
        json!({"command": "x", "output_limit": "1TiB"}),
        json!({"command": "x", "stdin": "a", "stdin_base64": "YQ=="}),
        json!({"command": "x", "stdin_base64": "!"}),
        json!({"command": vec!["x"; 5000]}),
        json!({"command": "x", "more": 1}),
    ] {
        let reply = server.ask("POST", "/sandboxes/my/exec", Some(body.clone()));
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
    }
    for query in ["limit=0", "limit=1001", "limit=x", "state=lost", "cursor=x", "nonsense=1"] {
        let message = server.ask("GET", &format!("/sandboxes?{query}"), None).expect_refusal(400);
        assert!(!message.is_empty());
    }
    still_works(&server);
    server.end();
}

#[test]
fn what_does_not_exist_is_not_found() {
    let host = Host::shared();
    let server = server(&host);
    for id in ["nobody", "..%2f..", "%00", "%ff", "a%20b", "x".repeat(5000).as_str(), "%E2%80%AE", "'%22;--"] {
        for (method, path, body) in [
            ("GET", "", None),
            ("DELETE", "", None),
            ("POST", "/exec", Some(json!({"command": "true"}))),
            ("GET", "/processes", None),
            ("GET", "/files?path=/etc/passwd", None),
        ] {
            let reply = server.ask(method, &format!("/sandboxes/{id}{path}"), body);
            assert!(matches!(reply.status, 400 | 404), "{method} {id}{path}: {} {}", reply.status, reply.text());
        }
    }
    for (method, path) in
        [("GET", "/nonsense"), ("POST", "/sandboxes/my/nonsense"), ("GET", "/"), ("GET", "/sandboxes/")]
    {
        server.ask(method, path, None).expect_refusal(404);
    }
    for (method, path) in [("PUT", "/sandboxes"), ("TRACE", "/info"), ("BREW", "/info"), ("DELETE", "/info")] {
        let reply = server.ask(method, path, None);
        assert!(matches!(reply.status, 405 | 403), "{method} {path}: {}", reply.status);
    }
    for pid in ["-1", "4294967296", "x", "1.5"] {
        server.ask("GET", &format!("/sandboxes/my/processes/{pid}"), None).expect_refusal(400);
    }
    still_works(&server);
    server.end();
}

#[test]
fn paths_lead_nowhere_but_into_the_sandbox() {
    let host = Host::shared();
    let server = server(&host);
    let secret = host.root().folder("secret");
    std::fs::write(secret.join("file"), "of the host").unwrap();
    let secret = secret.join("file").display().to_string();
    let up = format!("/..{}{secret}", "/..".repeat(30));
    for path in [secret.as_str(), &up, "/proc/1/root/../../..", "/proc/self/root/x"] {
        let reply = server.ask("GET", &format!("/sandboxes/my/files?path={path}"), None);
        assert!(reply.status >= 400 && !reply.text().contains("of the host"), "{path}: {}", reply.text());
    }
    for path in ["", "%00", "/tmp/%00x", "x".repeat(5000).as_str()] {
        server.ask("GET", &format!("/sandboxes/my/files?path={path}"), None).expect_refusal(400);
    }
    server.ask("GET", "/sandboxes/my/files", None).expect_refusal(400);
    server.ask("GET", "/sandboxes/my/files?path=/tmp", None).expect_refusal(400);
    server.ask("POST", "/sandboxes/my/files/chmod", Some(json!({"path": "/tmp", "mode": "99"}))).expect_refusal(400);
    still_works(&server);
    server.end();
}

#[test]
fn too_much_is_refused_before_it_is_held() {
    let host = Host::shared();
    let server = server(&host);
    let Server { address, key, .. } = &server;
    let big = vec![b' '; 30 << 20];
    server.send(key, "POST", "/sandboxes/my/exec", &big).expect_refusal(413);
    let headers: String = (0..10_000).map(|number| format!("X-{number}: value\r\n")).collect();
    let request = format!("GET /v1/info HTTP/1.1\r\nHost: {address}\r\nX-API-KEY: {key}\r\n{headers}\r\n");
    let reply = exchange(address, request.as_bytes());
    assert!(matches!(reply.status, 400 | 431), "{}", reply.status);
    let request = format!("GET /v1/info HTTP/1.1\r\nHost: {address}\r\nX-Long: {}\r\n\r\n", "x".repeat(2 << 20));
    let reply = exchange(address, request.as_bytes());
    assert!(matches!(reply.status, 400 | 431), "{}", reply.status);
    let request = format!("GET /v1/{} HTTP/1.1\r\nHost: {address}\r\n\r\n", "x".repeat(200_000));
    let reply = exchange(address, request.as_bytes());
    assert!(matches!(reply.status, 400 | 401 | 404 | 414 | 431), "{}", reply.status);
    for nonsense in
        ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\x16\x03\x01\x02\0\x01\0\x01\r\n\r\n"]
    {
        let mut stream = connect(address);
        stream.write_all(nonsense.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.contains(" 400 "), "{answer}");
    }
    still_works(&server);
    server.end();
}

#[test]
fn those_who_say_nothing_hold_nobody_up() {
    let host = Host::shared();
    let server = server(&host);
    let Server { address, key, .. } = &server;
    // Half-open ones: connected and silent, in the middle of a header, in the middle of a body.
    let mut silent = Vec::new();
    for number in 0..300 {
        let mut stream = connect(address);
        let text = match number % 3 {
            0 => String::new(),
            1 => "GET /v1/info HTTP/1.1\r\nHost: x\r\nX-Slow: ".into(),
            _ => format!(
                "PUT /v1/sandboxes/my/files?path=/tmp/slow HTTP/1.1\r\nHost: x\r\nX-API-KEY: {key}\r\nContent-Length: 9\r\n\r\nx"
            ),
        };
        stream.write_all(text.as_bytes()).unwrap();
        silent.push(stream);
    }
    for _ in 0..5 {
        still_works(&server);
    }
    // Who says nothing, or does not finish its headers, is let go after a while.
    for (number, what) in [(1, "the middle of a header"), (0, "silence")] {
        let mut slow = silent.swap_remove(number);
        slow.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        let mut answer = String::new();
        let ended = slow.read_to_string(&mut answer);
        assert!(!matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock), "open after {what}");
        assert!(answer.is_empty() || answer.contains(" 408 ") || answer.contains(" 400 "), "{answer}");
    }
    drop(silent);
    still_works(&server);
    server.end();
}
