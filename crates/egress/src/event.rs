//! What an egress reports.

use std::net::IpAddr;

use serde::Serialize;

/// Something that a person may want to know, or that is to be recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// A name that was asked for and has no address inside.
    Lookup {
        /// The name, printable.
        name: String,
        /// The kind of record, `A`, `TXT` or `TYPE65280`.
        record: String,
        /// Why it has none.
        reason: String,
    },
    /// A connection waits for a person.
    Asked {
        /// Its number.
        connection: u64,
        /// The name it wants.
        name: Option<String>,
        /// The address it wants, where it has no name.
        address: Option<IpAddr>,
        /// The port it wants.
        port: u16,
        /// The rule that says to ask.
        rule: String,
    },
    /// A connection was let through; reported when its first bytes are known and its other end is reached.
    Allowed {
        /// Its number.
        connection: u64,
        /// The name it wanted.
        name: Option<String>,
        /// The address that was dialed; none where it was handed over.
        address: Option<IpAddr>,
        /// The port.
        port: u16,
        /// What it speaks.
        protocol: Protocol,
        /// The rule that allows it.
        rule: String,
    },
    /// A connection was refused, or cut.
    Denied {
        /// Its number.
        connection: u64,
        /// The name it wanted.
        name: Option<String>,
        /// The address it wanted, where it has no name.
        address: Option<IpAddr>,
        /// The port.
        port: u16,
        /// What it speaks, as far as known.
        protocol: Option<Protocol>,
        /// Why.
        reason: String,
    },
    /// An allowed connection whose other end could not be reached.
    Failed {
        /// Its number.
        connection: u64,
        /// The name it wanted.
        name: Option<String>,
        /// The address it wanted, where it has no name.
        address: Option<IpAddr>,
        /// The port.
        port: u16,
        /// Why.
        reason: String,
    },
    /// A connection that was let through has ended.
    Closed {
        /// Its number.
        connection: u64,
        /// Bytes that left the sandbox.
        up: u64,
        /// Bytes that came in.
        down: u64,
        /// How long it lasted.
        duration_ms: u64,
    },
    /// A limit was hit; reported at most once a second for each.
    Limited {
        /// Which one: a field of the network limits.
        limit: &'static str,
        /// How often since it was last reported.
        count: u64,
    },
}

/// What a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// It began with a ClientHello.
    Tls,
    /// It began with an HTTP/1 request.
    Http,
    /// Anything else.
    Raw,
}

/// Sums since an egress was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Connections that are open now, refused ones that are being told so included.
    pub open: u64,
    /// Connections that arrived.
    pub connections: u64,
    /// Connections that were let through.
    pub allowed: u64,
    /// Connections that were refused or cut.
    pub denied: u64,
    /// Connections and questions beyond a limit.
    pub limited: u64,
    /// DNS questions.
    pub lookups: u64,
    /// DNS questions for names that have no address inside.
    pub lookups_denied: u64,
    /// Bytes that left the sandbox.
    pub bytes_up: u64,
    /// Bytes that came in.
    pub bytes_down: u64,
}
