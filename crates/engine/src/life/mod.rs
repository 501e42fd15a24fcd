//! Sandboxes that outlive the request that made them, and the server that keeps them.
//!
//! [`Sandboxes`] is the registry behind every front end: it creates, finds, pauses, snapshots, forks and ends sandboxes,
//! and remembers them in the store, so that a killed server finds them again. [`Live`] is one that has a machine;
//! [`process`] keeps what its processes write for readers that are slow, late, or come back.

pub mod activity;
mod again;
pub mod archive;
mod changes;
pub mod clock;
mod comparing;
pub mod error;
mod giving;
pub mod history;
pub mod lease;
mod live;
pub mod making;
pub mod output;
pub mod pool;
mod private;
pub mod process;
mod reaper;
mod reconcile;
pub mod record;
pub mod sandboxes;
mod saving;
pub mod snapshot;
mod sweeping;
mod tenant;
mod to_the_end;
pub mod volume;

pub use archive::{Leaving, Wish};
pub use changes::Said;
pub use clock::now_ms;
pub use error::LifeError;
pub use giving::Given;
pub use history::Sample;
pub use live::{Live, Reached};
pub use output::{Chunk, Ended, Next, Reader, Source};
pub use pool::{NewPool, PoolConfig, PoolStatus};
pub use private::Values;
pub use process::{Processes, Tracked};
pub use record::{NewSandbox, OnTimeout, Record, State, VolumeMount};
pub use sandboxes::{Filter, Quota, Sandboxes};
pub use snapshot::Snapshot;
pub use tenant::{builder_of, tenant_of};
pub use volume::{Volume, Volumes};
