//! LLM calls: what they are paid, and when they are refused.

use bytes::Bytes;
use http_body_util::BodyExt;
use sloplet_egress::intercept::Intercept;
use sloplet_gateway::account::{Cap, Owner};
use sloplet_gateway::{Accounts, Event, LlmHost, Shape};
use sloplet_policy::Budget;
use sloplet_policy::budget::AtCap;

use crate::common::{Gate, HOST, Host, answer, keeping, request, sse};

const MESSAGE: &str = r#"{"type":"message","content":[],"usage":{"input_tokens":100,"output_tokens":50}}"#;

/// What `MESSAGE` costs with `claude-haiku-4-5`, in millionths of a dollar.
const COST: u64 = 100 + 50 * 5;

fn budget(json: &str) -> Budget {
    serde_json::from_str(json).unwrap()
}

fn messages(body: &str) -> hyper::Request<http_body_util::Full<Bytes>> {
    request("POST", "/v1/messages", &[("content-type", "application/json")], body)
}

fn ask(max_tokens: u64) -> String {
    format!(r#"{{"model":"claude-haiku-4-5","max_tokens":{max_tokens},"messages":[{{"role":"user","content":"hi"}}]}}"#)
}

/// What is kept back for `ask`.
fn reserved(max_tokens: u64) -> u64 {
    ask(max_tokens).len() as u64 + 1024 + max_tokens * 5
}

#[tokio::test]
async fn a_call_is_paid_by_its_usage_and_told() {
    let host = Host::start(&[HOST], true, keeping(|_| answer(200, MESSAGE)).0).await;
    let gate = Gate::new(host, Vec::new(), budget(r#"{"usd":1}"#));
    assert!(gate.gateway.wants(HOST, 443) && !gate.gateway.wants("example.com", 443));
    let (parts, body) = gate.send(messages(&ask(200))).await;
    assert_eq!((parts.status.as_u16(), body.as_str()), (200, MESSAGE));
    let call = gate.calls(1).await.remove(0);
    assert_eq!((call.provider, call.endpoint, call.model.as_str()), ("anthropic", "messages", "claude-haiku-4-5"));
    assert_eq!((call.input_tokens, call.output_tokens, call.cost_micro_usd), (100, 50, Some(COST)));
    assert_eq!((call.decision, call.status, call.prompt.as_str()), ("allowed", 200, "hi"));
    assert_eq!((call.reserved_micro_usd, call.request_sha256.len()), (reserved(200), 64));
    let record = gate.gateway.account().spent();
    assert_eq!((record.spent.micro_usd, record.spent.tokens, record.reserved.micro_usd), (COST, 150, 0));
}

#[tokio::test]
async fn a_loop_ends_at_its_cap() {
    let (handler, kept) = keeping(|_| answer(200, MESSAGE));
    let host = Host::start(&[HOST], true, handler).await;
    let gate = Gate::new(host, Vec::new(), budget(r#"{"usd":0.01,"at_cap":"kill"}"#));
    let mut answers = 0;
    let refused = loop {
        let (parts, body) = gate.send(messages(&ask(200))).await;
        if parts.status != 200 {
            break (parts, body);
        }
        answers += 1;
        assert!(answers < 1000, "it goes on forever");
    };
    let (parts, body) = refused;
    assert_eq!(parts.status.as_u16(), 402);
    assert_eq!(parts.headers["x-should-retry"], "false");
    let error: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(error["error"]["type"], "billing_error");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("budget of $0.01") && message.contains("this call needs up to"), "{message}");
    assert_eq!(answers as u64, (10_000 - reserved(200)) / COST + 1);
    assert_eq!(kept.lock().unwrap().len(), answers);
    assert!(gate.gateway.account().spent().spent.micro_usd <= 10_000);
    let _ = gate.send(messages(&ask(200))).await;
    let reached: Vec<_> = gate.events().into_iter().filter(|event| matches!(event, Event::CapReached { .. })).collect();
    assert!(matches!(reached[..], [Event::CapReached { which: Cap::Usd, at_cap: AtCap::Kill, .. }]), "{reached:?}");
    let refusals = gate.calls(answers + 2).await;
    assert_eq!(refusals.iter().filter(|call| call.decision == "refused" && call.status == 402).count(), 2);
}

#[tokio::test]
async fn calls_at_the_same_time_do_not_overshoot() {
    let worst = reserved(200);
    // Each comes to all that was kept back for it.
    let text = format!(r#"{{"usage":{{"input_tokens":{},"output_tokens":200}}}}"#, worst - 1000);
    let (handler, kept) = keeping(move |_| answer(200, text.clone()));
    let host = Host::start(&[HOST], true, handler).await;
    let cap = worst * 3 + worst / 2;
    let gate =
        Gate::new(host, Vec::new(), budget(&format!(r#"{{"usd":"{}.{:06}"}}"#, cap / 1_000_000, cap % 1_000_000)));
    let body = ask(200);
    let answers = futures_util::future::join_all((0..20).map(|_| gate.send(messages(&body)))).await;
    assert_eq!(answers.iter().filter(|(parts, _)| parts.status == 200).count(), 3);
    assert_eq!(answers.iter().filter(|(parts, _)| parts.status == 402).count(), 17);
    assert_eq!(kept.lock().unwrap().len(), 3);
    assert_eq!(gate.gateway.account().spent().spent.micro_usd, worst * 3);
}

#[tokio::test]
async fn failed_calls_cost_nothing() {
    let host = Host::start(&[HOST], true, keeping(|_| answer(529, "{}")).0).await;
    let gate = Gate::new(host, Vec::new(), budget(r#"{"usd":1}"#));
    let (parts, _) = gate.send(messages(&ask(200))).await;
    assert_eq!(parts.status.as_u16(), 529);
    assert_eq!(gate.calls(1).await[0].cost_micro_usd, Some(0));
    let record = gate.gateway.account().spent();
    assert_eq!((record.spent.micro_usd, record.reserved.micro_usd), (0, 0));
}

#[tokio::test]
async fn streams_are_paid_at_their_end() {
    const EVENTS: &[&str] = &[
        r#"{"type":"message_start","message":{"usage":{"input_tokens":100,"output_tokens":1}}}"#,
        r#"{"type":"content_block_start","content_block":{"type":"tool_use","name":"bash"}}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":50}}"#,
        r#"{"type":"message_stop"}"#,
    ];
    let host = Host::start(&[HOST], true, sse(EVENTS, false).0).await;
    let gate = Gate::new(host, Vec::new(), budget(r#"{"usd":1}"#));
    let (_, body) = gate.send(messages(&ask(200).replace("{\"model\"", "{\"stream\":true,\"model\""))).await;
    assert_eq!(body.matches("data: ").count(), EVENTS.len());
    let call = gate.calls(1).await.remove(0);
    assert_eq!((call.cost_micro_usd, call.tool_calls, call.reason), (Some(COST), vec!["bash".to_owned()], None));
}

#[tokio::test]
async fn a_stream_that_is_left_once_all_was_told_costs_what_was_told() {
    const EVENTS: &[&str] = &[
        r#"{"type":"message_start","message":{"usage":{"input_tokens":100,"output_tokens":1}}}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":50}}"#,
    ];
    const PROGRESS: &[&str] = &[
        r#"{"type":"message_start","message":{"usage":{"input_tokens":100,"output_tokens":1}}}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":null},"usage":{"output_tokens":50}}"#,
    ];
    for (events, output) in [(EVENTS, 50), (PROGRESS, 200)] {
        // The host goes on for ever.
        let host = Host::start(&[HOST], true, sse(events, true).0).await;
        let gate = Gate::new(host, Vec::new(), budget(r#"{"usd":1}"#));
        let mut answered = gate.begin(messages(&ask(200))).await;
        let mut got = Vec::new();
        while !got.windows(13).any(|part| part == b"message_delta") {
            got.extend_from_slice(&answered.frame().await.unwrap().unwrap().into_data().unwrap());
        }
        drop(answered);
        let call = gate.calls(1).await.remove(0);
        assert_eq!((call.input_tokens, call.output_tokens, call.reason.is_none()), (100, output, output == 50));
        assert_eq!(gate.gateway.account().spent().spent.micro_usd, 100 + output * 5);
    }
}

#[tokio::test]
async fn a_stream_that_is_left_costs_what_was_kept_back_for_its_answer() {
    const EVENTS: &[&str] = &[r#"{"type":"message_start","message":{"usage":{"input_tokens":100,"output_tokens":1}}}"#];
    let host = Host::start(&[HOST], true, sse(EVENTS, true).0).await;
    let gate = Gate::new(host, Vec::new(), budget(r#"{"usd":1}"#));
    let mut answered = gate.begin(messages(&ask(200))).await;
    let first = answered.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.starts_with(b"data: {\"type\":\"message_start\""));
    drop(answered);
    let call = gate.calls(1).await.remove(0);
    assert_eq!((call.input_tokens, call.output_tokens), (100, 200));
    assert!(call.reason.is_some_and(|reason| reason.contains("not seen")));
    assert_eq!(gate.gateway.account().spent().spent.micro_usd, 100 + 200 * 5);
}

#[tokio::test]
async fn openai_streams_are_asked_for_usage_and_paid() {
    const EVENTS: &[&str] = &[
        r#"{"choices":[{"delta":{"content":"x"}}],"usage":null}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":400}}}"#,
        "[DONE]",
    ];
    let (handler, kept) = sse(EVENTS, false);
    let host = Host::start(&["api.openai.com"], true, handler).await;
    let mut gate = Gate::new(host, Vec::new(), budget(r#"{"usd":1}"#));
    gate.target.name = "api.openai.com".into();
    let body = r#"{"model":"gpt-4o","stream":true,"max_tokens":50,"messages":[]}"#;
    let asked = request("POST", "/v1/chat/completions", &[("host", "api.openai.com")], body);
    let (parts, _) = gate.send(asked).await;
    assert_eq!(parts.status.as_u16(), 200);
    let sent = kept.lock().unwrap()[0].clone();
    assert!(sent.contains(r#""stream_options":{"include_usage":true}"#), "{sent}");
    let call = gate.calls(1).await.remove(0);
    assert_eq!((call.input_tokens, call.cache_read, call.output_tokens), (600, 400, 10));
    assert_eq!(call.cost_micro_usd, Some(1500 + 500 + 100));
}

#[tokio::test]
async fn what_cannot_be_counted_is_refused_under_a_cap_and_passed_without() {
    let server_tool = r#"{"model":"claude-haiku-4-5","max_tokens":1,"tools":[{"type":"web_search_20250305"}]}"#;
    let twice = r#"{"model":"claude-haiku-4-5","max_tokens":1,"max_tokens":100000}"#;
    let cases = [
        ("/v1/messages", r#"{"model":"claude-unknown-9","max_tokens":1}"#, "add it to the price file"),
        ("/v1/messages", server_tool, "run by the API itself"),
        ("/v1/messages", twice, "twice"),
        ("/v1/messages", "not json", "not a JSON object"),
        ("/v1/messages/batches", "{}", "costs is not known"),
        ("/v1//messages", "{}", "costs is not known"),
    ];
    for (path, body, why) in cases {
        let (handler, kept) = keeping(|_| answer(200, MESSAGE));
        let host = Host::start(&[HOST], true, handler).await;
        let gate = Gate::new(host, Vec::new(), budget(r#"{"usd":1}"#));
        let (parts, said) = gate.send(request("POST", path, &[], body)).await;
        assert_eq!(parts.status.as_u16(), 400, "{path} {body}: {said}");
        assert!(said.contains(why) && said.contains("invalid_request_error"), "{path} {body}: {said}");
        assert!(kept.lock().unwrap().is_empty(), "{path} {body}");
        gate.gateway.account().set_budget(Budget::default());
        let (parts, _) = gate.send(request("POST", path, &[], body)).await;
        assert_eq!((parts.status.as_u16(), kept.lock().unwrap().len()), (200, 1), "{path} {body}");
    }
    let (handler, kept) = keeping(|_| answer(200, MESSAGE));
    let gate = Gate::new(Host::start(&[HOST], true, handler).await, Vec::new(), budget(r#"{"usd":1}"#));
    let (parts, _) = gate.send(request("POST", "/v1/messages", &[("content-encoding", "gzip")], &ask(1))).await;
    assert_eq!(parts.status.as_u16(), 400);
    let headers = [("connection", "upgrade"), ("upgrade", "websocket")];
    let (parts, _) = gate.send(request("GET", "/v1/realtime", &headers, "")).await;
    assert_eq!(parts.status.as_u16(), 400);
    assert!(kept.lock().unwrap().is_empty());
    for free in [request("GET", "/v1/models", &[], ""), request("POST", "/v1/messages/count_tokens", &[], "{}")] {
        assert_eq!(gate.send(free).await.0.status.as_u16(), 200);
    }
}

#[tokio::test]
async fn a_model_without_a_price_is_fine_under_a_cap_on_tokens() {
    let host = Host::start(&[HOST], true, keeping(|_| answer(200, MESSAGE)).0).await;
    let gate = Gate::new(host, Vec::new(), budget(r#"{"tokens":"3k"}"#));
    let body = ask(200).replace("claude-haiku-4-5", "claude-unknown-9");
    assert_eq!(gate.send(messages(&body)).await.0.status.as_u16(), 200);
    let call = gate.calls(1).await.remove(0);
    assert_eq!((call.cost_micro_usd, call.input_tokens + call.output_tokens), (None, 150));
    let (parts, said) = gate.send(messages(&body.replace("200", "2000"))).await;
    assert!(parts.status == 402 && said.contains("budget of 3000 tokens"), "{said}");
}

#[tokio::test]
async fn too_many_in_a_minute_are_asked_to_wait() {
    let host = Host::start(&[HOST], true, keeping(|_| answer(200, MESSAGE)).0).await;
    let gate = Gate::new(host, Vec::new(), budget(r#"{"requests_per_minute":2}"#));
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(gate.send(messages(&ask(1))).await.0);
    }
    assert_eq!(statuses.iter().map(|parts| parts.status.as_u16()).collect::<Vec<_>>(), [200, 200, 429]);
    let wait: u64 = statuses[2].headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=61).contains(&wait));
}

#[tokio::test]
async fn a_group_spends_from_one_pot_over_plain_http_to_a_host_of_ones_own() {
    let accounts = Accounts::new(None);
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":400,"completion_tokens":100}}"#;
    let mut gates = Vec::new();
    for sandbox in ["one", "two"] {
        let host = Host::start(&["x"], false, keeping(move |_| answer(200, usage)).0).await;
        let account = accounts.open(sandbox, "", budget(r#"{"tokens":2500,"group":"team"}"#));
        let own = LlmHost { host: "host.sloplet.internal:8000".parse().unwrap(), shape: Shape::OpenAi };
        let mut gate = Gate::with(host, Vec::new(), account, vec![own]);
        (gate.target.name, gate.target.port, gate.target.tls) = ("host.sloplet.internal".into(), 8000, false);
        assert!(gate.gateway.wants("host.sloplet.internal", 8000) && !gate.gateway.wants("host.sloplet.internal", 80));
        gates.push(gate);
    }
    let mut statuses = Vec::new();
    for number in 0..6 {
        let headers = [("host", "host.sloplet.internal:8000")];
        let body = r#"{"model":"local","max_tokens":100,"messages":[]}"#;
        let gate = &gates[number % 2];
        statuses.push(gate.send(request("POST", "/v1/chat/completions", &headers, body)).await.0.status.as_u16());
        gate.calls(number / 2 + 1).await;
    }
    assert_eq!(statuses, [200, 200, 200, 402, 402, 402]);
    assert_eq!(accounts.record(&Owner::Group("team".into())).spent.tokens, 1500);
    assert_eq!(accounts.record(&Owner::Sandbox("one".into())).spent.tokens, 1000);
}
