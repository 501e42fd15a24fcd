//! Where a sandbox's connections to chosen hosts are opened on the host: secrets are put in, LLM calls are counted.
//!
//! A sandbox holds placeholders. For the hosts that a rule names, TLS ends here, with a certificate of the sandbox's own
//! authority; the placeholder becomes the value, and the request goes on over verified TLS. Calls to LLM APIs are priced and
//! paid from an account before they are sent. Everything else in a request and an answer is passed on as it came.
//!
//! - [`gateway`]: [`Gateway`], what egress hands connections to.
//! - [`authority`]: the certificates shown inside. [`trust`]: how programs inside come to trust them.
//! - [`value`]: a secret's value. [`vault`]: placeholders, and where they are replaced. [`redact`]: values on their way back.
//! - [`llm`]: what a call asks for and what it used. [`prices`]: what that costs. [`account`]: who has spent how much.
//! - [`event`]: what is told to the ledger.
//!
//! What holds, and what does not:
//! - A value is sent only to a rule's hosts, only over TLS with a certificate that the host trusts (over plain HTTP only if
//!   the rule says so), and only in the place the rule names.
//! - A host that shows a value again is not believed to mean it: answers are searched for it. That is a second line, not a
//!   wall: a host that encodes or cuts up the value, or speaks after an upgrade (WebSocket), can still tell it.
//! - A call is admitted only if its worst case fits under the caps next to everything under way. The worst case of the input
//!   is one token for each byte of the request, or the model's whole context: no tokenizer makes more of it.
//! - A call whose end is not seen (the client leaves, the connection breaks) counts as its worst case.
//!
//! Tested over loopback TLS in `tests/`, and with the `anthropic` and `openai` packages.

pub mod account;
mod admission;
pub mod authority;
mod body;
mod denied;
pub mod event;
mod exchange;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod gateway;
mod headers;
pub mod llm;
mod meter;
pub mod prices;
pub mod redact;
pub mod trust;
mod unasked;
mod upstream;
pub mod value;
pub mod vault;

pub use account::{Account, Accounts};
pub use authority::Authority;
pub use event::{Event, Events, LlmCall};
pub use gateway::{Gateway, LlmHost, Setup};
pub use llm::Shape;
pub use prices::Prices;
pub use value::SecretValue;
pub use vault::{Secret, placeholder};
