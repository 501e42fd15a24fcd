//! `sloplet net`

use std::collections::{HashMap, VecDeque};

use hyper::Method;
use serde_json::{Value, json};
use sloplet_ledger::Event;

use super::audit;
use crate::api::{Server, encode};
use crate::cli::{Net, Which};
use crate::table::{print, size, time};
use crate::trail::{Line, Trail, describe};

/// So many tries are shown.
const SHOWN: usize = 100;

/// What tells of the network.
const KINDS: [&str; 3] = ["egress", "egress_ended", "dns"];

pub async fn run(server: &Server, options: Net) -> anyhow::Result<u8> {
    let path = format!("/sandboxes/{}/network", encode(&options.name));
    let mut way_out = server.get(&path).await?;
    if !(options.allow.is_empty() && options.deny.is_empty() && options.remove.is_empty()) {
        change(&mut way_out["rules"], &options)?;
        way_out = server.ask(Method::PUT, &path, Some(&way_out["rules"])).await?;
        if options.json {
            say!("{}", serde_json::to_string_pretty(&way_out)?);
        } else {
            show_rules(&way_out["rules"]);
        }
        return Ok(0);
    }
    let kind = KINDS.iter().map(|kind| (*kind).to_owned()).collect();
    let which = Which { name: Some(options.name.clone()), kind, since: None };
    let trail = Trail::There(server.clone());
    let mut tries = Tries::default();
    let last = trail.read(&which, |line| tries.add(line)).await?;
    if options.json && !options.follow {
        way_out["tries"] = tries.list.iter().map(Try::json).collect();
        say!("{}", serde_json::to_string_pretty(&way_out)?);
        return Ok(0);
    }
    if !options.json {
        show_rules(&way_out["rules"]);
        show_traffic(&way_out["traffic"]);
        tries.print();
    }
    if options.follow {
        trail.follow(&which, last, |line| audit::print(line, options.json)).await?;
    }
    Ok(0)
}

/// Changes the lists of rules.
fn change(rules: &mut Value, options: &Net) -> anyhow::Result<()> {
    for rule in &options.remove {
        let mut found = false;
        for list in ["allow", "deny", "ask"] {
            let Some(list) = rules[list].as_array_mut() else { continue };
            let before = list.len();
            list.retain(|one| one.as_str() != Some(&rule.to_string()));
            found |= list.len() < before;
        }
        anyhow::ensure!(found, "there is no rule '{rule}' to remove");
    }
    for (list, more) in [("allow", &options.allow), ("deny", &options.deny)] {
        let Some(list) = rules[list].as_array_mut() else { continue };
        for rule in more {
            let rule = json!(rule.to_string());
            if !list.contains(&rule) {
                list.push(rule);
            }
        }
    }
    Ok(())
}

fn show_rules(rules: &Value) {
    let list = |name: &str| {
        let rules = rules[name].as_array().into_iter().flatten();
        rules.map(|rule| rule.as_str().map_or_else(|| rule.to_string(), str::to_owned)).collect::<Vec<_>>().join(", ")
    };
    let mut said = false;
    for (name, title) in
        [("allow", "may reach"), ("ask", "asks for"), ("deny", "never"), ("host_ports", "ports of the host")]
    {
        let list = list(name);
        if !list.is_empty() {
            say!("{}", crate::terminal::harmless(&format!("{title}: {list}")));
            said = true;
        }
    }
    if rules["internet"] == true {
        say!("may reach: every public address");
    } else if !said {
        say!("may reach: nothing");
    }
}

fn show_traffic(traffic: &Value) {
    let number = |name: &str| traffic[name].as_u64().unwrap_or(0);
    say!(
        "so far: {} allowed, {} denied, {} over a limit, {} open; sent {}, received {}; {} lookups, {} of them refused",
        number("allowed"),
        number("denied"),
        number("limited"),
        number("open"),
        size(number("bytes_up")),
        size(number("bytes_down")),
        number("lookups"),
        number("lookups_denied")
    );
}

/// The last connections and lookups.
#[derive(Default)]
struct Tries {
    list: VecDeque<Try>,
    /// How many are no longer in the list.
    gone: u64,
    /// Where connections are, counted from the first try ever.
    connections: HashMap<u64, u64>,
}

struct Try {
    time_ms: u64,
    target: String,
    decision: &'static str,
    reason: String,
    moved: Option<(u64, u64)>,
    connection: u64,
}

impl Tries {
    fn add(&mut self, line: &str) -> bool {
        let Some(line) = Line::parse(line) else { return true };
        let (target, decision, reason, connection) = match line.event() {
            Event::Egress(it) => {
                (describe::target(&it), describe::decision(it.decision), it.reason.to_string(), it.connection)
            }
            Event::Dns(it) => {
                let decision = describe::decision(it.decision);
                (format!("{} ({} lookup)", it.name, it.kind), decision, "no rule knows this name".into(), 0)
            }
            Event::EgressEnded(it) => {
                let at = self.connections.remove(&it.connection).and_then(|at| at.checked_sub(self.gone));
                if let Some(one) = at.and_then(|at| self.list.get_mut(at as usize)) {
                    one.moved = Some((it.bytes_up, it.bytes_down));
                }
                return true;
            }
            _ => return true,
        };
        if self.list.len() == SHOWN
            && let Some(first) = self.list.pop_front()
        {
            self.gone += 1;
            self.connections.remove(&first.connection);
        }
        if connection > 0 {
            self.connections.insert(connection, self.gone + self.list.len() as u64);
        }
        self.list.push_back(Try { time_ms: line.time_ms, target, decision, reason, moved: None, connection });
        true
    }

    fn print(&self) {
        let rows: Vec<[String; 6]> = self.list.iter().map(Try::row).collect();
        print(["TIME", "TO", "DECISION", "SENT", "RECEIVED", "WHY"], &rows);
    }
}

impl Try {
    fn row(&self) -> [String; 6] {
        let plain = |text: &str| sloplet_ledger::plain(text).into_owned();
        let moved = |bytes: Option<u64>| bytes.map_or_else(|| "-".into(), size);
        let (up, down) = (moved(self.moved.map(|moved| moved.0)), moved(self.moved.map(|moved| moved.1)));
        [time(self.time_ms), plain(&self.target), self.decision.to_owned(), up, down, plain(&self.reason)]
    }

    fn json(&self) -> Value {
        json!({
            "time_ms": self.time_ms, "to": self.target, "decision": self.decision, "reason": self.reason,
            "bytes_up": self.moved.map(|moved| moved.0), "bytes_down": self.moved.map(|moved| moved.1),
        })
    }
}
