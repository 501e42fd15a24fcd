//! What the event loop waits for.

use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

/// Events taken at once.
const BATCH: usize = 64;

const EDGES: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);
const ONCE: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// Whom a readiness event is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// SIGCHLD.
    Children,
    /// The timer of held-back pipes.
    Pacer,
    /// The listening socket.
    Listener,
    /// A device whose other end nobody has open.
    Device,
    /// It is to let go of its sockets.
    LetGo,
    /// A connection's socket.
    Connection(u32),
    /// A descriptor of a process.
    Process(u32, Part),
    /// A descriptor of a stream's job.
    Stream(StreamKey),
}

/// A stream of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamKey {
    /// The connection.
    pub(crate) connection: u32,
    /// The stream's number on it.
    pub(crate) stream: u32,
}

/// A descriptor of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Standard output, or the terminal (then also input).
    Output,
    /// Standard error.
    Error,
    /// Standard input.
    Input,
    /// Whether exec succeeded.
    Status,
}

impl Token {
    // Layout: kind in the top 4 bits, 28 bits of connection or part, 32 bits of stream or process.
    fn encode(self) -> u64 {
        let pack = |kind: u64, high: u32, low: u32| kind << 60 | u64::from(high & 0x0fff_ffff) << 32 | u64::from(low);
        match self {
            Self::Children => pack(0, 0, 0),
            Self::Listener => pack(1, 0, 0),
            Self::Connection(id) => pack(2, id, 0),
            Self::Process(id, part) => pack(3, part as u32, id),
            Self::Stream(key) => pack(4, key.connection, key.stream),
            Self::Pacer => pack(5, 0, 0),
            Self::Device => pack(6, 0, 0),
            Self::LetGo => pack(7, 0, 0),
        }
    }

    fn decode(value: u64) -> Self {
        let (high, low) = ((value >> 32) as u32 & 0x0fff_ffff, value as u32);
        match value >> 60 {
            0 => Self::Children,
            1 => Self::Listener,
            2 => Self::Connection(high),
            3 => Self::Process(
                low,
                match high {
                    0 => Part::Output,
                    1 => Part::Error,
                    2 => Part::Input,
                    _ => Part::Status,
                },
            ),
            4 => Self::Stream(StreamKey { connection: high, stream: low }),
            5 => Self::Pacer,
            6 => Self::Device,
            _ => Self::LetGo,
        }
    }
}

/// What became possible.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readiness {
    /// Reading.
    pub(crate) read: bool,
    /// Writing.
    pub(crate) write: bool,
    /// The other end is gone; what it left can still be read, up to the end of file.
    pub(crate) hangup: bool,
}

/// An epoll instance.
#[derive(Debug)]
pub(crate) struct Poll {
    epoll: OwnedFd,
}

impl Poll {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Registers a descriptor for every change in both directions. Its owner remembers what was ready, so that holding
    /// back (for credit or room) costs no system call. Closing it is what ends that.
    pub(crate) fn add(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.encode()), EDGES | EventFlags::OUT)
    }

    /// Registers a descriptor for input only, until [`Self::want_output`].
    pub(crate) fn add_input(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.encode()), EDGES)
    }

    /// Asks to be told, or not any more, when output is possible.
    pub(crate) fn want_output(&self, fd: impl AsFd, token: Token, wanted: bool) -> Result<(), Errno> {
        let flags = if wanted { EDGES | EventFlags::OUT } else { EDGES };
        epoll::modify(&self.epoll, fd, EventData::new_u64(token.encode()), flags)
    }

    /// Gives a registered descriptor to somebody else, who hears of every change, beginning with what is so already.
    pub(crate) fn pass_on(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token.encode()), EDGES | EventFlags::OUT)
    }

    /// Registers a pipe to be read. It is heard of once, then only after [`Self::rearm`]: a pipe in epoll announces
    /// every single write, and a program that writes a lot in small pieces would wake the agent for each.
    pub(crate) fn add_once(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.encode()), ONCE)
    }

    /// Asks to hear of a pipe once more; at once if there is something in it.
    pub(crate) fn rearm(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(token.encode()), ONCE)
    }

    /// Waits until something is ready or `until` has come (`None`: for ever) and appends it to `events`.
    pub(crate) fn wait(&self, until: Option<Instant>, events: &mut Vec<(Token, Readiness)>) -> Result<(), Errno> {
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            // Whole milliseconds, rounded up: this is what plain epoll_wait knows, and early would mean spinning.
            let left = Duration::from_millis(left.as_nanos().div_ceil(1_000_000).min(86_400_000) as u64);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let mut raw = Vec::with_capacity(BATCH);
        match epoll::wait(&self.epoll, spare_capacity(&mut raw), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        events.extend(raw.iter().map(|event: &epoll::Event| {
            let flags = event.flags;
            let hangup = flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR);
            let ready = Readiness {
                read: hangup || flags.contains(EventFlags::IN),
                write: hangup || flags.contains(EventFlags::OUT),
                hangup,
            };
            (Token::decode(event.data.u64()), ready)
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        for token in [
            Token::Children,
            Token::Pacer,
            Token::Device,
            Token::LetGo,
            Token::Listener,
            Token::Connection(77),
            Token::Process(u32::MAX, Part::Status),
            Token::Process(5, Part::Output),
            Token::Stream(StreamKey { connection: 3, stream: u32::MAX }),
        ] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
