//! Ports of sandboxes, seen from outside.

use std::io::{BufReader, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::http::{self, Reply};
use crate::common::{Host, Server};

/// Answers with what it was asked for; whoever asks for another protocol gets back what he says.
const INSIDE: &str = r#"
import socketserver
class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.rfile.read(1)
        if b"upgrade: echo" in head.lower():
            self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
            while data := self.rfile.read1(1000):
                self.wfile.write(data.upper())
            return
        greedy = b""
        if head.startswith(b"GET /greedy"):
            greedy = b"Service-Worker-Allowed: /\r\nClear-Site-Data: \"*\"\r\nSet-Cookie: mine=1; Path=/; Domain=localhost\r\n"
        self.wfile.write(b"HTTP/1.1 200 OK\r\n" + greedy + b"Content-Length: %d\r\n\r\n" % len(head) + head)
socketserver.ThreadingTCPServer(("127.0.0.1", 3000), Answer).serve_forever()
"#;

fn get(server: &Server, path: &str, headers: &str) -> Reply {
    let Server { address, .. } = server;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n");
    http::exchange(address, request.as_bytes())
}

fn header<'r>(reply: &'r Reply, name: &str) -> &'r str {
    let found = reply.headers.lines().find(|line| line.to_ascii_lowercase().starts_with(name));
    found.unwrap_or_else(|| panic!("no {name} in {}", reply.headers)).split_once(": ").unwrap().1.trim()
}

/// A sandbox in which something listens; returns its id.
fn start(server: &Server) -> String {
    let id = server.ask("POST", "/sandboxes", Some(json!({}))).expect(201).json()["id"].as_str().unwrap().to_owned();
    let command = json!({"command": ["python3", "-c", INSIDE]});
    server.ask("POST", &format!("/sandboxes/{id}/processes"), Some(command)).expect(201);
    let key = format!("X-API-KEY: {}\r\n", server.key);
    let started = Instant::now();
    while get(server, &format!("/preview/{id}/3000/"), &key).status != 200 {
        assert!(started.elapsed() < Duration::from_secs(20), "nothing answers inside");
        thread::sleep(Duration::from_millis(50));
    }
    id
}

#[test]
fn a_port_is_private_and_a_signed_link_opens_it() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let id = start(&server);
    let path = format!("/preview/{id}/3000/");
    let key = format!("X-API-KEY: {}\r\n", server.key);
    // What runs inside learns neither the key nor where it is shown.
    let asked = get(&server, &format!("{path}a/b?c=d"), &format!("{key}X-Mine: yes\r\n")).text();
    assert!(asked.starts_with("GET /a/b?c=d HTTP/1.1\r\n") && asked.contains("yes"), "{asked}");
    assert!(!asked.contains(&server.key) && asked.contains("localhost:3000"), "{asked}");
    // Private.
    assert_eq!(get(&server, &path, "").status, 401);
    let stranger = server.new_key(&["other"]);
    assert_eq!(get(&server, &path, &format!("X-API-KEY: {stranger}\r\n")).status, 401);
    // A link opens it, and what the page asks for next.
    let link = server.ask("POST", &format!("/sandboxes/{id}/ports/3000/link"), None).expect(201).json();
    let link = link["url"].as_str().unwrap().strip_prefix(&format!("http://{}", server.address)).unwrap().to_owned();
    let first = get(&server, &link, "");
    assert_eq!((first.status, header(&first, "location")), (307, path.as_str()));
    let cookie = header(&first, "set-cookie").split(';').next().unwrap().to_owned();
    assert_eq!(get(&server, &format!("{path}next"), &format!("Cookie: {cookie}\r\n")).status, 200);
    let changed = format!("{}0", link.strip_suffix(|_: char| true).unwrap());
    let changed = if changed == link { format!("{}1", link.strip_suffix('0').unwrap()) } else { changed };
    assert_eq!(get(&server, &changed, "").status, 401);
    // Only this port, and only while somebody listens there.
    let other = format!("/preview/{id}/3001/");
    assert_eq!(get(&server, &other, &format!("Cookie: {cookie}\r\n")).status, 401);
    let closed = get(&server, &other, &key);
    assert!(closed.status == 502 && closed.text().contains("port is not open"), "{}", closed.text());
    // By name.
    let request = format!("GET /x HTTP/1.1\r\nHost: 3000-{id}.localhost\r\nConnection: close\r\n{key}\r\n");
    assert!(http::exchange(&server.address, request.as_bytes()).text().starts_with("GET /x "));
    server.end();
}

#[test]
fn a_preview_by_path_neither_claims_the_origin_nor_sees_cookies_of_others() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let id = start(&server);
    let path = format!("/preview/{id}/3000/");
    let key = format!("X-API-KEY: {}\r\n", server.key);
    let greedy = get(&server, &format!("{path}greedy"), &key);
    let headers = greedy.headers.to_ascii_lowercase();
    assert!(greedy.status == 200 && greedy.text().starts_with("GET /greedy"), "{}", greedy.text());
    assert!(!headers.contains("service-worker-allowed") && !headers.contains("clear-site-data"), "{headers}");
    let cookie = header(&greedy, "set-cookie").to_owned();
    assert!(cookie.ends_with(&format!("Path={path}")) && !cookie.contains("Domain"), "{cookie}");
    // Its own comes back under its own name; those of the API, of other previews and of other programs do not.
    let own = cookie.split(';').next().unwrap();
    let others = "session=of-another-program; sloplet_another_3000_theirs=2";
    let asked = get(&server, &format!("{path}again"), &format!("{key}Cookie: {own}; {others}\r\n")).text();
    assert!(asked.contains("mine=1"), "{asked}");
    assert!(!asked.contains("of-another-program") && !asked.contains("theirs"), "{asked}");
    server.end();
}

#[test]
fn another_protocol_goes_through_both_ways() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let id = start(&server);
    let key = format!("X-API-KEY: {}\r\n", server.key);
    let mut stream = http::connect(&server.address);
    let upgrade = format!(
        "GET /preview/{id}/3000/ HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n{key}\r\n",
        server.address
    );
    stream.write_all(upgrade.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    assert_eq!(http::head(&mut reader).0, 101);
    for word in ["hello", "again"] {
        stream.write_all(word.as_bytes()).unwrap();
        let mut back = [0; 5];
        reader.read_exact(&mut back).unwrap();
        assert_eq!(back, word.to_ascii_uppercase().as_bytes());
    }
    server.end();
}

#[test]
fn previews_can_be_public_but_not_those_that_say_no() {
    let host = Host::shared();
    let server = Server::start_with(&host.root(), &["--destroy-on-exit", "--public-previews"]);
    let id = start(&server);
    assert_eq!(get(&server, &format!("/preview/{id}/3000/"), "").status, 200);
    let ask = |method: &str, path: &str, body: &str| {
        let (address, key, length) = (&server.address, &server.key, body.len());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nX-API-KEY: {key}\r\nContent-Length: {length}\r\n\
             Content-Type: application/json\r\nConnection: close\r\n\r\n{body}"
        );
        http::exchange(address, request.as_bytes())
    };
    // Nothing else of it is public.
    assert_eq!(get(&server, "/files?path=/etc/passwd", &format!("E2b-Sandbox-Id: {id}\r\n")).status, 401);
    let made = ask(
        "POST",
        "/sandboxes",
        r#"{"templateID": "host", "network": {"allowPublicTraffic": false, "maskRequestHost": "mine:${PORT}"}}"#,
    );
    let made = made.expect(201).json();
    let closed = made["sandboxID"].as_str().unwrap();
    let command = json!({"command": ["python3", "-c", INSIDE]});
    server.ask("POST", &format!("/sandboxes/{closed}/processes"), Some(command)).expect(201);
    let path = format!("/preview/{closed}/3000/");
    assert_eq!(get(&server, &path, "").status, 403);
    let token = format!("E2b-Traffic-Access-Token: {}\r\n", made["trafficAccessToken"].as_str().unwrap());
    let started = Instant::now();
    let answer = loop {
        let answer = get(&server, &path, &token);
        if answer.status == 200 {
            break answer.text();
        }
        assert!(started.elapsed() < Duration::from_secs(20), "nothing answers inside");
        thread::sleep(Duration::from_millis(50));
    };
    assert!(answer.to_lowercase().contains("host: mine:3000"), "{answer}");
    server.end();
}
