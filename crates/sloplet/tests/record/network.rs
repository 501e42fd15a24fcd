//! `sloplet net` and `sloplet approve`.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Host, Server, http};

#[test]
fn tries_are_shown_and_rules_changed() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let server = Server::start(&sloplet);
        server.command(&["create", "--name", "my"]).expect_code(0);
        let lookup = "import socket\ntry: socket.gethostbyname('evil.example')\nexcept OSError: print('refused')";
        let refused = server.command(&["exec", "my", "--", "python3", "-c", lookup]).expect_code(0);
        assert_eq!(refused.out(), "refused\n", "{refused}");
        let shown = server.command(&["net", "my"]).expect_code(0);
        assert!(
            shown.out().contains("may reach: nothing") && shown.out().contains("evil.example (A lookup)"),
            "{shown}"
        );
        let told = server.json(&["net", "my"]);
        assert!(told["tries"].as_array().unwrap().iter().any(|one| one["decision"] == "denied"), "{told}");
        let changed = server.json(&["net", "my", "--allow", "api.example.com", "--deny", "*.example.org"]);
        let rules = |told: &Value| (told["rules"]["allow"].clone(), told["rules"]["deny"].clone());
        assert_eq!(rules(&changed), (json!(["api.example.com"]), json!(["*.example.org"])), "{changed}");
        let removed = server.json(&["net", "my", "--remove", "api.example.com"]);
        assert_eq!(rules(&removed), (json!([]), json!(["*.example.org"])), "{removed}");
        server.command(&["net", "my", "--remove", "api.example.com"]).expect_code(125);
        server.command(&["net", "my", "--allow", "*"]).expect_code(125);
        let audit = server.command(&["audit", "my", "--kind", "policy_changed"]).expect_code(0);
        assert!(audit.out().contains("network: allow api.example.com, deny *.example.org"), "{audit}");
        let Server { address, key, .. } = &server;
        let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nX-API-KEY: {key}\r\nConnection: close\r\n\r\n");
        let page = http::exchange(address, request.as_bytes()).expect(200).text();
        for figure in ["network_denied_total", "network_sent_bytes_total", "spend_dollars_total"] {
            let start = format!("sloplet_sandbox_{figure}{{sandbox=");
            assert!(page.lines().any(|line| line.starts_with(&start)), "{figure}: {page}");
        }
        server.end();
    }
}

#[test]
fn a_person_answers() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    server.command(&["create", "--name", "my", "--ask", "ask.example"]).expect_code(0);
    server.command(&["exec", "-d", "my", "--", "curl", "-sm60", "https://ask.example/"]).expect_code(0);
    let started = Instant::now();
    let waiting = loop {
        let waiting = server.json(&["approve"]);
        if waiting.as_array().is_some_and(|list| !list.is_empty()) {
            break waiting;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "nothing waits");
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!((&waiting[0]["name"], &waiting[0]["port"]), (&"ask.example".into(), &443.into()), "{waiting}");
    let id = waiting[0]["id"].to_string();
    let listed = server.command(&["approve"]).expect_code(0);
    assert!(listed.out().contains("ask.example:443"), "{listed}");
    server.command(&["approve", &id, "--deny"]).expect_code(0);
    server.command(&["approve", &id]).expect_code(125);
    assert_eq!(server.json(&["approve"]), json!([]));
    let audit = server.command(&["audit", "my", "--kind", "approval_answered"]).expect_code(0);
    assert!(audit.out().contains("denied by a person"), "{audit}");
    server.end();
}
