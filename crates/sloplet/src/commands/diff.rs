//! `sloplet diff`

use std::io::IsTerminal;

use anyhow::bail;
use serde_json::{Value, json};

use crate::api::{Server, encode};
use crate::table::size;

pub async fn run(server: &Server, name: &str, paths: &[String], as_json: bool) -> anyhow::Result<u8> {
    let paths: Vec<&str> = paths.iter().map(|path| path.trim_end_matches('/')).collect();
    if let Some(path) = paths.iter().find(|path| !path.is_empty() && !path.starts_with('/')) {
        bail!("{path}: give absolute paths inside, like /home/user");
    }
    // One comparison, whatever is asked for: two would be of different moments.
    let below = match paths[..] {
        [path] if !path.is_empty() => format!("?path={}", encode(path)),
        _ => String::new(),
    };
    let mut found = server.get(&format!("/sandboxes/{}/changes{below}", encode(name))).await?;
    let wanted = |change: &Value| {
        let own = change["path"].as_str().unwrap_or_default();
        let inside = |path: &&str| own.strip_prefix(*path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        paths.is_empty() || paths.iter().any(inside)
    };
    let mut changes = match found["changes"].take() {
        Value::Array(changes) => changes,
        _ => Vec::new(),
    };
    changes.retain(wanted);
    if as_json {
        found["changes"] = json!(changes);
        say!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(0);
    }
    let coloured = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    for change in &changes {
        say!("{}", line(change, coloured));
    }
    if found["truncated"] == true {
        complain!("sloplet: note: there are more changes than can be told: name a folder");
    }
    Ok(0)
}

/// What happened, to what, and how.
fn line(change: &Value, coloured: bool) -> String {
    let text = |name: &str| change[name].as_str().unwrap_or_default();
    let (letter, colour) = match text("change") {
        "added" => ('A', "32"),
        "deleted" => ('D', "31"),
        "modified" => ('M', "33"),
        _ => ('m', "36"),
    };
    // A name can hold anything that would steer a terminal, or end the line.
    let path: String = text("path").chars().flat_map(char::escape_debug).collect();
    let folder = if text("kind") == "directory" { "/" } else { "" };
    let mut notes = Vec::new();
    match (change["size_before"].as_u64(), change["size"].as_u64()) {
        (Some(before), Some(now)) if letter == 'M' => notes.push(format!("{} → {}", size(before), size(now))),
        (None, Some(now)) => notes.push(size(now)),
        _ => {}
    }
    if let Some(kind) = change["kind_before"].as_str() {
        notes.push(format!("{kind} → {}", text("kind")));
    }
    if let (Some(before), Some(now)) = (change["mode_before"].as_str(), change["mode"].as_str())
        && change["kind_before"].is_null()
        && (before != now || letter == 'm')
    {
        notes.push(if before == now { "owner".into() } else { format!("{before} → {now}") });
    }
    let notes = if notes.is_empty() { String::new() } else { format!("  ({})", notes.join(", ")) };
    match coloured {
        true => format!("\x1b[{colour}m{letter} {path}{folder}\x1b[0m{notes}"),
        false => format!("{letter} {path}{folder}{notes}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_happened_and_no_name_steers_the_terminal() {
        let change = json!({"path": "/a\u{1b}[2J\n\u{202e}ü", "change": "modified", "kind": "file", "size": 3, "size_before": 5,
            "mode": "0755", "mode_before": "0644"});
        assert_eq!(line(&change, false), "M /a\\u{1b}[2J\\n\\u{202e}ü  (5 B → 3 B, 0644 → 0755)");
        let change =
            json!({"path": "/d", "change": "mode", "kind": "directory", "mode": "0755", "mode_before": "0755"});
        assert_eq!(line(&change, true), "\x1b[36mm /d/\x1b[0m  (owner)");
    }
}
