//! What opens a sandbox or a volume, in answers of both APIs: not for those who may only look.

use serde_json::{Value, json};

use crate::common::database;
use crate::common::http::{self, Reply};
use crate::common::{Host, Server};

/// Streams that do not end by themselves.
const ENDLESS: [&str; 4] = ["/output", "/watch", "/events", "/attach"];

/// What E2B's SDKs read.
const READ: [&str; 19] = [
    "/sandboxes",
    "/v2/sandboxes",
    "/sandboxes/metrics?sandbox_ids={id}",
    "/sandboxes/{id}",
    "/sandboxes/{id}/logs",
    "/v2/sandboxes/{id}/logs",
    "/sandboxes/{id}/metrics",
    "/snapshots",
    "/templates",
    "/default-templates",
    "/v2/templates",
    "/templates/aliases/base",
    "/templates/{id}",
    "/templates/{id}/tags",
    "/volumes",
    "/volumes/{volume}",
    "/secrets",
    "/secrets/{secret}",
    "/templates/base/files/0000000000000000000000000000000000000000000000000000000000000000",
];

/// What they change, which answers with a sandbox, a volume or a place to send files to.
const CHANGE: [&str; 12] = [
    "/sandboxes",
    "/v2/sandboxes",
    "/sandboxes/{id}/connect",
    "/v2/sandboxes/{id}/connect",
    "/sandboxes/{id}/resume",
    "/sandboxes/{id}/fork",
    "/sandboxes/{id}/snapshots",
    "/sandboxes/{id}/pause",
    "/sandboxes/{id}/timeout",
    "/v3/templates",
    "/volumes",
    "/secrets",
];

fn ask(server: &Server, key: &str, method: &str, path: &str, more: &str, body: &Value) -> Reply {
    let (address, body) = (&server.address, body.to_string());
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nX-API-KEY: {key}\r\nConnection: close\r\n{more}");
    let length = body.len();
    let request = format!("{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
    http::exchange(address, request.as_bytes())
}

#[test]
fn a_key_that_may_only_look_gets_no_token_in_any_answer() {
    let host = Host::shared();
    let sloplet = host.root();
    let server = Server::start_with(&sloplet, &[]);
    let (user, reader) = (server.new_key(&["user", "--scope", "use"]), server.new_key(&["reader", "--scope", "read"]));
    let made = ask(&server, &user, "POST", "/v2/sandboxes", "", &json!({"templateID": "base"})).expect(201).json();
    let volume = ask(&server, &user, "POST", "/volumes", "", &json!({"name": "v"})).expect(201).json();
    let value = "the-value-of-a-secret";
    let secret = ask(&server, &user, "POST", "/secrets", "", &json!({"name": "S", "value": value}));
    let secret = serde_json::from_slice::<Value>(&secret.body).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (id, volume_id) = (text(&made["sandboxID"]), text(&volume["volumeID"]));
    let tokens = [text(&made["envdAccessToken"]), text(&made["trafficAccessToken"]), text(&volume["token"])];
    assert!(tokens.iter().all(|token| token.len() >= 32), "{made} {volume}");
    server.end();
    // Keys have owners of their own; this one looks at what is the other's.
    let share = "
owner, = db.execute(\"select owner from documents where kind = 'key' and json_extract(body, '$.label') = 'user'\").fetchone()
db.execute(\"update documents set owner = ?1, body = json_set(body, '$.owner', ?1) where kind = 'key' and json_extract(body, '$.label') = 'reader'\", (owner,))";
    database::change(&sloplet.data, share, &[]);
    let server = Server::start_with(&sloplet, &["--destroy-on-exit"]);
    let fill = |path: &str| {
        let path = path.replace("{id}", &id).replace("{volume}", &volume_id);
        path.replace("{secret}", secret["secretID"].as_str().unwrap_or("S"))
    };
    let holds = |reply: &Reply| {
        let said = format!("{}\n{}", reply.headers, reply.text());
        tokens.iter().chain([&value.to_owned()]).any(|token| said.contains(token)) || said.contains("signature=")
    };
    // It sees the sandbox, and whoever may use it is told its token: what follows could fail.
    let seen = ask(&server, &reader, "GET", &fill("/sandboxes/{id}"), "", &json!({})).expect(200);
    assert!(seen.text().contains(&id) && !holds(&seen), "{}", seen.text());
    for path in ["/sandboxes/{id}", "/v1/sandboxes/{id}", "/volumes/{volume}"] {
        let told = ask(&server, &user, "GET", &fill(path), "", &json!({})).expect(200);
        assert!(holds(&told), "{path}: {}", told.text());
    }
    for path in READ {
        let reply = ask(&server, &reader, "GET", &fill(path), "", &json!({}));
        assert!(!holds(&reply) && reply.status < 500, "{path}: {}", reply.text());
    }
    for path in CHANGE {
        let reply =
            ask(&server, &reader, "POST", &fill(path), "", &json!({"templateID": "base", "name": "x", "timeout": 5}));
        assert!(reply.status == 403 && !holds(&reply), "{path}: {} {}", reply.status, reply.text());
    }
    // All of our own API, as it describes itself.
    let document = server.ask("GET", "/openapi.json", None).expect(200).json();
    let mut looked_at = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys().filter(|method| *method != "parameters") {
            if method == "get" && ENDLESS.iter().any(|end| path.ends_with(end)) {
                continue;
            }
            let filled = path.replace("{id}", if path.contains("volumes") { "v" } else { &id }).replace("{pid}", "1");
            let filled = filled.replace(['{', '}'], "");
            let query = if filled.contains("/files") { "?path=/etc/passwd" } else { "" };
            let reply = ask(&server, &reader, &method.to_uppercase(), &format!("{filled}{query}"), "", &json!({}));
            assert!(!holds(&reply), "{method} {path}: {}", reply.text());
            assert!(method == "get" || reply.status == 403, "{method} {path}: {} {}", reply.status, reply.text());
            looked_at += 1;
        }
    }
    assert!(looked_at > 50, "only {looked_at} operations were looked at");
    // Nor does the key itself open it.
    let inside = format!("E2b-Sandbox-Id: {id}\r\n");
    ask(&server, &reader, "POST", "/process.Process/List", &inside, &json!({})).expect_refusal(401);
    ask(&server, &user, "POST", "/process.Process/List", &inside, &json!({})).expect(200);
    server.end();
}
