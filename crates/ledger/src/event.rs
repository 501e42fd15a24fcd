//! What can be recorded.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::text::{LongText, Name, Text, Texts};

/// One thing that happened. In JSON, `kind` names the variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A sandbox was made.
    SandboxCreated(SandboxCreated),
    /// It changed state.
    SandboxChanged(SandboxChanged),
    /// It is no more.
    SandboxGone(SandboxGone),
    /// A command was started.
    ExecStarted(ExecStarted),
    /// A command ended.
    ExecEnded(ExecEnded),
    /// A file was changed through the API.
    FileChanged(FileChanged),
    /// A connection was tried.
    Egress(Egress),
    /// A connection that was let through has ended.
    EgressEnded(EgressEnded),
    /// A name was asked for.
    Dns(Dns),
    /// A secret was put into a request.
    SecretUsed(SecretUsed),
    /// Money was reserved, spent or refused.
    Spend(Spend),
    /// A cap was reached.
    BudgetHit(BudgetHit),
    /// Rules were changed.
    PolicyChanged(PolicyChanged),
    /// A person is asked.
    ApprovalAsked(ApprovalAsked),
    /// A person, or the clock, has answered.
    ApprovalAnswered(ApprovalAnswered),
    /// The API was called.
    ApiCall(ApiCall),
    /// Something was said to a model.
    Prompt(Seen),
    /// A model asked for a tool.
    ToolCall(Seen),
    /// Data was masked before it went in.
    DataMasked(DataMasked),
    /// The walls were tried.
    Verification(Verification),
    /// Anything else.
    Note(Note),
    /// Written by the ledger itself: what was found broken when it was opened.
    Recovered(Recovered),
    /// Written by the ledger itself: old segments were removed on purpose.
    Pruned(Pruned),
    /// Written by the ledger itself in place of an event that was too large.
    Oversize(Oversize),
    /// A kind that this version does not know, as it was read.
    #[serde(untagged)]
    Unknown(Value),
}

/// What `kind` can be.
pub const KINDS: [&str; 24] = [
    "sandbox_created",
    "sandbox_changed",
    "sandbox_gone",
    "exec_started",
    "exec_ended",
    "file_changed",
    "egress",
    "egress_ended",
    "dns",
    "secret_used",
    "spend",
    "budget_hit",
    "policy_changed",
    "approval_asked",
    "approval_answered",
    "api_call",
    "prompt",
    "tool_call",
    "data_masked",
    "verification",
    "note",
    "recovered",
    "pruned",
    "oversize",
];

/// Of what it was made and with which walls.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxCreated {
    /// Its name, if it was given one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// What it started from.
    pub image: Text,
    /// The isolation level.
    pub isolation: Name,
    /// The driver.
    pub driver: Name,
    /// Memory, CPUs and the like, as in the API.
    pub limits: Value,
    /// Host folders and volumes, as `from:to:mode`.
    pub mounts: Texts,
    /// The network rules in brief.
    pub network: Text,
}

/// From one state into another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxChanged {
    /// The state before.
    pub from: Name,
    /// The state after.
    pub to: Name,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Text>,
}

/// The end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxGone {
    /// Why: asked for, timed out, failed.
    pub reason: Text,
    /// How long it lived.
    pub lifetime_ms: u64,
}

/// A command as it was asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecStarted {
    /// Ties it to its end.
    pub exec: Name,
    /// Program and arguments.
    pub argv: Texts,
    /// Where.
    pub cwd: Text,
    /// Which variables were set; never their values.
    pub env: Texts,
    /// As whom.
    pub user: Name,
    /// Whether it has a terminal.
    pub tty: bool,
}

/// How a command ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecEnded {
    /// Ties it to its beginning.
    pub exec: Name,
    /// The code it exited with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that killed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// How long it ran.
    pub duration_ms: u64,
    /// Whether its time was up.
    pub timed_out: bool,
    /// What it printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputSummary>,
    /// What it printed to stderr, if that was kept apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<OutputSummary>,
}

/// An output, without its content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputSummary {
    /// How much there was in all.
    pub bytes: u64,
    /// Of all of it.
    pub sha256: Name,
    /// Whether it went to the output store.
    pub stored: bool,
    /// Whether the stored copy lacks its middle.
    pub truncated: bool,
}

/// What was done to a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileAction {
    /// Made or overwritten.
    #[default]
    Written,
    /// Removed.
    Removed,
    /// Moved to [`FileChanged::to`].
    Moved,
    /// Read out of the sandbox.
    Read,
}

/// A file changed through the API.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileChanged {
    /// How.
    pub action: FileAction,
    /// Which.
    pub path: Text,
    /// Where it went.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Text>,
    /// Its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Of its content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Name>,
}

/// What a rule said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Let through.
    Allowed,
    /// Refused.
    #[default]
    Denied,
    /// A person is to decide.
    Asked,
}

/// A connection that was tried.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Egress {
    /// Ties it to its end.
    pub connection: u64,
    /// The name that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// The address that was dialed or wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Name>,
    /// The port.
    pub port: u16,
    /// `tcp`, `tls`, `http`, …
    pub protocol: Name,
    /// Whether it was let through.
    pub decision: Decision,
    /// The rule that decided, or why none did.
    pub reason: Text,
}

/// A connection that ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EgressEnded {
    /// Ties it to its beginning.
    pub connection: u64,
    /// Out of the sandbox.
    pub bytes_up: u64,
    /// Into the sandbox.
    pub bytes_down: u64,
    /// How long it was open.
    pub duration_ms: u64,
    /// Why it ended, if not by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Text>,
}

/// A question to the resolver.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// The name.
    pub name: Name,
    /// `A`, `AAAA`, …
    #[serde(rename = "type")]
    pub kind: Name,
    /// Whether it was answered.
    pub decision: Decision,
}

/// A secret by its name, never its value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SecretUsed {
    /// The secret's name.
    pub name: Name,
    /// The host it was sent to.
    pub host: Name,
    /// `header x-api-key`, `query`, `body`.
    #[serde(rename = "where")]
    pub place: Text,
}

/// A call that costs money. Dollars are in millionths.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spend {
    /// Whose API.
    pub provider: Name,
    /// Which model.
    pub model: Name,
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// Of those read, from the cache.
    pub cached_tokens: u64,
    /// What it cost.
    pub usd_micros: u64,
    /// What was set aside before it.
    pub reserved_usd_micros: u64,
    /// Whether it was let through.
    pub decision: Decision,
    /// The budget it counts towards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
    /// The connection it came over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
}

/// A cap that was reached.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetHit {
    /// `usd`, `tokens`, `exec_per_minute`, …
    pub budget: Name,
    /// The budget's group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
    /// The cap, in the budget's own unit.
    pub limit: u64,
    /// What was used.
    pub used: u64,
    /// `deny`, `pause` or `kill`.
    pub action: Name,
}

/// Rules before and after.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyChanged {
    /// `network`, `budget`, `secrets`, …
    pub policy: Name,
    /// SHA-256 of the old one.
    pub before: Name,
    /// SHA-256 of the new one.
    pub after: Name,
    /// The new one.
    pub value: Value,
}

/// A question to a person.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApprovalAsked {
    /// Ties it to the answer.
    pub approval: Name,
    /// What is to be done.
    pub request: Text,
    /// The rule that asks.
    pub rule: Text,
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApprovalAnswered {
    /// Ties it to the question.
    pub approval: Name,
    /// What was answered.
    pub decision: Decision,
    /// By whom; the clock is `timeout`.
    pub by: Name,
}

/// A request to the API.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApiCall {
    /// GET, POST, …
    pub method: Name,
    /// The route, with its parameters' names.
    pub path: Text,
    /// What was answered.
    pub status: u16,
    /// The id of the key, never the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Name>,
    /// Where it came from, if it was refused at the door.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Name>,
    /// How many there were like this one since the last such record, if more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The front end that asked, and on whose behalf, as it says itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<Name>,
    /// How long it took.
    pub duration_ms: u64,
}

/// A prompt or a call of a tool, seen on its way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// The model or the tool.
    pub name: Name,
    /// SHA-256 of all of it.
    pub sha256: Name,
    /// Its size.
    pub bytes: u64,
    /// Its beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<LongText>,
}

/// Data that was masked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataMasked {
    /// Where it went.
    pub path: Text,
    /// SHA-256 of the original.
    pub source: Name,
    /// SHA-256 of the rules.
    pub rules: Name,
    /// SHA-256 of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Name>,
}

/// The outcome of probing the walls.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verification {
    /// SHA-256 of the full report.
    pub sha256: Name,
    /// Probes that were contained.
    pub contained: u64,
    /// Probes that got out.
    pub escaped: u64,
    /// Probes that could not be tried.
    pub skipped: u64,
    /// What was verified: a digest of configuration, wall, kernel and binary.
    pub digest: Name,
    /// The wall.
    pub driver: Name,
    /// Whether every probe ran.
    pub complete: bool,
}

/// Free text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Note {
    /// The text.
    pub text: Text,
}

/// What was found broken, and mended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recovered {
    /// Half a record at the end, from a process that died while it wrote; cut off.
    pub torn_bytes: u64,
    /// Records that a signed head knows of and that are gone; their numbers are not given again.
    pub lost_records: u64,
    /// Lines at the end that are not records; left as they are.
    pub damaged_lines: u64,
    /// Records of this process that could not be written, for instance on a full disk.
    pub unwritten_records: u64,
}

/// What was removed on purpose.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pruned {
    /// The last segment that went.
    pub through_segment: u32,
    /// The last record that went.
    pub through_seq: u64,
    /// How many bytes went.
    pub bytes: u64,
}

/// What stands for an event that was too large.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Oversize {
    /// Its kind.
    pub of: Name,
    /// Its size as JSON.
    pub bytes: u64,
    /// SHA-256 of its JSON.
    pub sha256: Name,
}

impl Event {
    /// A note.
    pub fn note(text: impl Into<Text>) -> Self {
        Self::Note(Note { text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_a_tag() {
        let event = Event::ExecStarted(ExecStarted { argv: ["ls", "-l"].into_iter().collect(), ..Default::default() });
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json["kind"], "exec_started");
        assert_eq!(json["argv"][1], "-l");
        assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
    }

    #[test]
    fn all_kinds_are_known() {
        for kind in KINDS {
            let event: Event = serde_json::from_value(serde_json::json!({"kind": kind})).unwrap();
            assert!(!matches!(event, Event::Unknown(_)), "{kind}");
        }
    }

    #[test]
    fn later_kinds_and_fields_are_read() {
        let later = serde_json::json!({"kind": "teleported", "to": "mars"});
        assert_eq!(serde_json::from_value::<Event>(later.clone()).unwrap(), Event::Unknown(later));
        let more = serde_json::json!({"kind": "note", "text": "a", "colour": "red"});
        assert_eq!(serde_json::from_value::<Event>(more).unwrap(), Event::note("a"));
        let other = serde_json::json!({"kind": "api_call", "status": "teapot"});
        assert_eq!(serde_json::from_value::<Event>(other.clone()).unwrap(), Event::Unknown(other));
    }
}
