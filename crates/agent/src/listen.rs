//! Ports and Unix sockets inside that the host listens on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::{Rc, Weak};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sloplet_wire::{ErrorCode, Event, Failure};

use crate::context::{Actor, Context};
use crate::failure::{self, fail, shown};
use crate::files::Subject;
use crate::files::resolve::{Place, by_descriptor};
use crate::poll::Readiness;
use crate::stream::{Job, Step, StreamIo};

/// Ports below are for those who are root inside; the agent does not lend its rights.
const FIRST: u16 = 1024;

/// Connections that wait to be taken.
const BACKLOG: i32 = 64;

/// Ports and sockets that may be listened on at once.
const MOST: usize = 64;

/// Where connections are waited for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Spot {
    /// A port of loopback.
    Port(u16),
    /// A socket, by its path.
    Socket(Vec<u8>),
}

impl fmt::Display for Spot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => write!(out, "port {port}"),
            Self::Socket(path) => write!(out, "the socket {}", shown(path)),
        }
    }
}

/// What is listened on. Whoever asked for it holds it.
#[derive(Debug, Default)]
pub(crate) struct Listeners(RefCell<BTreeMap<Spot, Weak<OwnedFd>>>);

impl Listeners {
    /// Whether there is room for one more, there.
    fn admit(&self, spot: &Spot) -> Result<(), Failure> {
        let mut known = self.0.borrow_mut();
        known.retain(|_, socket| socket.strong_count() > 0);
        if known.contains_key(spot) {
            return Err(fail(ErrorCode::Exists, format!("{spot} is listened on already")));
        }
        if known.len() >= MOST {
            return Err(fail(ErrorCode::Exhausted, format!("at most {MOST} ports and sockets can be listened on")));
        }
        Ok(())
    }

    fn add(&self, spot: Spot, socket: &Rc<OwnedFd>) {
        self.0.borrow_mut().insert(spot, Rc::downgrade(socket));
    }

    /// The socket to accept from.
    pub(crate) fn of(&self, spot: &Spot) -> Result<Rc<OwnedFd>, Failure> {
        let socket = self.0.borrow().get(spot).and_then(Weak::upgrade);
        socket.ok_or_else(|| fail(ErrorCode::NotFound, format!("{spot} is not listened on")))
    }
}

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// A `Listen` request. Dropping it closes the port.
pub(crate) struct Listen {
    port: u16,
    told: bool,
    _socket: Rc<OwnedFd>,
}

impl Listen {
    pub(crate) fn new(context: &Context, port: u16) -> Result<Self, Failure> {
        if (1..FIRST).contains(&port) {
            return Err(fail(ErrorCode::Denied, format!("port {port} is below {FIRST}")));
        }
        context.listeners.admit(&Spot::Port(port))?;
        let failed = |error: Errno| failure::errno(error, format_args!("listening on port {port}"));
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, FLAGS, None).map_err(failed)?;
        let _ = rustix::net::sockopt::set_socket_reuseaddr(&socket, true);
        rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port))).map_err(failed)?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
        let bound = rustix::net::getsockname(&socket).map_err(failed)?;
        let bound = SocketAddr::try_from(bound).map_err(|_| failed(Errno::AFNOSUPPORT))?.port();
        let socket = Rc::new(socket);
        context.listeners.add(Spot::Port(bound), &socket);
        Ok(Self { port: bound, told: false, _socket: socket })
    }
}

impl Job for Listen {
    fn ready(&mut self, _: Readiness) {}

    fn step(&mut self, io: &mut StreamIo<'_>, _: &Context) -> Result<Step, Failure> {
        if !self.told {
            self.told = true;
            io.event(&Event::Listening { port: self.port });
        }
        Ok(Step::Wait)
    }
}

/// A `ListenAt` request. Dropping it removes the socket.
pub(crate) struct ListenAt {
    actor: Actor,
    place: Place,
    /// Which file it is: another may have taken its place.
    file: (u64, u64),
    told: bool,
    _socket: Rc<OwnedFd>,
}

impl ListenAt {
    pub(crate) fn new(context: &Context, subject: Subject) -> Result<Self, Failure> {
        let Subject { actor, path } = subject;
        let spot = Spot::Socket(path.clone());
        context.listeners.admit(&spot)?;
        let failed = |error: Errno| failure::errno(error, format_args!("listening on {}", shown(&path)));
        let acting = actor.act()?;
        let place = context.root.place(&path)?;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None).map_err(failed)?;
        let address = address(&place).map_err(failed)?;
        match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) if is_dead(&place, &address) => {
                rustix::fs::unlinkat(&place.folder, &place.name, AtFlags::empty()).map_err(failed)?;
                bind(&socket, &address)
            }
            result => result,
        }
        .map_err(failed)?;
        let file = identity(&place).map_err(failed)?;
        drop(acting);
        let socket = Rc::new(socket);
        // From here on, whatever fails, it is removed again.
        let this = Self { actor, place, file, told: false, _socket: socket.clone() };
        this.give_to_user().map_err(failed)?;
        rustix::net::listen(&*socket, BACKLOG).map_err(failed)?;
        context.listeners.add(spot, &socket);
        Ok(this)
    }

    fn give_to_user(&self) -> Result<(), Errno> {
        let Some((uid, gid)) = self.actor.owner() else { return Ok(()) };
        let Place { folder, name } = &self.place;
        rustix::fs::chownat(folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
    }
}

impl Job for ListenAt {
    fn ready(&mut self, _: Readiness) {}

    fn step(&mut self, io: &mut StreamIo<'_>, _: &Context) -> Result<Step, Failure> {
        if !self.told {
            self.told = true;
            io.event(&Event::Done);
        }
        Ok(Step::Wait)
    }
}

impl Drop for ListenAt {
    fn drop(&mut self) {
        let Ok(_acting) = self.actor.act() else { return };
        if identity(&self.place) == Ok(self.file) {
            let _ = rustix::fs::unlinkat(&self.place.folder, &self.place.name, AtFlags::empty());
        }
    }
}

/// A socket's address has room for a short path only, so it is named from its folder.
fn address(place: &Place) -> Result<SocketAddrUnix, Errno> {
    let mut path = by_descriptor(&place.folder).into_bytes();
    path.push(b'/');
    path.extend_from_slice(place.name.to_bytes());
    SocketAddrUnix::new(path)
}

/// For its owner only. Nothing else of the agent makes files meanwhile: it has one thread.
fn bind(socket: &OwnedFd, address: &SocketAddrUnix) -> Result<(), Errno> {
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = rustix::net::bind(socket, address);
    rustix::process::umask(before);
    bound
}

/// Whether a socket is there that was left by somebody who is gone.
fn is_dead(place: &Place, address: &SocketAddrUnix) -> bool {
    let found = rustix::fs::statat(&place.folder, &place.name, AtFlags::SYMLINK_NOFOLLOW);
    let is_socket = found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket);
    is_socket
        && rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)
            .is_ok_and(|probe| rustix::net::connect(&probe, address) == Err(Errno::CONNREFUSED))
}

fn identity(place: &Place) -> Result<(u64, u64), Errno> {
    let found = rustix::fs::statat(&place.folder, &place.name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((found.st_dev, found.st_ino))
}
