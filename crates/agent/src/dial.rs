//! Connections to ports inside, and from what is listened on there.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};
use sloplet_wire::{Channel, Event, Failure, MAX_PAYLOAD};

use crate::context::Context;
use crate::failure;
use crate::listen::Spot;
use crate::poll::{Readiness, Token};
use crate::stream::{Job, Step, StreamIo};

/// A `Dial` or an `Accept` request.
pub(crate) struct Dial {
    spot: Spot,
    state: State,
    readable: bool,
    writable: bool,
    hangup: bool,
    output_over: bool,
    input_over: bool,
    /// Whether it is told of connections.
    watched: bool,
}

enum State {
    /// Nothing tried yet.
    New,
    /// Waiting for somebody to connect.
    Accepting(Rc<OwnedFd>),
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
        Self::to(Spot::Port(port))
    }

    fn to(spot: Spot) -> Self {
        Self {
            spot,
            state: State::New,
            readable: false,
            writable: false,
            hangup: false,
            output_over: false,
            input_over: false,
            watched: false,
        }
    }

    /// Waits for a connection to what the agent listens on.
    pub(crate) fn accepting(context: &Context, spot: Spot) -> Result<Self, Failure> {
        let state = State::Accepting(context.listeners.of(&spot)?);
        Ok(Self { state, ..Self::to(spot) })
    }

    /// Takes a connection, if there is one.
    fn accept(&mut self, listener: Rc<OwnedFd>, io: &mut StreamIo<'_>, context: &Context) -> Result<Step, Failure> {
        let failed = |error| failure::errno(error, format_args!("waiting for a connection to {}", self.spot));
        match rustix::net::accept_with(&listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => {
                let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
                io.watch(context, &socket).map_err(failed)?;
                (self.readable, self.writable, self.hangup) = (false, false, false);
                self.state = State::Connected(socket);
                io.event(&Event::Done);
                Ok(Step::Again)
            }
            // Somebody who has left already, or whom another request took.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {
                self.readable = false;
                self.state = State::Accepting(listener);
                Ok(Step::Wait)
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn describe(&self, error: Errno) -> Failure {
        failure::errno(error, format_args!("connecting to {}", self.spot))
    }

    /// Begins to connect. An error that comes at once is of this family only.
    fn connect(&mut self, family: Family, io: &StreamIo<'_>, context: &Context) -> Result<(), Errno> {
        let Spot::Port(port) = self.spot else { return Err(Errno::AFNOSUPPORT) };
        let (domain, address) = match family {
            Family::V4 => (AddressFamily::INET, SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
            Family::V6 => (AddressFamily::INET6, SocketAddr::from((Ipv6Addr::LOCALHOST, port))),
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
            State::Accepting(listener) => {
                if !self.watched {
                    self.watched = true;
                    // The socket stays registered for as long as it is open; who waits for it last is told.
                    let token = Token::Stream(io.key);
                    match context.poll.add(&*listener, token) {
                        Err(Errno::EXIST) => context.poll.pass_on(&*listener, token),
                        result => result,
                    }
                    .map_err(|error| self.describe(error))?;
                }
                return self.accept(listener, io, context);
            }
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
