//! Every fuzz target in one program: building and linking one is quicker than forty.
//!
//! `SLOPLET_FUZZ_TARGET` names the target, the arguments are libFuzzer's. Without a target it lists them;
//! with `SLOPLET_FUZZ_SEEDS` it writes the target's seeds and words into that folder. `fuzz/run` does all of this.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// One parser and how to feed it.
pub struct Target {
    /// Takes one input. It panics if the parser breaks a promise.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words of the format, which the fuzzer puts into inputs.
    pub words: &'static [&'static str],
    /// The longest input.
    pub longest: usize,
}

/// One line for each target, and one file of that name beside this one.
macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*
        const TARGETS: &[(&str, Target)] = &[$((stringify!($name), $name::TARGET)),*];
    };
}

targets![
    agent_client,
    agent_sftp,
    agent_unpack,
    agent_users,
    cdi,
    chunked_body,
    client_hello,
    dns,
    e2b_connect,
    e2b_gzip,
    e2b_multipart,
    first_bytes,
    image_archive,
    image_documents,
    image_layer,
    image_names,
    image_snapshot,
    image_tar,
    image_unpack,
    ledger_text,
    llm_answer,
    llm_request,
    llm_stream,
    mask_rows,
    mask_text,
    patch,
    policy_file,
    policy_words,
    redactor,
    request_head,
    server_address,
    server_headers,
    server_json,
    server_words,
    ssh_sftp,
    ssh_words,
    template_step,
    vm_mux,
    wire_frames,
    wire_messages,
];

mod support;

fuzz_target!(init: support::begin(TARGETS), |bytes: &[u8]| {
    (support::chosen(TARGETS).run)(bytes)
});
