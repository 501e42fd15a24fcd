//! DNS as a sandbox sees it: everything is answered here, nothing is ever asked of anybody else.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy sees only #[test] functions as tests"
)]

mod common;

use common::*;
use sloplet_egress::Event;
use sloplet_policy::Network;
use sloplet_policy::addresses::{HOST_NAME, RESOLVER_V4, SYNTHETIC_V4};
use sloplet_policy::network::NetworkLimits;

const NXDOMAIN: u8 = 3;
const REFUSED: u8 = 5;

#[tokio::test]
async fn allowed_names_have_one_address_each_and_others_do_not_exist() {
    let mut rules = network(&["ok.test".into(), "*.below.test:443".into()]);
    rules.ask = vec!["maybe.test".parse().unwrap()];
    rules.deny = vec!["bad.below.test".parse().unwrap()];
    let inside = Inside::new(rules).await;
    let ok = inside.resolve("ok.test").await.unwrap();
    assert_eq!(&ok.to_string()[..7], &SYNTHETIC_V4.to_string()[..7]);
    assert_eq!(inside.resolve("OK.Test").await, Some(ok));
    let below = inside.resolve("a.b.below.test").await.unwrap();
    let maybe = inside.resolve("maybe.test").await.unwrap();
    assert!(ok != below && below != maybe && ok != maybe);
    for name in [
        "below.test",
        "bad.below.test",
        "evil-ok.test",
        "ok.test.evil",
        "www.ok.test",
        "secret.exfiltrated.example",
        HOST_NAME,
        "2852039166",
        "0xA9FEA9FE",
        "metadata.google.internal",
        "use-application-dns.net",
        "a..b",
    ] {
        let name = if name == "a..b" { "a\0b.test" } else { name };
        assert_eq!(inside.lookup(name, 1).await, (NXDOMAIN, None), "{name}");
    }
    let Event::Lookup { name, record, reason } = inside.event(|e| matches!(e, Event::Lookup { .. })).await else {
        panic!()
    };
    assert_eq!((name.as_str(), record.as_str(), reason.as_str()), ("below.test", "A", "no rule allows it"));
    assert_eq!(inside.asked_upstream(), [""; 0], "nothing left the sandbox");
    assert_eq!((inside.counters().lookups, inside.counters().lookups_denied), (16, 12));
}

#[tokio::test]
async fn odd_types_are_answered_here() {
    let inside = Inside::new(network(&["ok.test".into()])).await;
    // AAAA, TXT, MX, SRV, SVCB, HTTPS, NULL, and one that nobody has heard of.
    for kind in [28, 16, 15, 33, 64, 65, 10, 65280] {
        assert_eq!(inside.lookup("ok.test", kind).await, (0, None), "{kind}");
        assert_eq!(inside.lookup("evil.test", kind).await, (NXDOMAIN, None), "{kind}");
    }
    assert_eq!(inside.lookup("localhost", 1).await.1.unwrap(), [127, 0, 0, 1]);
    assert_eq!(inside.asked_upstream(), [""; 0]);
}

#[tokio::test]
async fn addresses_lead_back_to_their_names() {
    let inside = Inside::new(network(&["ok.test".into()])).await;
    let std::net::IpAddr::V4(address) = inside.resolve("ok.test").await.unwrap() else { panic!() };
    let [a, b, c, d] = address.octets();
    assert_eq!(inside.lookup(&format!("{d}.{c}.{b}.{a}.in-addr.arpa"), 12).await.1.unwrap(), b"\x02ok\x04test\0");
    assert_eq!(inside.lookup("8.8.8.8.in-addr.arpa", 12).await.0, NXDOMAIN);
}

#[tokio::test]
async fn ipv6_and_the_host_are_there_when_asked_for() {
    let rules = Network { ipv6: true, host_ports: vec![5432], ..network(&["ok.test".into()]) };
    let inside = Inside::new(rules).await;
    let v6 = inside.lookup("ok.test", 28).await.1.unwrap();
    assert_eq!(&v6[..8], [0xfd, 0x53, 0x6c, 0x6f, 0x70, 0x6c, 0, 1]);
    assert!(inside.resolve(HOST_NAME).await.is_some());
}

#[tokio::test]
async fn questions_come_over_tcp_too_and_end_at_our_resolver() {
    let inside = Inside::new(network(&["ok.test".into()])).await;
    let framed = |message: Vec<u8>| [&(message.len() as u16).to_be_bytes()[..], &message].concat();
    let mut client = inside.connect((RESOLVER_V4, 53)).await;
    for (name, code) in [("ok.test", 0), ("evil.test", NXDOMAIN)] {
        client.send(framed(question(name, 1))).await;
        let mut length = [0; 2];
        tokio::io::AsyncReadExt::read_exact(&mut client.0, &mut length).await.unwrap();
        let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
        tokio::io::AsyncReadExt::read_exact(&mut client.0, &mut answer).await.unwrap();
        assert_eq!(read_answer(name, &answer).0, code, "{name}");
    }
    // Other resolvers, also encrypted ones, are just addresses that no rule names.
    for port in [53, 853, 443] {
        let other: std::net::IpAddr = "8.8.8.8".parse().unwrap();
        let (text, _) = inside.connect((other, port)).await.ask(framed(question("ok.test", 1))).await;
        assert_eq!(text, "", "{port}");
    }
    let (text, end) = inside.connect((RESOLVER_V4, 53)).await.ask([0xff; 4000]).await;
    assert_eq!((text.as_str(), end), ("", End::Reset), "too long a question");
    assert_eq!(inside.asked_upstream(), [""; 0]);
}

#[tokio::test]
async fn questions_are_limited() {
    let limits = NetworkLimits { dns_per_second: 1, ..NetworkLimits::default() };
    let inside = Inside::new(Network { limits, ..network(&["ok.test".into()]) }).await;
    let mut codes = Vec::new();
    for _ in 0..20 {
        codes.push(inside.lookup("ok.test", 1).await.0);
    }
    assert!(codes[..2] == [0, 0] && codes.contains(&REFUSED), "{codes:?}");
    inside.event(|event| matches!(event, Event::Limited { limit: "dns_per_second", .. })).await;
}
