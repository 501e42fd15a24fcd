//! Pools: machines made ahead, for requests that are likely to come.
//!
//! - [`config`]: what a pool is asked to be. [`sizing`]: how many machines that means, now.
//! - `registry`: all pools. `state`: what is in one. `handling`: what owners do with theirs.
//! - `keeper`: makes machines, and gives up those that are too many, too old or not well.
//! - [`claim`]: gives one to somebody. `warm`: a machine that waits, and how it is found again after a restart.
//! - [`metrics`]: what came of it.
//!
//! A machine that waits is nobody's: its name, variables, limits, network rules, secrets and volumes come with the claim. What its
//! wall can only be told when it is made is a [`Misfit`]: then a sandbox is made for the claim, and that is counted.

pub mod claim;
pub mod config;
mod handling;
mod keeper;
pub mod metrics;
mod registry;
pub mod sizing;
mod state;
mod warm;

pub use claim::Misfit;
pub use config::{NewPool, OnEmpty, PoolConfig, PoolRecord};
pub(super) use keeper::run as keep;
pub use metrics::{Counters, Source};
pub(super) use registry::Pools;
pub use sizing::{Bound, Wish};
use state::Pool;
pub use state::PoolStatus;
