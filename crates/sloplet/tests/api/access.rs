//! Who may do what: keys, scopes, quotas.

use serde_json::json;

use crate::common::{Host, Server};

#[test]
fn one_keys_things_are_invisible_to_another() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let (mine, other) = (server.new_key(&["mine"]), server.new_key(&["other"]));
    let made = server.ask_as(&mine, "POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201).json();
    let id = made["id"].as_str().unwrap();
    server.ask_as(&mine, "POST", "/volumes", Some(json!({"name": "data"}))).expect(201);
    let snapshot = server.ask_as(&mine, "POST", "/sandboxes/my/snapshot", None).expect(201).json();
    let snapshot = snapshot["id"].as_str().unwrap();
    // The administrator's key is another one, too.
    for key in [&other, &server.key] {
        for name in ["my", id] {
            for (method, path) in [
                ("GET", ""),
                ("DELETE", ""),
                ("PATCH", ""),
                ("POST", "/exec"),
                ("POST", "/pause"),
                ("POST", "/fork"),
                ("GET", "/files?path=/etc/passwd"),
                ("GET", "/processes"),
                ("GET", "/sessions"),
                ("GET", "/ports"),
            ] {
                let body = match path {
                    "/exec" => Some(json!({"command": "true"})),
                    "" if method == "PATCH" => Some(json!({"timeout": "1h"})),
                    _ => None,
                };
                server.ask_as(key, method, &format!("/sandboxes/{name}{path}"), body).expect_refusal(404);
            }
        }
        for path in ["/sandboxes", "/volumes", "/snapshots"] {
            let seen = server.ask_as(key, "GET", path, None).expect(200).text();
            assert!(!seen.contains(id) && !seen.contains("data") && !seen.contains(snapshot), "{path}: {seen}");
        }
        for image in [snapshot.to_owned(), format!("snapshot-{snapshot}"), format!("snapshot-{snapshot}:latest")] {
            server.ask_as(key, "POST", "/sandboxes", Some(json!({"image": image}))).expect_refusal(404);
        }
        server.ask_as(key, "DELETE", "/volumes/data", None).expect_refusal(404);
        server.ask_as(key, "DELETE", &format!("/snapshots/{snapshot}"), None).expect_refusal(404);
        // The same name is free for others.
        server.ask_as(key, "POST", "/volumes", Some(json!({"name": "data"}))).expect(201);
    }
    server.ask_as(&mine, "GET", "/sandboxes/my", None).expect(200);
    server.end();
}

#[test]
fn a_key_may_do_what_its_scope_says_and_no_more() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let user = server.new_key(&["user", "--scope", "use"]);
    let reader = server.new_key(&["reader", "--scope", "read"]);
    for path in ["/sandboxes", "/info", "/images", "/volumes", "/snapshots"] {
        server.ask_as(&reader, "GET", path, None).expect(200);
    }
    server.ask_as(&reader, "POST", "/sandboxes", None).expect_refusal(403);
    server.ask_as(&reader, "POST", "/volumes", Some(json!({"name": "x"}))).expect_refusal(403);
    server.ask_as(&user, "POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201);
    for key in [&user, &reader] {
        server.ask_as(key, "GET", "/keys", None).expect_refusal(403);
        server.ask_as(key, "POST", "/keys", Some(json!({"scope": "admin"}))).expect_refusal(403);
        server.ask_as(key, "DELETE", "/keys/x", None).expect_refusal(403);
        server.ask_as(key, "DELETE", "/images?name=x", None).expect_refusal(403);
        server.send(key, "PUT", "/images?name=x", b"").expect_refusal(403);
        let info = server.ask_as(key, "GET", "/info", None).expect(200).json();
        assert!(info.get("pid").is_none() && info.get("data").is_none(), "{info}");
    }
    // The host's files are the administrator's.
    let mount = json!({"mounts": [{"from": "/usr", "to": "/x"}]});
    server.ask_as(&user, "POST", "/sandboxes", Some(mount.clone())).expect_refusal(403);
    server.ask("POST", "/sandboxes", Some(mount)).expect(201);
    let folder = host.root().folder("image");
    for image in [folder.to_str().unwrap(), "../x", "~/x"] {
        server.ask_as(&user, "POST", "/sandboxes", Some(json!({"image": image}))).expect_refusal(403);
    }
    for key in ["", "nonsense", "e2b_0000000000000000000000000000000000000000"] {
        server.ask_as(key, "GET", "/sandboxes", None).expect_refusal(401);
    }
    server.ask_as("", "GET", "/openapi.json", None).expect(200);
    let message = server.ask_as("", "GET", "/sandboxes/my/attach", None).expect_refusal(401);
    assert!(message.contains("X-API-KEY"), "{message}");
    server.end();
}

#[test]
fn a_key_has_no_more_than_its_quota() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let few = server.new_key(&["few", "--max-sandboxes", "2"]);
    for _ in 0..2 {
        server.ask_as(&few, "POST", "/sandboxes", None).expect(201);
    }
    let message = server.ask_as(&few, "POST", "/sandboxes", None).expect_refusal(429);
    assert!(message.contains('2'), "{message}");
    let small = server.new_key(&["small", "--max-memory", "1GiB"]);
    server.ask_as(&small, "POST", "/sandboxes", Some(json!({"memory": "768MiB"}))).expect(201);
    server.ask_as(&small, "POST", "/sandboxes", Some(json!({"memory": "512MiB"}))).expect_refusal(429);
    let slow = server.new_key(&["slow", "--rate", "3"]);
    let granted = (0..10).filter(|_| server.ask_as(&slow, "GET", "/info", None).status == 200).count();
    assert_eq!(granted, 3);
    server.end();
}

#[test]
fn a_removed_key_opens_nothing() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let made = server.ask("POST", "/keys", Some(json!({"label": "gone", "scope": "use"}))).expect(201).json();
    let secret = made["secret"].as_str().unwrap();
    server.ask_as(secret, "GET", "/sandboxes", None).expect(200);
    let listed = server.ask("GET", "/keys", None).expect(200).text();
    assert!(listed.contains("gone") && !listed.contains(secret), "{listed}");
    server.ask("DELETE", &format!("/keys/{}", made["id"].as_str().unwrap()), None).expect(204);
    server.ask_as(secret, "GET", "/sandboxes", None).expect_refusal(401);
    server.end();
}
