//! `sloplet info`

use anyhow::Context;
use serde_json::Value;
use sloplet_policy::report::Summary;

use crate::api::{Server, encode};
use crate::terminal;

pub async fn run(server: &Server, sandbox: Option<&str>, as_json: bool) -> anyhow::Result<u8> {
    let info = match sandbox {
        Some(name) => server.get(&format!("/sandboxes/{}", encode(name))).await?,
        None => server.get("/info").await?,
    };
    if as_json {
        say!("{}", serde_json::to_string_pretty(&info)?);
        return Ok(0);
    }
    match sandbox {
        Some(_) => about_sandbox(info)?,
        None => about_server(&info),
    }
    Ok(0)
}

fn lines(info: &Value, names: &[&str]) {
    for name in names {
        let text = match &info[*name] {
            Value::Null => continue,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        say!("{name:<9} {}", terminal::harmless(&text));
    }
}

fn about_sandbox(mut info: Value) -> anyhow::Result<()> {
    lines(&info, &["id", "name", "state", "image", "isolation"]);
    let wall = info["wall"].take();
    if !wall.is_null() {
        let wall: Summary = serde_json::from_value(wall).context("what the server says of its wall")?;
        say!("driver    {}", terminal::harmless(&wall.driver));
        say!("wall      {wall}");
    }
    lines(&info, &["memory", "cpus", "pids", "disk", "gpu", "failure"]);
    Ok(())
}

fn about_server(info: &Value) {
    lines(info, &["version", "url", "domain", "scope", "pid", "data"]);
    if let Some(fingerprint) = info["ssh"]["fingerprint"].as_str() {
        let address = info["ssh"]["address"].as_str().unwrap_or("by 'sloplet ssh' alone");
        say!("ssh       {}, host key {}", terminal::harmless(address), terminal::harmless(fingerprint));
    }
    for (wall, line) in verifications(info) {
        say!("verified  {wall}, {line}");
    }
}

/// The newest verification of each wall in words, by the wall's name.
pub fn verifications(info: &Value) -> Vec<(String, String)> {
    let name = |latest: &Value| terminal::harmless(latest["driver"].as_str().unwrap_or("a wall")).to_string();
    let all = info["verifications"].as_array().into_iter().flatten();
    all.filter_map(|latest| Some((name(latest), verification(latest)?))).collect()
}

/// A verification in words.
fn verification(latest: &Value) -> Option<String> {
    let when = crate::table::age(latest["started_ms"].as_u64()? / 1000);
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
