//! `sloplet ls`

use serde_json::Value;

use super::create::pairs;
use crate::api::{Server, encode};
use crate::table::{age, ahead, print};

pub async fn run(server: &Server, all: bool, metadata: &[String], as_json: bool) -> anyhow::Result<u8> {
    let mut query = String::from("limit=1000");
    if !all {
        query.push_str("&state=creating,running,paused");
    }
    let wanted = pairs("--metadata", metadata)?;
    if !wanted.is_empty() {
        let pairs: Vec<String> =
            wanted.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
        query.push_str(&format!("&metadata={}", encode(&pairs.join("&"))));
    }
    let found = sandboxes(server, &query).await?;
    if as_json {
        say!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(0);
    }
    let rows: Vec<[String; 6]> = found.iter().map(row).collect();
    print(["NAME", "ID", "STATE", "IMAGE", "CREATED", "ENDS"], &rows);
    // Not among the rows, which others may count.
    if let Some(line) = super::info::verification(&server.get("/info").await?) {
        complain!("walls verified {line}");
    }
    Ok(0)
}

/// All that match, page by page.
pub async fn sandboxes(server: &Server, query: &str) -> anyhow::Result<Vec<Value>> {
    let mut found = Vec::new();
    let mut cursor = String::new();
    loop {
        let mut page = server.get(&format!("/sandboxes?{query}{cursor}")).await?;
        if let Some(sandboxes) = page["sandboxes"].as_array_mut() {
            found.append(sandboxes);
        }
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={}", encode(next)),
            None => return Ok(found),
        }
    }
}

fn row(sandbox: &Value) -> [String; 6] {
    let text = |name: &str| sandbox[name].as_str().unwrap_or("-").to_owned();
    let seconds = |name: &str| sandbox[name].as_u64().map(|time| time / 1000);
    let ends = seconds("ends_ms").map_or_else(|| "never".into(), ahead);
    [text("name"), text("id"), text("state"), text("image"), age(seconds("created_ms").unwrap_or(0)), ends]
}
