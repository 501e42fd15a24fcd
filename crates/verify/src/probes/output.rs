//! Floods of output.

use sloplet_client::Output;

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "output-flood",
    ids: &[44],
    tries: "64 MiB of output in one line, escape sequences, bytes that are no text",
    why: "what comes from inside is kept and shown by the host: it must be bounded, and cut with notice",
    needs: &[],
    kind: Kind::Drill(run),
};

/// What the host is willing to keep.
const KEPT: usize = 1 << 20;

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let control = drill.control(&["flood", "2"]).await?.out.len();
    let sandbox = drill.sandbox(|_| {}).await?;
    let before = resident();
    let Output { stdout, truncated, .. } = sandbox.exec(drill.words(&["flood", "64"])).await?.output(KEPT).await?;
    let grown = resident().saturating_sub(before);
    let odd = drill.act(&sandbox, &["line"]).await?;
    let serves = drill.serves(&sandbox).await;
    sandbox.destroy().await?;
    if control < 2 << 20 {
        return Ok(Finding::inconclusive("", "there is no flood on the host either"));
    }
    let held = stdout.len() == KEPT && truncated && grown < 32 << 20 && serves && odd.code == 0;
    let detail = format!(
        "{} of 64 MiB kept, cut: {truncated}; the host's memory grew by {} KiB",
        stdout.len() >> 20,
        grown >> 10
    );
    Ok(Finding::judge(held, format!("{} MiB on the host", control >> 20), detail))
}

/// Bytes of memory that this process has.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
