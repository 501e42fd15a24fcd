//! Signed addresses of files, as E2B's SDKs make them: what it costs to check one.

use serde_json::json;

use crate::common::database;
use crate::common::http::{self, Reply};
use crate::common::{Host, Server};

/// Sandboxes besides the one that is meant.
const OTHERS: usize = 1000;

/// As the SDKs sign a path that is read by the usual user.
fn sign(token: &str, path: &str) -> String {
    let signed = ring::digest::digest(&ring::digest::SHA256, format!("{path}:read::{token}").as_bytes());
    let letters: Vec<char> = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['+', '/']).collect();
    let text: String = signed
        .as_ref()
        .chunks(3)
        .flat_map(|bytes| {
            let word = bytes.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - bytes.len()));
            let digit = |place: usize| letters[(word >> (18 - 6 * place)) as usize & 63];
            (0..=bytes.len()).map(digit).collect::<Vec<_>>()
        })
        .collect();
    format!("v1_{}", text.replace('+', "%2B").replace('/', "%2F"))
}

/// A request for a file, without a key.
fn ask(server: &Server, host: &str, more: &str, query: &str) -> Reply {
    let request =
        format!("GET /files?path=/etc/passwd&{query} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n");
    http::exchange(&server.address, request.as_bytes())
}

/// How many tokens signatures were compared with so far.
fn compared(server: &Server) -> usize {
    let (address, key) = (&server.address, &server.key);
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nX-API-KEY: {key}\r\nConnection: close\r\n\r\n");
    let page = http::exchange(address, request.as_bytes()).expect(200).text();
    let name = "sloplet_signature_comparisons_total ";
    page.lines().find_map(|line| line.strip_prefix(name)).expect("the counter").parse().unwrap()
}

#[test]
fn a_signature_costs_one_comparison_if_its_sandbox_is_named_and_few_if_not() {
    let host = Host::shared();
    let sloplet = host.root();
    let server = Server::start_with(&sloplet, &[]);
    let made = server.ask("POST", "/sandboxes", Some(json!({"name": "it", "timeout": "1h"}))).expect(201).json();
    let (id, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    server.ask("POST", "/sandboxes", Some(json!({"name": "asleep", "timeout": "1h"}))).expect(201);
    server.ask("POST", "/sandboxes/asleep/stop", None).expect(200);
    let key = server.key.clone();
    server.end();
    let copy = "
kind, owner, made, body = db.execute(\"select kind, owner, created, body from documents where kind = 'sandbox' and name = 'asleep'\").fetchone()
for number in range(int(sys.argv[2])):
    id = f'copy{number:012}'
    record = {**json.loads(body), 'id': id, 'name': None, 'token': f'{number:040}'}
    db.execute('insert into documents values (?, ?, ?, null, ?, ?)', (kind, id, owner, made, json.dumps(record)))";
    database::change(&sloplet.data, copy, &[&OTHERS.to_string()]);
    let server = Server::start_with(&sloplet, &[]);
    let cost = |host: &str, more: &str, query: &str| {
        let before = compared(&server);
        let status = ask(&server, host, more, query).status;
        (status, compared(&server) - before)
    };
    let (address, header) = (server.address.clone(), format!("E2b-Sandbox-Id: {id}\r\n"));
    let (named, query) = (format!("49983-{id}.localhost"), format!("sandbox_id={id}&"));
    let (right, wrong) = (sign(token, "/etc/passwd"), format!("v1_{}", "A".repeat(43)));
    // By a header, by the host, by the query: one comparison, whatever it shows and however many sandboxes there are.
    for (status, shown) in [(401, &wrong), (200, &right)] {
        let shown = format!("signature={shown}");
        assert_eq!(cost(&address, &header, &shown), (status, 1));
        assert_eq!(cost(&named, "", &shown), (status, 1));
        assert_eq!(cost(&address, "", &format!("{query}{shown}")), (status, 1));
    }
    // Whoever names none costs one for each that it may be. A signature that was right is remembered.
    let (wrong, right) = (format!("signature={wrong}"), format!("signature={right}"));
    assert_eq!(cost(&address, "", &wrong), (404, OTHERS + 2));
    let (status, first) = cost(&address, "", &right);
    assert!(status == 200 && first <= OTHERS + 3, "{status} {first}");
    assert_eq!(cost(&address, "", &right), (200, 2), "one to find it, one to answer");
    // Wrong ones are not listened to for long; those who name their sandbox are.
    let before = compared(&server);
    for _ in 0..60 {
        ask(&server, &address, "", &wrong).expect_refusal(404);
    }
    assert_eq!(compared(&server) - before, 29 * (OTHERS + 2));
    assert_eq!(cost(&address, &header, &right), (200, 1));
    server.ask_as(&key, "DELETE", "/sandboxes/it", None).expect(204);
    server.end();
}
