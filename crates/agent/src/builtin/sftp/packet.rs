//! Fields of messages, read and written.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::attributes::Attributes;
use super::{Refusal, kind};

const STATUS: u8 = 101;
const HANDLE: u8 = 102;
const DATA: u8 = 103;
const NAME: u8 = 104;
const ATTRIBUTES: u8 = 105;
const EXTENDED_REPLY: u8 = 201;

/// What is left of a message.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Refusal> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Refusal::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Refusal> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn number(&mut self) -> Result<u32, Refusal> {
        let bytes = self.take(4)?.try_into().map_err(|_| Refusal::Malformed)?;
        Ok(u32::from_be_bytes(bytes))
    }

    pub(super) fn long(&mut self) -> Result<u64, Refusal> {
        let bytes = self.take(8)?.try_into().map_err(|_| Refusal::Malformed)?;
        Ok(u64::from_be_bytes(bytes))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Refusal> {
        let length = self.number()? as usize;
        self.take(length)
    }

    /// A path; an empty one is where we are.
    pub(super) fn path(&mut self) -> Result<&'a Path, Refusal> {
        let bytes = self.bytes()?;
        if bytes.contains(&0) {
            return Err(Refusal::Malformed);
        }
        Ok(Path::new(OsStr::from_bytes(if bytes.is_empty() { b"." } else { bytes })))
    }
}

/// The answer that is being made.
#[derive(Default)]
pub(super) struct Reply {
    id: u32,
    bytes: Vec<u8>,
}

impl Reply {
    /// The first answer of all.
    pub(super) fn version(&mut self, version: u32, extensions: &[(&str, &str)]) {
        self.bytes = vec![0, 0, 0, 0, kind::VERSION];
        self.number(version);
        for (name, value) in extensions {
            self.text(name.as_bytes());
            self.text(value.as_bytes());
        }
    }

    /// To this request.
    pub(super) fn begin(&mut self, id: u32) {
        self.id = id;
    }

    fn start(&mut self, kind: u8) {
        self.bytes.clear();
        self.bytes.extend_from_slice(&[0, 0, 0, 0, kind]);
        self.number(self.id);
    }

    pub(super) fn number(&mut self, number: u32) {
        self.bytes.extend_from_slice(&number.to_be_bytes());
    }

    pub(super) fn long(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_be_bytes());
    }

    pub(super) fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u32);
        self.bytes.extend_from_slice(text);
    }

    /// It is done.
    pub(super) fn done(&mut self) {
        self.status(0, "done");
    }

    fn status(&mut self, code: u32, message: &str) {
        self.start(STATUS);
        self.number(code);
        self.text(message.as_bytes());
        self.text(b"");
    }

    /// It was not done.
    pub(super) fn refuse(&mut self, id: u32, refusal: &Refusal) {
        self.id = id;
        match refusal {
            Refusal::End => self.status(1, "no more"),
            Refusal::Malformed => self.status(5, "the request is malformed"),
            Refusal::Unknown => self.status(8, "this server does not know that request"),
            Refusal::NoHandle => self.status(4, "that handle is not open"),
            Refusal::Os(error) => {
                let code = match error.kind() {
                    io::ErrorKind::NotFound => 2,
                    io::ErrorKind::PermissionDenied => 3,
                    _ => 4,
                };
                self.status(code, &error.to_string());
            }
        }
    }

    pub(super) fn handle(&mut self, handle: u32) {
        self.start(HANDLE);
        self.text(&handle.to_be_bytes());
    }

    /// Bytes of a file, which `read` puts into the space it is given.
    pub(super) fn data(
        &mut self,
        most: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> Result<(), Refusal> {
        self.start(DATA);
        self.number(0);
        let from = self.bytes.len();
        self.bytes.resize(from + most, 0);
        let count = read(&mut self.bytes[from..])?;
        if count == 0 {
            return Err(Refusal::End);
        }
        self.bytes.truncate(from + count);
        self.bytes[from - 4..from].copy_from_slice(&(count as u32).to_be_bytes());
        Ok(())
    }

    /// Begins a list of names, of which `count` will follow.
    pub(super) fn names(&mut self, count: u32) {
        self.start(NAME);
        self.number(count);
    }

    /// One name of the list: as it is, for people, and what is known of it.
    pub(super) fn name(&mut self, name: &[u8], long: &[u8], attributes: &Attributes) {
        self.text(name);
        self.text(long);
        attributes.write(self);
    }

    pub(super) fn attributes(&mut self, attributes: &Attributes) {
        self.start(ATTRIBUTES);
        attributes.write(self);
    }

    /// Begins the answer of an extension.
    pub(super) fn extended(&mut self) {
        self.start(EXTENDED_REPLY);
    }

    pub(super) fn send(&mut self) -> io::Result<()> {
        let length = (self.bytes.len() - 4) as u32;
        self.bytes[..4].copy_from_slice(&length.to_be_bytes());
        let mut rest = &self.bytes[..];
        while !rest.is_empty() {
            match rustix::io::write(rustix::stdio::stdout(), rest) {
                Ok(count) => rest = &rest[count..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
