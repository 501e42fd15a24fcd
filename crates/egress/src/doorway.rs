//! How a sandbox's connections and questions reach the host.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Poll;

use tokio::io::ReadBuf;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::intercept::Pending;

/// How a sandbox's connections and questions reach the host. Each is awaited by one task at a time.
pub trait Doorway: Send + Sync + 'static {
    /// The next TCP connection, with the address it wanted.
    fn connection(&self) -> Pending<'_, io::Result<Arrival>>;

    /// The next DNS datagram, with a way to answer.
    fn question(&self) -> Pending<'_, io::Result<Question>>;
}

/// A TCP connection from inside.
#[derive(Debug)]
pub struct Arrival {
    /// The sandbox's end.
    pub stream: TcpStream,
    /// The address and port that the program inside connected to.
    pub wanted: SocketAddr,
}

/// Sends one answer.
pub type Answerer = Box<dyn FnOnce(&[u8]) + Send>;

/// A DNS datagram from inside.
pub struct Question {
    /// As it came.
    pub message: Vec<u8>,
    /// Sends the answer to where the question came from.
    pub answer: Answerer,
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").field("message", &self.message).finish_non_exhaustive()
    }
}

/// The longest question that is read; what clients send is below 300 bytes.
const MAX_QUESTION: usize = 1232;

/// Sockets that were bound inside a sandbox's network namespace, where all traffic is led to them.
#[derive(Debug)]
pub struct Sockets {
    listeners: Vec<TcpListener>,
    resolvers: Vec<Arc<UdpSocket>>,
}

impl Sockets {
    /// Takes listening TCP sockets whose connections have the wanted address as their own, and UDP sockets at the
    /// resolver's address. Within a tokio runtime.
    pub fn new(listeners: Vec<OwnedFd>, resolvers: Vec<OwnedFd>) -> io::Result<Self> {
        let listener = |fd: OwnedFd| {
            let listener = std::net::TcpListener::from(fd);
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        };
        let resolver = |fd: OwnedFd| {
            let socket = std::net::UdpSocket::from(fd);
            socket.set_nonblocking(true)?;
            UdpSocket::from_std(socket).map(Arc::new)
        };
        Ok(Self {
            listeners: listeners.into_iter().map(listener).collect::<io::Result<_>>()?,
            resolvers: resolvers.into_iter().map(resolver).collect::<io::Result<_>>()?,
        })
    }
}

impl Doorway for Sockets {
    fn connection(&self) -> Pending<'_, io::Result<Arrival>> {
        Box::pin(poll_fn(|cx| {
            for listener in &self.listeners {
                if let Poll::Ready(result) = listener.poll_accept(cx) {
                    return Poll::Ready(result.and_then(|(stream, _)| {
                        // Where the connection is redirected, its own address is the one that was wanted.
                        let local = stream.local_addr()?;
                        Ok(Arrival { stream, wanted: SocketAddr::new(local.ip().to_canonical(), local.port()) })
                    }));
                }
            }
            Poll::Pending
        }))
    }

    fn question(&self) -> Pending<'_, io::Result<Question>> {
        Box::pin(poll_fn(|cx| {
            for socket in &self.resolvers {
                let mut space = [0; MAX_QUESTION];
                let mut buffer = ReadBuf::new(&mut space);
                if let Poll::Ready(result) = socket.poll_recv_from(cx, &mut buffer) {
                    return Poll::Ready(result.map(|from| {
                        let socket = Arc::clone(socket);
                        // A client that does not read its answers has none: as with any datagram.
                        let answer = move |answer: &[u8]| drop(socket.try_send_to(answer, from));
                        Question { message: buffer.filled().to_vec(), answer: Box::new(answer) }
                    }));
                }
            }
            Poll::Pending
        }))
    }
}
