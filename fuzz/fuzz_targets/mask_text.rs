//! Free text and rules that masking reads.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["@example.org", "+49 ", "AKIA", "ghp_", "-----BEGIN PRIVATE KEY-----", "[table.t]", "same_as = \"t.a\"", "rule = \"", "unique = true", "https://a:b@c/"], longest: 1024 };

fn run(bytes: &[u8]) {
    masked(&String::from_utf8_lossy(bytes))
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&["call +49 170 1234567 or jane@example.org, card 4111 1111 1111 1111, key sk-ant-api03-abc, 192.168.0.1, DE89370400440532013000", "locale = \"de\"\n[table.t]\nid = { rule = \"id\", domain = \"x\", unique = true }\n\"c[].p\" = \"phone\"\n[table.o]\nc = { same_as = \"t.id\" }\n", "{\"Email\": \"a@b.de\"}"])
}

fn masked(text: &str) {
    let mut end = 0;
    for finding in sloplet_mask::detect::scan(text) {
        assert!(finding.range.start >= end && text.get(finding.range.clone()).is_some(), "{finding:?}");
        end = finding.range.end;
    }
    let _ = (sloplet_mask::detect::whole(text), sloplet_mask::Key::parse(text).is_some());
    let _ = sloplet_mask::Config::parse(text);
}
