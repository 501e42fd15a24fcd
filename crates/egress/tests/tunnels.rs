//! Connections: who gets through, to where, and what it must say.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy sees only #[test] functions as tests"
)]

mod common;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use sloplet_egress::*;
use sloplet_policy::addresses::HOST_NAME;
use sloplet_policy::{Network, Span};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn an_allowed_name_is_reached_and_recorded() {
    let (inside, server) = inside_with(Manner::Echo).await;
    let client = inside.connect_name("ok.test", server.port()).await;
    let (text, end) = client.talk(b"\0binary").await;
    assert_eq!((text.as_str(), end), ("\0binary", End::Closed));
    let allowed = inside.event(|event| matches!(event, Event::Allowed { .. })).await;
    let Event::Allowed { name, address, port, protocol, rule, connection } = allowed else { panic!() };
    assert_eq!((name.as_deref(), address, port), (Some("ok.test"), "127.0.0.2".parse().ok(), server.port()));
    assert_eq!((protocol, rule), (Protocol::Raw, format!("ok.test:{}", server.port())));
    let closed = inside.event(|event| matches!(event, Event::Closed { .. })).await;
    assert!(matches!(closed, Event::Closed { connection: id, up: 7, down: 7, .. } if id == connection), "{closed:?}");
    assert_eq!(inside.asked_upstream(), ["ok.test"]);
    let json = serde_json::to_value(&closed).unwrap();
    assert_eq!((json["event"].as_str(), json["up"].as_u64()), (Some("closed"), Some(7)));
}

#[tokio::test]
async fn servers_may_speak_first_and_clients_too() {
    let (inside, server) = inside_with(Manner::Banner("SSH-2.0-server\r\n")).await;
    let mut client = inside.connect_name("ok.test", server.port()).await;
    client.expect("SSH-2.0-server\r\n").await;
    client.send("SSH-2.0-client\r\n").await;
    client.expect("SSH-2.0-client\r\n").await;
    // Half a word holds nobody up forever, and the whole is passed on.
    let mut client = inside.connect_name("ok.test", server.port()).await;
    client.expect("SSH-2.0-server\r\n").await;
    client.send("EH").await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    client.send("LO me\r\n").await;
    client.expect("EHLO me\r\n").await;
    // Nor does a word that its program waits for an answer to, or that is all it has to say.
    let (inside, server) = inside_with(Manner::Echo).await;
    let mut client = inside.connect_name("ok.test", server.port()).await;
    client.send("PING").await;
    client.expect("PING").await;
    client.send("\x01 HTTP/ \0").await;
    client.expect("\x01 HTTP/ \0").await;
    let (text, end) = inside.connect_name("ok.test", server.port()).await.talk(b"word").await;
    assert_eq!((text.as_str(), end), ("word", End::Closed));
}

/// A server that answers a method it does not know, and reads on.
#[tokio::test]
async fn a_first_line_that_is_no_http_does_not_open_the_connection() {
    let (inside, server) = inside_with(Manner::Http(OK)).await;
    let evil = "GET /exfil HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    let long = format!("{} / HTTP/1.1\r\nHost: ok.test\r\n\r\n", "A".repeat(65));
    let mut client = inside.connect_name("ok.test", server.port()).await;
    client.send(&long).await;
    client.expect(OK).await;
    let (text, _) = client.ask(evil).await;
    assert!(text.starts_with("HTTP/1.1 400 ") && text.contains("evil.test"), "a long method is a method: {text}");
    for first in [
        "GET\t/x\tHTTP/1.1\r\nHost: evil.test\r\n\r\n",
        " GET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "GET /x\r\n\r\n",
        "get /x\n",
        "GET\rGET /x\r\nHost: evil.test\r\n\r\n",
        "\0GET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "GET /\x01 HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    ] {
        let (text, _) = inside.connect_name("ok.test", server.port()).await.ask(format!("{first}{evil}")).await;
        assert!(text.starts_with("HTTP/1.1 400 ") && text.contains("may not be reached"), "{first:?}: {text:?}");
    }
    // Without any sign of HTTP, it waits for the server to speak first, which this one does not.
    let (text, _) = inside.connect_name("ok.test", server.port()).await.ask(format!("FROB /x\r\n\r\n{evil}")).await;
    assert!(text.starts_with("HTTP/1.1 400 "), "{text:?}");
    assert!(text.contains(&format!("--allow ok.test:{}/tcp", server.port())), "{text:?}");
    assert!(!server.heard().contains("evil") && !server.heard().contains("/x"), "{}", server.heard());
    let wanted = "could be taken for an HTTP request";
    inside.event(|event| matches!(event, Event::Denied { reason, .. } if reason.contains(wanted))).await;
}

#[tokio::test]
async fn a_server_that_answers_in_http_has_misread_what_is_binary() {
    let (inside, server) = inside_with(Manner::Http(OK)).await;
    let mut client = inside.connect_name("ok.test", server.port()).await;
    client.send("\x01\x02\r\n\r\n").await;
    assert_eq!(client.rest().await, (String::new(), End::Reset));
    assert!(inside.denial().await.contains("took for HTTP"));
}

#[tokio::test]
async fn text_passes_once_the_server_has_spoken_and_not_in_http() {
    // As clients of ssh do, which do not wait for the server's line.
    let (inside, server) = inside_with(Manner::Banner("SSH-2.0-server\r\n")).await;
    let mut client = inside.connect_name("ok.test", server.port()).await;
    client.send("SSH-2.0-client of mine\r\n").await;
    client.expect("SSH-2.0-server\r\nSSH-2.0-client of mine\r\n").await;
    let timeout = "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n";
    let (inside, server) = inside_with(Manner::Banner(timeout)).await;
    let mut client = inside.connect_name("ok.test", server.port()).await;
    client.expect(timeout).await;
    let (text, _) = client.ask("FROB /x\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 400 ") && !server.heard().contains("FROB"), "{text:?}");
}

#[tokio::test]
async fn a_rule_for_tcp_opts_out_and_is_shown() {
    let server = Server::start("127.0.0.2", Manner::Echo).await;
    let port = server.port();
    let rules = network(&[format!("ok.test:{port}/tcp"), format!("127.0.0.2:{port}")]);
    let inside = Inside::with(rules.clone(), |_| {}).await;
    inside.knows("ok.test", &["127.0.0.2"]);
    for text in ["*1\r\n$4\r\nPING\r\n", "FROB /x\r\n\r\n", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"] {
        assert_eq!(inside.connect_name("ok.test", port).await.talk(text).await.0, text);
    }
    let shown = format!("ok.test:{port}/tcp");
    inside.event(|event| matches!(event, Event::Allowed { rule, .. } if *rule == shown)).await;
    // Where keys are put in or money is counted, it does not.
    let inside = Inside::with(rules, |options| options.intercept = Some(Arc::new(Keys))).await;
    inside.knows("ok.test", &["127.0.0.2"]);
    let before = server.heard();
    for text in ["\x01\x02binary", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "FROB /x\r\n\r\n"] {
        let (answer, _) = inside.connect_name("ok.test", port).await.ask(text).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{text:?}: {answer:?}");
    }
    assert_eq!(server.heard(), before);
}

#[tokio::test]
async fn other_ports_of_an_allowed_name_are_refused() {
    let (inside, _server) = inside_with(Manner::Echo).await;
    for port in [22, 25, 6379] {
        let mut client = inside.connect_name("ok.test", port).await;
        assert_eq!(client.rest().await, (String::new(), End::Reset), "{port}");
    }
    assert_eq!(inside.denial().await, "it is allowed on other ports only");
    assert_eq!(inside.asked_upstream(), [""; 0], "what is denied is not looked up");
}

#[tokio::test]
async fn addresses_need_rules_of_their_own() {
    let (inside, server) = inside_with(Manner::Echo).await;
    let literal: IpAddr = "127.0.0.2".parse().unwrap();
    assert_eq!(inside.connect((literal, server.port())).await.talk("x\0").await.0, "x\0", "a rule names it");
    // Probe 54: an allowed server name does not open another address.
    for text in [
        "127.0.0.1",
        "127.0.0.3",
        "10.0.0.1",
        "169.254.169.254",
        "8.8.8.8",
        "fe80::1",
        "ff02::1",
        "::1",
        "0.0.0.0",
        "fd00:ec2::254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "198.18.0.1",
        "198.19.77.77",
    ] {
        let address: IpAddr = text.parse().unwrap();
        let (answer, _) = inside.connect((address, server.port())).await.ask(hello(Some("ok.test"))).await;
        assert_eq!(answer.as_bytes(), ALERT, "{text}");
    }
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn the_server_name_must_be_the_name_that_was_resolved() {
    let (inside, server) = inside_with(Manner::Echo).await;
    for name in ["ok.test", "OK.TEST", "ok.test."] {
        let shown = hello(Some(name));
        let mut client = inside.connect_name("ok.test", server.port()).await;
        // In pieces, as a network may deliver it.
        for piece in shown.chunks(20) {
            client.send(piece).await;
            tokio::task::yield_now().await;
        }
        let mut echo = vec![0; shown.len()];
        tokio::time::timeout(LONG, client.0.read_exact(&mut echo)).await.unwrap().unwrap();
        assert_eq!(echo, shown);
    }
    let allowed = inside.event(|event| matches!(event, Event::Allowed { .. })).await;
    assert!(matches!(allowed, Event::Allowed { protocol: Protocol::Tls, .. }));
    let before = server.heard.lock().unwrap().len();
    for name in
        [Some("other.test"), Some("evil.test"), Some("ok.test.evil"), Some("evil-ok.test"), Some("ok.test\0x"), None]
    {
        let (answer, _) = inside.connect_name("ok.test", server.port()).await.ask(hello(name)).await;
        assert_eq!(answer.as_bytes(), ALERT, "{name:?}");
    }
    assert_eq!(server.heard.lock().unwrap().len(), before, "not a byte of it arrived");
}

#[tokio::test]
async fn private_answers_are_refused_and_what_was_vetted_is_dialed() {
    let server = Server::start("127.0.0.2", Manner::Echo).await;
    let port = server.port();
    let inside = Inside::new(network(&[format!("*.test:{port}"), format!("127.0.0.2:{port}")])).await;
    for (name, address) in [
        ("metadata.test", "169.254.169.254"),
        ("loop.test", "127.0.0.1"),
        ("mapped.test", "::ffff:127.0.0.2"),
        ("nat.test", "64:ff9b::7f00:2"),
        ("zero.test", "0.0.0.0"),
        ("six.test", "2002:7f00:2::"),
        ("ula.test", "fd00::1"),
    ] {
        inside.knows(name, &[address]);
        let (text, end) = inside.connect_name(name, port).await.ask("\0").await;
        assert_eq!((text.as_str(), end), ("", End::Reset), "{name}");
    }
    assert!(inside.denial().await.starts_with("the address 169.254.169.254 is refused: metadata service"));
    // Of several answers only the allowed ones are dialed.
    inside.knows("mixed.test", &["10.0.0.1", "127.0.0.2", "::1"]);
    assert_eq!(inside.connect_name("mixed.test", port).await.talk("\0hi").await.0, "\0hi");
    // Rebinding: what changes later is vetted later.
    inside.knows("turn.test", &["127.0.0.2"]);
    assert_eq!(inside.connect_name("turn.test", port).await.talk("\0hi").await.0, "\0hi");
    inside.knows("turn.test", &["127.0.0.1"]);
    assert_eq!(inside.connect_name("turn.test", port).await.talk("\0hi").await.0, "\0hi", "pinned to what was vetted");
    assert_eq!(inside.asked_upstream().iter().filter(|name| *name == "turn.test").count(), 1);
}

#[tokio::test]
async fn the_next_address_is_tried() {
    let server = Server::start("127.0.0.2", Manner::Echo).await;
    let port = server.port();
    let inside = Inside::new(network(&[format!("ok.test:{port}"), format!("127.0.0.0/8:{port}")])).await;
    inside.knows("ok.test", &["127.0.0.9", "127.0.0.8", "127.0.0.2"]);
    assert_eq!(inside.connect_name("ok.test", port).await.talk("\0hi").await.0, "\0hi");
    inside.knows("gone.test", &["127.0.0.9"]);
    inside.egress.as_ref().unwrap().set_network(network(&[
        format!("gone.test:{port}"),
        format!("127.0.0.9:{port}"),
        "none.test".into(),
    ]));
    assert_eq!(inside.connect_name("gone.test", port).await.ask("\0").await.1, End::Reset);
    let (text, _) = inside.connect_name("none.test", 80).await.ask("GET / HTTP/1.1\r\nHost: none.test\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 502 ") && text.contains("could not be reached"), "{text}");
    inside.event(|event| matches!(event, Event::Failed { name: Some(name), .. } if name == "none.test")).await;
}

#[tokio::test]
async fn ports_of_the_host_are_reached_on_purpose() {
    let server = Server::start("127.0.0.1", Manner::Echo).await;
    let rules = Network { host_ports: vec![server.port()], ..Network::default() };
    let inside = Inside::new(rules).await;
    assert_eq!(inside.connect_name(HOST_NAME, server.port()).await.talk("anything").await.0, "anything");
    assert_eq!(inside.connect_name(HOST_NAME, 22).await.ask("\0").await.1, End::Reset);
    assert_eq!(inside.denial().await, "this port of the host is not opened");
    assert_eq!(inside.asked_upstream(), [""; 0]);
}

#[tokio::test]
async fn the_internet_has_no_private_addresses_and_no_denied_names() {
    let server = Server::start("127.0.0.2", Manner::Echo).await;
    let port = server.port();
    let rules = Network {
        internet: true,
        deny: vec!["*.evil.test".parse().unwrap()],
        ..network(&[format!("127.0.0.2:{port}")])
    };
    let inside = Inside::new(rules).await;
    inside.knows("any.test", &["127.0.0.2"]);
    inside.knows("private.test", &["10.1.2.3"]);
    assert_eq!(inside.connect_name("any.test", port).await.talk("\0hi").await.0, "\0hi");
    assert_eq!(inside.connect_name("private.test", port).await.ask("\0hi").await.1, End::Reset);
    assert_eq!(inside.resolve("a.evil.test").await, None);
    // The address of a denied name, found elsewhere.
    let literal: IpAddr = "127.0.0.2".parse().unwrap();
    assert_eq!(inside.connect((literal, port)).await.ask(hello(Some("a.evil.test"))).await.0.as_bytes(), ALERT);
    let request = "GET / HTTP/1.1\r\nHost: a.evil.test\r\n\r\n";
    assert!(inside.connect((literal, port)).await.ask(request).await.0.starts_with("HTTP/1.1 403 "));
    let mut client = inside.connect((literal, port)).await;
    client.send(hello(Some("fine.test"))).await;
    let mut byte = [0];
    tokio::time::timeout(LONG, client.0.read_exact(&mut byte)).await.unwrap().unwrap();
    assert_eq!(byte, [22]);
}

#[tokio::test]
async fn new_rules_cut_what_they_no_longer_allow() {
    let (inside, server) = inside_with(Manner::Echo).await;
    let mut stays = inside.connect_name("ok.test", server.port()).await;
    let mut goes = inside.connect_name("other.test", server.port()).await;
    for client in [&mut stays, &mut goes] {
        client.send("\0one").await;
        client.expect("\0one").await;
    }
    let port = server.port();
    let egress = inside.egress.as_ref().unwrap();
    egress.set_network(network(&[format!("ok.test:{port}"), format!("127.0.0.2:{port}")]));
    assert_eq!(goes.rest().await, (String::new(), End::Reset));
    assert_eq!(inside.denial().await, "the rules changed");
    stays.send("two").await;
    stays.expect("two").await;
    assert_eq!(inside.resolve("other.test").await, None);
    // The name stays allowed, but not the address behind it.
    egress.set_network(network(&[format!("ok.test:{port}")]));
    assert_eq!(stays.rest().await.1, End::Reset);
}

#[tokio::test]
async fn dropping_it_ends_everything() {
    let (mut inside, server) = inside_with(Manner::Echo).await;
    let mut client = inside.connect_name("ok.test", server.port()).await;
    client.send("\0one").await;
    client.expect("\0one").await;
    inside.egress = None;
    assert_eq!(client.rest().await, (String::new(), End::Reset));
    inside.event(|event| matches!(event, Event::Closed { .. })).await;
}

#[tokio::test]
async fn much_is_moved_both_ways_unchanged() {
    let (inside, server) = inside_with(Manner::Echo).await;
    let client = inside.connect_name("ok.test", server.port()).await;
    let data: Vec<u8> = (0..5_000_000u32).flat_map(|i| [(i.wrapping_mul(2_654_435_761) >> 24) as u8]).collect();
    let (mut read, mut write) = client.0.into_split();
    let sent = data.clone();
    let writer = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
        write
    });
    let mut got = Vec::new();
    tokio::time::timeout(LONG, read.read_to_end(&mut got)).await.unwrap().unwrap();
    assert!(got == data, "{} bytes came back", got.len());
    writer.await.unwrap();
    inside.event(|event| matches!(event, Event::Closed { up: 5_000_000, down: 5_000_000, .. })).await;
}

struct Person(Answer);

impl Ask for Person {
    fn ask(&self, request: Request) -> Pending<'static, Answer> {
        assert_eq!(request.name.as_deref(), Some("maybe.test"));
        Box::pin(std::future::ready(self.0))
    }
}

struct Silent;

impl Ask for Silent {
    fn ask(&self, _: Request) -> Pending<'static, Answer> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_person_is_asked() {
    let server = Server::start("127.0.0.2", Manner::Echo).await;
    let port = server.port();
    let people: [(Arc<dyn Ask>, bool, u32, &str); 4] = [
        (Arc::new(Person(Answer::Once)), true, 2, ""),
        (Arc::new(Person(Answer::Always)), true, 1, ""),
        (Arc::new(Person(Answer::Deny)), false, 2, "who said no"),
        (Arc::new(Silent), false, 2, "did not answer in time"),
    ];
    for (person, allowed, asked, reason) in people {
        let rules = Network {
            ask: vec![format!("maybe.test:{port}").parse().unwrap()],
            ask_timeout: Span(Duration::from_millis(50)),
            ..network(&[format!("127.0.0.2:{port}")])
        };
        let inside = Inside::with(rules, |options| options.ask = person).await;
        inside.knows("maybe.test", &["127.0.0.2"]);
        for _ in 0..2 {
            let (text, _) = inside.connect_name("maybe.test", port).await.talk("\0hi").await;
            assert_eq!(text == "\0hi", allowed);
        }
        assert_eq!(inside.events().iter().filter(|e| matches!(e, Event::Asked { .. })).count(), asked as usize);
        if !allowed {
            assert!(inside.denial().await.contains(reason));
        }
    }
}

struct Keys;

impl Intercept for Keys {
    fn wants(&self, name: &str, _port: u16) -> bool {
        name == "ok.test"
    }

    fn serve(&self, mut client: Box<dyn Stream>, target: Target, dial: Arc<dyn Dial>) -> Pending<'static, ()> {
        Box::pin(async move {
            let mut first = [0; 3];
            client.read_exact(&mut first).await.unwrap();
            let mut server = dial.dial().await.unwrap();
            server.write_all(&first).await.unwrap();
            let mut echo = [0; 3];
            server.read_exact(&mut echo).await.unwrap();
            let line = format!("{}:{}", target.name, if target.tls { "tls" } else { "plain" });
            client.write_all(line.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
        })
    }
}

#[tokio::test]
async fn connections_are_handed_over_with_all_their_bytes() {
    let server = Server::start("127.0.0.2", Manner::Echo).await;
    let port = server.port();
    let rules = network(&[format!("ok.test:{port}"), format!("127.0.0.2:{port}")]);
    let inside = Inside::with(rules, |options| options.intercept = Some(Arc::new(Keys))).await;
    inside.knows("ok.test", &["127.0.0.2"]);
    let (text, _) = inside.connect_name("ok.test", port).await.ask(hello(Some("ok.test"))).await;
    assert_eq!(text, "ok.test:tls");
    assert_eq!(*server.heard.lock().unwrap(), hello(None)[..3]);
    let request = format!("GET / HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n");
    assert_eq!(inside.connect_name("ok.test", port).await.ask(&request).await.0, "ok.test:plain");
    assert!(server.heard().ends_with("GET"));
    // Lies are not handed over.
    assert_eq!(inside.connect_name("ok.test", port).await.ask(hello(Some("evil.test"))).await.0.as_bytes(), ALERT);
    let (text, _) = inside.connect_name("ok.test", port).await.ask("GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 400 "), "{text}");
    let mut client = inside.connect_proxy().await;
    client.send(format!("CONNECT ok.test:{port} HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n")).await;
    client.expect("HTTP/1.1 200 Connection established\r\n\r\n").await;
    assert_eq!(client.ask(hello(Some("ok.test"))).await.0, "ok.test:tls");
    inside.event(|event| matches!(event, Event::Closed { up: 3, down: 3, .. })).await;
}

/// Answers once it is let.
struct Slow(tokio::sync::Semaphore, tokio::sync::Semaphore);

impl Resolve for Slow {
    fn resolve<'a>(&'a self, _: &'a str) -> Pending<'a, std::io::Result<Vec<IpAddr>>> {
        self.0.add_permits(1);
        Box::pin(async {
            self.1.acquire().await.unwrap().forget();
            Ok(vec!["127.0.0.2".parse().unwrap()])
        })
    }
}

#[tokio::test]
async fn rules_that_change_during_a_lookup_count() {
    let server = Server::start("127.0.0.2", Manner::Echo).await;
    let port = server.port();
    let slow = Arc::new(Slow(tokio::sync::Semaphore::new(0), tokio::sync::Semaphore::new(0)));
    let rules = network(&[format!("ok.test:{port}"), format!("127.0.0.2:{port}")]);
    let inside = Inside::with(rules, |options| options.resolver = slow.clone()).await;
    let mut client = inside.connect_name("ok.test", port).await;
    slow.0.acquire().await.unwrap().forget();
    inside.egress.as_ref().unwrap().set_network(network(&[format!("ok.test:{port}")]));
    slow.1.add_permits(1);
    assert_eq!(client.rest().await.1, End::Reset);
    assert_eq!((inside.denial().await.as_str(), server.accepted()), ("the address 127.0.0.2 is refused: loopback", 0));
}
