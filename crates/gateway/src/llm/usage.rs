//! What a call came to, as its answer says.

use serde::Deserialize;

use super::Endpoint;
use crate::prices::Usage;

/// Names of tools that are kept, and their length.
const TOOLS: usize = 64;
const TOOL_NAME: usize = 128;

/// What was seen in an answer so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub usage: Usage,
    /// The input is what `usage` says, even if the answer's end is not seen.
    pub input_known: bool,
    /// The answer told what it came to so far. Unless it went on after that, this is all.
    told: bool,
    /// The answer told all it came to.
    pub complete: bool,
    pub tools: Vec<String>,
}

#[derive(Deserialize)]
struct Told {
    #[serde(rename = "type")]
    kind: Option<String>,
    usage: Option<Counts>,
    message: Option<Nested>,
    response: Option<Nested>,
    delta: Option<Delta>,
    choices: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
struct Delta {
    stop_reason: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Nested {
    usage: Option<Counts>,
}

/// Both APIs' counts.
#[derive(Deserialize)]
struct Counts {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_creation: Option<Creation>,
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    input_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Creation {
    ephemeral_1h_input_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
    cache_write_tokens_details: Option<Written>,
}

#[derive(Deserialize)]
struct Written {
    ttl_12h_tokens: Option<u64>,
}

impl Seen {
    /// Reads an answer that came in one piece.
    pub fn whole(endpoint: Endpoint, body: &[u8]) -> Self {
        let mut seen = Self::default();
        seen.event(endpoint, body);
        seen.complete = seen.input_known;
        seen
    }

    /// The stream came to its end: what was told last is all.
    pub fn ended(&mut self) {
        self.complete |= self.told;
    }

    /// Reads an event of a stream.
    pub fn event(&mut self, endpoint: Endpoint, data: &[u8]) {
        // The many events with one word each tell neither.
        let holds = |word: &str| memchr::memmem::find(data, word.as_bytes()).is_some();
        if holds("\"usage\"")
            && let Ok(told) = serde_json::from_slice::<Told>(data)
        {
            self.told(endpoint, told);
        }
        // Both APIs' last words.
        if data == b"[DONE]" || holds("\"message_stop\"") {
            self.ended();
        }
        if (holds("tool_use") || holds("tool_calls") || holds("function_call"))
            && let Ok(answer) = serde_json::from_slice(data)
        {
            self.called(endpoint, &answer);
        }
    }

    fn told(&mut self, endpoint: Endpoint, told: Told) {
        let kind = told.kind.as_deref();
        match endpoint {
            Endpoint::Messages => {
                let begins = kind == Some("message_start");
                let Some(counts) = told.usage.or_else(|| told.message.and_then(|message| message.usage)) else {
                    return;
                };
                self.messages(&counts);
                // In `message_delta` the counts are those of the whole answer so far; it is the last that says why it ends.
                self.told |= kind == Some("message_delta");
                self.complete |= self.told && told.delta.is_some_and(|delta| delta.stop_reason.is_some());
                self.input_known |= begins || kind == Some("message") || kind.is_none();
            }
            Endpoint::Responses => {
                let Some(counts) = told.response.and_then(|response| response.usage).or(told.usage) else { return };
                let ends = ["response.completed", "response.incomplete", "response.failed"];
                self.others(&counts, kind.is_some_and(|kind| ends.contains(&kind)));
            }
            Endpoint::Chat | Endpoint::Completions | Endpoint::Embeddings => {
                // Some tell with every piece what it came to so far; the last one has no piece.
                if let Some(counts) = told.usage {
                    self.others(&counts, told.choices.is_none_or(|choices| choices.is_empty()));
                }
            }
        }
    }

    /// Anthropic counts what is cached beside the input.
    fn messages(&mut self, counts: &Counts) {
        let set = |to: &mut u64, value: Option<u64>| *to = value.unwrap_or(*to);
        set(&mut self.usage.input, counts.input_tokens);
        set(&mut self.usage.output, counts.output_tokens);
        set(&mut self.usage.cache_read, counts.cache_read_input_tokens);
        if let Some(hour) = counts.cache_creation.as_ref().and_then(|creation| creation.ephemeral_1h_input_tokens) {
            self.usage.cache_write_1h = hour;
        }
        if let Some(written) = counts.cache_creation_input_tokens {
            self.usage.cache_write = written.saturating_sub(self.usage.cache_write_1h);
        }
    }

    /// OpenAI counts what is cached within the input.
    fn others(&mut self, counts: &Counts, last: bool) {
        let details = counts.prompt_tokens_details.as_ref().or(counts.input_tokens_details.as_ref());
        let Some(input) = counts.prompt_tokens.or(counts.input_tokens) else { return };
        let cached = details.and_then(|details| details.cached_tokens).unwrap_or(0).min(input);
        let written = details.and_then(|details| details.cache_write_tokens).unwrap_or(0).min(input - cached);
        let long = details.and_then(|details| details.cache_write_tokens_details.as_ref()?.ttl_12h_tokens);
        let long = long.unwrap_or(0).min(written);
        self.usage = Usage {
            input: input - cached - written,
            cache_write: written - long,
            cache_write_1h: long,
            output: counts.completion_tokens.or(counts.output_tokens).unwrap_or(0),
            cache_read: cached,
        };
        self.input_known = true;
        self.told = true;
        self.complete |= last;
    }

    fn called(&mut self, endpoint: Endpoint, answer: &serde_json::Value) {
        let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
        let named = |value: &serde_json::Value| value["name"].as_str().map(str::to_owned);
        let names: Vec<String> = match endpoint {
            Endpoint::Messages => {
                let blocks = list(&answer["content"]).into_iter().chain([answer["content_block"].clone()]);
                blocks.filter(|block| block["type"] == "tool_use").filter_map(|block| named(&block)).collect()
            }
            Endpoint::Responses => {
                // In a stream each item is told when it is done, and all of them once more at the end.
                let items = list(&answer["output"]).into_iter();
                let done = (answer["type"] == "response.output_item.done").then(|| answer["item"].clone());
                items
                    .chain(done)
                    .filter(|item| item["type"] == "function_call")
                    .filter_map(|item| named(&item))
                    .collect()
            }
            _ => list(&answer["choices"])
                .iter()
                .flat_map(|choice| {
                    [list(&choice["message"]["tool_calls"]), list(&choice["delta"]["tool_calls"])].concat()
                })
                .filter_map(|call| named(&call["function"]))
                .collect(),
        };
        for name in names.into_iter().filter(|name| !name.is_empty()) {
            if self.tools.len() < TOOLS {
                self.tools.push(name.chars().take(TOOL_NAME).collect());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(endpoint: Endpoint, events: &[&str]) -> Seen {
        let mut seen = Seen::default();
        events.iter().for_each(|event| seen.event(endpoint, event.as_bytes()));
        seen
    }

    #[test]
    fn anthropic_answers_are_read() {
        let body = r#"{"type":"message","content":[{"type":"tool_use","name":"search","input":{"usage":{"input_tokens":0}}}],
            "usage":{"input_tokens":10,"output_tokens":20,"cache_read_input_tokens":5,"cache_creation_input_tokens":7,
            "cache_creation":{"ephemeral_5m_input_tokens":3,"ephemeral_1h_input_tokens":4}}}"#;
        let seen = Seen::whole(Endpoint::Messages, body.as_bytes());
        assert!(seen.complete);
        let expected = Usage { input: 10, output: 20, cache_read: 5, cache_write: 3, cache_write_1h: 4 };
        assert_eq!((seen.usage, seen.tools), (expected, vec!["search".to_owned()]));
    }

    #[test]
    fn an_anthropic_stream_is_complete_with_its_delta() {
        let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":25,"output_tokens":1}}}"#;
        let tool = r#"{"type":"content_block_start","content_block":{"type":"tool_use","name":"bash"}}"#;
        let delta = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}"#;
        let cut = streamed(Endpoint::Messages, &[start, tool]);
        assert!(cut.input_known && !cut.complete && cut.usage.input == 25);
        let whole = streamed(Endpoint::Messages, &[start, tool, delta]);
        assert!(whole.complete && whole.usage.input == 25 && whole.usage.output == 15);
        assert_eq!(whole.tools, ["bash"]);
        // One that says nothing of the end may not be the last.
        let more = r#"{"type":"message_delta","delta":{"stop_reason":null},"usage":{"output_tokens":7}}"#;
        let mut cut = streamed(Endpoint::Messages, &[start, more]);
        assert!(!cut.complete && cut.usage.output == 7);
        cut.ended();
        assert!(cut.complete);
        assert!(streamed(Endpoint::Messages, &[start, more, r#"{"type":"message_stop"}"#]).complete);
        assert!(!streamed(Endpoint::Messages, &[start, r#"{"type":"message_stop"}"#]).complete);
    }

    #[test]
    fn openai_answers_are_read() {
        let chat = r#"{"choices":[{"message":{"tool_calls":[{"function":{"name":"f"}}]}}],"usage":{"prompt_tokens":10,
            "completion_tokens":4,"total_tokens":14,"prompt_tokens_details":{"cached_tokens":6}}}"#;
        let seen = Seen::whole(Endpoint::Chat, chat.as_bytes());
        assert_eq!((seen.usage.input, seen.usage.cache_read, seen.usage.output), (4, 6, 4));
        assert!(seen.complete && seen.tools == ["f"]);
        let seen = streamed(Endpoint::Chat, &[r#"{"choices":[{}],"usage":null}"#, "[DONE]"]);
        assert!(!seen.complete);
        // What it came to so far is not all.
        let piece = r#"{"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#;
        let last = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9}}"#;
        assert!(!streamed(Endpoint::Chat, &[piece, piece]).complete);
        assert!(streamed(Endpoint::Chat, &[piece, "[DONE]"]).complete);
        let seen = streamed(Endpoint::Chat, &[piece, last]);
        assert!(seen.complete && seen.usage.output == 9);
        let under_way = r#"{"type":"response.in_progress","response":{"usage":{"input_tokens":3,"output_tokens":1}}}"#;
        let seen = streamed(Endpoint::Responses, &[under_way]);
        assert!(seen.input_known && !seen.complete);
        let seen = streamed(
            Endpoint::Responses,
            &[
                r#"{"type":"response.created","response":{"usage":null}}"#,
                r#"{"type":"response.output_item.done","item":{"type":"function_call","name":"g"}}"#,
                r#"{"type":"response.completed","response":{"output":[{"type":"function_call","name":"g"}],
                    "usage":{"input_tokens":3,"output_tokens":2}}}"#,
            ],
        );
        assert!(seen.complete && seen.usage.output == 2 && seen.tools == ["g"]);
        let embedding =
            Seen::whole(Endpoint::Embeddings, br#"{"data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}"#);
        assert!(embedding.complete && embedding.usage.tokens() == 8);
        assert!(!Seen::whole(Endpoint::Chat, b"{\"usage\":{}}").complete);
        assert!(!Seen::whole(Endpoint::Chat, b"not json \"usage\"").complete);
    }
}
