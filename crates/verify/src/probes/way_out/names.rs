//! Names that are not what they seem.

use sloplet_policy::Feature;

use super::{ALLOWED, NAMES_OF_WORLD, OTHER, PUBLIC, PUBLIC_TOO, Trial, rules, to_proxy};
use crate::calls::Call;
use crate::drill::{Drill, DrillError, settle};
use crate::outside::World;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "egress-names",
    ids: &[53, 54, 55],
    tries: "SNI, CONNECT and Host that differ or are missing; addresses with an allowed name; look-alike names",
    why: "a rule about a name must be about the name that is connected to, or any server behind a shared front is open",
    needs: &[Feature::Egress],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let world = World::open(&NAMES_OF_WORLD).await?;
    let looks_alike = ["evil-allowed.sloplet.test", "allowed.sloplet.test.evil.test", "www.allowed.sloplet.test"];
    let more =
        ["xn--llowed-9ta.sloplet.test", "allowed.sloplet.tes", "sloplet.test", "allowed.sloplet.test.other.test"];
    for name in looks_alike.into_iter().chain(more) {
        world.name(name, &[&[PUBLIC_TOO]]);
    }
    let mut trial = Trial::default();
    trial.allow("TLS with its name", |mark| Call::tls(ALLOWED, 443, Some(ALLOWED), mark));
    trial.allow("HTTP with its name", |mark| Call::http(ALLOWED, 80, ALLOWED, &format!("/{mark}")));
    trial.allow("the same, spelled otherwise", |mark| {
        Call::http(ALLOWED, 80, &format!("{}.:80", ALLOWED.to_uppercase()), &format!("/{mark}"))
    });
    trial.attempt("another SNI", |mark| Call::tls(ALLOWED, 443, Some(OTHER), mark));
    trial.attempt("no SNI", |mark| Call::tls(ALLOWED, 443, None, mark));
    trial.attempt("SNI of a subdomain", |mark| Call::tls(ALLOWED, 443, Some("www.allowed.sloplet.test"), mark));
    trial.attempt("TLS on the port of HTTP, another SNI", |mark| Call::tls(ALLOWED, 80, Some(OTHER), mark));
    for address in [PUBLIC, PUBLIC_TOO] {
        trial.attempt(format!("{address} with an allowed SNI"), |mark| Call::tls(address, 443, Some(ALLOWED), mark));
        trial.attempt(format!("{address} with an allowed Host"), |mark| {
            Call::http(address, 80, ALLOWED, &format!("/{mark}"))
        });
    }
    for host in [
        OTHER,
        "evil-allowed.sloplet.test",
        "allowed.sloplet.test@other.sloplet.test",
        "allowed.sloplet.test:8080",
        "allowed.sloplet.test,other.sloplet.test",
        "allowed.sloplet.test\0.other.sloplet.test",
        "",
    ] {
        let name = format!("Host {}", host.escape_debug());
        trial.attempt(name, |mark| Call::http(ALLOWED, 80, host, &format!("/{mark}")));
    }
    trial.attempt("a tunnel with another Host", |mark| {
        to_proxy(&[
            &format!("CONNECT {ALLOWED}:80 HTTP/1.1\r\nHost: {ALLOWED}:80\r\n\r\n"),
            &format!("GET /{mark} HTTP/1.1\r\nHost: {OTHER}\r\n\r\n"),
        ])
    });
    for name in looks_alike.into_iter().chain(more) {
        trial.attempt(format!("the name {name}"), |mark| Call::http(name, 80, name, &format!("/{mark}")));
    }
    trial.run(drill, &world, rules(&[ALLOWED])).await
}
