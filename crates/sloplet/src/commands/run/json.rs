//! The one object of `--json`.

use serde_json::{Value, json};

use super::{Outcome, exit_code};
use crate::relay::output::Captured;

/// What happened. Bytes that are not UTF-8 become replacement characters.
pub fn json(id: &str, outcome: &Outcome, captured: &Captured) -> Value {
    let exit = outcome.exit.clone().unwrap_or_default();
    json!({
        "id": id,
        "exit_code": exit_code(outcome),
        "signal": exit.signal,
        "timed_out": outcome.end.timed_out,
        "oom_kills": outcome.end.oom_kills,
        "over_disk": outcome.end.over_disk,
        "stdout": String::from_utf8_lossy(&captured.stdout),
        "stderr": String::from_utf8_lossy(&captured.stderr),
        "truncated": outcome.truncated,
        "duration_ms": outcome.duration.as_millis() as u64,
        "cpu_ms": exit.cpu_us / 1000,
        "max_rss_kib": exit.max_rss_kib,
    })
}
