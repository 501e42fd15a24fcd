//! What a server removes by itself: whatever killed spawners, interrupted snapshots and removed images have left.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use sloplet_engine::life::Sandboxes;

/// How often it looks.
const EVERY: Duration = Duration::from_secs(15);

/// Looks again and again. Cheap when there is nothing: some folders are read.
pub async fn keep(sandboxes: Sandboxes) {
    loop {
        tokio::time::sleep(EVERY).await;
        let sandboxes = sandboxes.clone();
        match tokio::task::spawn_blocking(move || once(&sandboxes)).await {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Ok(removed)) => tracing::info!(removed, "cleaned up after what was killed"),
            Ok(Err(error)) => tracing::warn!(%error, "cannot clean up"),
        }
    }
}

/// Returns how many things were removed.
fn once(sandboxes: &Sandboxes) -> anyhow::Result<usize> {
    let engine = sandboxes.engine();
    let left = engine.collect()?;
    // Stopped sandboxes hold no lock on what they go on from.
    let records = sandboxes.all();
    let images = records.iter().flat_map(|record| record.image.iter().chain(record.made_from()));
    let in_use: HashSet<PathBuf> = images.flat_map(|image| image.layers.iter().cloned()).collect();
    let images = engine.images()?.gc_keeping(&in_use)?;
    Ok(left + images.layers + images.dead_imports)
}
