//! What egress and gateway tell, in the ledger's words.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use sloplet_egress::{Answer, Ask, Event as Seen, Pending, Protocol, Request};
use sloplet_gateway::account::{Cap, Reached};
use sloplet_gateway::{Event as Counted, LlmCall};
use sloplet_ledger::event::{
    ApprovalAnswered, ApprovalAsked, BudgetHit, Decision, Dns, Egress, EgressEnded, Note, SecretUsed, Spend,
};
use sloplet_ledger::{Event, event};

use super::{AtCapDo, Denied, DeniedDo};
use crate::journal::Journal;
use crate::pace::Pace;

/// Attempts that got nothing out and are written down one by one: so many at once, and then so many a second. The others are
/// counted.
const ATTEMPTS: (f64, f64) = (2000.0, 50.0);

/// Writes down what an egress tells. What got out is always written down; of a flood of attempts that did not, the number is.
pub(super) fn of_egress(journal: Journal, denied: DeniedDo) -> Arc<dyn Fn(Seen) + Send + Sync> {
    let attempts = Attempts(journal, Mutex::new((Pace::new(ATTEMPTS.0, ATTEMPTS.1), 0)));
    Arc::new(move |seen| {
        if let Some(one) = refused(&seen) {
            denied(one);
        }
        attempts.note(seen)
    })
}

/// A journal, how fast attempts may be written there, and how many were not.
struct Attempts(Journal, Mutex<(Pace, u64)>);

impl Attempts {
    fn note(&self, seen: Seen) {
        if matches!(seen, Seen::Lookup { .. } | Seen::Denied { .. } | Seen::Failed { .. }) {
            let missed = {
                let mut state = self.1.lock().unwrap_or_else(PoisonError::into_inner);
                if !state.0.spend(1.0, Instant::now()) {
                    state.1 += 1;
                    return;
                }
                std::mem::take(&mut state.1)
            };
            self.tell(missed);
        }
        self.0.note_by("sandbox", network(seen));
    }

    fn tell(&self, missed: u64) {
        if missed > 0 {
            let text = format!("{missed} more attempts to reach the network got nothing out: too many to list");
            self.0.note_by("sandbox", Event::Note(Note { text: text.into() }));
        }
    }
}

impl Drop for Attempts {
    fn drop(&mut self) {
        let missed = self.1.get_mut().unwrap_or_else(PoisonError::into_inner).1;
        self.tell(missed);
    }
}

fn refused(seen: &Seen) -> Option<Denied> {
    match seen {
        Seen::Lookup { name, reason, .. } => {
            Some(Denied { place: name.clone(), port: None, by_rule: reason.contains("rule '") })
        }
        Seen::Denied { name, address, port, reason, .. } => {
            let place = name.clone().or_else(|| address.map(|address| address.to_string()))?;
            Some(Denied { place, port: Some(*port), by_rule: reason.contains("rule '") })
        }
        _ => None,
    }
}

fn network(seen: Seen) -> Event {
    let tried =
        |connection, name: Option<String>, address: Option<IpAddr>, port, protocol, decision, reason: String| {
            Event::Egress(Egress {
                connection,
                name: name.map(Into::into),
                address: address.map(|address| address.to_string().into()),
                port,
                protocol: word(protocol).into(),
                decision,
                reason: reason.into(),
            })
        };
    match seen {
        Seen::Lookup { name, record, reason: _ } => {
            Event::Dns(Dns { name: name.into(), kind: record.into(), decision: Decision::Denied })
        }
        Seen::Asked { connection, name, address, port, rule } => {
            tried(connection, name, address, port, None, Decision::Asked, rule)
        }
        Seen::Allowed { connection, name, address, port, protocol, rule } => {
            tried(connection, name, address, port, Some(protocol), Decision::Allowed, rule)
        }
        Seen::Denied { connection, name, address, port, protocol, reason } => {
            tried(connection, name, address, port, protocol, Decision::Denied, reason)
        }
        Seen::Failed { connection, name, address, port, reason } => {
            tried(connection, name, address, port, None, Decision::Allowed, format!("could not be reached: {reason}"))
        }
        Seen::Closed { connection, up, down, duration_ms } => {
            Event::EgressEnded(EgressEnded { connection, bytes_up: up, bytes_down: down, duration_ms, error: None })
        }
        Seen::Limited { limit, count } => {
            Event::Note(Note { text: format!("network limit {limit} hit {count} times").into() })
        }
    }
}

fn word(protocol: Option<Protocol>) -> &'static str {
    match protocol {
        Some(Protocol::Tls) => "tls",
        Some(Protocol::Http) => "http",
        Some(Protocol::Raw) | None => "tcp",
    }
}

/// Writes down what a gateway tells, and acts when the budget is used up.
pub(super) fn of_gateway(journal: Journal, group: Option<String>, at_cap: AtCapDo) -> sloplet_gateway::Events {
    Arc::new(move |counted| {
        let note = |event| journal.note_by("sandbox", event);
        match counted {
            Counted::SecretUsed { name, host, place, .. } => {
                note(Event::SecretUsed(SecretUsed { name: name.into(), host: host.into(), place: place.into() }));
            }
            Counted::PlaceholderLeaving { name, host, place, .. } => {
                let text =
                    format!("the placeholder of {name} was sent to {host} ({place}), which may not see its value");
                note(Event::Note(Note { text: text.into() }));
            }
            Counted::Refused { host, reason, .. } => {
                note(Event::Note(Note { text: format!("a request to {host} was refused: {reason}").into() }));
            }
            Counted::LlmCall(call) => of_call(&call, group.as_deref()).into_iter().for_each(note),
            Counted::CapReached { which, at_cap: action, message } => {
                let action_word = format!("{action:?}").to_lowercase();
                note(Event::BudgetHit(BudgetHit {
                    budget: cap(which).into(),
                    group: group.as_deref().map(Into::into),
                    action: action_word.into(),
                    ..BudgetHit::default()
                }));
                at_cap(&Reached { which, at_cap: action, message });
            }
        }
    })
}

fn cap(which: Cap) -> &'static str {
    match which {
        Cap::Usd => "usd",
        Cap::Tokens => "tokens",
        Cap::RequestsPerMinute => "requests_per_minute",
        Cap::ExecPerMinute => "exec_per_minute",
    }
}

/// What a call cost, what was said, and which tools were asked for.
fn of_call(call: &LlmCall, group: Option<&str>) -> Vec<Event> {
    let allowed = call.decision == "allowed";
    let spend = Spend {
        provider: call.provider.into(),
        model: call.model.as_str().into(),
        input_tokens: call.input_tokens,
        output_tokens: call.output_tokens,
        cached_tokens: call.cache_read,
        usd_micros: call.cost_micro_usd.unwrap_or(0),
        reserved_usd_micros: call.reserved_micro_usd,
        decision: if allowed { Decision::Allowed } else { Decision::Denied },
        group: group.map(Into::into),
        connection: Some(call.connection),
    };
    let prompt = event::Seen {
        name: call.model.as_str().into(),
        sha256: call.request_sha256.as_str().into(),
        bytes: call.request_bytes,
        text: (!call.prompt.is_empty()).then(|| call.prompt.as_str().into()),
    };
    let tool = |name: &String| Event::ToolCall(event::Seen { name: name.as_str().into(), ..event::Seen::default() });
    [Event::Prompt(prompt), Event::Spend(spend)].into_iter().chain(call.tool_calls.iter().map(tool)).collect()
}

/// Asks, and writes down what was asked and answered.
pub(super) struct Recorded {
    ask: Arc<dyn Ask>,
    journal: Journal,
}

impl Recorded {
    pub(super) fn new(ask: Arc<dyn Ask>, journal: Journal) -> Self {
        Self { ask, journal }
    }
}

impl Ask for Recorded {
    fn ask(&self, request: Request) -> Pending<'static, Answer> {
        let approval = format!("connection-{}", request.connection);
        let place = match (&request.name, request.address) {
            (Some(name), _) => name.clone(),
            (None, Some(address)) => address.to_string(),
            (None, None) => String::new(),
        };
        self.journal.note_by(
            "sandbox",
            Event::ApprovalAsked(ApprovalAsked {
                approval: approval.as_str().into(),
                request: format!("connect to {place}:{}", request.port).into(),
                rule: request.rule.as_str().into(),
            }),
        );
        let mut answered = Unanswered { journal: self.journal.clone(), approval: Some(approval) };
        let answer = self.ask.ask(request);
        Box::pin(async move {
            let answer = answer.await;
            let decision = if answer == Answer::Deny { Decision::Denied } else { Decision::Allowed };
            answered.note(decision, "a person");
            answer
        })
    }
}

/// If nobody answers in time, that is the answer.
struct Unanswered {
    journal: Journal,
    approval: Option<String>,
}

impl Unanswered {
    fn note(&mut self, decision: Decision, by: &str) {
        if let Some(approval) = self.approval.take() {
            self.journal.note(Event::ApprovalAnswered(ApprovalAnswered {
                approval: approval.into(),
                decision,
                by: by.into(),
            }));
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.note(Decision::Denied, "timeout");
    }
}
