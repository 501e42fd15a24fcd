//! What a call asks for: the model, the worst case of what it may come to, and what is new in it.

use bytes::Bytes;
use ring::digest;
use serde_json::value::RawValue;

use super::scan::{Fields, Last, Types, scan};
use super::{Endpoint, Shape};
use crate::prices::{Price, Usage};

/// Bytes of the conversation's end that go into events.
const PROMPT: usize = 4096;

/// Tokens that an API adds of its own: instructions for tools, marks between messages.
const ADDED: u64 = 1024;

/// For a model without a price whose call does not bound its answer: what today's longest answers have.
const LONGEST_ANSWER: u64 = 128_000;

/// Tools that the client runs. All others are run by the API, which then reads what they give: there is no bound to that.
const CLIENT_TOOLS: [&str; 7] =
    ["function", "custom", "local_shell", "shell", "apply_patch", "computer_use_preview", "computer"];
const CLIENT_TOOL_BEGINNINGS: [&str; 4] = ["bash_", "text_editor_", "computer_", "memory_"];

/// A call, read.
#[derive(Debug)]
pub(crate) struct Call {
    pub model: String,
    pub stream: bool,
    /// What is sent on: as it came, or with usage asked for.
    pub body: Bytes,
    /// Usage was asked for, and the client had not asked.
    pub usage_added: bool,
    pub bytes: u64,
    pub sha256: String,
    pub prompt: String,
    /// Why its worst case is not known, if it is not.
    pub unbounded: Option<String>,
    max_output: Option<u64>,
    answers: u64,
    images: u64,
    opaque: bool,
    cached: bool,
    cached_1h: bool,
}

/// A body that is not a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("the request's body is not a JSON object that can be read in one way: {0}")]
    Json(serde_json::Error),
    #[error("the request's body is not UTF-8")]
    Text,
    #[error("the request names no model")]
    Model,
}

impl Call {
    /// Reads a request's body.
    pub fn read(endpoint: Endpoint, body: Bytes) -> Result<Self, CallError> {
        let text = std::str::from_utf8(&body).map_err(|_| CallError::Text)?;
        let Fields(fields) = serde_json::from_str(text).map_err(CallError::Json)?;
        let raw = |name: &str| {
            let field = fields.iter().find(|(key, _)| key == name);
            field.map(|(_, value)| value.get()).filter(|&value| value != "null")
        };
        let string = |name: &str| raw(name).and_then(|value| serde_json::from_str::<String>(value).ok());
        let number = |name: &str| raw(name).map(whole);
        let model = string("model").ok_or(CallError::Model)?;
        let stream = raw("stream") == Some("true");

        let mut call = Self {
            model: printable(&model, 200),
            stream,
            bytes: body.len() as u64,
            sha256: hex(digest::digest(&digest::SHA256, &body).as_ref()),
            prompt: String::new(),
            unbounded: None,
            max_output: None,
            answers: 1,
            images: 0,
            opaque: false,
            cached: false,
            cached_1h: false,
            body: Bytes::new(),
            usage_added: false,
        };
        for name in ["messages", "system", "input", "prompt", "tools", "instructions", "cache_control"] {
            if let Some(value) = raw(name) {
                let found = scan(value, 0);
                call.images = call.images.saturating_add(found.images);
                call.opaque |= found.opaque;
                call.cached |= found.cached || name == "cache_control";
                call.cached_1h |= found.cached_1h;
            }
        }
        // OpenAI's writes to caches unasked, for as long as it likes.
        call.cached_1h |= endpoint.shape() == Shape::OpenAi;
        // What is read from where the API keeps it is not in the request.
        call.opaque |= ["previous_response_id", "conversation"].iter().any(|name| raw(name).is_some());
        call.opaque |= endpoint == Endpoint::Responses && raw("prompt").is_some();
        call.prompt = match endpoint {
            Endpoint::Messages | Endpoint::Chat => raw("messages").map(newest),
            Endpoint::Responses | Endpoint::Embeddings => raw("input").map(newest),
            Endpoint::Completions => raw("prompt").map(newest),
        }
        .unwrap_or_default();

        call.max_output = match endpoint {
            Endpoint::Messages | Endpoint::Completions => number("max_tokens"),
            Endpoint::Chat => number("max_completion_tokens").or_else(|| number("max_tokens")),
            Endpoint::Responses => number("max_output_tokens"),
            Endpoint::Embeddings => Some(0),
        };
        let copies = |name: &str| number(name).unwrap_or(1).max(1);
        call.answers = match endpoint {
            Endpoint::Chat => copies("n"),
            Endpoint::Completions => {
                copies("n").max(copies("best_of")).saturating_mul(raw("prompt").map_or(1, prompts))
            }
            _ => 1,
        };
        call.unbounded = unbounded(&raw, &string);
        let body_again = match stream && matches!(endpoint, Endpoint::Chat | Endpoint::Completions) {
            true => with_usage(&fields),
            false => None,
        };
        call.usage_added = body_again.is_some();
        call.body = body_again.unwrap_or_else(|| body.clone());
        Ok(call)
    }

    /// What it may come to at most.
    ///
    /// Input: each byte of the body is at most one token, for every tokenizer that falls back to bytes; never more than the
    /// model can hold. Where a part's tokens cannot be told from its bytes, all that the model can hold.
    pub fn worst(&self, price: Option<&Price>) -> Usage {
        let context = price.map_or(u64::MAX, |price| price.context);
        let images = self.images.saturating_mul(price.map_or(8000, |price| price.image));
        let by_bytes = self.bytes.saturating_add(ADDED).saturating_add(images);
        let input = match (self.opaque, price) {
            (true, Some(price)) => price.context,
            (true, None) => by_bytes.max(1_000_000),
            (false, _) => by_bytes.min(context),
        };
        let longest = price.map_or(u64::MAX, |price| price.max_output);
        let output =
            self.max_output.unwrap_or_else(|| longest.min(LONGEST_ANSWER.max(price.map_or(0, |p| p.max_output))));
        let output = output.min(longest).saturating_mul(self.answers);
        match (self.cached_1h, self.cached) {
            (true, _) => Usage { cache_write_1h: input, output, ..Usage::default() },
            (false, true) => Usage { cache_write: input, output, ..Usage::default() },
            (false, false) => Usage { input, output, ..Usage::default() },
        }
    }
}

/// Why a call's worst case is not known.
fn unbounded<'a>(raw: &impl Fn(&str) -> Option<&'a str>, string: &impl Fn(&str) -> Option<String>) -> Option<String> {
    if let Some(tools) = raw("tools") {
        let Ok(Types(types)) = serde_json::from_str(tools) else {
            return Some("its tools cannot be read".to_owned());
        };
        let by_client = |kind: &str| {
            CLIENT_TOOLS.contains(&kind) || CLIENT_TOOL_BEGINNINGS.iter().any(|beginning| kind.starts_with(beginning))
        };
        if let Some(kind) = types.iter().find(|kind| !by_client(kind)) {
            return Some(format!("the tool '{}' is run by the API itself", printable(kind, 60)));
        }
    }
    let usual = |name: &str, values: &[&str]| match raw(name) {
        None => true,
        Some(_) => string(name).is_some_and(|value| values.contains(&value.as_str())),
    };
    let why = match () {
        () if raw("mcp_servers").is_some_and(|list| list != "[]") => "its tools are run by the API itself",
        () if raw("web_search_options").is_some() => "web searches are run by the API itself",
        () if raw("background") == Some("true") => "it runs on in the background, where its end is not seen",
        () if raw("audio").is_some() => "sound has a price of its own",
        () if !usual("service_tier", &["auto", "default", "standard_only", "flex"]) => {
            "its service tier has a price of its own"
        }
        () if !usual("speed", &["standard"]) => "its speed has a price of its own",
        () if !usual("inference_geo", &["global", "not_available"]) => "its region has a price of its own",
        () => return None,
    };
    Some(why.to_owned())
}

/// The body with usage asked for, if it is not already.
fn with_usage(fields: &[(std::borrow::Cow<'_, str>, &RawValue)]) -> Option<Bytes> {
    let given = fields.iter().find(|(key, _)| key == "stream_options").map(|(_, value)| value.get());
    let mut options: serde_json::Map<String, serde_json::Value> =
        given.and_then(|given| serde_json::from_str(given).ok()).unwrap_or_default();
    if options.get("include_usage") == Some(&serde_json::Value::Bool(true)) {
        return None;
    }
    options.insert("include_usage".to_owned(), true.into());
    let mut body = String::from("{");
    let others = fields.iter().filter(|(key, _)| key != "stream_options");
    for (key, value) in others {
        body.push_str(&serde_json::to_string(key).ok()?);
        body.push(':');
        body.push_str(value.get());
        body.push(',');
    }
    body.push_str("\"stream_options\":");
    body.push_str(&serde_json::to_string(&options).ok()?);
    body.push('}');
    Some(body.into())
}

/// A number of tokens; one that cannot be read is the largest.
fn whole(value: &str) -> u64 {
    value.parse().ok().unwrap_or_else(|| match value.parse::<f64>() {
        Ok(number) if number >= 0.0 => number.ceil() as u64,
        _ => u64::MAX,
    })
}

/// How many prompts one call of Completions holds.
fn prompts(value: &str) -> u64 {
    match serde_json::from_str::<Last<'_>>(value) {
        // A list of numbers is one prompt, in tokens.
        Ok(Last { last: Some(last), count }) if last.get().starts_with(['"', '[']) => count,
        _ => 1,
    }
}

/// The text of what came last.
fn newest(value: &str) -> String {
    let last = serde_json::from_str::<Last<'_>>(value).ok().and_then(|list| list.last);
    scan(last.map_or(value, RawValue::get), PROMPT).text
}

fn printable(text: &str, longest: usize) -> String {
    text.chars().take(longest).flat_map(char::escape_debug).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prices::Prices;

    fn read(endpoint: Endpoint, body: &str) -> Call {
        Call::read(endpoint, Bytes::copy_from_slice(body.as_bytes())).unwrap()
    }

    fn worst(endpoint: Endpoint, body: &str) -> Usage {
        let prices = Prices::built_in().unwrap();
        let call = read(endpoint, body);
        call.worst(prices.find(&call.model).as_deref())
    }

    fn input(usage: &Usage) -> u64 {
        usage.tokens() - usage.output
    }

    #[test]
    fn the_worst_case_covers_bytes_answers_and_caches() {
        let body = r#"{"model":"claude-haiku-4-5","max_tokens":100,"messages":[{"role":"user","content":"hello"}]}"#;
        let usage = worst(Endpoint::Messages, body);
        assert_eq!((usage.input, usage.output), (body.len() as u64 + ADDED, 100));
        let body = r#"{"model":"gpt-4o","n":3,"max_completion_tokens":10,"max_tokens":1,"messages":[]}"#;
        assert_eq!(worst(Endpoint::Chat, body).output, 30);
        assert_eq!(worst(Endpoint::Chat, r#"{"model":"gpt-4o","messages":[]}"#).output, 16_384);
        assert_eq!(worst(Endpoint::Responses, r#"{"model":"gpt-5","input":"x","max_output_tokens":1e3}"#).output, 1000);
        assert_eq!(worst(Endpoint::Embeddings, r#"{"model":"text-embedding-3-small","input":"x"}"#).output, 0);
        let body = r#"{"model":"gpt-3.5-turbo-instruct","prompt":["a","b"],"best_of":2,"max_tokens":5}"#;
        assert_eq!(worst(Endpoint::Completions, body).output, 20);
        let body = r#"{"model":"claude-haiku-4-5","max_tokens":1,"system":[{"type":"text","text":"x",
            "cache_control":{"type":"ephemeral","ttl":"1h"}}],"messages":[]}"#;
        let usage = worst(Endpoint::Messages, body);
        assert!(usage.cache_write_1h > 0 && usage.input == 0);
        // A limit that is no number is none.
        assert_eq!(worst(Endpoint::Messages, r#"{"model":"claude-haiku-4-5","max_tokens":"5"}"#).output, 64_000);
    }

    #[test]
    fn input_is_bounded_by_the_context_and_fills_it_where_bytes_say_nothing() {
        let long =
            format!(r#"{{"model":"gpt-4o","messages":[{{"role":"user","content":"{}"}}]}}"#, "x".repeat(500_000));
        assert_eq!(input(&worst(Endpoint::Chat, &long)), 128_000);
        for body in [
            r#"{"model":"gpt-5","previous_response_id":"r"}"#,
            r#"{"model":"gpt-5","prompt":{"id":"p"}}"#,
            r#"{"model":"gpt-5","input":[{"role":"user","content":[{"type":"input_file","file_url":"x"}]}]}"#,
        ] {
            assert_eq!(input(&worst(Endpoint::Responses, body)), 400_000, "{body}");
        }
        let image = r#"{"model":"gpt-4o","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
        assert_eq!(input(&worst(Endpoint::Chat, image)), image.len() as u64 + ADDED + 8000);
    }

    #[test]
    fn what_has_no_bound_is_named() {
        for (body, why) in [
            (r#"{"model":"m","tools":[{"type":"web_search_20250305","name":"web_search"}]}"#, "web_search_20250305"),
            (r#"{"model":"m","tools":[{"name":"f","input_schema":{"type":"object"}},{"type":"mcp"}]}"#, "'mcp'"),
            (r#"{"model":"m","tools":7}"#, "cannot be read"),
            (r#"{"model":"m","background":true}"#, "background"),
            (r#"{"model":"m","service_tier":"priority"}"#, "tier"),
            (r#"{"model":"m","speed":"fast"}"#, "speed"),
        ] {
            let call = read(Endpoint::Responses, body);
            assert!(call.unbounded.as_ref().is_some_and(|text| text.contains(why)), "{body}: {:?}", call.unbounded);
        }
        let own = r#"{"model":"m","service_tier":"auto","mcp_servers":[],"tools":[{"name":"f","input_schema":{"type":"web"}},
            {"type":"function"},{"type":"bash_20250124","name":"bash"}]}"#;
        assert_eq!(read(Endpoint::Messages, own).unbounded, None);
    }

    #[test]
    fn streams_are_asked_for_their_usage() {
        let body = r#"{"model":"m","stream":true,"zeta":1.50,"messages":[]}"#;
        let call = read(Endpoint::Chat, body);
        let expected =
            r#"{"model":"m","stream":true,"zeta":1.50,"messages":[],"stream_options":{"include_usage":true}}"#;
        assert_eq!(call.body, expected);
        let given = r#"{"stream_options":{"include_usage":false,"x":1},"model":"m","stream":true}"#;
        let expected = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true,"x":1}}"#;
        assert_eq!(read(Endpoint::Chat, given).body, expected);
        for same in [expected, r#"{"model":"m","stream":false}"#] {
            assert_eq!(read(Endpoint::Chat, same).body, same);
        }
        assert_eq!(read(Endpoint::Messages, body).body, body);
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for body in [
            r#"{"model":"m","max_tokens":1,"max_tokens":9}"#,
            r#"{"model":"m","max_tokens":1,"m\u0061x_tokens":9}"#,
            r#"[{"model":"m"}]"#,
            r#"{"model":"m"} {"model":"n"}"#,
            r#"{"messages":[]}"#,
            "",
        ] {
            assert!(Call::read(Endpoint::Chat, Bytes::copy_from_slice(body.as_bytes())).is_err(), "{body}");
        }
    }

    #[test]
    fn the_prompt_is_what_came_last() {
        let body = r#"{"model":"m","messages":[{"role":"user","content":"old"},
            {"role":"user","content":[{"type":"text","text":"new"},{"type":"tool_result","content":"result"}]}]}"#;
        assert_eq!(read(Endpoint::Messages, body).prompt, "new\nresult");
        assert_eq!(read(Endpoint::Responses, r#"{"model":"m","input":"hello"}"#).prompt, "hello");
        let long = format!(r#"{{"model":"m","input":"{}"}}"#, "é".repeat(PROMPT));
        assert_eq!(read(Endpoint::Responses, &long).prompt.len(), PROMPT);
    }

    proptest::proptest! {
        #[test]
        fn no_body_makes_the_reader_panic(
            body in r#"\{("model":"m",)?"(messages|input|prompt|tools|n|max_tokens|stream_options)":[\[\]{}",:a1e.\\ ]{0,40}\}"#,
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64),
        ) {
            for endpoint in [Endpoint::Messages, Endpoint::Chat, Endpoint::Completions] {
                for body in [Bytes::from(body.clone()), Bytes::from(bytes.clone())] {
                    if let Ok(call) = Call::read(endpoint, body) {
                        call.worst(None);
                    }
                }
            }
        }
    }

    #[test]
    fn depth_beyond_reading_counts_as_the_whole_context() {
        let deep = format!(r#"{{"model":"gpt-4o","messages":{}{}}}"#, "[".repeat(200), "]".repeat(200));
        assert_eq!(input(&worst(Endpoint::Chat, &deep)), 128_000);
    }
}
