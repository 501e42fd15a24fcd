//! One message and its descriptors, over a `SOCK_SEQPACKET` socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, sendmsg,
};

/// The longest message. The kernel takes a little more by default.
pub const MAX_MESSAGE: usize = 204 * 1024;

/// Most descriptors with one message: the kernel takes 253.
const MAX_FDS: usize = 251;

/// Sends a message with descriptors.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message and its descriptors; `None` at the end of the conversation. If this process cannot have that many more
/// descriptors, the message comes without any.
pub fn receive(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    // How long the next packet is: most are short, and clearing a large buffer costs more than asking.
    let (_, length) = recv(&socket, &mut [0u8; 0][..], RecvFlags::PEEK | RecvFlags::TRUNC)?;
    let mut bytes = vec![0; length.clamp(1, MAX_MESSAGE)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long"));
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        fds.clear();
    }
    bytes.truncate(got.bytes);
    Ok(Some((bytes, fds)))
}
