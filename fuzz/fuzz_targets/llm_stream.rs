//! Server-sent events of LLM APIs: the same events and the same bill however they arrive.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["\"usage\":", "\"input_tokens\":", "\"output_tokens\":", "\"prompt_tokens\":", "\"completion_tokens\":", "18446744073709551615", "\"cache_creation\":", "\"prompt_tokens_details\":", "\"cached_tokens\":", "\"type\":\"message_delta\"", "\"tool_use\"", "\"response\":", "\"message\":", "\"choices\":[]", "[DONE]", "data: ", "\n\n", "\r\n"], longest: 2048 };

fn run(bytes: &[u8]) {
    if let Some((size, stream)) = support::pieces(bytes) {
        sloplet_gateway::fuzzing::llm_stream(stream, size);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    support::in_pieces(support::texts(&[
        "event: message_start\r\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\r\n\r\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":9}}\n\n: ping\n\ndata: [DONE]\n\n",
        "data: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"type\":\"function_call\",\"name\":\"g\"}],\"usage\":{\"input_tokens\":3,\"output_tokens\":2}}}",
    ]))
}
