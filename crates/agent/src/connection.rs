//! A session with the host over one socket, a device, or a pipe each way.

use std::collections::{BTreeMap, VecDeque};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use sloplet_wire::{Decoder, Hello, Kind, MAX_REQUEST, VERSION, to_bytes};

use crate::outgoing::Outgoing;
use crate::poll::{Poll, Token};
use crate::server::Runnable;
use crate::stream::Stream;

/// Open streams a connection may have.
pub(crate) const MAX_STREAMS: usize = 4096;

/// Wanted of the kernel for the socket; it gives what it allows.
const SOCKET_BUFFER: usize = 4 * 1024 * 1024;

/// One connection.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    /// It is a device, not a socket.
    pub(crate) device: bool,
    /// What is written to, where the other one is only read from.
    output: Option<OwnedFd>,
    pub(crate) decoder: Decoder,
    pub(crate) out: Outgoing,
    pub(crate) streams: BTreeMap<u32, Stream>,
    /// Runnables that wait for room in `out`, the longest-waiting first.
    pub(crate) waiting: VecDeque<Runnable>,
    /// Waits until the socket takes more.
    wants_output: bool,
    /// The host's end is closed.
    pub(crate) hangup: bool,
    /// To be dropped with all that belongs to it.
    pub(crate) dead: bool,
}

/// What a read brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// All there was.
    All,
    /// There may be more.
    More,
    /// The end of the connection.
    Over,
}

impl Connection {
    /// Takes over a socket and greets.
    pub(crate) fn new(socket: OwnedFd) -> Result<Self, Errno> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        // Larger than the default where allowed: fewer turns for the same bytes.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER);
        Ok(Self::greeting(socket, false, None))
    }

    /// Takes over a device that does not block, and greets.
    pub(crate) fn on_device(device: OwnedFd) -> Self {
        Self::greeting(device, true, None)
    }

    /// Takes over two descriptors of whatever kind, and greets. The one for output is not asked again to be heard of.
    pub(crate) fn over_pipes(input: OwnedFd, output: OwnedFd) -> Result<Self, Errno> {
        rustix::io::ioctl_fionbio(&input, true)?;
        rustix::io::ioctl_fionbio(&output, true)?;
        Ok(Self::greeting(input, false, Some(output)))
    }

    fn greeting(socket: OwnedFd, device: bool, output: Option<OwnedFd>) -> Self {
        let mut out = Outgoing::default();
        let build = concat!("sloplet-agent ", env!("CARGO_PKG_VERSION")).to_owned();
        let hello = Hello { version: VERSION, build, longest_request: Some(MAX_REQUEST as u32) };
        out.frame(Kind::Hello, 0, 0, &to_bytes(&hello));
        Self {
            socket,
            device,
            output,
            decoder: Decoder::new(),
            out,
            streams: BTreeMap::new(),
            waiting: VecDeque::new(),
            wants_output: false,
            hangup: false,
            dead: false,
        }
    }

    /// Reads once into the decoder.
    pub(crate) fn receive(&mut self, scratch: &mut [u8]) -> Received {
        let read = match self.device || self.output.is_some() {
            true => rustix::io::read(&self.socket, &mut *scratch),
            false => rustix::net::recv(&self.socket, &mut *scratch, RecvFlags::DONTWAIT).map(|(len, _)| len),
        };
        match read {
            Ok(0) => Received::Over,
            Ok(len) => {
                self.decoder.extend(&scratch[..len]);
                // A short read emptied the socket, and what comes later makes a new edge; but an end of file that was
                // already announced does not.
                if len == scratch.len() || self.hangup { Received::More } else { Received::All }
            }
            Err(Errno::AGAIN) => Received::All,
            Err(Errno::INTR) => Received::More,
            Err(_) => Received::Over,
        }
    }

    /// Continues `runnable` once bulk data may be added again.
    pub(crate) fn wait_for_room(&mut self, runnable: Runnable) {
        if !self.waiting.contains(&runnable) {
            self.waiting.push_back(runnable);
        }
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&mut self, id: u32, poll: &Poll) {
        let flushed = match &self.output {
            Some(output) => self.out.flush(output, true),
            None => self.out.flush(&self.socket, self.device),
        };
        let Ok(drained) = flushed else {
            self.dead = true;
            return;
        };
        if self.output.is_some() {
            return;
        }
        // Only while something waits: the host's every read would wake the agent otherwise.
        if drained == self.wants_output {
            self.wants_output = !drained;
            self.dead |= poll.want_output(&self.socket, Token::Connection(id), !drained).is_err();
        }
    }
}
