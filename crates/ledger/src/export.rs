//! Giving records to other programs.

use std::io::Write;

use serde_json::{Value, json};

use crate::error::LedgerError;
use crate::event::{Decision, Event};
use crate::reader::{Reader, Record};

/// Records in one request to a collector, which refuses what is too large.
const OTLP_BATCH: usize = 256;

/// What was exported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exported {
    /// How many records.
    pub records: u64,
    /// How many lines were left out, since they are not records.
    pub damaged: u64,
}

/// Writes records as they are, one a line: with nothing left out, the chain can be checked in the copy too.
pub fn export_jsonl(records: Reader, mut out: impl Write) -> Result<Exported, LedgerError> {
    let mut exported = Exported::default();
    for record in records {
        let Some(record) = sound(record, &mut exported)? else { continue };
        writeln!(out, "{}", record.line()).map_err(LedgerError::Export)?;
    }
    out.flush().map_err(LedgerError::Export)?;
    Ok(exported)
}

/// Writes OpenTelemetry logs: lines of OTLP/JSON, each a request as a collector takes it at `/v1/logs` or out of a file.
pub fn export_otlp(records: Reader, mut out: impl Write) -> Result<Exported, LedgerError> {
    let mut exported = Exported::default();
    let mut batch = Vec::new();
    for record in records {
        let Some(record) = sound(record, &mut exported)? else { continue };
        batch.push(log_record(&record));
        if batch.len() == OTLP_BATCH {
            write_request(&mut out, std::mem::take(&mut batch))?;
        }
    }
    if !batch.is_empty() {
        write_request(&mut out, batch)?;
    }
    out.flush().map_err(LedgerError::Export)?;
    Ok(exported)
}

fn sound(record: Result<Record, LedgerError>, exported: &mut Exported) -> Result<Option<Record>, LedgerError> {
    match record {
        Err(LedgerError::Damaged { .. }) => {
            exported.damaged += 1;
            Ok(None)
        }
        record => {
            exported.records += 1;
            record.map(Some)
        }
    }
}

fn write_request(out: &mut impl Write, records: Vec<Value>) -> Result<(), LedgerError> {
    let request = json!({"resourceLogs": [{
        "resource": {"attributes": [attribute("service.name", &json!("sloplet"))]},
        "scopeLogs": [{
            "scope": {"name": "sloplet.ledger", "version": env!("CARGO_PKG_VERSION")},
            "logRecords": records,
        }],
    }]});
    writeln!(out, "{request}").map_err(LedgerError::Export)
}

fn log_record(record: &Record) -> Value {
    let (number, text) = if is_refusal(&record.event()) { (13, "WARN") } else { (9, "INFO") };
    let time = format!("{}000000", record.time_ms);
    let mut attributes = vec![
        attribute("sloplet.seq", &json!(record.seq)),
        attribute("sloplet.actor", &json!(record.actor)),
        attribute("sloplet.hash", &json!(record.hash)),
    ];
    if let Some(sandbox) = &record.sandbox {
        attributes.push(attribute("sloplet.sandbox", &json!(sandbox)));
    }
    let event: Value = serde_json::from_str(record.event_json()).unwrap_or_default();
    json!({
        "timeUnixNano": time,
        "observedTimeUnixNano": time,
        "severityNumber": number,
        "severityText": text,
        "eventName": format!("sloplet.{}", record.kind),
        "body": any_value(&event),
        "attributes": attributes,
    })
}

/// What an operator should look at.
fn is_refusal(event: &Event) -> bool {
    match event {
        Event::Egress(egress) => egress.decision == Decision::Denied,
        Event::Dns(dns) => dns.decision == Decision::Denied,
        Event::Spend(spend) => spend.decision == Decision::Denied,
        Event::ApprovalAnswered(answer) => answer.decision == Decision::Denied,
        Event::Verification(verification) => verification.escaped > 0,
        Event::BudgetHit(_) | Event::Recovered(_) => true,
        _ => false,
    }
}

fn attribute(key: &str, value: &Value) -> Value {
    json!({"key": key, "value": any_value(value)})
}

/// A value as OTLP spells it; 64-bit integers are strings there.
fn any_value(value: &Value) -> Value {
    match value {
        Value::Null => json!({}),
        Value::Bool(value) => json!({"boolValue": value}),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => json!({"intValue": integer.to_string()}),
            None => json!({"doubleValue": number}),
        },
        Value::String(text) => json!({"stringValue": text}),
        Value::Array(items) => {
            json!({"arrayValue": {"values": items.iter().map(any_value).collect::<Vec<_>>()}})
        }
        Value::Object(fields) => {
            let fields: Vec<_> = fields.iter().map(|(key, value)| attribute(key, value)).collect();
            json!({"kvlistValue": {"values": fields}})
        }
    }
}
