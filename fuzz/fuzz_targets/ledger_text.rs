//! Text from inside on the host's terminal and in the record: no escapes, bounded.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["\x1b[", "\u{202e}", "\u{200b}", "\u{9b}", "\\u001b", "\"type\":", "secret-value"], longest: 1024 };

fn run(bytes: &[u8]) {
    recorded(&String::from_utf8_lossy(bytes))
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&["plain", "a\x1b]0;title\x07b\x1b[31m", "\u{202e}abc\u{2066}", "{\"type\":\"note\",\"text\":\"x\"}", "[redacted]"])
}

fn recorded(text: &str) {
    let shown = sloplet_ledger::plain(text);
    assert!(!shown.chars().any(|letter| letter.is_control()), "{shown:?}");
    assert_eq!(sloplet_ledger::plain(&shown), shown);
    let name = sloplet_ledger::Name::from_bytes(text.as_bytes());
    assert!(name.as_str().len() <= 512, "{} bytes", name.as_str().len());
    thread_local! {
        static REDACTOR: sloplet_ledger::Redactor = {
            let redactor = sloplet_ledger::Redactor::default();
            redactor.add("secret-value");
            redactor
        };
    }
    REDACTOR.with(|redactor| assert!(!redactor.text(text).contains("secret-value")));
    if let Ok(event) = serde_json::from_str::<sloplet_ledger::Event>(text) {
        let written = serde_json::to_string(&event).expect("an event is written");
        assert!(serde_json::from_str::<sloplet_ledger::Event>(&written).is_ok(), "{written}");
    }
}
