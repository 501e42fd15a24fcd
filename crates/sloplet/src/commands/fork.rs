//! `sloplet fork`

use serde_json::json;

use crate::api::{Server, encode};
use crate::progress::ProgressLine;
use crate::terminal;

/// What they start from.
pub enum Source {
    /// A sandbox's files as they are now.
    Sandbox(String),
    /// A snapshot with memory.
    Snapshot(String),
}

pub async fn run(
    server: &Server,
    source: Source,
    count: u16,
    new_name: Option<String>,
    as_json: bool,
) -> anyhow::Result<u8> {
    let mut body = json!({"count": count});
    if let Some(new_name) = new_name {
        body["name"] = new_name.into();
    }
    let path = match source {
        Source::Sandbox(name) => format!("/sandboxes/{}/fork", encode(&name)),
        Source::Snapshot(name) => format!("/snapshots/{}/fork", encode(&name)),
    };
    let made = {
        let _line = ProgressLine::of("forking");
        server.post(&path, &body).await?
    };
    if as_json {
        say!("{}", serde_json::to_string_pretty(&made)?);
    } else {
        for sandbox in made["sandboxes"].as_array().into_iter().flatten() {
            say!("{}", sandbox["name"].as_str().or(sandbox["id"].as_str()).unwrap_or_default());
        }
    }
    let failures: Vec<&str> =
        made["failures"].as_array().into_iter().flatten().filter_map(|one| one.as_str()).collect();
    for failure in &failures {
        complain!("sloplet: {}", terminal::harmless(failure));
    }
    Ok(if failures.is_empty() { 0 } else { crate::FAILURE })
}
