//! Control groups: bounds on memory, processor and processes, freezing, and the list of what to kill.
//!
//! Version 2 has one tree, version 1 one for each controller; [`Cgroups`] finds where this process may make groups,
//! [`Group`] is one sandbox's, and the rest of the code sees no difference.

mod detect;
mod group;

pub use detect::{Cgroups, Controller, Tables, Unavailable};
pub use group::{Group, Limits, remove_tree};
