//! Connections to ports inside.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};
use sloplet_wire::{Channel, Event, Failure, MAX_PAYLOAD};

use crate::context::Context;
use crate::failure;
use crate::poll::Readiness;
use crate::stream::{Job, Step, StreamIo};

/// A `Dial` request.
pub(crate) struct Dial {
    port: u16,
    state: State,
    readable: bool,
    writable: bool,
    hangup: bool,
    output_over: bool,
    input_over: bool,
}

enum State {
    /// Nothing tried yet.
    New,
    /// Trying IPv4, then IPv6.
    Connecting(OwnedFd, Family),
    Connected(OwnedFd),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Dial {
    pub(crate) fn new(port: u16) -> Self {
        Self {
            port,
            state: State::New,
            readable: false,
            writable: false,
            hangup: false,
            output_over: false,
            input_over: false,
        }
    }

    fn describe(&self, error: Errno) -> Failure {
        failure::errno(error, format_args!("connecting to port {}", self.port))
    }

    /// Begins to connect. An error that comes at once is of this family only.
    fn connect(&mut self, family: Family, io: &StreamIo<'_>, context: &Context) -> Result<(), Errno> {
        let (domain, address) = match family {
            Family::V4 => (AddressFamily::INET, SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))),
            Family::V6 => (AddressFamily::INET6, SocketAddr::from((Ipv6Addr::LOCALHOST, self.port))),
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(domain, SocketType::STREAM, flags, None)?;
        let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
        (self.readable, self.writable, self.hangup) = (false, false, false);
        match rustix::net::connect(&socket, &address) {
            Ok(()) => self.writable = true,
            Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        io.watch(context, &socket)?;
        self.state = State::Connecting(socket, family);
        Ok(())
    }

    fn establish(&mut self, io: &mut StreamIo<'_>, context: &Context) -> Result<Step, Failure> {
        let (result, family) = match std::mem::replace(&mut self.state, State::New) {
            State::New => (self.connect(Family::V4, io, context), Family::V4),
            State::Connecting(socket, family) if self.writable || self.hangup => {
                match rustix::net::sockopt::socket_error(&socket).unwrap_or_else(Err) {
                    Ok(()) => {
                        self.state = State::Connected(socket);
                        io.event(&Event::Done);
                        return Ok(Step::Again);
                    }
                    Err(error) => (Err(error), family),
                }
            }
            other => {
                self.state = other;
                return Ok(Step::Wait);
            }
        };
        match (result, family) {
            (Ok(()), _) => Ok(Step::Again),
            (Err(_), Family::V4) => {
                // Where there is no IPv6, IPv4's answer is the one that tells something: nobody listens.
                self.connect(Family::V6, io, context).map(|()| Step::Again).map_err(|error| match error {
                    Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL => self.describe(Errno::CONNREFUSED),
                    error => self.describe(error),
                })
            }
            (Err(Errno::ADDRNOTAVAIL), Family::V6) => Err(self.describe(Errno::CONNREFUSED)),
            (Err(error), Family::V6) => Err(self.describe(error)),
        }
    }
}

impl Job for Dial {
    fn ready(&mut self, readiness: Readiness) {
        self.readable |= readiness.read;
        self.writable |= readiness.write;
        self.hangup |= readiness.hangup;
    }

    fn step(&mut self, io: &mut StreamIo<'_>, context: &Context) -> Result<Step, Failure> {
        let State::Connected(socket) = &self.state else {
            return self.establish(io, context);
        };
        let mut again = false;
        let room = io.room(Channel::Output);
        if self.readable && !self.output_over && room > 0 {
            again = true;
            let hangup = self.hangup;
            match io.data(Channel::Output, room, |place| rustix::io::read(socket, place)).map(<[u8]>::len) {
                Ok(0) => {
                    self.output_over = true;
                    io.end(Channel::Output);
                }
                Ok(len) => self.readable = len == room || hangup,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.readable = false,
                Err(_) => {
                    io.reset();
                    return Ok(Step::Finished);
                }
            }
        }
        if self.writable && !self.input_over {
            let input = io.input();
            if !input.is_empty() {
                again = true;
                let slice = &input[..input.len().min(MAX_PAYLOAD)];
                match rustix::net::send(socket, slice, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                    Ok(len) => io.consume_input(len),
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => self.writable = false,
                    Err(_) => {
                        io.reset();
                        return Ok(Step::Finished);
                    }
                }
            } else if io.input_is_over() {
                self.input_over = true;
                let _ = rustix::net::shutdown(socket, Shutdown::Write);
            }
        }
        if self.output_over && self.input_over {
            return Ok(Step::Finished);
        }
        Ok(if again { Step::Again } else { Step::Wait })
    }
}
