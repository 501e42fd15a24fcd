//! Removing what was recorded long ago.

use std::time::Duration;

use sloplet_ledger::{Ledger, Retention};

/// How often.
const EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// Soon, but not while sandboxes are found again.
const FIRST: Duration = Duration::from_secs(60);

/// For how long things are kept; `None` is for ever.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// Records. Whole segments of 64 MiB go, and never the last one.
    pub records: Option<Duration>,
    /// What commands printed. The records keep its digest.
    pub outputs: Option<Duration>,
}

/// Removes what is older, once a day, for as long as the runtime lives.
pub fn start(ledger: Ledger, keep: Keep) {
    if keep.records.is_none() && keep.outputs.is_none() {
        return;
    }
    tokio::spawn(async move {
        tokio::time::sleep(FIRST).await;
        loop {
            let ledger = ledger.clone();
            let _ = tokio::task::spawn_blocking(move || prune(&ledger, keep)).await;
            tokio::time::sleep(EVERY).await;
        }
    });
}

fn prune(ledger: &Ledger, keep: Keep) {
    let older = |age: Duration| Retention { max_age: Some(age), ..Retention::default() };
    let outputs = keep.outputs.map(|age| ledger.outputs().prune(&older(age)));
    let records = keep.records.map(|age| ledger.prune(&older(age)));
    for (what, removed) in [("outputs", outputs), ("records", records)] {
        match removed {
            Some(Ok(removed)) if removed.files > 0 => {
                tracing::info!(what, files = removed.files, bytes = removed.bytes, "removed what is old");
            }
            Some(Err(error)) => tracing::error!(%error, what, "cannot remove what is old"),
            _ => {}
        }
    }
}
