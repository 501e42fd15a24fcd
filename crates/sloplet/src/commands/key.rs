//! `sloplet key`

use serde_json::{Value, json};

use crate::api::{Server, encode};
use crate::cli::Key;
use crate::table::{age, print};

pub async fn run(server: &Server, command: Key) -> anyhow::Result<u8> {
    match command {
        Key::Create { label, scope, max_sandboxes, max_memory, rate, json: as_json } => {
            let max_memory = max_memory.map(|size| size.to_string());
            let body = json!({
                "label": label, "scope": scope, "max_sandboxes": max_sandboxes, "max_memory": max_memory,
                "requests_per_minute": rate,
            });
            let made = server.post("/keys", &body).await?;
            if as_json {
                say!("{}", serde_json::to_string_pretty(&made)?);
            } else {
                say!("{}", made["secret"].as_str().unwrap_or_default());
                complain!("sloplet: this is shown once; send it as X-API-KEY, or set SLOPLET_API_KEY and SLOPLET_URL");
            }
        }
        Key::Ls { json } => {
            let found = server.get("/keys").await?;
            if json {
                say!("{}", serde_json::to_string_pretty(&found)?);
            } else {
                let rows: Vec<[String; 4]> = found.as_array().into_iter().flatten().map(row).collect();
                print(["ID", "LABEL", "SCOPE", "CREATED"], &rows);
            }
        }
        Key::Rm { ids } => {
            for id in ids {
                server.delete(&format!("/keys/{}", encode(&id))).await?;
            }
        }
    }
    Ok(0)
}

fn row(key: &Value) -> [String; 4] {
    let text = |name: &str| key[name].as_str().unwrap_or("-").to_owned();
    [text("id"), text("label"), text("scope"), age(key["created_ms"].as_u64().unwrap_or(0) / 1000)]
}
