//! `sloplet cost`

use std::path::PathBuf;

use serde_json::Value;
use sloplet_engine::cost::{KINDS, Summing};
use sloplet_engine::life::now_ms;
use sloplet_gateway::Prices;
use sloplet_ledger::{Filter, LedgerError, Reader};

use crate::cli::{Cost, Which};
use crate::setup;
use crate::table::{dollars, print};
use crate::trail::{self, Trail, describe::span};

pub fn run(data: Option<PathBuf>, options: Cost) -> anyhow::Result<u8> {
    let places = setup::places(data.clone())?;
    let found = setup::runtime()?.block_on(async {
        match Trail::find(data).await? {
            Trail::Here(folder) => {
                let since = options.since.map_or(0, |span| now_ms().saturating_sub(span.0.as_millis() as u64));
                let sandbox = options.name.as_deref().map(|name| trail::sandbox(&folder, name)).transpose()?;
                let kinds = KINDS.iter().map(|kind| (*kind).to_owned()).collect();
                let mut summing = Summing::new(since, now_ms(), Prices::load(&places.prices())?.compute());
                for record in Reader::new(&folder, Filter { sandbox, kinds, ..Filter::default() }) {
                    match record {
                        Err(LedgerError::Damaged { .. }) => {}
                        record => summing.add(&record?),
                    }
                }
                anyhow::Ok(serde_json::to_value(summing.finish())?)
            }
            Trail::There(server) => {
                let which = Which { name: options.name, kind: Vec::new(), since: options.since };
                server.get(&format!("/cost?{}", trail::query(&which).trim_start_matches('&'))).await
            }
        }
    })?;
    if options.json {
        say!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(0);
    }
    let sandboxes = found["sandboxes"].as_array().into_iter().flatten();
    let mut rows: Vec<[String; 9]> = sandboxes.map(|one| row(one["sandbox"].as_str().unwrap_or("-"), one)).collect();
    rows.push(row("TOTAL", &found["total"]));
    print(["SANDBOX", "NAME", "RUNNING", "TIME", "CALLS", "REFUSED", "TOKENS", "LLM", "DOLLARS"], &rows);
    if found["rates"]["cpu_hour"] == 0.0 && found["rates"]["memory_gib_hour"] == 0.0 {
        complain!("sloplet: time is not priced: see 'sloplet cost --help'");
    }
    Ok(0)
}

fn row(id: &str, figures: &Value) -> [String; 9] {
    let number = |name: &str| figures[name].as_u64().unwrap_or(0);
    [
        id.to_owned(),
        sloplet_ledger::plain(figures["name"].as_str().unwrap_or("-")).into_owned(),
        span(number("running_ms")),
        dollars(number("compute_micro_usd")),
        number("calls").to_string(),
        number("calls_refused").to_string(),
        number("input_tokens").saturating_add(number("output_tokens")).to_string(),
        dollars(number("tokens_micro_usd")),
        dollars(number("total_micro_usd")),
    ]
}
