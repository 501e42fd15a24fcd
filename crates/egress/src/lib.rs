//! What the host does with a sandbox's connections.

pub mod intercept;
