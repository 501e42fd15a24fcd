//! `sloplet approve`

use serde_json::{Value, json};

use crate::api::Server;
use crate::cli::Approve;
use crate::table::{age, print};

pub async fn run(server: &Server, options: Approve) -> anyhow::Result<u8> {
    if let Some(id) = options.id {
        let answer = match (options.deny, options.always) {
            (true, _) => "deny",
            (_, true) => "always",
            _ => "once",
        };
        server.post(&format!("/approvals/{id}"), &json!({"answer": answer})).await?;
        return Ok(0);
    }
    let found = server.get("/approvals").await?;
    if options.json {
        say!("{}", serde_json::to_string_pretty(&found["approvals"])?);
        return Ok(0);
    }
    let rows: Vec<[String; 5]> = found["approvals"].as_array().into_iter().flatten().map(row).collect();
    print(["ID", "SANDBOX", "WANTS", "RULE", "ASKED"], &rows);
    Ok(0)
}

fn row(waiting: &Value) -> [String; 5] {
    let text = |name: &str| waiting[name].as_str().unwrap_or("-").to_owned();
    let host = waiting["name"].as_str().or(waiting["address"].as_str()).unwrap_or("?");
    let asked = age(waiting["asked_ms"].as_u64().unwrap_or(0) / 1000);
    [waiting["id"].to_string(), text("sandbox"), format!("{host}:{}", waiting["port"]), text("rule"), asked]
}
