//! Bodies of calls to LLM APIs from inside: what is sent on is what was priced.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["\"model\":\"m\"", "\"messages\":", "\"stream\":true", "\"stream_options\":", "\"include_usage\":true", "\"cache_control\":", "\"ttl\":\"1h\"", "\"type\":\"image\"", "\"tools\":", "\"max_tokens\":", "null", "1e999", "\\u0000"], longest: 2048 };

fn run(bytes: &[u8]) {
    sloplet_gateway::fuzzing::llm_request(bytes)
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&[
        r#"{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"tools":[{"type":"custom"}]}"#,
        r#"{"model":"gpt-5","stream":true,"n":2,"messages":[{"role":"user","content":"hi"}],"stream_options":{"include_usage":false}}"#,
        r#"{"model":"gpt-5","input":["a",{"type":"input_image"}],"max_output_tokens":1e3,"previous_response_id":"x"}"#,
        r#"{"model":"m","prompt":["a","b"],"best_of":3,"service_tier":"priority"}"#,
    ])
}
