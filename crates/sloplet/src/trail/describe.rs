//! A record in words, on one line. Whatever comes from inside is made harmless.

use serde_json::Value;
use sloplet_ledger::event::{Decision, Egress, ExecEnded, FileAction, OutputSummary, Seen, Spend};
use sloplet_ledger::{Event, Texts, plain};

use super::Line;
use crate::table::{dollars, size, time};

/// The whole record.
pub fn line(line: &Line) -> String {
    let sandbox = line.sandbox.as_deref().unwrap_or("-");
    let text = format!(
        "{}  {sandbox:<16}  {:<20}  {:<17}  {}",
        time(line.time_ms),
        line.actor,
        line.kind(),
        event(&line.event())
    );
    plain(text.trim_end()).into_owned()
}

/// What happened.
pub fn event(event: &Event) -> String {
    let text = match event {
        Event::SandboxCreated(it) => {
            let name = it.name.as_ref().map_or_else(String::new, |name| format!("'{name}' "));
            let network =
                serde_json::from_str(&it.network).map_or_else(|_| it.network.to_string(), |value| rules(&value));
            format!("{name}from {} ({}); network: {network}", it.image, it.isolation)
        }
        Event::SandboxChanged(it) => {
            format!("{} -> {}{}", it.from, it.to, it.reason.as_ref().map_or_else(String::new, |why| format!(": {why}")))
        }
        Event::SandboxGone(it) => format!("{} (it lived {})", it.reason, span(it.lifetime_ms)),
        Event::ExecStarted(it) => {
            let tty = if it.tty { " on a terminal" } else { "" };
            format!(
                "[{}] {} (in {} as {}{tty}; variables {})",
                it.exec,
                words(&it.argv),
                it.cwd,
                or_usual(&it.user),
                words(&it.env)
            )
        }
        Event::ExecEnded(it) => format!("[{}] {}", it.exec, ended(it)),
        Event::FileChanged(it) => {
            let action = match it.action {
                FileAction::Written => "wrote",
                FileAction::Removed => "removed",
                FileAction::Moved => "moved",
                FileAction::Read => "read",
            };
            let to = it.to.as_ref().map_or_else(String::new, |to| format!(" to {to}"));
            let bytes = it.bytes.map_or_else(String::new, |bytes| format!(", {bytes} bytes"));
            let digest = it.sha256.as_ref().map_or_else(String::new, |digest| format!(", sha256 {digest}"));
            format!("{action} {}{to}{bytes}{digest}", it.path)
        }
        Event::Egress(it) => format!("#{} {} {}: {}", it.connection, decision(it.decision), target(it), it.reason),
        Event::EgressEnded(it) => {
            let error = it.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
            let (up, down) = (size(it.bytes_up), size(it.bytes_down));
            format!("#{} sent {up}, received {down} in {}{error}", it.connection, span(it.duration_ms))
        }
        Event::Dns(it) => format!("{} {} {}", decision(it.decision), it.name, it.kind),
        Event::SecretUsed(it) => format!("{} for {} in {}", it.name, it.host, it.place),
        Event::Spend(it) => spend(it),
        Event::BudgetHit(it) => format!("{} is used up: {}", it.budget, it.action),
        Event::PolicyChanged(it) if &*it.policy == "network" => format!("network: {}", rules(&it.value)),
        Event::PolicyChanged(it) => format!("{}: {}", it.policy, it.value),
        Event::ApprovalAsked(it) => format!("[{}] {} (rule {})", it.approval, it.request, it.rule),
        Event::ApprovalAnswered(it) => format!("[{}] {} by {}", it.approval, decision(it.decision), it.by),
        Event::ApiCall(it) if it.from.is_some() || it.count.is_some() => {
            let from = it.from.as_ref().map_or_else(String::new, |from| format!(" from {from}"));
            let count = it.count.map_or_else(String::new, |count| format!(", the last of {count} like it"));
            format!("{} {} refused with {}{from}{count}", it.method, it.path, it.status)
        }
        Event::ApiCall(it) => {
            let via = it.via.as_ref().map_or_else(String::new, |via| format!(" via {via}"));
            format!("{} {} {} in {}{via}", it.method, it.path, it.status, span(it.duration_ms))
        }
        Event::Prompt(it) | Event::ToolCall(it) => seen(it),
        Event::DataMasked(it) => format!("{} (rules {})", it.path, it.rules),
        Event::Verification(it) => {
            let part = if it.complete { "" } else { " (a part of the probes)" };
            let counts = format!("{} contained, {} escaped, {} skipped", it.contained, it.escaped, it.skipped);
            format!("{}{part}: {counts}; report {}", it.driver, it.sha256)
        }
        Event::Note(it) => it.text.to_string(),
        Event::Unknown(value) => value.to_string(),
        other => serde_json::to_string(other).unwrap_or_default(),
    };
    plain(&text).into_owned()
}

/// Network rules, without what they leave at its usual.
fn rules(rules: &Value) -> String {
    let mut said: Vec<String> = Vec::new();
    for list in ["allow", "ask", "deny", "host_ports"] {
        let all = rules[list].as_array().map_or(&[][..], Vec::as_slice);
        let all: Vec<String> =
            all.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned)).collect();
        if !all.is_empty() {
            said.push(format!("{list} {}", all.join(" ")));
        }
    }
    if rules["internet"] == true {
        said.push("every public address".into());
    }
    if said.is_empty() { "none".into() } else { said.join(", ") }
}

/// Words as one would type them.
pub fn words(texts: &Texts) -> String {
    let quote = |word: &str| match word.is_empty()
        || word.contains(|c: char| c.is_whitespace() || "'\"$`\\;&|<>()".contains(c))
    {
        true => format!("'{}'", word.replace('\'', "'\\''")),
        false => word.to_owned(),
    };
    texts.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

/// How a command ended.
pub fn outcome(ended: &ExecEnded) -> String {
    match (ended.timed_out, ended.exit_code, ended.signal) {
        (true, ..) => "timed out".into(),
        (_, Some(code), _) => format!("exit {code}"),
        (_, _, Some(signal)) => format!("signal {signal}"),
        _ => "end not seen".into(),
    }
}

fn ended(it: &ExecEnded) -> String {
    let part = |name: &str, output: &Option<OutputSummary>| match output {
        Some(output) if output.bytes > 0 => {
            let kept = if output.stored { "" } else { ", not stored" };
            format!(", {name} {} bytes sha256 {}{kept}", output.bytes, output.sha256)
        }
        _ => String::new(),
    };
    format!(
        "{} after {}{}{}",
        outcome(it),
        span(it.duration_ms),
        part("stdout", &it.output),
        part("stderr", &it.stderr)
    )
}

/// Where a connection wanted to go.
pub fn target(it: &Egress) -> String {
    let host = it.name.as_ref().or(it.address.as_ref()).map_or("?", |host| host);
    format!("{host}:{} ({})", it.port, it.protocol)
}

fn spend(it: &Spend) -> String {
    let tokens = format!("{} tokens in ({} cached), {} out", it.input_tokens, it.cached_tokens, it.output_tokens);
    format!("{} {} {}: {tokens}, {}", decision(it.decision), it.provider, it.model, dollars(it.usd_micros))
}

fn seen(it: &Seen) -> String {
    let text = it.text.as_ref().map_or("", |text| text);
    let shown: String = text.chars().take(200).collect();
    format!("{}, {} bytes, sha256 {} {shown}", it.name, it.bytes, it.sha256)
}

/// A decision in a word.
pub fn decision(decision: Decision) -> &'static str {
    match decision {
        Decision::Allowed => "allowed",
        Decision::Denied => "denied",
        Decision::Asked => "asked",
    }
}

fn or_usual(user: &str) -> &str {
    if user.is_empty() { "the usual user" } else { user }
}

/// A time as people read it.
pub fn span(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..120_000 => format!("{:.1} s", ms as f64 / 1000.0),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        _ => format!("{:.1} h", ms as f64 / 3_600_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_inside_steers_the_terminal() {
        let hostile = "a\u{1b}[31mb\u{9b}2Jc\nd\u{202e}e";
        let record = serde_json::json!({
            "seq": 1, "time_ms": 1_700_000_000_123_u64, "sandbox": "s1", "actor": "cli",
            "event": {"kind": "exec_started", "exec": "s1-1", "argv": ["sh", hostile], "env": ["PATH"]},
        });
        let shown = line(&Line::parse(&record.to_string()).unwrap());
        assert!(shown.starts_with("2023-11-14 22:13:20.123  s1 "), "{shown}");
        assert!(shown.contains("abc d") && !shown.chars().any(char::is_control), "{shown:?}");
        assert!(!shown.contains('\u{202e}'));
    }
}
