//! Templates: images that a client describes step by step and this machine builds in a sandbox.
//!
//! [`Templates`] is the registry: names, tags, builds and their logs, and what was uploaded for them. A build
//! (`build`) is a sandbox in which the steps of a [`Recipe`] run one after the other; its files become an image. What
//! a client uploads is unpacked inside that sandbox only. What steps have made is kept for later builds (`cache`).
//!
//! [`Templates::resolve`] turns what a client calls a template into the image to start from.

mod build;
mod cache;
mod copy;
mod log;
mod names;
mod provision;
pub mod record;
mod registries;
mod registry;
mod resolve;
pub mod step;
mod tags;
mod uploads;

pub use record::{Build, Level, LogEntry, Reason, Resources, Status, Tag, Template};
pub use registries::{Registries, RegistryHost};
pub use registry::{NewBuild, Recipe, Source, Templates};
pub use resolve::{Origin, is_private};
pub use step::{Step, StepRequest};
pub use uploads::{Incoming, UploadError, Uploads};
