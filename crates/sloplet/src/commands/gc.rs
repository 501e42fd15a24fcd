//! `sloplet gc`

use std::path::PathBuf;

use crate::setup;

pub fn run(data: Option<PathBuf>, json: bool) -> anyhow::Result<u8> {
    let engine = setup::engine(data, None)?;
    let removed = engine.collect()?;
    let images = engine.images()?.gc()?;
    if json {
        say!(
            "{}",
            serde_json::json!({ "removed": removed, "image_layers": images.layers, "unfinished_imports": images.dead_imports })
        );
    } else {
        say!(
            "removed {removed} leftovers of killed sandboxes, {} unused image layers, {} unfinished imports",
            images.layers,
            images.dead_imports
        );
    }
    Ok(0)
}
