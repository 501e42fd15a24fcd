//! What a server records, and who may see it.

use serde_json::{Value, json};
use sloplet_ledger::sha256;

use crate::common::{Host, Server, http};
use crate::{of_kind, records};

/// A key's id and its secret.
fn key(server: &Server, label: &str) -> (String, String) {
    let made = server.json(&["key", "create", label]);
    (made["id"].as_str().unwrap().to_owned(), made["secret"].as_str().unwrap().to_owned())
}

/// All records that a key sees.
fn seen(server: &Server, key: &str, query: &str) -> Vec<Value> {
    let page = server.ask_as(key, "GET", &format!("/audit?limit=1000&{query}"), None).expect(200).json();
    assert_eq!(page["next"], Value::Null);
    page["records"].as_array().unwrap().clone()
}

#[test]
fn calls_and_files_are_recorded_with_the_key() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let server = Server::start(&sloplet);
        let (id, secret) = key(&server, "mine");
        let made = server.ask_as(&secret, "POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201).json();
        server.send(&secret, "PUT", "/sandboxes/my/files?path=/tmp/a", b"content").expect(200);
        let moved = json!({"from": "/tmp/a", "to": "/tmp/b"});
        server.ask_as(&secret, "POST", "/sandboxes/my/files/move", Some(moved)).expect(204);
        server.ask_as(&secret, "DELETE", "/sandboxes/my/files?path=/tmp/b", None).expect(204);
        server.ask_as(&secret, "DELETE", "/sandboxes/my/files?path=/tmp/b", None).expect_refusal(404);
        server.ask_as(&secret, "POST", "/sandboxes/my/exec", Some(json!({"command": "exit 4"}))).expect(200);
        // E2B's way.
        let (sandbox, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
        let upload = format!(
            "POST /files?path=/tmp/e HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: {sandbox}\r\nX-Access-Token: {token}\r\n\
             Content-Type: application/octet-stream\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
        );
        http::exchange(&server.address, upload.as_bytes()).expect(200);
        // Looking is not written down, and what was refused at the door is nothing that this key may see.
        server.ask_as(&secret, "GET", "/sandboxes/my", None).expect(200);
        server.ask_as("nonsense", "DELETE", "/sandboxes/my", None).expect_refusal(401);

        let all = seen(&server, &secret, "");
        let calls: Vec<String> = of_kind(&all, "api_call")
            .iter()
            .map(|call| {
                format!("{} {} {} {}", call["method"], call["path"], call["status"], call["key"]).replace('"', "")
            })
            .collect();
        let expected = [
            format!("POST /v1/sandboxes 201 {id}"),
            format!("PUT /v1/sandboxes/{{id}}/files 200 {id}"),
            format!("POST /v1/sandboxes/{{id}}/files/move 204 {id}"),
            format!("DELETE /v1/sandboxes/{{id}}/files 204 {id}"),
            format!("DELETE /v1/sandboxes/{{id}}/files 404 {id}"),
            format!("POST /v1/sandboxes/{{id}}/exec 200 {id}"),
            "POST /files 200 null".to_owned(),
        ];
        assert_eq!(calls, expected);
        let files: Vec<Value> = of_kind(&all, "file_changed").into_iter().cloned().collect();
        let hash = |bytes: &[u8]| Value::from(sha256(bytes));
        let expected = [
            json!({"kind": "file_changed", "action": "written", "path": "/tmp/a", "bytes": 7, "sha256": hash(b"content")}),
            json!({"kind": "file_changed", "action": "moved", "path": "/tmp/a", "to": "/tmp/b"}),
            json!({"kind": "file_changed", "action": "removed", "path": "/tmp/b"}),
            json!({"kind": "file_changed", "action": "written", "path": "/tmp/e", "bytes": 3, "sha256": hash(b"abc")}),
        ];
        assert_eq!(files, expected);
        let actors: Vec<&Value> =
            all.iter().filter(|one| one["event"]["kind"] == "file_changed").map(|one| &one["actor"]).collect();
        let own = Value::from(format!("key:{id}"));
        assert_eq!(actors, [&own, &own, &own, &"token".into()]);
        assert_eq!(of_kind(&all, "exec_ended")[0]["exit_code"], 4);
        assert!(!json!(all).to_string().contains(&secret));
        server.end();
    }
}

#[test]
fn what_is_refused_at_the_door_is_recorded_and_a_flood_is_counted() {
    let host = Host::shared();
    let sloplet = host.user();
    let server = Server::start(&sloplet);
    let reader = server.json(&["key", "create", "reader", "--scope", "read"]);
    let sandbox = server.ask("POST", "/sandboxes", Some(json!({}))).expect(201).json()["id"].clone();
    let sandbox = sandbox.as_str().unwrap();
    for _ in 0..40 {
        server.ask_as("stolen-or-guessed", "GET", "/sandboxes?query=private", None).expect_refusal(401);
    }
    server.ask_as(reader["secret"].as_str().unwrap(), "POST", "/sandboxes", Some(json!({}))).expect_refusal(403);
    let upload = format!(
        "POST /files?path=/tmp/e HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: {sandbox}\r\nX-Access-Token: guessed\r\n\
         Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    http::exchange(&server.address, upload.as_bytes()).expect(401);
    let refused = |all: &[Value]| -> Vec<Value> {
        let refused = all.iter().filter(|one| one["event"]["from"] == "127.0.0.1");
        refused.map(|one| json!([one["actor"], one["sandbox"], one["event"]])).collect()
    };
    let call = |more: Value| {
        let mut call = json!({"kind": "api_call", "from": "127.0.0.1", "duration_ms": 0});
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call
    };
    let (id, actor) = (&reader["id"], format!("key:{}", reader["id"].as_str().unwrap()));
    let mut expected = vec![
        json!(["unknown", null, call(json!({"method": "GET", "path": "/v1/sandboxes", "status": 401}))]),
        json!([actor, null, call(json!({"method": "POST", "path": "/v1/sandboxes", "status": 403, "key": id}))]),
    ];
    assert_eq!(refused(&seen(&server, &server.key, "")), expected);
    // The rest is told once, with the last of them, at the latest when the server ends.
    server.ask("DELETE", &format!("/sandboxes/{sandbox}"), None).expect(204);
    server.end();
    let more = call(json!({"method": "POST", "path": "/files", "status": 401, "count": 40}));
    expected.push(json!(["unknown", sandbox, more]));
    let all = records(&sloplet.invoke(&["audit", "--json"]).finish().expect_code(0).out());
    assert_eq!(refused(&all), expected);
    assert!(!json!(all).to_string().contains("guessed"));
}

#[test]
fn who_looks_where_they_may_not_is_recorded() {
    let host = Host::shared();
    let server = Server::start(&host.user());
    let reader = server.json(&["key", "create", "reader", "--scope", "read"]);
    let (id, secret) = (reader["id"].as_str().unwrap(), reader["secret"].as_str().unwrap());
    server.ask_as(secret, "GET", "/sandboxes", None).expect(200);
    server.ask_as(secret, "GET", "/keys", None).expect_refusal(403);
    let calls = seen(&server, &server.key, "kind=api_call");
    let own: Vec<&Value> = calls.iter().filter(|one| one["actor"] == format!("key:{id}")).collect();
    let [call] = own[..] else { panic!("{calls:?}") };
    let call = &call["event"];
    assert_eq!(json!([call["method"], call["path"], call["status"]]), json!(["GET", "/v1/keys", 403]));
}

#[test]
fn a_key_sees_its_own_sandboxes_also_when_they_are_gone() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let ((_, mine), (_, other)) = (key(&server, "mine"), key(&server, "other"));
    let made = server.ask_as(&mine, "POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201).json();
    let id = made["id"].as_str().unwrap();
    server.ask_as(&mine, "POST", "/sandboxes/my/exec", Some(json!({"command": "true"}))).expect(200);
    for gone in [false, true] {
        if gone {
            server.ask_as(&mine, "DELETE", "/sandboxes/my", None).expect(204);
        }
        for name in ["my", id] {
            let own = seen(&server, &mine, &format!("sandbox={name}&kind=exec_started"));
            assert_eq!(own.len(), 1, "{own:?}");
            server.ask_as(&other, "GET", &format!("/audit?sandbox={name}"), None).expect_refusal(404);
            server.ask_as(&other, "GET", &format!("/cost?sandbox={name}"), None).expect_refusal(404);
            server.ask_as(&other, "GET", &format!("/events?sandbox={name}"), None).expect_refusal(404);
        }
        assert_eq!(seen(&server, &other, ""), Vec::<Value>::new());
        let cost = |key: &str| server.ask_as(key, "GET", "/cost?since=1h", None).expect(200).json();
        assert_eq!(cost(&mine)["sandboxes"][0]["sandbox"], id);
        assert_eq!(cost(&other)["sandboxes"], json!([]));
    }
    let everything = seen(&server, &server.key, "");
    assert_eq!(of_kind(&everything, "sandbox_gone").len(), 1);
    for path in ["/audit/verify", "/audit/head", &format!("/audit/outputs/{}", "0".repeat(64))] {
        server.ask_as(&mine, "GET", path, None).expect_refusal(403);
    }
    let verified = server.ask("GET", "/audit/verify", None).expect(200).json();
    assert_eq!((&verified["sound"], &verified["problems"]), (&true.into(), &json!([])), "{verified}");
    let head = server.ask("GET", "/audit/head", None).expect(200).json();
    assert_eq!(head["key"], verified["report"]["key"]);
    // The command asks a server elsewhere when it is told to.
    let there = |words: &[&str]| {
        let invoked = server.sloplet.invoke(words).env("SLOPLET_URL", &format!("http://{}", server.address));
        invoked.env("SLOPLET_API_KEY", &mine).finish()
    };
    let told = records(&there(&["audit", "my", "--json"]).expect_code(0).out());
    assert_eq!(told, seen(&server, &mine, "sandbox=my"));
    there(&["audit", "verify"]).expect_code(125);
    assert_eq!(there(&["cost", "my", "--json"]).expect_code(0).json()["sandboxes"][0]["name"], "my");
    server.end();
}

#[test]
fn events_resume_where_they_stopped() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let mut events = server.events("/events?kind=exec_started,exec_ended", "");
    assert_eq!(events.status, 200);
    server.ask("POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201);
    let run = |word: &str| {
        server.ask("POST", "/sandboxes/my/exec", Some(json!({"command": ["echo", word]}))).expect(200);
    };
    run("one");
    let first = events.next().unwrap();
    assert_eq!((first.name.as_str(), &first.data["event"]["argv"][1]), ("exec_started", &"one".into()), "{first:?}");
    assert_eq!(first.data["seq"].to_string(), first.id);
    drop(events);
    run("two");
    let mut resumed =
        server.events("/events?kind=exec_started,exec_ended", &format!("Last-Event-ID: {}\r\n", first.id));
    let next: Vec<_> = (0..3).map(|_| resumed.next().unwrap()).collect();
    let told: Vec<String> = next.iter().map(|one| format!("{} {}", one.name, one.data["event"]["argv"][1])).collect();
    assert!(told.contains(&"exec_started \"two\"".to_owned()), "{told:?}");
    assert!(!told.contains(&"exec_started \"one\"".to_owned()), "what was seen comes again: {told:?}");
    let numbers: Vec<u64> = next.iter().map(|one| one.id.parse().unwrap()).collect();
    assert!(numbers.is_sorted() && numbers[0] > first.id.parse().unwrap(), "{numbers:?}");
    server.end();
}

#[test]
fn pages_follow_each_other_and_nonsense_is_refused() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    for _ in 0..3 {
        server.ask("POST", "/volumes", None).expect_refusal(400);
    }
    let all = seen(&server, &server.key, "");
    let (mut after, mut paged) = (0, Vec::new());
    loop {
        let page = server.ask("GET", &format!("/audit?limit=1&after={after}"), None).expect(200).json();
        paged.extend(page["records"].as_array().unwrap().iter().cloned());
        match page["next"].as_u64() {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(paged, all);
    let lines = server.ask("GET", "/audit?limit=2&format=jsonl", None).expect(200);
    assert!(lines.headers.to_lowercase().contains("sloplet-next: 2"), "{}", lines.headers);
    assert_eq!(records(&lines.text()), all[..2]);
    for path in [
        "/audit?limit=0",
        "/audit?limit=1001",
        "/audit?after=-1",
        "/audit?since=yesterday",
        "/audit?colour=red",
        "/audit?format=xml",
        "/audit?kind=",
        "/audit?kind=exec_started,nonsense",
        "/audit/verify?key=zz",
        "/audit/verify?head=zz",
        "/audit/outputs/zz",
        "/cost?since=",
        "/events?until=x",
    ] {
        server.ask("GET", path, None).expect_refusal(400);
    }
    server.send_with("/events", "Last-Event-ID: x\r\n").expect_refusal(400);
    server.ask("GET", &format!("/audit/outputs/{}", "0".repeat(64)), None).expect_refusal(404);
    server.end();
}

#[test]
fn code_sent_to_the_interpreter_is_recorded() {
    const SERVER: &str = "
from http.server import *
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
HTTPServer(('127.0.0.1', 49999), Handler).serve_forever()
";
    let host = Host::shared();
    let server = Server::start(&host.root());
    let made = server.ask("POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201).json();
    let process = json!({"command": ["python3", "-c", SERVER]});
    server.ask("POST", "/sandboxes/my/processes", Some(process)).expect(201);
    let body = json!({"code": "print(1)", "language": "python", "env_vars": {"A": "topsecret"}}).to_string();
    let (id, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    let request = format!(
        "POST /preview/{id}/49999/execute HTTP/1.1\r\nHost: x\r\nX-Access-Token: {token}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let started = std::time::Instant::now();
    let answer = loop {
        let answer = http::exchange(&server.address, request.as_bytes());
        if answer.status == 200 || started.elapsed().as_secs() > 20 {
            break answer.expect(200);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    assert_eq!(answer.text(), body);
    let all = seen(&server, &server.key, "kind=tool_call");
    let call = of_kind(&all, "tool_call").last().cloned().cloned().unwrap();
    let expected = json!({
        "kind": "tool_call", "name": "execute python", "sha256": sha256(b"print(1)"), "bytes": 8, "text": "print(1)",
    });
    assert_eq!(call, expected);
    assert!(!json!(all).to_string().contains("topsecret"));
    server.end();
}
