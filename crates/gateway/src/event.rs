//! What the gateway tells: secrets used, calls made, what was refused.

use std::sync::Arc;

use serde::Serialize;
use sloplet_policy::budget::AtCap;

use crate::account::Cap;

/// Who is told. Called from the connections' tasks: it must not block for long.
pub type Events = Arc<dyn Fn(Event) + Send + Sync>;

/// Something that happened. No event holds a secret's value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A secret was put into a request.
    SecretUsed {
        /// On which connection.
        connection: u64,
        /// The secret's name.
        name: String,
        /// To which host.
        host: String,
        /// `header`, `query` or `body`.
        place: &'static str,
    },
    /// A placeholder was sent where its value must not go. It stayed a placeholder.
    PlaceholderLeaving {
        /// On which connection.
        connection: u64,
        /// The secret's name.
        name: String,
        /// To which host.
        host: String,
        /// `header`, `query` or `body`.
        place: &'static str,
    },
    /// An LLM call, answered or refused.
    LlmCall(Box<LlmCall>),
    /// A request was not passed on.
    Refused {
        /// On which connection.
        connection: u64,
        /// To which host.
        host: String,
        /// As the client was told.
        reason: String,
    },
    /// The budget is used up. Told once for each budget that was set.
    CapReached {
        /// Which of its caps.
        which: Cap,
        /// What was asked to happen now.
        at_cap: AtCap,
        /// In words.
        message: String,
    },
}

/// An LLM call.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LlmCall {
    /// On which connection.
    pub connection: u64,
    /// To which host.
    pub host: String,
    /// `anthropic` or `openai`: whose form it had.
    pub provider: &'static str,
    /// Which of its endpoints: `messages`, `chat`, `responses`, `completions`, `embeddings`.
    pub endpoint: &'static str,
    /// The model that was asked for.
    pub model: String,
    /// Whether the answer came piece by piece.
    pub stream: bool,
    /// Tokens in, without those of the cache.
    pub input_tokens: u64,
    /// Tokens out.
    pub output_tokens: u64,
    /// Tokens read from the cache.
    pub cache_read: u64,
    /// Tokens written to the cache.
    pub cache_write: u64,
    /// What it cost; nothing if the model has no price.
    pub cost_micro_usd: Option<u64>,
    /// What was kept back for it.
    pub reserved_micro_usd: u64,
    /// Tokens kept back for it.
    pub reserved_tokens: u64,
    /// `allowed` or `refused`.
    pub decision: &'static str,
    /// Why it was refused; or why the worst case was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the client was answered.
    pub status: u16,
    /// From the request's end to the answer's.
    pub duration_ms: u64,
    /// SHA-256 of the request's body as the client sent it.
    pub request_sha256: String,
    /// Its size.
    pub request_bytes: u64,
    /// The answer's size.
    pub response_bytes: u64,
    /// The end of the conversation: what is new in this call. Cut.
    pub prompt: String,
    /// Names of the tools that the model called.
    pub tool_calls: Vec<String>,
}
