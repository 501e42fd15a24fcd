//! What happened in and around sandboxes: written on the host, append-only, hash-chained and signed.
//!
//! ```no_run
//! use sloplet_ledger::{Event, Filter, Known, Ledger, Options};
//!
//! # fn main() -> Result<(), sloplet_ledger::LedgerError> {
//! let ledger = Ledger::new("/var/lib/sloplet".as_ref(), Options::default());
//! ledger.record(Some("s1"), "cli", Event::note("hello"))?;
//! for record in ledger.query(Filter { sandbox: Some("s1".into()), ..Filter::default() })? {
//!     println!("{}", sloplet_ledger::plain(record?.line()));
//! }
//! assert!(ledger.verify(&Known::default())?.is_sound());
//! # Ok(()) }
//! ```
//!
//! # Map
//! - [`event`]: what can be recorded; `text` bounds what others chose, `redact` keeps secrets out.
//! - `line`: a record is a line of JSON that carries the hash of its own bytes and of the record before it.
//! - `chain`: appending under a file lock, so that any number of processes share one chain; mending what a killed one left.
//! - `sign`: Ed25519 heads, which fix the chain as it was at that moment.
//! - `ledger`, `queue`, `writer`: a queue and a thread in front of the chain, started by the first record.
//! - `reader`, `export`, `verify`, `prune`: what is done with it afterwards.
//! - `capture`, `outputs`: what commands printed.
//!
//! # What is proven
//! [`verify()`] finds a record that was altered, removed, moved, repeated or slipped in, and says where. Heads reveal
//! records and whole segments that are missing at the end.
//!
//! # Limitations
//! - Whoever can write to the data folder *and* read the key in it can forge everything from then on, and rewrite what was. It is
//!   kept from all but the owner (0600 in a folder of 0700), and nothing of it is inside a sandbox. To be safe from the
//!   owner too, keep [`Ledger::public_key`] and, from time to time, a [`Ledger::head`] elsewhere: [`Known`].
//! - Records behind the last head (a second's worth at most) are chained but not signed. Who removes the end of the chain *and*
//!   the heads that spoke for it is found only with a head from elsewhere.
//! - Without [`Options::sync`], a power cut may lose the last seconds; if a head survived them, verification says that they are
//!   missing, as it should. A killed process loses what was still in its queue and breaks nothing.
//! - A secret is redacted as it is, percent-encoded and in base64; not if a program turned it round.
//!
//! # Tests
//! `cargo test -p sloplet-ledger`; `cargo run --release -p sloplet-ledger --example rate` measures.

mod capture;
mod chain;
mod error;
pub mod event;
mod export;
mod folder;
mod ledger;
mod line;
mod outputs;
mod prune;
mod queue;
mod reader;
mod redact;
mod sign;
mod text;
mod verify;
mod writer;

pub use capture::{KEPT_HEAD, KEPT_TAIL, Output, OutputDigest, OutputTap};
pub use error::LedgerError;
pub use event::Event;
pub use export::{Exported, export_jsonl, export_otlp};
pub use ledger::{Flushing, Ledger, Options, last_head, public_key};
pub use outputs::{Outputs, StoredOutput};
pub use prune::{Removed, Retention};
pub use reader::{Filter, Follow, Reader, Record};
pub use redact::{REDACTED, Redactor};
pub use sign::{Checkpoint, Head, PublicKey};
pub use text::{Bounded, LongText, Name, Text, Texts, plain};
pub use verify::{Defect, Known, Problem, Report, verify};

/// SHA-256 in hexadecimal digits, as events carry it.
pub fn sha256(bytes: &[u8]) -> String {
    line::hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
