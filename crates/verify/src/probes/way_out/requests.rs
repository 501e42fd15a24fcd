//! Requests that two readers read differently.

use sloplet_policy::Feature;

use super::{ALLOWED, NAMES_OF_WORLD, OTHER, Trial, rules};
use crate::calls::Call;
use crate::drill::{Drill, DrillError, settle};
use crate::outside::World;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "egress-requests",
    ids: &[56],
    tries: "two lengths, length and chunks, folded lines, bare CR and LF, two hosts, a second request for another host",
    why: "request smuggling (RFC 9112): what one parser takes for a body is a request to the next one",
    needs: &[Feature::Egress],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let world = World::open(&NAMES_OF_WORLD).await?;
    let mut trial = Trial::default();
    let plain = |mark: &str| format!("GET /{mark} HTTP/1.1\r\nHost: {ALLOWED}\r\n\r\n");
    let smuggled = |mark: &str| format!("GET /{mark} HTTP/1.1\r\nHost: {OTHER}\r\n\r\n");
    let post = format!("POST /first HTTP/1.1\r\nHost: {ALLOWED}\r\n");
    trial.allow("one request", |mark| Call::text(ALLOWED, 80, &[&plain(mark)]));
    trial.allow("two requests on one connection", |mark| Call::in_turns(ALLOWED, 80, &[&plain("x"), &plain(mark)]));
    let chunked = "Transfer-Encoding: chunked\r\n";
    let heads = [
        ("length and chunks", format!("{post}Content-Length: 5\r\n{chunked}\r\n0\r\n\r\n")),
        ("two lengths", format!("{post}Content-Length: 0\r\nContent-Length: 50\r\n\r\n")),
        ("strange coding", format!("{post}Transfer-Encoding: xchunked\r\n\r\n")),
        ("two codings", format!("{post}{chunked}Transfer-Encoding: identity\r\n\r\n0\r\n\r\n")),
        ("signed length", format!("{post}Content-Length: +0\r\n\r\n")),
        ("blank before the colon", format!("{post}Content-Length : 0\r\n\r\n")),
        ("bare LF", format!("GET / HTTP/1.1\nHost: {ALLOWED}\n\n")),
        ("a second host", plain("first")),
    ];
    for (name, head) in heads {
        trial.attempt(name, |mark| Call::text(ALLOWED, 80, &[&format!("{head}{}", smuggled(mark))]));
    }
    trial.attempt("a folded line", |mark| {
        Call::text(ALLOWED, 80, &[&format!("GET /{mark} HTTP/1.1\r\nHost: {ALLOWED}\r\nX: a\r\n b\r\n\r\n")])
    });
    trial.attempt("bare CR", |mark| {
        Call::text(ALLOWED, 80, &[&format!("GET /{mark} HTTP/1.1\rHost: {OTHER}\r\r\n\r\n")])
    });
    trial.attempt("an absolute target elsewhere", |mark| {
        Call::text(ALLOWED, 80, &[&format!("GET http://{OTHER}/{mark} HTTP/1.1\r\nHost: {ALLOWED}\r\n\r\n")])
    });
    trial.attempt("two hosts", |mark| {
        Call::text(ALLOWED, 80, &[&format!("GET /{mark} HTTP/1.1\r\nHost: {ALLOWED}\r\nHost: {OTHER}\r\n\r\n")])
    });
    trial.attempt("an unknown method", |mark| Call::text(ALLOWED, 80, &[&smuggled(mark).replace("GET", "FROB")]));
    trial.attempt("in pieces", |mark| {
        Call::text(ALLOWED, 80, &["G", &format!("ET /{mark} HTTP/1.1\r\nHo"), &format!("st: {OTHER}\r\n\r\n")])
    });
    trial.run(drill, &world, rules(&[ALLOWED])).await
}
