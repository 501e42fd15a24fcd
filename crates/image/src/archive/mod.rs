//! Snapshots as one file or stream that another store takes in: everything that is needed, and a digest of all of it.
//!
//! ```text
//! zstd frames of a tar (POSIX, with PAX records):
//!   sloplet-snapshot.json        what this is: see [`Manifest`]; always the first entry
//!   layers/<name>/               the layers in the manifest's order, topmost first, each with all that is in it:
//!   layers/<name>/etc/motd       owners, modes, times to the nanosecond, hard links, FIFOs,
//!                                attributes (`SCHILY.xattr.`), holes (`GNU.sparse` 1.0),
//!                                what the layer removes (a device 0:0), folders that hide lower ones (`user.overlay.opaque`)
//! a skippable zstd frame: the SHA-256 of all bytes before it (`seal`)
//! ```
//!
//! `zstd -d | tar -t` reads it. Nothing that a layer holds is left out: what cannot be written down makes the export fail.
//! What comes in is as hostile as an image: unpacked by the same unpacker, within the sizes that the manifest says beforehand,
//! and nothing of it is in the store before the digest was seen to be right.

mod export;
mod import;
mod manifest;
mod pack;
mod seal;

pub use export::Exported;
pub use import::Imported;
pub use manifest::{HostSystem, Manifest, PackedLayer};
pub use seal::{Checked, SealCheck};

/// The first entry.
const MANIFEST: &[u8] = b"sloplet-snapshot.json";

/// What the names of all other entries begin with.
const LAYERS: &[u8] = b"layers/";
