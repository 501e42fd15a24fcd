//! `sloplet volume`

use serde_json::{Value, json};

use crate::api::{Server, encode};
use crate::cli::Volume;
use crate::table::{age, print};

pub async fn run(server: &Server, command: Volume) -> anyhow::Result<u8> {
    match command {
        Volume::Create { name, size, json: as_json } => {
            let made = server.post("/volumes", &json!({"name": name, "size": size})).await?;
            if as_json {
                say!("{made}");
            } else {
                say!("{}", made["name"].as_str().unwrap_or_default());
            }
        }
        Volume::Ls { json } => {
            let found = server.get("/volumes").await?;
            if json {
                say!("{}", serde_json::to_string_pretty(&found)?);
            } else {
                let rows: Vec<[String; 4]> = found.as_array().into_iter().flatten().map(row).collect();
                print(["NAME", "ID", "SIZE", "CREATED"], &rows);
            }
        }
        Volume::Rm { names } => {
            for name in names {
                server.delete(&format!("/volumes/{}", encode(&name))).await?;
            }
        }
    }
    Ok(0)
}

fn row(volume: &Value) -> [String; 4] {
    let text = |name: &str| volume[name].as_str().unwrap_or("-").to_owned();
    [text("name"), text("id"), text("size"), age(volume["created_ms"].as_u64().unwrap_or(0) / 1000)]
}
