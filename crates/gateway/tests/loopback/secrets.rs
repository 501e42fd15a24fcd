//! Where values go, and where they do not.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sloplet_egress::intercept::Intercept;
use sloplet_gateway::Event;
use sloplet_policy::Budget;

use crate::common::{Gate, HOST, Handler, Host, answer, echo, keeping, pieces_answer, request, secret};

const VALUE: &str = "sk-real-value-0123456789";

async fn gate(rule: &str) -> Gate {
    let host = Host::start(&[HOST], true, echo()).await;
    Gate::new(host, vec![secret(rule, VALUE)], Budget::default())
}

#[tokio::test]
async fn a_value_goes_to_its_host_and_the_answer_shows_the_placeholder() {
    let (handler, kept) = keeping(|_| answer(200, format!("you are {VALUE}, welcome")));
    let host = Host::start(&[HOST], true, handler).await;
    let gate = Gate::new(host, vec![secret("KEY@api.anthropic.com", VALUE)], Budget::default());
    let shown = gate.secrets[0].placeholder.clone();
    let basic = STANDARD.encode(format!("me:{shown}"));
    let headers = [("x-api-key", shown.as_str()), ("authorization", &format!("Basic {basic}"))];
    let (parts, body) = gate.send(request("GET", &format!("/v1/models?key={shown}"), &headers, "")).await;
    assert_eq!((parts.status.as_u16(), body), (200, format!("you are {shown}, welcome")));
    let (got, _) = kept.lock().unwrap()[0].clone();
    assert_eq!(got["x-api-key"], VALUE);
    assert_eq!(got["authorization"], format!("Basic {}", STANDARD.encode(format!("me:{VALUE}"))));
    assert_eq!(got["accept-encoding"], "identity");
    let used = |place| Event::SecretUsed { connection: 7, name: "KEY".into(), host: HOST.into(), place };
    assert_eq!(gate.events(), [used("header"), used("query")]);
    assert!(!format!("{:?}", gate.events()).contains(VALUE));
}

#[tokio::test]
async fn everything_that_comes_back_is_redacted() {
    let gate = gate("KEY@api.anthropic.com").await;
    let shown = gate.secrets[0].placeholder.clone();
    let basic = STANDARD.encode(format!("me:{shown}"));
    let headers = [("x-api-key", shown.as_str()), ("authorization", &format!("Basic {basic}"))];
    let (_, body) = gate.send(request("POST", "/echo", &headers, "hello")).await;
    assert!(body.contains(&format!("x-api-key: {shown}")) && body.contains(&format!("Basic {basic}")), "{body}");
    assert!(!body.contains(VALUE) && !body.contains(&STANDARD.encode(format!("me:{VALUE}"))), "{body}");
}

#[tokio::test]
async fn a_value_that_streams_back_in_pieces_is_redacted() {
    let handler: Handler = std::sync::Arc::new(|_| {
        Box::pin(async {
            let text = format!("a {VALUE} b {VALUE}");
            let pieces = text.as_bytes().chunks(5).map(Bytes::copy_from_slice).collect();
            let mut answered = pieces_answer("text/plain", pieces, false);
            answered.headers_mut().insert("x-echo", VALUE.parse().unwrap());
            answered
        })
    });
    let host = Host::start(&[HOST], true, handler).await;
    let gate = Gate::new(host, vec![secret("KEY@api.anthropic.com", VALUE)], Budget::default());
    let shown = gate.secrets[0].placeholder.clone();
    let (parts, body) = gate.send(request("GET", "/", &[], "")).await;
    assert_eq!(body, format!("a {shown} b {shown}"));
    assert_eq!(parts.headers["x-echo"], shown.as_str());
}

#[tokio::test]
async fn to_another_host_a_placeholder_stays_one() {
    let host = Host::start(&[HOST], true, echo()).await;
    let gate = Gate::new(host, vec![secret("KEY@other.example", VALUE)], Budget::default());
    let shown = gate.secrets[0].placeholder.clone();
    let (_, body) = gate.send(request("GET", "/", &[("x-api-key", &shown)], "")).await;
    assert!(body.contains(&format!("x-api-key: {shown}")), "{body}");
    let leaving = Event::PlaceholderLeaving { connection: 7, name: "KEY".into(), host: HOST.into(), place: "header" };
    assert_eq!(gate.events(), [leaving]);
    assert!(!gate.gateway.wants(HOST, 443) && gate.gateway.wants("other.example", 443));
}

#[tokio::test]
async fn a_body_is_filled_and_has_its_new_length() {
    let (handler, kept) = keeping(|_| answer(200, "ok"));
    let host = Host::start(&[HOST], true, handler).await;
    let gate = Gate::new(host, vec![secret("KEY@api.anthropic.com;body", VALUE)], Budget::default());
    let shown = gate.secrets[0].placeholder.clone();
    let body = format!(r#"{{"client_secret":"{shown}"}}"#);
    gate.send(request("POST", "/token", &[("content-type", "application/json"), ("x-api-key", &shown)], &body)).await;
    let (headers, got) = kept.lock().unwrap()[0].clone();
    assert_eq!(got, format!(r#"{{"client_secret":"{VALUE}"}}"#));
    assert_eq!(headers["content-length"], got.len().to_string());
    assert_eq!(headers["x-api-key"], shown.as_str());
}

#[tokio::test]
async fn rules_change_while_a_sandbox_runs() {
    let gate = gate("KEY@api.anthropic.com").await;
    let shown = gate.secrets[0].placeholder.clone();
    gate.gateway.set_secrets(Vec::new());
    assert!(!gate.gateway.wants(HOST, 443));
    let (_, body) = gate.send(request("GET", "/", &[("x-api-key", &shown)], "")).await;
    assert!(body.contains(&shown) && gate.gateway.placeholders().is_empty());
}

#[tokio::test]
async fn plain_http_carries_a_value_only_where_the_rule_says_so() {
    for (rule, status) in [("KEY@api.anthropic.com:80", 403), ("KEY@api.anthropic.com;http", 200)] {
        let (handler, kept) = keeping(|_| answer(200, "ok"));
        let host = Host::start(&[HOST], false, handler).await;
        let mut gate = Gate::new(host, vec![secret(rule, VALUE)], Budget::default());
        (gate.target.tls, gate.target.port) = (false, 80);
        let shown = gate.secrets[0].placeholder.clone();
        let (parts, body) = gate.send(request("GET", "/", &[("x-api-key", &shown)], "")).await;
        assert_eq!(parts.status.as_u16(), status, "{rule}: {body}");
        assert_eq!(kept.lock().unwrap().len(), usize::from(status == 200));
        assert!(status == 200 || body.contains("KEY is not sent over plain HTTP"), "{body}");
    }
}

#[tokio::test]
async fn a_host_whose_certificate_is_not_trusted_gets_nothing() {
    let (handler, kept) = keeping(|_| answer(200, "ok"));
    let host = Host::start(&["impostor.example"], true, handler).await;
    let gate = Gate::new(host, vec![secret("KEY@api.anthropic.com", VALUE)], Budget::default());
    let shown = gate.secrets[0].placeholder.clone();
    let (parts, body) = gate.send(request("GET", "/", &[("x-api-key", &shown)], "")).await;
    assert_eq!(parts.status.as_u16(), 502);
    assert!(body.contains("was not reached: TLS") && !body.contains(VALUE), "{body}");
    assert!(kept.lock().unwrap().is_empty());
}
