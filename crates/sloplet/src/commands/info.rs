//! `sloplet info`

use crate::api::Server;
use crate::terminal;

pub async fn run(server: &Server, as_json: bool) -> anyhow::Result<u8> {
    let info = server.get("/info").await?;
    if as_json {
        say!("{}", serde_json::to_string_pretty(&info)?);
        return Ok(0);
    }
    for name in ["version", "url", "domain", "scope", "pid", "data"] {
        let text = match &info[name] {
            serde_json::Value::Null => continue,
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        say!("{name:<8} {}", terminal::harmless(&text));
    }
    if let Some(line) = verification(&info) {
        say!("verified {line}");
    }
    Ok(0)
}

/// The newest verification in words.
pub fn verification(info: &serde_json::Value) -> Option<String> {
    let latest = &info["verification"];
    let when = crate::table::age(latest["at_ms"].as_u64()? / 1000);
    let count = |name: &str| latest[name].as_u64().unwrap_or(0);
    Some(match latest["passed"].as_bool() {
        Some(true) => format!(
            "{when}: nothing got out ({} probes contained, {} inconclusive)",
            count("contained"),
            count("inconclusive")
        ),
        _ => format!("{when}: {} PROBES GOT OUT (see 'sloplet verify')", count("breaches")),
    })
}
