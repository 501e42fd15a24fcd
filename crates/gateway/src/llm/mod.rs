//! LLM APIs: which requests cost money, what they ask for, what they came to.

mod request;
mod scan;
mod sse;
mod usage;

pub(crate) use request::Call;
pub(crate) use sse::Sse;
pub(crate) use usage::Seen;

use hyper::Method;
use serde::{Deserialize, Serialize};

/// Whose form an API has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Anthropic's Messages.
    Anthropic,
    /// OpenAI's, which many others have, too.
    OpenAi,
}

impl Shape {
    /// Its name in events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
        }
    }

    /// A refusal as this API words it, so that its packages raise their own error with the text.
    pub(crate) fn error(self, kind: Refused, message: &str) -> String {
        let value = match self {
            Self::Anthropic => {
                let kind = match kind {
                    Refused::Budget => "billing_error",
                    Refused::Rate => "rate_limit_error",
                    Refused::Request => "invalid_request_error",
                };
                serde_json::json!({"type": "error", "error": {"type": kind, "message": message}})
            }
            Self::OpenAi => {
                let (kind, code) = match kind {
                    Refused::Budget => ("insufficient_quota", "sloplet_budget"),
                    Refused::Rate => ("requests", "rate_limit_exceeded"),
                    Refused::Request => ("invalid_request_error", "sloplet_refused"),
                };
                serde_json::json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
            }
        };
        value.to_string()
    }
}

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It does not fit the budget.
    Budget,
    /// Too many in a minute.
    Rate,
    /// It cannot be counted.
    Request,
}

/// Hosts that are known to serve LLM APIs. Where nothing is priced, a dollar cap refuses and says so.
pub(crate) const KNOWN_HOSTS: [(&str, Shape); 13] = [
    ("api.anthropic.com", Shape::Anthropic),
    ("api.openai.com", Shape::OpenAi),
    ("*.api.openai.com", Shape::OpenAi),
    ("*.openai.azure.com", Shape::OpenAi),
    ("generativelanguage.googleapis.com", Shape::OpenAi),
    ("openrouter.ai", Shape::OpenAi),
    ("inference.do-ai.run", Shape::OpenAi),
    ("api.mistral.ai", Shape::OpenAi),
    ("api.groq.com", Shape::OpenAi),
    ("api.deepseek.com", Shape::OpenAi),
    ("api.x.ai", Shape::OpenAi),
    ("api.together.xyz", Shape::OpenAi),
    ("api.fireworks.ai", Shape::OpenAi),
];

/// An endpoint that costs money and says how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Messages,
    Chat,
    Responses,
    Completions,
    Embeddings,
}

impl Endpoint {
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
        }
    }

    pub fn shape(self) -> Shape {
        if self == Self::Messages { Shape::Anthropic } else { Shape::OpenAi }
    }
}

/// What a request to an LLM API is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It costs money, and its answer says how much.
    Metered(Endpoint),
    /// It costs nothing.
    Free,
    /// Nobody knows what it costs.
    Unknown,
}

/// What a request is, by method and path.
///
/// Only paths that can be read in one way: a server may fold `//`, `%6d` or `..`, so what holds these is unknown.
pub(crate) fn kind(shape: Shape, method: &Method, path: &str) -> Kind {
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::DELETE) {
        return Kind::Free;
    }
    let plain = path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.:".contains(&byte));
    let segments = || path.split('/').skip(1);
    if *method != Method::POST || !plain || segments().any(|part| part.is_empty() || part.starts_with('.')) {
        return Kind::Unknown;
    }
    let parts: Vec<&str> = segments().collect();
    match parts.as_slice() {
        [.., "messages", "count_tokens"] | [.., "responses", "input_tokens"] => Kind::Free,
        [.., "v1", "messages"] => Kind::Metered(Endpoint::Messages),
        [.., "messages"] if shape == Shape::Anthropic && parts.len() == 1 => Kind::Metered(Endpoint::Messages),
        [.., "chat", "completions"] => Kind::Metered(Endpoint::Chat),
        [.., "completions"] => Kind::Metered(Endpoint::Completions),
        [.., "responses"] => Kind::Metered(Endpoint::Responses),
        [.., "embeddings"] => Kind::Metered(Endpoint::Embeddings),
        [.., "responses", _, "cancel"] => Kind::Free,
        ["v1", "moderations" | "files" | "vector_stores"] => Kind::Free,
        _ => Kind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_read_in_one_way_is_known() {
        let post = |shape, path| kind(shape, &Method::POST, path);
        for (path, expected) in [
            ("/v1/messages", Kind::Metered(Endpoint::Messages)),
            ("/anthropic/v1/messages", Kind::Metered(Endpoint::Messages)),
            ("/v1/messages/count_tokens", Kind::Free),
            ("/v1/messages/batches", Kind::Unknown),
            ("/v1/complete", Kind::Unknown),
            ("/v1//messages", Kind::Unknown),
            ("/v1/messages/", Kind::Unknown),
            ("/v1/%6dessages", Kind::Unknown),
            ("/v1/x/../messages", Kind::Unknown),
            ("/v1/Messages", Kind::Unknown),
        ] {
            assert_eq!(post(Shape::Anthropic, path), expected, "{path}");
        }
        for (path, expected) in [
            ("/v1/chat/completions", Kind::Metered(Endpoint::Chat)),
            ("/api/v1/chat/completions", Kind::Metered(Endpoint::Chat)),
            ("/v1/completions", Kind::Metered(Endpoint::Completions)),
            ("/v1/responses", Kind::Metered(Endpoint::Responses)),
            ("/v1/embeddings", Kind::Metered(Endpoint::Embeddings)),
            ("/v1/images/generations", Kind::Unknown),
            ("/v1/threads/t/messages", Kind::Unknown),
            ("/v1/batches", Kind::Unknown),
        ] {
            assert_eq!(post(Shape::OpenAi, path), expected, "{path}");
        }
        assert_eq!(kind(Shape::OpenAi, &Method::GET, "/v1/models"), Kind::Free);
        assert_eq!(kind(Shape::OpenAi, &Method::PUT, "/v1/responses"), Kind::Unknown);
    }
}
