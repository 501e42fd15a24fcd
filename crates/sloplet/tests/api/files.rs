//! Files, folders as archives, and changes as they happen.

use serde_json::json;

use crate::common::{Host, Server};

fn server(host: &Host) -> Server {
    let server = Server::start(&host.root());
    server.ask("POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201);
    server
}

#[test]
fn a_file_is_written_read_looked_at_moved_and_removed() {
    let host = Host::shared();
    let server = server(&host);
    let content: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    let at = |what: &str, path: &str| format!("/sandboxes/my/{what}?path={path}");
    let key = &server.key;
    let written = server.send(key, "PUT", &at("files", "/tmp/new/deep/x&mode=0600"), &content).expect(200).json();
    assert_eq!(
        (&written["size"], &written["mode"], &written["owner"]),
        (&json!(3_000_000), &json!("0600"), &json!("user"))
    );
    let read = server.ask("GET", &at("files", "/tmp/new/deep/x"), None).expect(200);
    assert!(
        read.body == content && read.headers.to_lowercase().contains("content-length: 3000000"),
        "{}",
        read.headers
    );
    let part = server.ask("GET", &at("files", "/tmp/new/deep/x&offset=251&length=3"), None).expect(200);
    assert_eq!(part.body, [0, 1, 2]);
    server
        .ask("POST", "/sandboxes/my/files/chmod", Some(json!({"path": "/tmp/new/deep/x", "mode": "0640"})))
        .expect(204);
    server
        .ask("POST", "/sandboxes/my/files/move", Some(json!({"from": "/tmp/new/deep/x", "to": "/tmp/y"})))
        .expect(204);
    let seen = server.ask("GET", &at("files/stat", "/tmp/y"), None).expect(200).json();
    assert_eq!((&seen["mode"], &seen["kind"]), (&json!("0640"), &json!("file")));
    server.ask("POST", "/sandboxes/my/files/mkdir", Some(json!({"path": "/tmp/new/a"}))).expect(204);
    let listed = server.ask("GET", &at("files/list", "/tmp/new&depth=3"), None).expect(200).json();
    let paths: Vec<&str> =
        listed["entries"].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/tmp/new/a", "/tmp/new/deep"]);
    server.ask("DELETE", &at("files", "/tmp/new"), None).expect_refusal(400);
    server.ask("DELETE", &at("files", "/tmp/new&recursive=true"), None).expect(204);
    server.ask("GET", &at("files", "/tmp/new"), None).expect_refusal(404);
    server.ask("GET", &at("files", "/etc/shadow"), None);
    server.send(key, "PUT", &at("files", "/etc/x"), b"x").expect_refusal(403);
    server.send(key, "PUT", &at("files", "/etc/x&user=root"), b"x").expect(200);
    let kernel = server.ask("GET", &at("files", "/proc/version"), None).expect(200);
    assert!(kernel.text().starts_with("Linux"), "{}", kernel.text());
    server.end();
}

#[test]
fn a_folder_goes_through_as_an_archive() {
    let host = Host::shared();
    let server = server(&host);
    let make = "mkdir -p /tmp/a/b; echo one > /tmp/a/b/one; ln -s b/one /tmp/a/link; chmod 750 /tmp/a/b";
    server.ask("POST", "/sandboxes/my/exec", Some(json!({"command": make}))).expect(200);
    let archive = server.ask("GET", "/sandboxes/my/archive?path=/tmp/a", None).expect(200).body;
    server.send(&server.key, "PUT", "/sandboxes/my/archive?path=/tmp/copy", &archive).expect(204);
    let look = "cd /tmp/copy && cat link && stat -c %a b && readlink link";
    let seen = server.ask("POST", "/sandboxes/my/exec", Some(json!({"command": look}))).expect(200).json();
    assert_eq!(seen["stdout"], "one\n750\nb/one\n", "{seen}");
    server.ask("GET", "/sandboxes/my/archive?path=/nowhere", None).expect_refusal(404);
    // Refused as such, and not in the middle of an answer that seemed to go well.
    server.ask("POST", "/sandboxes/my/files/chmod", Some(json!({"path": "/tmp/a", "mode": "0000"}))).expect(204);
    server.ask("GET", "/sandboxes/my/archive?path=/tmp/a", None).expect_refusal(403);
    server
        .send(&server.key, "PUT", "/sandboxes/my/archive?path=/tmp/z", b"this is no archive".as_slice())
        .expect_refusal(400);
    server.end();
}

#[test]
fn an_upload_that_breaks_off_changes_nothing() {
    let host = Host::shared();
    let server = server(&host);
    server.send(&server.key, "PUT", "/sandboxes/my/files?path=/tmp/x", b"before").expect(200);
    let mut stream = crate::common::http::connect(&server.address);
    let request = format!(
        "PUT /v1/sandboxes/my/files?path=/tmp/x HTTP/1.1\r\nHost: x\r\nX-API-KEY: {}\r\nContent-Length: 100\r\n\r\nhalf",
        server.key
    );
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    drop(stream);
    for _ in 0..5 {
        assert_eq!(server.ask("GET", "/sandboxes/my/files?path=/tmp/x", None).expect(200).text(), "before");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let left = server.ask("GET", "/sandboxes/my/files/list?path=/tmp", None).expect(200).json();
    assert_eq!(left["entries"].as_array().unwrap().len(), 1, "{left}");
    server.end();
}

#[test]
fn changes_are_seen_as_they_happen() {
    let host = Host::shared();
    let server = server(&host);
    let mut events = server.events("/sandboxes/my/files/watch?path=/tmp&recursive=true", "");
    assert_eq!(events.next().unwrap().name, "ready");
    let work = "mkdir /tmp/d; printf 'x\\n' > \"/tmp/d/n\nevent: forged\"";
    server.ask("POST", "/sandboxes/my/exec", Some(json!({"command": work}))).expect(200);
    let first = events.next().unwrap();
    assert_eq!((first.name.as_str(), &first.data["path"]), ("create", &json!("d")));
    let second = events.next().unwrap();
    assert_eq!((second.name.as_str(), &second.data["path"]), ("create", &json!("d/n\nevent: forged")));
    server.ask("GET", "/sandboxes/my/files/watch?path=/nowhere", None).expect_refusal(404);
    server.end();
}
