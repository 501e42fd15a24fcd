//! What opens doors.

use super::{Found, Pattern};

pub const PATTERNS: &[Pattern] = &[
    (
        Found::PrivateKey,
        (0, &["PRIVATE KEY"]),
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----[\s\S]*?(-----END [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----|\z)",
        always,
    ),
    (Found::Jwt, (0, &["eyJ"]), r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}", always),
    (Found::UrlWithPassword, (0, &["://"]), r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]*:[^\s/@]+@[^\s<>]+", always),
    (Found::CloudKey, (0, &["AKIA", "ASIA", "ABIA", "ACCA"]), r"\b(AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b", always),
    (Found::CloudKey, (0, &["AIza"]), r"\bAIza[0-9A-Za-z_-]{35}", always),
    (Found::Token, (0, &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"]), r"\bgh[pousr]_[A-Za-z0-9]{36,}", always),
    (Found::Token, (0, &["github_pat_"]), r"\bgithub_pat_\w{22,}", always),
    (Found::Token, (0, &["glpat-"]), r"\bglpat-[\w-]{20,}", always),
    (Found::Token, (0, &["xox"]), r"\bxox[abeoprs]-[\w-]{10,}", always),
    (Found::Token, (0, &["sk-"]), r"\bsk-[\w-]{20,}", always),
    (Found::Token, (0, &["k_live_", "k_test_"]), r"\b[spr]k_(live|test)_\w{16,}", always),
    (
        Found::Token,
        (0, &["npm", "hf_", "e2b_", "pypi", "dop_v1"]),
        r"\b(npm|hf|e2b|pypi|dop_v1)[_-][A-Za-z0-9]{24,}",
        always,
    ),
    (Found::Token, (0, &["SG."]), r"\bSG\.[\w-]{16,}\.[\w-]{16,}", always),
    (Found::Token, (0, &["ya29"]), r"\bya29\.[\w-]{20,}", always),
    (Found::Token, (0, &["AGE-SECRET"]), r"\bAGE-SECRET-KEY-1[A-Z0-9]{20,}", always),
    (Found::InternalUrl, (0, &["://"]), r#"\bhttps?://[^\s<>"')\]]+"#, internal_url),
    (
        Found::InternalHost,
        (0, &[".internal", ".local", ".corp", ".lan", ".intranet", ".svc"]),
        r"\b[a-z0-9-]+(\.[a-z0-9-]+)*\.(internal|local|localdomain|corp|lan|intranet|svc\.cluster)\b",
        always,
    ),
    (
        Found::Secret,
        (0, &["=", ":"]),
        r#"(?i)\b(pass(word|wd|phrase)?|pwd|secret|token|api[_-]?key|access[_-]?key|credentials?)["']?\s*[:=]\s*["']?(?P<x>[^\s"',;]{6,})"#,
        always,
    ),
    (Found::Secret, (1, &["=", ":"]), r#"\b[\w.-]{2,40}\s*[:=]\s*["']?(?P<x>[A-Za-z0-9+/_=-]{20,})"#, random),
];

fn always(_: &str) -> bool {
    true
}

fn internal_url(text: &str) -> bool {
    let host = text.split_once("://").map_or("", |(_, rest)| rest);
    let host = host.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default().split(':').next().unwrap_or_default();
    if let Ok(address) = host.parse::<std::net::Ipv4Addr>() {
        return address.is_private() || address.is_loopback() || address.is_link_local();
    }
    let known = ["internal", "local", "localdomain", "localhost", "corp", "lan", "intranet", "cluster"];
    !host.contains('.') || host.rsplit('.').next().is_some_and(|last| known.contains(&last))
}

/// Whether text looks drawn by lot: letters and digits, and hardly any twice.
fn random(text: &str) -> bool {
    let mut counts = [0u32; 128];
    for byte in text.bytes().filter(u8::is_ascii) {
        counts[usize::from(byte)] += 1;
    }
    let length = text.len() as f64;
    let entropy: f64 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| f64::from(*count) / length)
        .map(|share| -share * share.log2())
        .sum();
    let any = |test: fn(&u8) -> bool| text.as_bytes().iter().any(test);
    entropy > 3.5 && any(u8::is_ascii_digit) && any(u8::is_ascii_alphabetic)
}
