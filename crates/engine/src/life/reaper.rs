//! Ends or pauses sandboxes whose time is over.

use std::sync::Weak;

use super::sandboxes::Inner;

/// Runs as long as the registry exists.
pub(super) async fn run(registry: Weak<Inner>) {
    let _ = registry;
}
