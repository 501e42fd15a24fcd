//! Answers of LLM APIs in one piece: counts of any size are added and priced.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["\"usage\":", "\"input_tokens\":", "\"output_tokens\":", "\"prompt_tokens\":", "\"completion_tokens\":", "18446744073709551615", "\"cache_creation\":", "\"prompt_tokens_details\":", "\"cached_tokens\":", "\"type\":\"message_delta\"", "\"tool_use\"", "\"response\":", "\"message\":", "\"choices\":[]", "[DONE]"], longest: 2048 };

fn run(bytes: &[u8]) {
    sloplet_gateway::fuzzing::llm_answer(bytes)
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&[
        r#"{"type":"message","content":[{"type":"tool_use","name":"f"}],"usage":{"input_tokens":1,"output_tokens":2,"cache_read_input_tokens":3,"cache_creation_input_tokens":4,"cache_creation":{"ephemeral_1h_input_tokens":2}}}"#,
        r#"{"choices":[{"message":{"tool_calls":[{"function":{"name":"f"}}]}}],"usage":{"prompt_tokens":10,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":6,"cache_write_tokens":1,"cache_write_tokens_details":{"ttl_12h_tokens":1}}}}"#,
        r#"{"output":[{"type":"function_call","name":"g"}],"usage":{"input_tokens":3,"output_tokens":2,"input_tokens_details":{"cached_tokens":1}}}"#,
    ])
}
