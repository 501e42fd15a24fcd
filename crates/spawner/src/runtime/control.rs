//! What an engine says to the keeper of a lasting sandbox, over a packet socket in the owner's folder: a connection for each
//! matter.

use minicbor::{Decode, Encode};

use crate::protocol::Problem;

/// Engine → keeper.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Request {
    /// A connection to the agent; `Connected` follows once it listens.
    #[n(0)]
    Connect,
    /// Save all processes with their memory, in the folder that comes along; `Saved` follows. They stand still until `Resume`,
    /// or until the conversation ends.
    #[n(1)]
    Checkpoint,
    /// Go on from what was saved; `Done` follows.
    #[n(2)]
    Resume,
}

/// Keeper → engine.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Answer {
    /// With a stream socket.
    #[n(0)]
    Connected,
    /// Nothing runs now, and nothing is written.
    #[n(1)]
    Saved,
    /// They go on.
    #[n(2)]
    Done,
    /// It was not done; what ran before goes on if it can.
    #[n(3)]
    Failed(#[n(0)] Problem),
}
