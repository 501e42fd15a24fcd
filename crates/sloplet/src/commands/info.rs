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
    Ok(0)
}
