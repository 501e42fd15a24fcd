//! `sloplet ps`

use serde_json::Value;

use crate::api::{Server, encode};
use crate::table::{print, size};

pub async fn run(server: &Server, name: &str, as_json: bool) -> anyhow::Result<u8> {
    let found = server.get(&format!("/sandboxes/{}/processes", encode(name))).await?;
    if as_json {
        say!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(0);
    }
    let rows: Vec<[String; 6]> = found.as_array().into_iter().flatten().map(row).collect();
    print(["PID", "STATE", "MEMORY", "CPU", "TAG", "COMMAND"], &rows);
    Ok(0)
}

fn row(process: &Value) -> [String; 6] {
    let state = match (process["running"].as_bool(), process["exit"]["exit_code"].as_i64()) {
        (Some(true), _) => "running".to_owned(),
        (_, Some(code)) => format!("exited {code}"),
        _ => "gone".to_owned(),
    };
    let memory = process["rss_kib"].as_u64().map_or_else(|| "-".into(), |kib| size(kib * 1024));
    let cpu = process["cpu_us"].as_u64().map_or_else(|| "-".into(), |us| format!("{:.2} s", us as f64 / 1e6));
    let words = process["command"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let command: String = words.collect::<Vec<_>>().join(" ").chars().take(200).collect();
    let tag = process["tag"].as_str().unwrap_or("-").to_owned();
    [process["pid"].to_string(), state, memory, cpu, tag, command]
}
