//! An egress for sockets that somebody else bound: `door SOCKET_PATH [NAME=ADDRESS|RULE]…`.
//!
//! Listens at the path for one message that carries listening TCP sockets and, last, a UDP socket, then serves them and prints
//! what happens, one JSON object a line. For trying real programs against it, and for measuring.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use sloplet_egress::{Egress, Options, Pending, Resolve, Sockets, System};
use sloplet_policy::Network;

struct Names(HashMap<String, IpAddr>);

impl Resolve for Names {
    fn resolve<'a>(&'a self, name: &'a str) -> Pending<'a, io::Result<Vec<IpAddr>>> {
        match self.0.get(name) {
            Some(address) => Box::pin(async { Ok(vec![*address]) }),
            None => System.resolve(name),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("door SOCKET_PATH [NAME=ADDRESS|RULE]…")?;
    let mut network = Network { ipv6: true, ..Network::default() };
    network.limits.connections = 4096;
    network.limits.new_per_second = 1_000_000;
    let mut names = HashMap::new();
    for argument in arguments {
        match argument.split_once('=') {
            Some((name, address)) => drop(names.insert(name.to_owned(), address.parse()?)),
            None => network.allow.push(argument.parse()?),
        }
    }
    let (stream, _) = UnixListener::bind(&path)?.accept()?;
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut passed = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            passed.extend(fds);
        }
    }
    let resolver = passed.pop().ok_or("no sockets came")?;
    let quiet = std::env::var_os("QUIET").is_some();
    let options = Options {
        resolver: Arc::new(Names(names)),
        events: Arc::new(move |event| {
            if !quiet {
                println!("{}", serde_json::to_string(&event).unwrap_or_default());
            }
        }),
        ..Options::default()
    };
    let egress = Egress::start(Arc::new(Sockets::new(passed, vec![resolver])?), network, options);
    tokio::signal::ctrl_c().await?;
    eprintln!("{:?}", egress.counters());
    Ok(())
}
