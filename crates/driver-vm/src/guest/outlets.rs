//! The way out of the sandbox in the guest: whatever it wants is passed on to the host, which decides.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use sloplet_engine::Outlets;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;

use crate::mux::Mux;
use crate::{relay, talk};

/// Longest question to a resolver.
const MAX_QUESTION: usize = 1232;

/// Longest answer.
const MAX_ANSWER: u64 = 65_535;

/// The pipe to the host as it is now.
pub type Pipe = watch::Receiver<Option<Mux>>;

/// Passes everything on from now on. Within a runtime.
pub fn pass_on(outlets: Outlets, pipe: &Pipe) -> io::Result<()> {
    for listener in outlets.listeners {
        let listener = TcpListener::from_std(listener.into())?;
        let pipe = pipe.clone();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                // Where the connection is led here, its own address is the one that was wanted.
                let Ok(wanted) = connection.local_addr() else { continue };
                let opened = open(&pipe, talk::TCP, wanted);
                tokio::spawn(async move {
                    match opened {
                        Ok(stream) => relay::carry(stream, connection).await,
                        Err(_) => connection.set_zero_linger(),
                    }
                });
            }
        });
    }
    for socket in outlets.resolvers {
        let socket = Arc::new(UdpSocket::from_std(socket.into())?);
        let pipe = pipe.clone();
        tokio::spawn(async move {
            let Ok(wanted) = socket.local_addr() else { return };
            let mut space = [0; MAX_QUESTION];
            while let Ok((count, from)) = socket.recv_from(&mut space).await {
                tokio::spawn(answer(pipe.clone(), wanted, space[..count].to_vec(), socket.clone(), from));
            }
        });
    }
    Ok(())
}

fn open(pipe: &Pipe, kind: &str, wanted: SocketAddr) -> io::Result<crate::mux::Stream> {
    let wanted = SocketAddr::new(wanted.ip().to_canonical(), wanted.port());
    let mux = pipe.borrow().clone().ok_or(io::ErrorKind::NotConnected)?;
    mux.open(&format!("{kind} {wanted}"))
}

async fn answer(
    pipe: Pipe,
    wanted: SocketAddr,
    question: Vec<u8>,
    socket: Arc<UdpSocket>,
    from: SocketAddr,
) -> io::Result<()> {
    let stream = open(&pipe, talk::QUESTION, SocketAddr::new(wanted.ip(), DNS))?;
    let (ours, theirs) = tokio::io::duplex(4096);
    let (input, mut output) = tokio::io::split(ours);
    let asked = async {
        output.write_all(&question).await?;
        output.shutdown().await?;
        let mut answer = Vec::new();
        input.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        socket.send_to(&answer, from).await
    };
    tokio::try_join!(stream.carry(theirs), asked).map(drop)
}

/// The port that questions go to; the socket that hears them has another.
const DNS: u16 = 53;
