//! `sloplet ls`

use std::collections::BTreeSet;

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
    let mut found = sandboxes(server, &query).await?;
    if as_json {
        // Lists are pasted and logged; 'info NAME --json' has it for those who need it.
        found.iter_mut().filter_map(Value::as_object_mut).for_each(|one| drop(one.remove("token")));
        say!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(0);
    }
    let rows: Vec<[String; 6]> = found.iter().map(row).collect();
    print(["NAME", "ID", "STATE", "IMAGE", "CREATED", "ENDS"], &rows);
    // Not among the rows, which others may count.
    let info = server.get("/info").await?;
    for line in verdicts(&walls_of(&found, &info), &super::info::verifications(&info)) {
        complain!("{line}");
    }
    Ok(0)
}

/// The walls that sandboxes are behind: those that were chosen by name, or else the first that works of their level.
fn walls_of<'a>(sandboxes: &'a [Value], info: &'a Value) -> BTreeSet<&'a str> {
    let usual = |level: &Value| {
        let drivers = info["drivers"].as_array().into_iter().flatten();
        let mut working = drivers.filter(|driver| driver["unavailable"].is_null() && driver["isolation"] == *level);
        working.next()?["driver"].as_str()
    };
    sandboxes.iter().filter_map(|one| one["driver"].as_str().or_else(|| usual(&one["isolation"]))).collect()
}

/// What is known of these walls, or of all if there are none: of each, what was found of itself.
fn verdicts(walls: &BTreeSet<&str>, known: &[(String, String)]) -> Vec<String> {
    let told = known.iter().filter(|(wall, _)| walls.is_empty() || walls.contains(wall.as_str()));
    let mut lines: Vec<String> = told.map(|(wall, line)| format!("{wall} verified {line}")).collect();
    // Where nothing ever was, nobody expects it.
    if !known.is_empty() {
        let unknown = walls.iter().filter(|wall| !known.iter().any(|(name, _)| name == *wall));
        lines.extend(unknown.map(|wall| format!("{wall} was never verified: run 'sloplet verify --driver {wall}'")));
    }
    lines
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_shown_with_the_verdict_of_its_own_wall() {
        let known =
            [("gvisor".to_owned(), "2 h ago: 1 PROBES GOT OUT".to_owned()), ("vm".to_owned(), "good".to_owned())];
        let info = serde_json::json!({"drivers": [
            {"driver": "first", "isolation": "container", "unavailable": "no"},
            {"driver": "namespaces", "isolation": "container"},
            {"driver": "crun", "isolation": "container"},
        ]});
        let sandboxes = [serde_json::json!({"isolation": "container"}), serde_json::json!({"driver": "vm"})];
        let walls = |count: usize| walls_of(&sandboxes[..count], &info);
        assert_eq!(verdicts(&walls_of(&sandboxes[1..], &info), &known), ["vm verified good"]);
        let lines = verdicts(&walls(1), &known);
        assert_eq!(lines, ["namespaces was never verified: run 'sloplet verify --driver namespaces'"]);
        assert_eq!(verdicts(&walls(0), &known).len(), 2);
        assert!(verdicts(&walls(2), &[]).is_empty());
    }
}
