//! `sloplet audit verify`

use std::path::PathBuf;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use sloplet_ledger::{Head, Known, PublicKey, plain, verify};

use crate::api::encode;
use crate::trail::Trail;

/// Something is wrong with the record.
const UNSOUND: u8 = 1;

pub async fn run(trail: &Trail, heads: &[PathBuf], key: Option<PublicKey>, as_json: bool) -> anyhow::Result<u8> {
    let heads = heads.iter().map(read).collect::<anyhow::Result<Vec<Head>>>()?;
    let found = match trail {
        Trail::Here(data) => {
            let report = verify(data, &Known { key, heads })?;
            let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
            json!({"sound": report.is_sound(), "problems": problems, "report": report})
        }
        Trail::There(server) => {
            let mut query = key.map(|key| format!("key={key}&")).unwrap_or_default();
            match &heads[..] {
                [] => {}
                [head] => query.push_str(&format!("head={}", encode(&serde_json::to_string(head)?))),
                _ => bail!("a server takes one head at a time"),
            }
            server.get(&format!("/audit/verify?{query}")).await?
        }
    };
    if as_json {
        say!("{}", serde_json::to_string_pretty(&found)?);
    } else {
        tell(&found);
    }
    Ok(if found["sound"] == true { 0 } else { UNSOUND })
}

fn read(path: &PathBuf) -> anyhow::Result<Head> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_str(text.trim())
        .with_context(|| format!("{} is not a head: see 'sloplet audit head'", path.display()))
}

fn tell(found: &Value) {
    let report = &found["report"];
    let number = |name: &str| report[name].as_u64().unwrap_or(0);
    let problems = found["problems"].as_array().map_or(&[][..], Vec::as_slice);
    for problem in problems {
        say!("{}", plain(problem.as_str().unwrap_or_default()));
    }
    let more = number("problem_count").saturating_sub(problems.len() as u64);
    if more > 0 {
        say!("and {more} more");
    }
    let word = if found["sound"] == true { "sound" } else { "NOT SOUND" };
    match number("records") {
        0 => say!("{word}: nothing is recorded"),
        records => say!(
            "{word}: {records} records ({} to {}), signed up to {} with the key {}",
            number("first_seq"),
            number("last_seq"),
            number("signed_seq"),
            plain(report["key"].as_str().unwrap_or("-"))
        ),
    }
    if let Some(pruned) = report["pruned"].as_object() {
        say!("records up to {} were removed on purpose", pruned.get("seq").unwrap_or(&Value::Null));
    }
}
