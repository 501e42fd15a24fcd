//! The little of netlink that is needed: messages with attributes, sent together, and whether the kernel took them.

use std::io;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_CREATE`, `NLM_F_EXCL`, `NLM_F_APPEND`.
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
/// A new thing.
pub const CREATE: u16 = 0x400 | 0x200;
/// One more, behind the others.
pub const APPEND: u16 = 0x400 | 0x800;

/// `NLMSG_ERROR`: a message's failure, or its success.
const ERROR: u16 = 2;

/// An attribute that consists of attributes.
const NESTED: u16 = 0x8000;

/// Messages to be sent together.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    messages: u32,
    /// Where the message that was added last begins.
    latest: usize,
}

impl Batch {
    /// Adds a message: its kind, flags, the fixed part, and attributes.
    pub fn message(&mut self, kind: u16, flags: u16, fixed: &[u8], attributes: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.bytes.len();
        self.latest = start;
        self.messages += 1;
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        self.bytes.extend(self.messages.to_ne_bytes());
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend(fixed);
        attributes(&mut Attributes(&mut self.bytes));
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Asks for an answer to the message that was added last: one that fails is answered anyway.
    pub fn ask(&mut self) {
        if let Some([low, high]) = self.bytes.get_mut(self.latest + 6..self.latest + 8) {
            [*low, *high] = (u16::from_ne_bytes([*low, *high]) | ACK).to_ne_bytes();
        }
    }

    /// Sends all to a protocol of netlink, that of routes if absent. The kernel carries messages out before the call
    /// returns; its first answer tells how that went.
    pub fn send(&self, protocol: Option<Protocol>) -> io::Result<()> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        send(&socket, &self.bytes, SendFlags::empty())?;
        let mut answer = [0u8; 20];
        let (_, length) = recv(&socket, &mut answer, RecvFlags::DONTWAIT | RecvFlags::TRUNC)?;
        let kind = u16::from_ne_bytes([answer[4], answer[5]]);
        let error = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
        match (length >= answer.len() && kind == ERROR, error) {
            (true, 0) => Ok(()),
            (true, error) => Err(io::Error::from_raw_os_error(error.saturating_neg())),
            (false, _) => Err(io::Error::other("an answer of another kind")),
        }
    }
}

/// The attributes of a message.
#[derive(Debug)]
pub struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    /// Adds one.
    pub fn add(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.0.extend((value.len() as u16 + 4).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Adds a text, which ends with a zero.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        self.add(kind, &[value.as_bytes(), &[0]].concat())
    }

    /// Adds a number in network order.
    pub fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.add(kind, &value.to_be_bytes())
    }

    /// Adds one that consists of others.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes<'_>)) -> &mut Self {
        let start = self.0.len();
        self.add(kind | NESTED, &[]);
        fill(&mut Attributes(self.0));
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_attributes_tell_their_length_and_are_aligned() {
        let mut batch = Batch::default();
        batch.message(7, CREATE, &[1, 2, 3, 4], |message| {
            message.text(1, "lo").nest(2, |inner| {
                inner.number(3, 258);
            });
        });
        batch.message(8, 0, &[], |_| {});
        batch.ask();
        let first = [40, 0, 0, 0, 7, 0, 1, 6, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
        let attributes = [7, 0, 1, 0, b'l', b'o', 0, 0, 12, 0, 2, 0x80, 8, 0, 3, 0, 0, 0, 1, 2];
        let second = [16, 0, 0, 0, 8, 0, 5, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        if cfg!(target_endian = "little") {
            assert_eq!(batch.bytes, [&first[..], &attributes, &second].concat());
        }
    }

    #[test]
    fn what_the_kernel_refuses_is_an_error() {
        let mut batch = Batch::default();
        batch.message(0xfff0, 0, &[0; 16], |_| {});
        batch.ask();
        let refused = batch.send(None).unwrap_err();
        assert!(refused.raw_os_error().is_some(), "{refused}");
    }
}
