//! E2B's own packages.
