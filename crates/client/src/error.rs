//! What can go wrong between the host and an agent.

use std::io;
use std::sync::Arc;

use sloplet_wire::{Failure, Fatal, VERSION, WireError};

/// Why a request, or the whole connection, failed. Cloneable, since the end of a connection is told to every caller.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The sandbox could not be brought up; the agent never served.
    #[error("sandbox set-up failed at `{}`: {}", .0.step, describe(.0))]
    SetUp(Fatal),
    /// The agent speaks another protocol version.
    #[error("the agent speaks protocol version {agent}, this host {VERSION}; use an agent of the same release")]
    Version {
        /// The agent's version.
        agent: u16,
    },
    /// The connection is over: the agent closed it (or died), or it was given up here.
    #[error("the connection to the agent is closed")]
    Closed,
    /// The agent broke the protocol; the connection was ended.
    #[error("the agent broke the protocol: {0}")]
    Wire(#[source] Arc<WireError>),
    /// The agent sent something that has no place where it came; the connection was ended.
    #[error("the agent broke the protocol: {0}")]
    Unexpected(&'static str),
    /// The stream under the connection failed.
    #[error("connection to the agent failed: {0}")]
    Io(#[source] Arc<io::Error>),
    /// The agent answered that the request failed.
    #[error(transparent)]
    Failed(Failure),
    /// The agent gave up the stream of this request without an answer.
    #[error("the agent abandoned the request")]
    Reset,
    /// The other end no longer takes input: the process ended or closed it.
    #[error("input is no longer taken")]
    InputClosed,
    /// The request does not fit into one message.
    #[error("arguments and environment have {bytes} bytes, and {most} is the limit: shorten them, or pass a file")]
    TooLarge {
        /// What the request has.
        bytes: usize,
        /// What this agent takes.
        most: usize,
    },
    /// The answer is larger than the host is willing to hold.
    #[error("the answer exceeds the limit of {limit} {unit}")]
    TooMuch {
        /// The limit.
        limit: usize,
        /// What it counts.
        unit: &'static str,
    },
}

impl ClientError {
    /// The agent's own answer, if the request reached it and failed there.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// As an [`io::Error`], for the types that read and write like files.
    pub(crate) fn into_io(self) -> io::Error {
        let kind = match &self {
            Self::Closed => io::ErrorKind::UnexpectedEof,
            Self::Reset => io::ErrorKind::ConnectionReset,
            Self::InputClosed => io::ErrorKind::BrokenPipe,
            Self::Wire(_) | Self::Unexpected(_) => io::ErrorKind::InvalidData,
            Self::Io(error) => error.kind(),
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self)
    }
}

impl From<WireError> for ClientError {
    fn from(error: WireError) -> Self {
        Self::Wire(Arc::new(error))
    }
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

fn describe(fatal: &Fatal) -> String {
    match (fatal.errno, fatal.detail.as_str()) {
        (0, detail) => detail.to_owned(),
        (errno, "") => io::Error::from_raw_os_error(errno).to_string(),
        (errno, detail) => format!("{} ({detail})", io::Error::from_raw_os_error(errno)),
    }
}
