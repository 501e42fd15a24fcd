//! Spans as OTLP writes them in JSON.

use std::fmt::Debug;

use serde_json::{Value, json};
use tracing::field::{Field, Visit};

/// Bytes of one value.
const LONGEST: usize = 1024;

/// A span while it lasts.
pub struct Span {
    trace: u128,
    id: u64,
    parent: Option<u64>,
    name: String,
    server: bool,
    start: u64,
    attributes: Vec<Value>,
    error: Option<String>,
}

impl Span {
    /// One that begins now, in a trace of its own.
    pub fn begin(name: &str, start: u64) -> Self {
        let mut random = [0u8; 24];
        // Without randomness there are equal ids, which a collector survives.
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let (trace, id) = random.split_at(16);
        Self {
            trace: u128::from_le_bytes(trace.try_into().unwrap_or([1; 16])).max(1),
            id: u64::from_le_bytes(id.try_into().unwrap_or([1; 8])).max(1),
            parent: None,
            name: name.to_owned(),
            server: false,
            start,
            attributes: Vec::new(),
            error: None,
        }
    }

    /// Makes it a part of another.
    pub fn belongs_to(&mut self, parent: &Self) {
        (self.trace, self.parent) = (parent.trace, Some(parent.id));
    }

    /// Makes it a part of the caller's trace, as a header `traceparent` names it.
    fn belongs_to_caller(&mut self, header: &str) {
        let mut parts = header.split('-');
        let (version, trace, parent) = (parts.next(), parts.next(), parts.next());
        let (Some(version), Some(trace), Some(parent)) = (version, trace, parent) else { return };
        if version.len() != 2 || trace.len() != 32 || parent.len() != 16 {
            return;
        }
        if let (Ok(trace @ 1..), Ok(parent @ 1..)) = (u128::from_str_radix(trace, 16), u64::from_str_radix(parent, 16))
        {
            (self.trace, self.parent) = (trace, Some(parent));
        }
    }

    /// It is over: as OTLP writes it.
    pub fn end(self, end: u64) -> Value {
        let mut span = json!({
            "traceId": format!("{:032x}", self.trace),
            "spanId": format!("{:016x}", self.id),
            "name": self.name,
            "kind": if self.server { 2 } else { 1 },
            "startTimeUnixNano": self.start.to_string(),
            "endTimeUnixNano": end.max(self.start).to_string(),
            "attributes": self.attributes,
        });
        if let Some(parent) = self.parent {
            span["parentSpanId"] = format!("{parent:016x}").into();
        }
        if let Some(error) = self.error {
            span["status"] = json!({"code": 2, "message": error});
        }
        span
    }

    fn add(&mut self, name: &str, value: Value) {
        self.attributes.push(json!({"key": name, "value": value}));
    }

    fn number(&mut self, name: &str, value: i64) {
        if name == "http.response.status_code" && value >= 500 {
            self.error.get_or_insert_with(String::new);
        }
        self.add(name, json!({"intValue": value.to_string()}));
    }

    fn text(&mut self, name: &str, value: &str) {
        let end = value.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= LONGEST).last();
        let value = &value[..end.unwrap_or(0)];
        match name {
            "traceparent" => self.belongs_to_caller(value),
            "otel.name" => self.name = value.to_owned(),
            "otel.kind" => self.server = value == "server",
            "error" => self.error = Some(value.to_owned()),
            name => self.add(name, json!({"stringValue": value})),
        }
    }
}

impl Visit for Span {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.number(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.number(field.name(), i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field.name(), json!({"boolValue": value}));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field.name(), json!({"doubleValue": value}));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.text(field.name(), &format!("{value:?}"));
    }
}

/// A batch of spans, as it is sent.
pub fn batch(service: &str, spans: Vec<Value>) -> Value {
    let about = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let version = env!("CARGO_PKG_VERSION");
    json!({"resourceSpans": [{
        "resource": {"attributes": [about("service.name", service), about("service.version", version)]},
        "scopeSpans": [{"scope": {"name": "sloplet", "version": version}, "spans": spans}],
    }]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_written_as_collectors_read_it() {
        let parent = Span::begin("parent", 5);
        let mut span = Span::begin("GET", 10);
        span.belongs_to(&parent);
        span.text("url.path", "/v1/sandboxes");
        span.text("otel.kind", "server");
        span.number("http.response.status_code", 503);
        let written = span.end(20);
        assert_eq!(written["traceId"], format!("{:032x}", parent.trace));
        assert_eq!(written["parentSpanId"], format!("{:016x}", parent.id));
        assert_eq!((&written["kind"], &written["startTimeUnixNano"]), (&json!(2), &json!("10")));
        assert_eq!(written["status"]["code"], 2);
        assert_eq!(written["attributes"][0], json!({"key": "url.path", "value": {"stringValue": "/v1/sandboxes"}}));
        assert_eq!(written["attributes"][1]["value"], json!({"intValue": "503"}));
    }

    #[test]
    fn a_callers_trace_is_joined_and_nonsense_is_not() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let mut span = Span::begin("x", 0);
        span.text("traceparent", &format!("00-{trace}-b7ad6b7169203331-01"));
        let written = span.end(1);
        assert_eq!(
            (written["traceId"].as_str(), written["parentSpanId"].as_str()),
            (Some(trace), Some("b7ad6b7169203331"))
        );
        for bad in ["", "00", "00-0-0-0", "00-zz-b7ad6b7169203331-01", &format!("00-{}-0000000000000000-01", trace)] {
            let mut span = Span::begin("x", 0);
            span.text("traceparent", bad);
            assert_eq!(span.end(1)["parentSpanId"], Value::Null, "{bad}");
        }
    }

    #[test]
    fn long_values_are_cut_where_a_character_ends() {
        let mut span = Span::begin("x", 0);
        span.text("note", &"é".repeat(2000));
        assert_eq!(span.end(1)["attributes"][0]["value"]["stringValue"].as_str().unwrap().len(), LONGEST);
    }
}
