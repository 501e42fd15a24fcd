//! The lightest wall: one confined process tree.
