//! Sockets inside a sandbox's network namespace on which the host hears what it wants from the outside.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sloplet_policy::addresses::{INSIDE_V4, INSIDE_V6, OUTLET_PORT, RESOLVER_V4, RESOLVER_V6};
use sloplet_sys::transparent::make_transparent;

use super::{routes, rules};
use crate::protocol::{During, Problem};

/// Connections that may wait until they are taken. What they have sent meanwhile is on nobody's account, so not too many.
const BACKLOG: i32 = 1024;

/// The port of name servers.
const DNS: u16 = 53;

const STEP: &str = "make a way out of the sandbox";

/// The sockets. What is accepted from a listener has the address that was wanted as its own; while nobody accepts, nothing
/// goes out.
#[derive(Debug)]
pub struct Outlet {
    /// A listener (stream socket) for all families, then a resolver (datagram socket) for each. None waits. Every sandbox
    /// costs its engine and its spawner these descriptors, so there are no more than needed.
    pub sockets: Vec<OwnedFd>,
}

impl Outlet {
    /// Opens them in this process's network namespace, which must be fresh, and leads everything there.
    pub(super) fn open() -> Result<Self, Problem> {
        routes::lead_everything_here(INSIDE_V4.into()).during(STEP)?;
        let mut resolvers = vec![IpAddr::from(RESOLVER_V4)];
        match routes::lead_everything_here(INSIDE_V6.into()) {
            Ok(()) => resolvers.push(RESOLVER_V6.into()),
            Err(error) if says_no_ipv6(&error) => {}
            Err(error) => return Err(Problem::new(STEP, error)),
        }
        rules::send(&resolvers).map_err(explain)?;
        Self::listening(&resolvers).during(STEP)
    }

    fn listening(resolvers: &[IpAddr]) -> io::Result<Self> {
        // On all addresses it hears IPv4, too; the rules keep what is meant for loopback away from it.
        let all = if resolvers.len() > 1 { Ipv6Addr::UNSPECIFIED.into() } else { IpAddr::from(RESOLVER_V4) };
        let mut sockets = vec![open(all, SocketType::STREAM)?];
        for address in resolvers {
            sockets.push(open(*address, SocketType::DGRAM)?);
        }
        Ok(Self { sockets })
    }
}

impl Outlet {
    /// A socket in this process's network namespace that hears which names are asked for where nothing leads out: programs
    /// whose `resolv.conf` is empty ask 127.0.0.1. Takes some microseconds, where a way out takes hundreds. A server inside
    /// that wants the same port has it if it shares addresses (`SO_REUSEADDR`).
    pub(crate) fn ear() -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None).ok()?;
        sockopt::set_socket_reuseaddr(&socket, true).ok()?;
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, DNS))).ok()?;
        Some(socket)
    }

    /// Opens them in a network namespace that somebody else made, with nothing in it but loopback. It belongs to this
    /// process's user namespace or to one below.
    pub fn open_in(namespace: BorrowedFd<'_>) -> Result<Self, Problem> {
        within(namespace, Self::open)
    }

    /// Opens them where [`Self::open_in`] has done so for a process that is gone: all that leads there is there still.
    pub fn reopen_in(namespace: BorrowedFd<'_>) -> Result<Self, Problem> {
        within(namespace, || {
            let (v4, v6) = (IpAddr::from(RESOLVER_V4), IpAddr::from(RESOLVER_V6));
            Self::listening(&[v4, v6]).or_else(|_| Self::listening(&[v4])).during(STEP)
        })
    }
}

/// Does something in another network namespace: in a thread that ends afterwards, as no other may find itself there.
fn within<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> Result<T, Problem> + Send) -> Result<T, Problem> {
    std::thread::scope(|scope| {
        let visit = scope.spawn(move || {
            move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
                .map_err(io::Error::from)
                .during("enter a network namespace")?;
            work()
        });
        visit.join().unwrap_or_else(|_| Err(Problem::new(STEP, io::Error::other("the thread ended early"))))
    })
}

/// Whether this kernel, or its administrator, has no IPv6.
fn says_no_ipv6(error: &io::Error) -> bool {
    let absent = [Errno::ACCESS, Errno::AFNOSUPPORT, Errno::OPNOTSUPP, Errno::ADDRNOTAVAIL, Errno::NODEV, Errno::INVAL];
    error.raw_os_error().is_some_and(|code| absent.iter().any(|errno| errno.raw_os_error() == code))
}

fn explain(error: io::Error) -> Problem {
    let mut problem = Problem::new(STEP, error);
    problem.detail.push_str(
        " (this needs a kernel with nf_tables and TPROXY: as root, 'modprobe -a nft_tproxy nft_reject_ipv4 \
         nft_reject_ipv6'; or do without network)",
    );
    problem
}

fn open(address: IpAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, kind == SocketType::DGRAM)?;
    }
    make_transparent(socket.as_fd(), address.is_ipv6())?;
    if kind == SocketType::STREAM {
        // For what is accepted: a server inside can then have a port that somebody is connected to outside.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &SocketAddr::new(address, OUTLET_PORT))?;
    if kind == SocketType::STREAM {
        listen(&socket, BACKLOG)?;
    }
    Ok(socket)
}
