//! `sloplet snapshot`

use anyhow::Context;
use serde_json::{Value, json};

use super::archive;
use crate::api::{Server, encode};
use crate::cli::{Snapshot, Snapshots};
use crate::progress::ProgressLine;
use crate::table::{age, print, size};

pub async fn run(server: &Server, options: Snapshot) -> anyhow::Result<u8> {
    match options.command {
        None => {
            let name = options.name.context("name a sandbox")?;
            let mut body = options.new_name.map_or_else(|| json!({}), |name| json!({"name": name}));
            if !options.exclude.is_empty() {
                body["exclude"] = options.exclude.into();
            }
            if options.memory {
                body["memory"] = true.into();
            }
            let made = {
                let _line = ProgressLine::of("saving the sandbox");
                server.post(&format!("/sandboxes/{}/snapshot", encode(&name)), &body).await?
            };
            if options.json {
                say!("{}", serde_json::to_string_pretty(&made)?);
            } else {
                say!("{}", made["name"].as_str().or(made["id"].as_str()).unwrap_or_default());
            }
        }
        Some(Snapshots::Ls { json }) => {
            let found = server.get("/snapshots").await?;
            if json {
                say!("{}", serde_json::to_string_pretty(&found)?);
            } else {
                let rows: Vec<[String; 5]> = found.as_array().into_iter().flatten().map(row).collect();
                print(["NAME", "ID", "IMAGE", "CHANGED", "CREATED"], &rows);
            }
        }
        Some(Snapshots::Export { name, to, thin, files_only, json }) => {
            archive::export(server, &name, to.as_deref(), thin, files_only, json).await?;
        }
        Some(Snapshots::Import { from, name, json }) => archive::import(server, &from, name.as_deref(), json).await?,
        Some(Snapshots::Rm { names }) => {
            for name in names {
                server.delete(&format!("/snapshots/{}", encode(&name))).await?;
            }
        }
    }
    Ok(0)
}

fn row(snapshot: &Value) -> [String; 5] {
    let text = |name: &str| snapshot[name].as_str().unwrap_or("-").to_owned();
    let created = snapshot["created_ms"].as_u64().unwrap_or(0) / 1000;
    [text("name"), text("id"), text("image"), size(snapshot["bytes"].as_u64().unwrap_or(0)), age(created)]
}
