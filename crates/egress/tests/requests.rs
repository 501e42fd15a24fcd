//! Plain HTTP, on the transparent way and through the proxy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy sees only #[test] functions as tests"
)]

mod common;

use std::time::Duration;

use common::*;
use sloplet_egress::{Event, Protocol};
use sloplet_policy::addresses::{PROXY_PORT, RESOLVER_V4};

#[tokio::test]
async fn requests_on_one_connection_are_each_checked() {
    let (inside, server) = inside_with(Manner::Http(OK)).await;
    let port = server.port();
    let mut client = inside.connect_name("ok.test", port).await;
    for request in [
        "GET /a HTTP/1.1\r\nHost: ok.test\r\n\r\n".to_owned(),
        format!("GET http://OK.test:{port}/b HTTP/1.1\r\nhost: Ok.Test:{port}\r\n\r\n"),
        "OPTIONS * HTTP/1.1\r\nHost: ok.test.\r\n\r\n".into(),
    ] {
        client.send(&request).await;
        client.expect(OK).await;
    }
    assert!(server.heard().contains("GET /a") && server.heard().contains("OPTIONS * HTTP/1.1\r\n"));
    let (text, _) = client.ask("GET /c HTTP/1.1\r\nHost: evil.test\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 400 ") && text.contains("evil.test"), "{text}");
    assert!(!server.heard().contains("evil"));
    let allowed = inside.event(|event| matches!(event, Event::Allowed { .. })).await;
    assert!(matches!(allowed, Event::Allowed { protocol: Protocol::Http, .. }));
}

#[tokio::test]
async fn a_pipelined_second_host_never_arrives() {
    let (inside, server) = inside_with(Manner::Http(OK)).await;
    let both = "GET /a HTTP/1.1\r\nHost: ok.test\r\n\r\nGET /b HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    let (text, _) = inside.connect_name("ok.test", server.port()).await.ask(both).await;
    assert!(text.contains("HTTP/1.1 400 ") && text.contains("Connection: close"), "{text}");
    assert!(!server.heard().contains("evil"), "{}", server.heard());
    // Behind a body, too.
    let body =
        "POST /a HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    let (text, _) = inside.connect_name("ok.test", server.port()).await.ask(body).await;
    assert!(text.contains("HTTP/1.1 400 "), "{text}");
    let chunked = "POST /a HTTP/1.1\r\nHost: ok.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    let (text, _) = inside.connect_name("ok.test", server.port()).await.ask(chunked).await;
    assert!(text.contains("HTTP/1.1 400 "), "{text}");
    assert!(server.heard().contains("3\r\nabc\r\n0\r\n\r\n") && !server.heard().contains("evil"), "{}", server.heard());
}

#[tokio::test]
async fn what_two_servers_could_read_differently_gets_400() {
    let (inside, server) = inside_with(Manner::Http(OK)).await;
    for request in [
        "POST / HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        "GET / HTTP/1.1\r\nHost: ok.test\r\nX: a\r\n folded\r\n\r\n",
        "GET http://evil.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n",
        "GET http://ok.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "GET http://u:p@ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: ok.test\r\nHost: evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: ok.test@evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: ok.test:1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: evil-ok.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: ok.test.evil\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\nHost: ok.test\n\n",
        "\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "FROB / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let (text, _) = inside.connect_name("ok.test", server.port()).await.ask(request).await;
        assert!(text.starts_with("HTTP/1.1 400 ") && text.contains("Connection: close"), "{request:?}: {text:?}");
    }
    let bad_chunk = "POST / HTTP/1.1\r\nHost: ok.test\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n";
    let (text, _) = inside.connect_name("ok.test", server.port()).await.ask(bad_chunk).await;
    assert!(text.contains("HTTP/1.1 400 "), "{text:?}");
    assert!(!server.heard().contains("evil"), "{}", server.heard());
}

#[tokio::test]
async fn an_offer_of_http_2_is_declined() {
    let (inside, server) = inside_with(Manner::Http(OK)).await;
    let offer = "GET /a HTTP/1.1\r\nHost: ok.test\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AA\r\nUpgrade: h2c\r\n\r\n";
    let mut client = inside.connect_name("ok.test", server.port()).await;
    client.send(offer).await;
    client.expect(OK).await;
    assert_eq!(server.heard(), "GET /a HTTP/1.1\r\nHost: ok.test\r\n\r\n");
}

#[tokio::test]
async fn a_request_in_small_pieces_is_checked_as_a_whole() {
    let (inside, server) = inside_with(Manner::Http(OK)).await;
    for (host, passes) in [("ok.test", true), ("evil.test", false)] {
        let mut client = inside.connect_name("ok.test", server.port()).await;
        let rest = format!(" HTTP/1.1\r\nHost: {host}\r\nX: 1\r\n\r\n");
        for piece in ["GE", "T /pieces", &rest] {
            client.send(piece).await;
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        match passes {
            true => client.expect(OK).await,
            false => assert!(client.rest().await.0.starts_with("HTTP/1.1 400 ")),
        }
    }
    // The beginning of a word says nothing.
    assert_eq!(server.heard().matches("GE").count(), 2, "{}", server.heard());
    assert!(server.heard().contains("GET /pieces HTTP/1.1\r\nHost: ok.test\r\nX: 1\r\n\r\n"), "{}", server.heard());
    assert!(!server.heard().contains("evil"), "{}", server.heard());
}

#[tokio::test]
async fn huge_heads_are_refused() {
    let (inside, server) = inside_with(Manner::Http(OK)).await;
    let long = format!("GET / HTTP/1.1\r\nHost: ok.test\r\nX: {}", "a".repeat(100 << 10));
    assert!(inside.connect_name("ok.test", server.port()).await.ask(long).await.0.starts_with("HTTP/1.1 400 "));
    let line = format!("GET /{}", "a".repeat(100 << 10));
    assert!(inside.connect_name("ok.test", server.port()).await.ask(line).await.0.starts_with("HTTP/1.1 400 "));
    let many = format!("GET / HTTP/1.1\r\nHost: ok.test\r\n{}\r\n", "A: b\r\n".repeat(1000));
    assert!(inside.connect_name("ok.test", server.port()).await.ask(many).await.0.starts_with("HTTP/1.1 400 "));
    assert_eq!(server.heard(), "");
}

#[tokio::test]
async fn a_denial_is_readable_and_says_what_to_do() {
    let (inside, _server) = inside_with(Manner::Http(OK)).await;
    let request = "GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n";
    let (text, end) = inside.connect_name("ok.test", 80).await.ask(request).await;
    assert!(text.starts_with("HTTP/1.1 403 Forbidden\r\n") && text.contains("--allow ok.test:80"), "{text}");
    assert_eq!(end, End::Closed);
    let metadata: std::net::IpAddr = "169.254.169.254".parse().unwrap();
    let (text, _) = inside.connect((metadata, 80)).await.ask("GET /latest HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 403 ") && text.contains("--allow 169.254.169.254:80"), "{text}");
}

#[tokio::test]
async fn a_protocol_is_changed_only_if_the_server_does() {
    const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
    let (inside, server) = inside_with(Manner::Http(SWITCHED)).await;
    let upgrade = "GET /ws HTTP/1.1\r\nHost: ok.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut client = inside.connect_name("ok.test", server.port()).await;
    client.send(upgrade).await;
    client.expect(SWITCHED).await;
    client.send("\x01\x02frames\r\n\r\n").await;
    client.expect(SWITCHED).await;
    assert!(server.heard().ends_with("\x01\x02frames\r\n\r\n"));
    // A server that stays with HTTP does not open a hole.
    let (inside, server) = inside_with(Manner::Http(OK)).await;
    let both = format!("{upgrade}GET /b HTTP/1.1\r\nHost: evil.test\r\n\r\n");
    let (text, _) = inside.connect_name("ok.test", server.port()).await.ask(both).await;
    assert!(text.contains("HTTP/1.1 400 ") && !server.heard().contains("evil"), "{text}");
}

#[tokio::test]
async fn the_proxy_connects_by_the_same_rules() {
    let (inside, server) = inside_with(Manner::Echo).await;
    let port = server.port();
    let connect =
        |target: &str| format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Connection: keep-alive\r\n\r\n");
    let mut client = inside.connect_proxy().await;
    client.send(connect(&format!("OK.test:{port}"))).await;
    client.expect("HTTP/1.1 200 Connection established\r\n\r\n").await;
    client.send("\0hi").await;
    client.expect("\0hi").await;
    // What is said inside must fit as well.
    let mut client = inside.connect_proxy().await;
    client.send(connect(&format!("ok.test:{port}"))).await;
    client.expect("HTTP/1.1 200 Connection established\r\n\r\n").await;
    assert_eq!(client.ask(hello(Some("evil.test"))).await.0.as_bytes(), ALERT);
    let synthetic = inside.resolve("ok.test").await.unwrap();
    let mut client = inside.connect_proxy().await;
    client.send(connect(&format!("{synthetic}:{port}"))).await;
    client.expect("HTTP/1.1 200 Connection established\r\n\r\n").await;
    let before = server.accepted();
    // Probe 52 and 49.
    for target in [
        format!("evil.test:{port}"),
        "ok.test:22".into(),
        format!("127.0.0.1:{port}"),
        format!("0.0.0.0:{port}"),
        format!("[::1]:{port}"),
        format!("[::ffff:127.0.0.1]:{port}"),
        format!("{RESOLVER_V4}:{PROXY_PORT}"),
        format!("localhost:{port}"),
        "169.254.169.254:80".into(),
        "2852039166:80".into(),
        "0xA9FEA9FE:80".into(),
        "0251.0376.0251.0376:80".into(),
        "[64:ff9b::a9fe:a9fe]:80".into(),
        "[fd00:ec2::254]:80".into(),
        "ok.test.evil:443".into(),
    ] {
        let (text, end) = inside.connect_proxy().await.ask(connect(&target)).await;
        assert!(text.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{target}: {text}");
        assert_eq!(end, End::Closed);
    }
    for bad in [
        "CONNECT ok.test HTTP/1.1\r\n\r\n".to_owned(),
        "CONNECT ok.test:0 HTTP/1.1\r\n\r\n".into(),
        format!("CONNECT u@ok.test:{port} HTTP/1.1\r\n\r\n"),
        format!("CONNECT ok.test:{port} HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
        "GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n".into(),
        "GET https://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n".into(),
        "garbage\r\n\r\n".into(),
    ] {
        let (text, _) = inside.connect_proxy().await.ask(&bad).await;
        assert!(text.starts_with("HTTP/1.1 400 "), "{bad:?}: {text}");
    }
    assert_eq!(server.accepted(), before);
}

#[tokio::test]
async fn the_proxy_forwards_one_request_and_rewrites_it() {
    let (inside, server) = inside_with(Manner::Http(OK)).await;
    let port = server.port();
    let request = format!(
        "GET http://ok.test:{port}/a?b#c HTTP/1.1\r\nHost: ok.test:{port}\r\nProxy-Authorization: Basic x\r\n\
         Proxy-Connection: keep-alive\r\nAccept: */*\r\n\r\nGET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"
    );
    let mut client = inside.connect_proxy().await;
    client.send(request).await;
    client.expect(OK).await;
    let wanted = format!("GET /a?b HTTP/1.1\r\nHost: ok.test:{port}\r\nConnection: close\r\nAccept: */*\r\n\r\n");
    assert_eq!(server.heard(), wanted, "and nothing of the second one");
    let post =
        format!("POST http://ok.test:{port} HTTP/1.1\r\nHost: ok.test:{port}\r\nContent-Length: 7\r\n\r\nab\r\n\r\nc");
    let mut client = inside.connect_proxy().await;
    client.send(post).await;
    client.expect(OK).await;
    assert!(server.heard().contains("POST / HTTP/1.1\r\n"), "{}", server.heard());
    for (target, status) in [
        ("http://evil.test/", 403),
        ("http://ok.test/", 403),
        ("http://169.254.169.254/latest/", 403),
        ("http://127.0.0.1/", 403),
        ("http://[::1]/", 403),
        ("http://0x7f.1/", 403),
        ("ftp://ok.test/", 400),
        ("http://u@ok.test/", 400),
        ("http:///", 400),
    ] {
        let (text, _) = inside.connect_proxy().await.ask(format!("GET {target} HTTP/1.1\r\nAccept: x\r\n\r\n")).await;
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {text}");
    }
}

#[tokio::test]
async fn large_bodies_arrive_whole_and_the_next_request_is_still_seen() {
    let (inside, server) = inside_with(Manner::Http(OK)).await;
    let body = "0123456789abcdef".repeat(50_000);
    let size = body.len();
    let mut client = inside.connect_name("ok.test", server.port()).await;
    client.send(format!("POST / HTTP/1.1\r\nHost: ok.test\r\nContent-Length: {size}\r\n\r\n{body}")).await;
    client.expect(OK).await;
    client
        .send(format!(
            "POST / HTTP/1.1\r\nHost: ok.test\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n{body}\r\n0\r\n\r\n"
        ))
        .await;
    client.expect(OK).await;
    client.send("GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n").await;
    let (text, _) = client.rest().await;
    assert!(text.contains("HTTP/1.1 400 "), "{text}");
    let arrived = async {
        while server.heard().matches("0123456789abcdef").count() < 100_000 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, arrived).await.expect("what was proper arrives");
    assert!(!server.heard().contains("evil"));
}
