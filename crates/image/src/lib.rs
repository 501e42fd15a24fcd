//! Images: what sandboxes start from.
//!
//! An image is a list of directories, top first, that every sandbox mounts as read-only overlay lowers. Layers are
//! content-addressed: unpacked once, checked once, never changed again, shared by all. The image `host` needs no
//! download: it is the host's own `/usr` with a made-up root around it.
//!
//! ```no_run
//! # fn main() -> Result<(), sloplet_image::ImageError> {
//! let store = sloplet_image::Store::open(std::path::Path::new("/var/lib/sloplet"))?;
//! let image = store.resolve("host")?;              // or a stored name, or ./rootfs.tar
//! let lease = sloplet_image::Leases::default().take(&image)?; // gc leaves its layers alone meanwhile
//! # drop(lease); Ok(()) }
//! ```
//!
//! # Map
//! - [`Store`] (`store`): the directory, names, look-up, removal. `record`, `name`, `layer`, `staging`: its files.
//! - `import`: directory, tar, OCI layout, docker-save (`tree`, `oci`, `xz`); `pull`: registries; `recipe`, `distribution`:
//!   the images that sloplet builds itself.
//! - `unpack`, with `tarstream`, `decompress`, `beneath`: the hardened way from a hostile archive to a directory.
//! - `guard`: what is refused in the merged tree. `limits`: caps against bombs. `skeleton`: the lowest layer.
//! - `snapshot`: what a sandbox has written, as an image (`exclude`: what of it somebody wants left out). `lease`: layers in use.
//! - `archive`: snapshots as one stream, out of a store and into another (`attributes`, `sparse`).
//! - [`CopyOut`], [`Draft`]: folders and files that are brought out of a sandbox, into places that it may be writing to.
//! - [`changes`]: what one stack of layers has that another has not.
//! - `host`, [`host_allowlist`]: the `host` image and what of the host it shows.
//!
//! # Limitations
//! - Images are hostile, the store's owner is not: the store must be private (0700), and is made so.
//! - Unprivileged, all files of an image belong to the caller; as root they keep their numeric ids below 65,536.
//! - Sparse tar entries are refused; extended attributes (file capabilities among them), devices, FIFOs are dropped.
//! - A path in one layer that goes through a symbolic link of another hides the link, as plain overlayfs does.
//! - A manifest's size is checked after the registry client has read it whole; a time limit bounds it until then.
//! - Several images in one archive: refused. Registry credentials are given by the caller, not read from files.
//!
//! # Tests
//! `tests/` unpacks crafted archives (each shown to escape a naive unpacker first), archives of skopeo, pulls from a
//! real registry on loopback, kills imports and collects their remains, and looks at `host` like an attacker.

mod archive;
mod attributes;
mod beneath;
pub mod changes;
mod copy;
mod copy_out;
mod decompress;
mod digest;
mod distribution;
mod draft;
mod error;
mod exclude;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod host;
pub mod host_allowlist;
#[cfg(test)]
mod host_tests;
mod image;
mod import;
mod interpreter;
mod layer;
mod lease;
mod limits;
mod machine;
mod merge;
mod name;
mod oci;
pub mod outside;
mod pull;
mod recipe;
mod record;
mod reference;
mod registry;
mod skeleton;
mod snapshot;
mod sparse;
mod staging;
mod store;
mod tarstream;
mod tree;
mod unpack;
mod xz;

pub use archive::{Checked, Exported, HostSystem, Imported, Manifest, PackedLayer, SealCheck};
pub use copy::copy_tree;
pub use copy_out::{CopyOut, CopyOutError};
pub use distribution::build_image;
pub use draft::Draft;
pub use error::ImageError;
pub use exclude::Pattern;
pub use image::{HostBind, Image, ImageConfig, Progress, ProgressFn, silent};
pub use lease::{Lease, Leases};
pub use limits::{LimitExceeded, Limits};
pub use oci::Platform;
pub use pull::{Credentials, PullOptions, Vet, Vetting};
pub use recipe::{BASE_NAME, CODE_INTERPRETER_NAME, MACHINE_NAME, Recipe};
pub use reference::Reference;
pub use snapshot::SnapshotStaging;
pub use store::{Collected, Store};
pub use unpack::{Unpacked, unpack_layer};
