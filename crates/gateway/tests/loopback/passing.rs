//! What is passed on, and how.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper_util::rt::TokioIo;
use sloplet_gateway::Event;
use sloplet_policy::Budget;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{Gate, HOST, Handler, Host, answer, echo, keeping, request, secret};

async fn gate(handler: Handler) -> Gate {
    let host = Host::start(&[HOST], true, handler).await;
    Gate::new(host, vec![secret("KEY@api.anthropic.com", "a-secret-value")], Budget::default())
}

#[tokio::test]
async fn requests_are_passed_over_both_versions() {
    let gate = gate(echo()).await;
    let headers = [("connection", "x-mine"), ("x-mine", "1"), ("x-kept", "1")];
    let (_, body) = gate.send(request("PUT", "/a/b?c=d", &headers, "the body")).await;
    assert!(body.starts_with("PUT HTTP/1.1\nuri: /a/b?c=d\n") && body.ends_with("\n\nthe body"), "{body}");
    assert!(body.contains("x-kept: 1") && !body.contains("x-mine"), "{body}");
    let (parts, body) = gate.send_http2(request("PUT", &format!("https://{HOST}/a/b?c=d"), &[], "the body")).await;
    assert_eq!(parts.version, hyper::Version::HTTP_2);
    assert!(body.starts_with("PUT HTTP/2.0\n") && body.contains("/a/b?c=d") && body.ends_with("the body"), "{body}");
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let gate = gate(echo()).await;
    let stream = gate.tls(HOST, &["http/1.1"]).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for number in 0..20 {
        sender.ready().await.unwrap();
        let path = format!("/{number}");
        let answered = sender.send_request(request("POST", &path, &[], &"x".repeat(number * 100))).await.unwrap();
        let body = answered.into_body().collect().await.unwrap().to_bytes();
        assert!(body.starts_with(format!("POST HTTP/1.1\nuri: {path}\n").as_bytes()));
    }
}

#[tokio::test]
async fn a_large_body_streams_both_ways() {
    let gate = gate(keeping(|body| answer(200, body.to_owned())).0).await;
    let body = "0123456789abcdef".repeat(1 << 18);
    let (_, back) = gate.send(request("POST", "/", &[], &body)).await;
    assert!(back == body, "{} bytes of {}", back.len(), body.len());
}

#[tokio::test]
async fn another_name_is_refused_in_the_handshake_and_in_the_request() {
    let (handler, kept) = keeping(|_| answer(200, "ok"));
    let gate = gate(handler).await;
    assert!(gate.tls("evil.example", &["http/1.1"]).await.is_err());
    for host in ["evil.example", "api.anthropic.com:8443"] {
        let (parts, body) = gate.send(request("GET", "/", &[("host", host)], "")).await;
        assert_eq!(parts.status.as_u16(), 421, "{host}: {body}");
    }
    let (parts, _) = gate.send(request("GET", "https://evil.example/", &[("host", HOST)], "")).await;
    assert_eq!(parts.status.as_u16(), 421);
    let shown = gate.secrets[0].placeholder.clone();
    let (parts, _) = gate.send_http2(request("GET", "https://evil.example/", &[("x-api-key", &shown)], "")).await;
    assert_eq!(parts.status.as_u16(), 421);
    assert!(kept.lock().unwrap().is_empty());
    assert!(gate.events().iter().filter(|event| matches!(event, Event::Refused { .. })).count() >= 4);
}

#[tokio::test]
async fn requests_that_hide_another_are_not_passed_on() {
    let (handler, kept) = keeping(|_| answer(200, "ok"));
    let gate = gate(handler).await;
    let hidden = "GET /hidden HTTP/1.1\r\nhost: api.anthropic.com\r\n\r\n";
    let length = hidden.len();
    for headers in [
        format!("content-length: {length}\r\ncontent-length: 0\r\n"),
        format!("content-length: {length}\r\ntransfer-encoding: chunked, identity\r\n"),
        "transfer-encoding: xchunked\r\n".to_owned(),
        "bad header: x\r\n".to_owned(),
    ] {
        let mut stream = gate.tls(HOST, &["http/1.1"]).await.unwrap();
        let text = format!("POST / HTTP/1.1\r\nhost: {HOST}\r\n{headers}\r\n{hidden}");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said).await;
        assert!(said.starts_with("HTTP/1.1 400"), "{headers}: {said}");
    }
    assert!(kept.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_upgrade_passes_through() {
    let handler: Handler = std::sync::Arc::new(|mut request| {
        Box::pin(async move {
            assert_eq!(request.headers()["upgrade"], "chat");
            let upgraded = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut stream = TokioIo::new(upgraded.await.unwrap());
                let mut said = [0; 5];
                stream.read_exact(&mut said).await.unwrap();
                stream.write_all(&[b"you said ", &said[..]].concat()).await.unwrap();
            });
            let answered = Response::builder().status(101).header("connection", "upgrade").header("upgrade", "chat");
            answered.body(Full::new(Bytes::new()).boxed_unsync()).unwrap()
        })
    });
    let gate = gate(handler).await;
    let mut stream = gate.tls(HOST, &["http/1.1"]).await.unwrap();
    let asked = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: Upgrade\r\nupgrade: chat\r\n\r\n");
    stream.write_all(asked.as_bytes()).await.unwrap();
    let mut said = Vec::new();
    while !said.ends_with(b"\r\n\r\n") {
        said.push(stream.read_u8().await.unwrap());
    }
    assert!(said.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&said));
    stream.write_all(b"hello").await.unwrap();
    let mut back = [0; 14];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"you said hello");
}

#[tokio::test]
async fn what_is_not_http_ends_without_harm() {
    let gate = gate(echo()).await;
    let mut stream = gate.raw();
    stream.write_all(&[0xff; 4096]).await.unwrap();
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said).await;
    let mut stream = gate.tls(HOST, &["http/1.1"]).await.unwrap();
    stream.write_all(b"SSH-2.0-x\r\n\r\n").await.unwrap();
    let _ = stream.read_to_end(&mut said).await;
    let (parts, _) = gate.send(request("GET", "/", &[], "")).await;
    assert_eq!(parts.status.as_u16(), 200);
}
