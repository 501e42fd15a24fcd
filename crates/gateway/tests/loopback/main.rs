//! The gateway between a client and a host, both on loopback, over TLS.

mod calls;
mod common;
mod passing;
mod secrets;
