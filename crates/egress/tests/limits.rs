//! What bounds a sandbox's use of the network.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy sees only #[test] functions as tests"
)]

mod common;

use common::*;
use sloplet_egress::Event;
use sloplet_policy::ByteSize;
use sloplet_policy::network::NetworkLimits;

async fn limited(limits: NetworkLimits) -> (Inside, Server) {
    let (inside, server) = inside_with(Manner::Echo).await;
    let egress = inside.egress.as_ref().unwrap();
    let mut network = (*egress.network()).clone();
    network.limits = limits;
    egress.set_network(network);
    (inside, server)
}

#[tokio::test]
async fn connections_at_once_are_bounded_and_come_back() {
    let (inside, server) = limited(NetworkLimits { connections: 3, ..Default::default() }).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut client = inside.connect_name("ok.test", server.port()).await;
        client.send("\0x").await;
        client.expect("\0x").await;
        open.push(client);
    }
    for _ in 0..5 {
        let mut client = inside.connect_name("ok.test", server.port()).await;
        assert_eq!(client.rest().await, (String::new(), End::Reset));
    }
    assert_eq!((inside.counters().open, inside.counters().limited, server.accepted()), (3, 5, 3));
    inside.event(|event| matches!(event, Event::Limited { limit: "connections", .. })).await;
    drop(open.pop());
    inside.event(|event| matches!(event, Event::Closed { .. })).await;
    while inside.counters().open > 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(inside.connect_name("ok.test", server.port()).await.talk("\0again").await.0, "\0again");
}

#[tokio::test]
async fn new_connections_are_bounded() {
    let (inside, server) = limited(NetworkLimits { new_per_second: 1, ..Default::default() }).await;
    let address = inside.resolve("ok.test").await.unwrap();
    let mut refused = 0;
    for _ in 0..20 {
        let (text, _) = inside.connect((address, server.port())).await.talk("\0x").await;
        refused += u32::from(text.is_empty());
    }
    assert!(refused > 0, "twenty at once are more than one a second");
    inside.event(|event| matches!(event, Event::Limited { limit: "new_per_second", .. })).await;
}

#[tokio::test]
async fn bytes_are_bounded_in_both_directions() {
    for up in [true, false] {
        let most = Some(ByteSize(1000));
        let limits = match up {
            true => NetworkLimits { bytes_up: most, ..Default::default() },
            false => NetworkLimits { bytes_down: most, ..Default::default() },
        };
        let (inside, server) = limited(limits).await;
        let mut client = inside.connect_name("ok.test", server.port()).await;
        client.send([0; 600]).await;
        client.expect([0; 600]).await;
        client.send([0; 600]).await;
        let (text, end) = client.rest().await;
        assert_eq!((text.len(), end), (0, End::Reset));
        assert!(inside.denial().await.contains(if up { "bytes_up" } else { "bytes_down" }));
        assert_eq!(server.heard.lock().unwrap().len(), if up { 600 } else { 1200 });
        let mut client = inside.connect_name("ok.test", server.port()).await;
        assert_eq!(client.rest().await.1, End::Reset, "and then nothing more");
    }
}

#[tokio::test]
async fn a_thousand_connections_at_once() {
    // All ends of all of them are in this one process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let limits = NetworkLimits { connections: 1100, new_per_second: 10_000, ..Default::default() };
    let (inside, server) = limited(limits).await;
    let address = inside.resolve("ok.test").await.unwrap();
    let mut open = Vec::new();
    for _ in 0..1000 {
        let mut client = inside.connect((address, server.port())).await;
        client.send("\0x").await;
        open.push(client);
    }
    for client in &mut open {
        client.expect("\0x").await;
    }
    assert_eq!((inside.counters().open, inside.counters().allowed), (1000, 1000));
}

#[tokio::test]
async fn who_says_nothing_harms_nobody_else() {
    let (inside, server) = limited(NetworkLimits { connections: 100, ..Default::default() }).await;
    let mut slow = Vec::new();
    for start in ["", "G", "GET / HTTP/1.1\r\nHost: ok", "\x16\x03\x01"] {
        for _ in 0..10 {
            let mut client = inside.connect_name("ok.test", server.port()).await;
            client.send(start).await;
            slow.push(client);
        }
    }
    assert_eq!(inside.connect_name("ok.test", server.port()).await.talk("\0x").await.0, "\0x");
}

#[tokio::test]
async fn who_begins_and_does_not_go_on_is_refused() {
    let (inside, server) = inside_with(Manner::Echo).await;
    let mut request = inside.connect_name("ok.test", server.port()).await;
    request.send("GET / HT").await;
    let mut handshake = inside.connect_name("ok.test", server.port()).await;
    handshake.send(&hello(Some("ok.test"))[..20]).await;
    let (request, handshake) = tokio::join!(request.rest(), handshake.rest());
    assert!(request.0.starts_with("HTTP/1.1 400 "), "{request:?}");
    assert_eq!(handshake.0.as_bytes(), ALERT);
    assert_eq!(server.heard(), "", "not a byte of it arrived");
}
