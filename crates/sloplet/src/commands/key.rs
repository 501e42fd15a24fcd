//! `sloplet key`

use std::io::Read;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use sloplet_server::ssh::PublicKey;

use crate::api::{Server, encode};
use crate::cli::{Key, SshKeys};
use crate::table::{age, print};

/// Bytes of a file with a public key that are read; the server says what is too much.
const MOST: u64 = 64 * 1024;

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
        Key::Ssh(command) => return ssh(server, command).await,
        Key::Rm { ids } => {
            for id in ids {
                server.delete(&format!("/keys/{}", encode(&id))).await?;
            }
        }
    }
    Ok(0)
}

async fn ssh(server: &Server, command: SshKeys) -> anyhow::Result<u8> {
    match command {
        SshKeys::Add { file, label, json: as_json } => {
            let text = match file.as_os_str() == "-" {
                true => std::io::read_to_string(std::io::stdin().take(MOST)).context("standard input")?,
                false => {
                    let open = std::fs::File::open(&file);
                    open.and_then(|open| std::io::read_to_string(open.take(MOST)))
                        .with_context(|| file.display().to_string())?
                }
            };
            // Before it is sent: it may be a private key.
            if let Err(reason) = PublicKey::parse(&text) {
                bail!("{}: {reason}", file.display());
            }
            let made = server.post("/ssh-keys", &json!({"public_key": text.trim(), "label": label})).await?;
            if as_json {
                say!("{}", serde_json::to_string_pretty(&made)?);
            } else {
                say!("{}", made["fingerprint"].as_str().unwrap_or_default());
            }
        }
        SshKeys::Ls { json } => {
            let found = server.get("/ssh-keys").await?;
            if json {
                say!("{}", serde_json::to_string_pretty(&found)?);
            } else {
                let row = |key: &Value| {
                    let text = |name: &str| key[name].as_str().unwrap_or("-").to_owned();
                    [
                        text("id"),
                        text("label"),
                        text("fingerprint"),
                        age(key["created_ms"].as_u64().unwrap_or(0) / 1000),
                    ]
                };
                let rows: Vec<[String; 4]> = found.as_array().into_iter().flatten().map(row).collect();
                print(["ID", "LABEL", "FINGERPRINT", "ADDED"], &rows);
            }
        }
        SshKeys::Rm { keys } => {
            for key in keys {
                server.delete(&format!("/ssh-keys/{}", encode(&key))).await?;
            }
        }
    }
    Ok(0)
}

fn row(key: &Value) -> [String; 4] {
    let text = |name: &str| key[name].as_str().unwrap_or("-").to_owned();
    [text("id"), text("label"), text("scope"), age(key["created_ms"].as_u64().unwrap_or(0) / 1000)]
}
