//! What is told of a sandbox's life. Output of its commands is theirs who started them, and not kept here.

use axum::extract::State;
use serde::Serialize;
use serde_json::{Value, json};
use sloplet_engine::life::Record;

use super::extract::Path;
use super::time;
use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;

#[derive(Debug, Serialize)]
struct Entry {
    timestamp: String,
    level: &'static str,
    message: String,
    fields: Value,
}

impl Entry {
    /// As the command line of E2B reads it: JSON, with who says it.
    fn line(&self) -> String {
        let Self { timestamp, level, message, fields } = self;
        let said = json!({"timestamp": timestamp, "level": level, "logger": "sandbox", "message": message});
        let all = said.as_object().into_iter().chain(fields.as_object()).flatten();
        Value::Object(all.map(|(name, value)| (name.clone(), value.clone())).collect()).to_string()
    }
}

pub async fn v1(State(app): State<App>, access: Access, Path(id): Path<String>) -> Result<axum::Json<Value>, ApiError> {
    let entries = entries(&app.sandboxes().get(&access.owner, &id)?);
    let lines = entries.iter().map(|entry| json!({"timestamp": entry.timestamp, "line": entry.line()}));
    Ok(axum::Json(json!({"logs": lines.collect::<Vec<_>>(), "logEntries": entries})))
}

pub async fn v2(State(app): State<App>, access: Access, Path(id): Path<String>) -> Result<axum::Json<Value>, ApiError> {
    let entries = entries(&app.sandboxes().get(&access.owner, &id)?);
    Ok(axum::Json(json!({"logs": entries})))
}

fn entries(record: &Record) -> Vec<Entry> {
    let entry = |ms: u64, level, message: String| Entry {
        timestamp: time::format(ms),
        level,
        message,
        fields: json!({"sandboxID": record.id}),
    };
    let mut entries = vec![entry(record.created_ms, "info", format!("created from {}", record.template()))];
    if record.started_ms > record.created_ms {
        entries.push(entry(record.started_ms, "info", "started".into()));
    }
    if let Some(failure) = &record.failure {
        entries.push(entry(record.started_ms, "error", failure.clone()));
    }
    entries
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_line_is_json_with_its_level_and_logger() {
        let entry = Entry {
            timestamp: "2026-01-01T00:00:00Z".into(),
            level: "info",
            message: "a \"line\"".into(),
            fields: json!({"sandboxID": "x"}),
        };
        let line: Value = serde_json::from_str(&entry.line()).unwrap();
        assert_eq!(
            (&line["level"], &line["logger"], &line["sandboxID"]),
            (&json!("info"), &json!("sandbox"), &json!("x"))
        );
        assert_eq!(line["message"], "a \"line\"");
    }
}
