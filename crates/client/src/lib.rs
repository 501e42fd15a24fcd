//! The host's end of the connection to an agent.
//!
//! [`Agent`] is a cheap handle to one connection; every request opens its own stream on it, and streams do not wait for
//! each other. The connection closes when the last handle and everything obtained from it are gone.
//!
//! - [`Agent`] (`agent`): one method for each request.
//! - [`Process`], [`Stdin`] (`process`): a running process and its input.
//! - [`Download`], [`Upload`] (`transfer`): files and archives.
//! - [`Watcher`] (`watcher`): changes in a folder.
//! - [`Connection`], [`Listener`] (`dialed`): connections to ports inside, and from ports and sockets there.
//! - `link`: what all streams of a connection share; `driver`: the one task that reads and dispatches;
//!   `outgoing`: frames on their way out; `stream` and `inbound`: one stream and what it has received.
//!
//! # Speed
//! A request is written by its caller, straight to the socket, and the one task of a connection hands answers straight
//! to the caller that waits for them, so a round trip costs no more wake-ups than it must. Large payloads are not copied
//! on their way in or out.
//!
//! # Trust
//! Everything an agent says is hostile. Whatever breaks the protocol ends the connection, and every caller gets the
//! reason. A stream holds at most [`sloplet_wire::flow::INITIAL_WINDOW`] bytes per channel and a bounded backlog of
//! events; an agent that does not read makes writers wait instead of growing a queue.
//!
//! # Limitations
//! - There are no timeouts: an agent that never answers is waited for. Every future here may be dropped instead, which
//!   abandons its request.
//! - `connect` must be called on a tokio runtime, whose shutdown ends the connection.
//!
//! # Tests
//! `tests/scripted.rs` plays honest, slow and hostile agents, frame by frame; `tests/agent.rs` talks to the real agent in
//! a child process. `examples/speed.rs` measures what the client itself costs.

mod agent;
mod dialed;
mod driver;
mod error;
mod inbound;
mod link;
mod outgoing;
mod process;
mod stream;
mod transfer;
mod watcher;

pub use agent::{Agent, MAX_LISTING};
pub use dialed::{Connection, Listener};
pub use error::ClientError;
pub use process::{Observer, Output, Process, ProcessEvent, Stdin};
pub use sloplet_wire as wire;
pub use stream::Answer;
pub use transfer::{Download, Upload};
pub use watcher::Watcher;
