//! JSON bodies from clients: sandboxes, templates, rules.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["\"allowOut\":", "\"denyOut\":", "\"rules\":", "\"transform\":", "\"headers\":", "0.0.0.0/0", "*.a.test", "null", "\"env\":"], longest: 2048 };

fn run(bytes: &[u8]) {
    sloplet_server::fuzzing::json_bodies(bytes)
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&[
        r#"{"image":"base","name":"a","memory":"1GiB","cpus":"0.5","env":{"A":"1"},"network":{"allow":["a.test:443"]},"secrets":[{"name":"K","hosts":["a.test"]}],"ttl":"1h"}"#,
        r#"{"templateID":"base","timeout":15,"envVars":{"A":"1"},"metadata":{},"network":{"allowOut":["1.1.1.1/32"],"denyOut":["0.0.0.0/0"]},"autoPause":true}"#,
        r#"{"allowOut":["a.test"],"denyOut":["0.0.0.0/0"],"rules":{"a.test":[{"transform":{"headers":{"X":"y"}}}]}}"#,
        r#"{"fromImage":"debian","steps":[{"type":"RUN","args":["true"],"force":true}],"startCmd":"x"}"#,
        r#""aGVsbG8=""#,
        r#""4294967295""#,
    ])
}
