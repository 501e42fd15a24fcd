//! Traces for OpenTelemetry, as a collector gets them.

use std::io::{BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Host, Server, http};

/// A collector: what was sent to it, with the head of each request.
fn collector() -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (_, head) = http::head(&mut reader);
            let length =
                head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut body).unwrap();
            reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
            if sender.send((head, serde_json::from_slice(&body).unwrap())).is_err() {
                return;
            }
        }
    });
    (address, receiver)
}

fn attribute<'s>(span: &'s Value, name: &str) -> Option<&'s Value> {
    let all = span["attributes"].as_array()?;
    all.iter().find(|attribute| attribute["key"] == name).map(|attribute| &attribute["value"])
}

#[test]
fn a_collector_is_told_what_took_how_long() {
    let host = Host::shared();
    let (address, told) = collector();
    let mut sloplet = host.root();
    sloplet.variables = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT".into(), address),
        ("OTEL_EXPORTER_OTLP_HEADERS".into(), "x-tenant=mine".into()),
        ("OTEL_SERVICE_NAME".into(), "boxes".into()),
    ];
    let server = Server::start(&sloplet);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let body = r#"{"name": "my"}"#;
    let request = format!(
        "POST /v1/sandboxes?secret=hidden HTTP/1.1\r\nHost: x\r\nX-API-KEY: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Traceparent: 00-{trace}-b7ad6b7169203331-01\r\n\r\n{body}",
        server.key,
        body.len()
    );
    let made = http::exchange(&server.address, request.as_bytes()).expect(201).json();
    let command = json!({"command": ["echo", "hidden-argument"], "env": {"A": "hidden-variable"}});
    server.ask("POST", "/sandboxes/my/exec", Some(command)).expect(200);
    server.ask("POST", "/sandboxes/my/snapshot", None).expect(201);
    server.ask("GET", "/sandboxes/nobody", None).expect_refusal(404);
    // The last ones are sent when it ends.
    server.end();
    let mut spans: Vec<Value> = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    let found = |spans: &[Value], name: &str| spans.iter().find(|span| span["name"] == name).cloned();
    while found(&spans, "snapshot").is_none() {
        let (head, batch) = told.recv_timeout(deadline.saturating_duration_since(Instant::now())).expect("a batch");
        assert!(head.starts_with("POST /v1/traces HTTP/1.1") && head.contains("x-tenant: mine"), "{head}");
        let resource = &batch["resourceSpans"][0];
        let service = json!({"key": "service.name", "value": {"stringValue": "boxes"}});
        assert_eq!(resource["resource"]["attributes"][0], service);
        spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().iter().cloned());
    }
    // The caller's trace goes on in the request's span, and below it in what was done for it.
    let create = found(&spans, "create").expect("a span of the making");
    assert_eq!(
        (&create["traceId"], attribute(&create, "sandbox.id").unwrap()),
        (&json!(trace), &json!({"stringValue": made["id"]}))
    );
    let request = spans.iter().find(|span| span["spanId"] == create["parentSpanId"]).expect("its request");
    assert_eq!((&request["name"], &request["kind"]), (&json!("POST"), &json!(2)));
    assert_eq!(request["parentSpanId"], "b7ad6b7169203331");
    assert_eq!(attribute(request, "http.response.status_code").unwrap(), &json!({"intValue": "201"}));
    assert_eq!(attribute(request, "url.path").unwrap(), &json!({"stringValue": "/v1/sandboxes"}));
    let nanoseconds = |span: &Value, end: &str| span[end].as_str().unwrap().parse::<u64>().unwrap();
    assert!(nanoseconds(&create, "startTimeUnixNano") < nanoseconds(&create, "endTimeUnixNano"));
    let exec = found(&spans, "exec").expect("a span of a command");
    assert!(attribute(&exec, "process.pid").is_some(), "{exec}");
    assert!(found(&spans, "snapshot").is_some_and(|span| span["parentSpanId"].is_string()));
    let everything = Value::Array(spans).to_string();
    assert!(!everything.contains("hidden"), "neither queries, nor arguments, nor variables are told: {everything}");
}

#[test]
fn a_collector_that_is_gone_disturbs_nobody() {
    let host = Host::shared();
    let mut sloplet = host.root();
    sloplet.variables = vec![("OTEL_EXPORTER_OTLP_ENDPOINT".into(), "http://127.0.0.1:1".into())];
    let server = Server::start(&sloplet);
    server.ask("POST", "/sandboxes", Some(json!({"name": "my"}))).expect(201);
    server.ask("POST", "/sandboxes/my/exec", Some(json!({"command": "true"}))).expect(200);
    server.end();
    sloplet.variables = vec![("OTEL_EXPORTER_OTLP_ENDPOINT".into(), "no address".into())];
    sloplet.invoke(&["serve", "--listen", "127.0.0.1:0"]).finish().expect_code(125).expect_said("must be like http://");
}
