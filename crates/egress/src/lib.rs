//! The only way out of a sandbox.
//!
//! Inside there is no route: every connection and every DNS question arrives at a [`Doorway`]. Names get synthetic
//! addresses, so that a connection tells which name it is for; the rules ([`sloplet_policy::network`]) decide by name and
//! port; only then is the name resolved on the host, its addresses vetted, and one of what was vetted dialed.
//!
//! - [`doorway`]: how connections and questions arrive.
//! - [`egress`]: [`Egress`], which serves a doorway until it is dropped.
//! - [`event`]: what it reports. [`ask`]: asking a person. [`resolve`]: names and connections on the host. [`host`]: the host's addresses.
//! - [`intercept`]: handing a connection over to where keys are put in.
//! - `dns`, `names`, `questions`: answering questions. `first`, `hello`, `http`: what a connection's first bytes, and each HTTP request,
//!   say about where it goes. `connection`, `proxy`, `dial`, `protected`, `relay`, `refuse`, `limits`: its way
//!   through.
//!
//! # What the bytes must say
//!
//! On a connection to a name, whatever the port:
//! - TLS: the ClientHello's server name must be that name. Without one it is denied. With Encrypted ClientHello the outer
//!   name counts (the inner one cannot be seen, and a real extension cannot be told from the random one that browsers
//!   always send); programs learn ECH keys from HTTPS records, which the resolver here never gives out.
//! - HTTP/1: each request's Host, and absolute target, must be that name. Ambiguous framing is answered with 400.
//!   HTTP/2 without TLS cannot be checked and is denied; name the address in a rule where it is needed.
//! - Text that a lenient server could take for HTTP (odd spaces, line ends, methods or versions; one word and a line's end)
//!   passes only once the server has spoken first, and not in HTTP: ssh, mail. Otherwise it is answered with 400.
//! - Binary protocols are passed on as they are: databases. If the server answers in HTTP, the connection is cut.
//! - A rule that ends in `/tcp` opts out of all of this; where an [`Intercept`] wants the connection, no rule does, and
//!   nothing but HTTP and TLS passes.
//!
//! On a connection to an address that a rule names, nothing is checked but that no shown name is denied; where there are
//! such rules, text passes as above.
//!
//! # Limitations
//!
//! Under `internet`, every name has an address inside, whether it exists or not: it is looked up when it is dialed. What
//! travels inside TLS is not seen here, unless an [`Intercept`] takes the connection over. A server that skips binary rubbish
//! and reads a request behind it, without answering in HTTP before, would be reached with any Host; HTTP servers answer
//! such rubbish with 400 and close.
//!
//! Tested with a doorway of plain loopback sockets and a resolver in memory (`tests/`); parsers with random input.

pub mod ask;
mod check;
mod connection;
mod dial;
mod dns;
pub mod doorway;
pub mod egress;
pub mod event;
mod first;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hello;
pub mod host;
mod http;
pub mod intercept;
#[cfg(test)]
mod lenient;
mod limits;
mod names;
mod protected;
mod proxy;
mod questions;
mod record;
mod refuse;
mod relay;
mod requests;
pub mod resolve;

pub use ask::{Answer, Ask, Nobody, Request};
pub use doorway::{Arrival, Doorway, Question, Sockets};
pub use egress::{Egress, Options};
pub use event::{Counters, Event, Protocol};
pub use intercept::{Dial, Intercept, Pending, Stream, Target};
pub use resolve::{Connect, Resolve, System};
