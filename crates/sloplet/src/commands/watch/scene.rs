//! What is to be seen: sandboxes, processes, commands, the network.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use serde_json::Value;
use sloplet_ledger::event::Decision;
use sloplet_ledger::{Event, plain};

use super::Figures;
use crate::table::{dollars, size, time};
use crate::trail::{Line, describe};

/// So many commands, connections and other things are remembered.
const REMEMBERED: usize = 200;

/// How a row is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// A heading.
    Head,
    /// As usual.
    Usual,
    /// Well.
    Good,
    /// Refused, failed.
    Bad,
    /// Of less weight.
    Faint,
}

/// A row of the screen: text that steers no terminal.
pub type Row = (Tone, String);

/// What is known.
#[derive(Default)]
pub struct Scene {
    names: HashMap<String, String>,
    sandboxes: Vec<Row>,
    processes: Vec<Row>,
    commands: VecDeque<Command>,
    network: VecDeque<Row>,
    others: VecDeque<Row>,
    /// Processor time of each when it was last asked for.
    before: HashMap<String, (u64, Instant)>,
}

struct Command {
    exec: String,
    sandbox: String,
    time_ms: u64,
    text: String,
    ended: Option<(bool, String)>,
}

fn remember<T>(list: &mut VecDeque<T>, one: T) {
    list.push_back(one);
    if list.len() > REMEMBERED {
        list.pop_front();
    }
}

/// The time of day.
fn clock(ms: u64) -> String {
    time(ms).get(11..19).unwrap_or_default().to_owned()
}

impl Scene {
    /// Takes in a record.
    pub fn add(&mut self, line: &str) {
        let Some(line) = Line::parse(line) else { return };
        let sandbox = line.sandbox.clone().unwrap_or_default();
        let start = |scene: &Self| format!("{} {:<16.16}", clock(line.time_ms), scene.name(&sandbox));
        match line.event() {
            Event::ExecStarted(it) => {
                let text = plain(&describe::words(&it.argv)).into_owned();
                let exec = it.exec.to_string();
                remember(&mut self.commands, Command { exec, sandbox, time_ms: line.time_ms, text, ended: None });
            }
            Event::ExecEnded(it) => {
                let good = it.exit_code == Some(0);
                let how = format!("{}, {}", describe::outcome(&it), describe::span(it.duration_ms));
                let started = self.commands.iter_mut().rev().find(|command| command.exec == *it.exec);
                if let Some(command) = started {
                    command.ended = Some((good, how));
                }
            }
            Event::Egress(it) => {
                let tone = if it.decision == Decision::Denied { Tone::Bad } else { Tone::Usual };
                let text = format!(
                    "{} {:<8} {}  {}",
                    start(self),
                    describe::decision(it.decision),
                    plain(&describe::target(&it)),
                    plain(&it.reason)
                );
                remember(&mut self.network, (tone, text));
            }
            Event::Dns(it) => {
                let text =
                    format!("{} {:<8} {} (lookup)", start(self), describe::decision(it.decision), plain(&it.name));
                remember(&mut self.network, (Tone::Bad, text));
            }
            Event::EgressEnded(_) | Event::ApiCall(_) => {}
            event => {
                let tone = match event {
                    Event::BudgetHit(_) | Event::ApprovalAsked(_) => Tone::Bad,
                    _ => Tone::Faint,
                };
                let text = format!("{} {:<16} {}", start(self), line.kind(), describe::event(&event));
                remember(&mut self.others, (tone, plain(&text).into_owned()));
            }
        }
    }

    /// Takes in what sandboxes use now.
    pub fn measure(&mut self, all: &[Figures]) {
        let text = |value: &Value, name: &str| plain(value[name].as_str().unwrap_or("-")).into_owned();
        let mut before = HashMap::new();
        self.sandboxes.clear();
        self.processes.clear();
        for Figures { sandbox, usage, budget, processes } in all {
            let id = text(sandbox, "id");
            let name = sandbox["name"].as_str().map_or_else(|| id.clone(), |name| plain(name).into_owned());
            self.names.insert(id.clone(), name.clone());
            let state = text(sandbox, "state");
            let tone = match state.as_str() {
                "running" => Tone::Good,
                "failed" => Tone::Bad,
                _ => Tone::Faint,
            };
            if usage.is_null() {
                self.sandboxes.push((tone, format!("{name:<16.16} {state:<8}")));
                continue;
            }
            let number = |name: &str| usage[name].as_u64().unwrap_or(0);
            let now = Instant::now();
            let cpu = self.before.get(&id).map(|(cpu_us, when)| {
                let spent = number("cpu_us").saturating_sub(*cpu_us) as f64;
                spent / when.elapsed().as_micros().max(1) as f64
            });
            before.insert(id.clone(), (number("cpu_us"), now));
            let cpus = sandbox["cpus"].as_f64().unwrap_or(1.0);
            let share = |used: &str, most: &str| number(used) as f64 / number(most).max(1) as f64;
            let network = |name: &str| usage["network"][name].as_u64().unwrap_or(0);
            let row = format!(
                "{name:<16.16} {state:<8} cpu {} mem {} disk {} pids {:<4} net {} up {} down {} denied  {}",
                bar(cpu.unwrap_or(0.0) / cpus.max(0.001)),
                bar(share("memory_bytes", "memory_limit_bytes")),
                bar(share("disk_bytes", "disk_limit_bytes")),
                number("pids"),
                size(network("bytes_up")),
                size(network("bytes_down")),
                network("denied"),
                dollars(budget["micro_usd"].as_u64().unwrap_or(0)),
            );
            self.sandboxes.push((tone, row));
            for process in processes.as_array().into_iter().flatten().filter(|process| process["running"] == true) {
                let words: Vec<&str> =
                    process["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                let memory = size(process["rss_kib"].as_u64().unwrap_or(0) * 1024);
                let cpu = process["cpu_us"].as_u64().unwrap_or(0) as f64 / 1e6;
                let command: String = words.join(" ").chars().take(500).collect();
                let row = format!("{name:<16.16} {:>7} {memory:>10} {cpu:>8.2} s  {}", process["pid"], plain(&command));
                self.processes.push((Tone::Usual, row));
            }
        }
        self.before = before;
    }

    fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.names.get(id).map_or(id, String::as_str)
    }

    /// The rows of a screen of this height: of each part the newest that fit, and how many do not.
    pub fn rows(&self, height: usize) -> Vec<Row> {
        let heading = |text: &str| (Tone::Head, text.to_owned());
        let count = self.sandboxes.len();
        let mut rows = vec![heading(&format!("sloplet watch: {count} sandboxes, {} UTC (q quits)", now()))];
        let commands: Vec<Row> = self.commands.iter().map(|command| self.command(command)).collect();
        let parts = [
            ("SANDBOXES", self.sandboxes.clone(), false),
            ("PROCESSES", self.processes.clone(), false),
            ("COMMANDS", commands, true),
            ("NETWORK", self.network.iter().cloned().collect(), true),
            ("SPENDING, SECRETS, RULES", self.others.iter().cloned().collect(), true),
        ];
        // Each part may have an equal share of what those before it left over.
        let mut left = height.saturating_sub(rows.len());
        for (index, (title, part, newest)) in parts.iter().enumerate() {
            let share = (left / (parts.len() - index)).saturating_sub(1);
            if share == 0 {
                continue;
            }
            let shown = part.len().min(share);
            rows.push(heading(&match (part.len() - shown, newest) {
                (0, _) => (*title).to_owned(),
                (hidden, true) => format!("{title} (the newest; {hidden} older hidden)"),
                (hidden, false) => format!("{title} ({hidden} more hidden)"),
            }));
            rows.extend(if *newest { part[part.len() - shown..].to_vec() } else { part[..shown].to_vec() });
            left -= shown + 1;
        }
        rows
    }

    fn command(&self, command: &Command) -> Row {
        let (tone, how) = match &command.ended {
            None => (Tone::Good, "running"),
            Some((true, how)) => (Tone::Usual, how.as_str()),
            Some((false, how)) => (Tone::Bad, how.as_str()),
        };
        let Command { sandbox, time_ms, text, .. } = command;
        (tone, format!("{} {:<16.16} {how:<18} {text}", clock(*time_ms), self.name(sandbox)))
    }
}

fn now() -> String {
    clock(sloplet_engine::life::now_ms())
}

/// A part of a whole.
fn bar(share: f64) -> String {
    const WIDTH: usize = 8;
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let full = (share * WIDTH as f64).round() as usize;
    format!("[{}{}]{:>4.0}%", "#".repeat(full), ".".repeat(WIDTH - full), share * 100.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(event: &Value) -> String {
        json!({"seq": 1, "time_ms": 1_700_000_000_000_u64, "sandbox": "s1", "actor": "cli", "event": event}).to_string()
    }

    #[test]
    fn a_command_is_seen_from_its_start_to_its_end_and_steers_nothing() {
        let mut scene = Scene::default();
        scene.add(&record(&json!({"kind": "exec_started", "exec": "s1-1", "argv": ["echo", "\u{1b}[2Jhi"]})));
        assert!(scene.rows(40).iter().any(|(_, row)| row.contains("running") && row.contains("echo hi")));
        scene.add(&record(&json!({"kind": "exec_ended", "exec": "s1-1", "exit_code": 3, "duration_ms": 5})));
        let rows = scene.rows(40);
        assert!(rows.iter().any(|(tone, row)| *tone == Tone::Bad && row.contains("exit 3, 5 ms")), "{rows:?}");
        scene.add(&record(&json!({"kind": "egress", "name": "evil.example", "port": 443, "decision": "denied"})));
        let rows = scene.rows(40);
        assert!(rows.iter().any(|(tone, row)| *tone == Tone::Bad && row.contains("evil.example:443")), "{rows:?}");
        assert!(rows.iter().all(|(_, row)| !row.chars().any(char::is_control)));
    }

    #[test]
    fn eighty_by_twenty_four_tells_how_many_rows_are_hidden() {
        let mut scene = Scene::default();
        for number in 0..30 {
            let exec = format!("s1-{number}");
            scene.add(&record(&json!({"kind": "exec_started", "exec": exec, "argv": [number.to_string()]})));
        }
        let of = |id: usize| Figures {
            sandbox: json!({"id": format!("s{id}"), "state": "running"}),
            usage: Value::Null,
            budget: Value::Null,
            processes: Value::Null,
        };
        scene.measure(&(0..9).map(of).collect::<Vec<_>>());
        let rows = scene.rows(24);
        let heading = |title: &str| {
            let found = rows.iter().find(|(tone, row)| *tone == Tone::Head && row.starts_with(title));
            found.map(|(_, row)| row.clone()).unwrap_or_default()
        };
        let shown =
            |start: &str| rows.iter().filter(|(tone, row)| *tone == Tone::Good && row.starts_with(start)).count();
        let (sandboxes, commands) = (shown("s"), shown("22:13:20"));
        assert!(sandboxes > 0 && sandboxes < 9 && commands > 0 && commands < 30, "{rows:?}");
        assert_eq!(heading("SANDBOXES"), format!("SANDBOXES ({} more hidden)", 9 - sandboxes));
        assert_eq!(heading("COMMANDS"), format!("COMMANDS (the newest; {} older hidden)", 30 - commands));
        assert!(rows.len() <= 24, "{rows:?}");
        // Where all is seen, nothing is said.
        assert!(scene.rows(200).iter().all(|(_, row)| !row.contains("hidden")));
    }

    #[test]
    fn it_fits_any_screen() {
        let mut scene = Scene::default();
        for number in 0..1000 {
            let exec = format!("s1-{number}");
            scene.add(&record(&json!({"kind": "exec_started", "exec": exec, "argv": [number.to_string()]})));
        }
        for height in 0..60 {
            assert!(scene.rows(height).len() <= height.max(1), "{height}");
        }
        assert!(scene.rows(30).iter().any(|(_, row)| row.ends_with(" 999")), "the newest is there");
        assert_eq!(bar(0.5), "[####....]  50%");
        assert_eq!(bar(f64::NAN), "[........]   0%");
    }
}
