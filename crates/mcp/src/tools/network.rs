//! What the sandbox may reach, what it tried, and what it has spent.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use sloplet_policy::budget::Usd;
use sloplet_remote::encode;

use super::{Nothing, word};
use crate::answer::Answer;
use crate::call::Call;
use crate::catalogue::{About, Effect, Entry};
use crate::failure::Failure;

/// Tries that are told.
const TRIES: usize = 20;

/// Pages of the ledger that are looked at.
const PAGES: usize = 10;

/// The tools of this file.
pub fn entries() -> Vec<Entry> {
    let about = About {
        name: "network_status",
        group: "network",
        title: "Tell what the network allows",
        description: "Tell what the sandbox may reach, which connections and lookups were allowed or refused lately and why, \
                      and what of the budget is spent. Use it when something cannot be reached, to tell the user what to \
                      allow.",
        effect: Effect::Reads,
        begins: true,
    };
    vec![Entry::new(about, status)]
}

/// What the network allows.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Status {
    /// Whether every public address can be reached.
    internet: bool,
    /// What may be reached.
    allow: Vec<String>,
    /// What may not, whatever is allowed.
    deny: Vec<String>,
    /// What a person is asked about.
    ask: Vec<String>,
    /// The last tries, oldest first.
    tries: Vec<Try>,
    /// Dollars that were spent on LLM calls.
    spent_usd: f64,
    /// Dollars that may be spent.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_usd: Option<f64>,
    /// Whether the money is used up: nothing is left of it, or the last LLM call would have cost more than is.
    exhausted: bool,
}

/// A try to reach something.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Try {
    /// What was wanted.
    to: String,
    /// Whether it was let through.
    allowed: bool,
    /// Why.
    reason: String,
    /// When, in milliseconds since 1970.
    time_ms: u64,
}

async fn status(call: Call, _: Nothing) -> Result<Answer<Status>, Failure> {
    let way_out = call.get("/network").await?;
    let purse = call.get("/budget").await?;
    let sandbox = call.sandbox().await?;
    let (tries, was_too_dear) = tries(&call, &sandbox).await?;
    let rules = &way_out["rules"];
    let list = |name: &str| -> Vec<String> {
        let rules = rules[name].as_array().into_iter().flatten();
        rules.map(|rule| rule.as_str().map_or_else(|| rule.to_string(), str::to_owned)).collect()
    };
    let spent_usd = purse["micro_usd"].as_u64().unwrap_or(0) as f64 / 1e6;
    let budget: Option<Usd> = serde_json::from_value(purse["budget"]["usd"].clone()).unwrap_or_default();
    let budget_usd = budget.map(|usd| usd.micros as f64 / 1e6);
    let status = Status {
        internet: rules["internet"] == true,
        allow: list("allow"),
        deny: list("deny"),
        ask: list("ask"),
        tries,
        spent_usd,
        budget_usd,
        exhausted: was_too_dear || budget_usd.is_some_and(|budget| spent_usd >= budget),
    };
    Ok(Answer::new(status.text(), status))
}

impl Status {
    fn text(&self) -> String {
        let mut lines = Vec::new();
        match (self.internet, self.allow.is_empty()) {
            (true, _) => lines.push("may reach: every public address".to_owned()),
            (false, true) => lines.push("may reach: nothing".to_owned()),
            (false, false) => lines.push(format!("may reach: {}", self.allow.join(", "))),
        }
        for (title, list) in [("never", &self.deny), ("a person is asked about", &self.ask)] {
            if !list.is_empty() {
                lines.push(format!("{title}: {}", list.join(", ")));
            }
        }
        for one in &self.tries {
            let decision = if one.allowed { "allowed" } else { "refused" };
            lines.push(format!("{decision}: {} ({})", one.to, one.reason));
        }
        if let Some(budget) = self.budget_usd {
            let over = match (self.exhausted, self.spent_usd >= budget) {
                (false, _) => "",
                (true, true) => ": it is used up",
                (true, false) => {
                    ": it is used up, because what is left does not cover the most that the next call could cost"
                }
            };
            lines.push(format!("LLM calls: ${:.4} of ${budget:.4} spent{over}", self.spent_usd));
        }
        lines.push(
            "These rules are the user's. To allow more, they start this server with --allow HOST (or --budget-usd), or use \
             'sloplet net' on this sandbox."
                .to_owned(),
        );
        lines.join("\n")
    }
}

/// The last of what was tried, and whether the last LLM call was refused for its price. Names come from inside.
async fn tries(call: &Call, sandbox: &str) -> Result<(Vec<Try>, bool), Failure> {
    let (mut last, mut after, mut was_too_dear) = (VecDeque::new(), 0, false);
    for _ in 0..PAGES {
        let kinds = "egress,dns,budget_hit,spend";
        let address = format!("/audit?sandbox={}&kind={kinds}&limit=1000&after={after}", encode(sandbox));
        let page = call.server().get(&address).await?;
        for record in page["records"].as_array().into_iter().flatten() {
            match record["event"]["kind"].as_str() {
                Some("budget_hit") => was_too_dear |= record["event"]["budget"] == "usd",
                Some("spend") => was_too_dear &= record["event"]["decision"] != "allowed",
                _ => {}
            }
            last.extend(one(record));
            if last.len() > TRIES {
                last.pop_front();
            }
        }
        match page["next"].as_u64() {
            Some(next) => after = next,
            None => break,
        }
    }
    Ok((last.into(), was_too_dear))
}

fn one(record: &Value) -> Option<Try> {
    let event = &record["event"];
    let short = |text: String| text.chars().filter(|c| !c.is_control()).take(300).collect::<String>();
    let allowed = event["decision"] == "allowed";
    let (to, reason) = match event["kind"].as_str()? {
        "dns" => (format!("{} (lookup)", word(event, "name")), "no rule knows this name".to_owned()),
        "egress" => {
            let host = event["name"].as_str().or(event["address"].as_str()).unwrap_or("?");
            (format!("{host}:{}", event["port"]), word(event, "reason"))
        }
        "budget_hit" => {
            let which = word(event, "budget");
            ("the budget".to_owned(), format!("the cap '{which}' was reached ({})", word(event, "action")))
        }
        _ => return None,
    };
    Some(Try { to: short(to), allowed, reason: short(reason), time_ms: record["time_ms"].as_u64().unwrap_or(0) })
}
