//! The digest at the end of an archive, in a frame that decompressors skip: a file that lacks a byte, or has another, is
//! seen to without knowing anything else about it.

use std::io::{self, BufRead, Read, Write};

use sha2::{Digest as _, Sha256};

use crate::digest::hex;
use crate::error::ImageError;

/// A skippable frame of zstd: its magic number, then the length of what follows, then a mark of ours.
const FRAME: [u8; 16] = *b"\x53\x2a\x4d\x18\x28\x00\x00\x00sloplet1";

/// The frame with the digest.
const LENGTH: usize = FRAME.len() + 32;

fn seal(digest: &Sha256) -> Vec<u8> {
    [&FRAME[..], &digest.clone().finalize()].concat()
}

/// A whole archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The SHA-256 of the whole file, as `sha256sum` tells it.
    pub sha256: String,
    /// Its length.
    pub bytes: u64,
}

/// Looks at an archive that passes by.
#[derive(Debug, Default)]
pub struct SealCheck {
    digest: Sha256,
    /// The last bytes so far: they may be the seal.
    last: Vec<u8>,
    bytes: u64,
}

impl SealCheck {
    /// Some more of it.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.last.extend_from_slice(bytes);
        if let Some(more) = self.last.len().checked_sub(LENGTH) {
            self.digest.update(&self.last[..more]);
            self.last.drain(..more);
        }
    }

    /// That was all: whether it is whole.
    pub fn finish(self) -> Result<Checked, ImageError> {
        if !self.last.starts_with(&FRAME) {
            let reason = match self.bytes {
                0 => "it is empty",
                _ => "it does not end as one: it is cut off, or was never one",
            };
            return Err(ImageError::BadArchive { reason: reason.to_owned() });
        }
        if self.last != seal(&self.digest) {
            let reason = "its content does not have the digest at its end: it was changed on its way";
            return Err(ImageError::BadArchive { reason: reason.to_owned() });
        }
        let mut whole = self.digest;
        whole.update(&self.last);
        Ok(Checked { sha256: hex(&whole.finalize()), bytes: self.bytes })
    }
}

/// Puts the seal at the end of what is written.
pub(super) struct Sealing<W> {
    to: W,
    digest: Sha256,
    bytes: u64,
}

impl<W: Write> Sealing<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, digest: Sha256::new(), bytes: 0 }
    }

    pub(super) fn finish(mut self) -> io::Result<Checked> {
        let seal = seal(&self.digest);
        self.write_all(&seal)?;
        self.to.flush()?;
        Ok(Checked { sha256: hex(&self.digest.finalize()), bytes: self.bytes })
    }
}

impl<W: Write> Write for Sealing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.digest.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Gives what is before the seal, and keeps the seal.
pub(super) struct Unsealing<R> {
    from: R,
    check: SealCheck,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R: Read> Unsealing<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, check: SealCheck::default(), buffer: vec![0; 128 << 10], start: 0, end: 0 }
    }

    /// What is wrong with it as a whole, if it ends within `limit` more bytes.
    pub(super) fn damage(mut self, limit: u64) -> Option<ImageError> {
        let mut read = 0;
        while read < limit {
            let count = match self.fill_buf() {
                Ok(there) => there.len(),
                Err(error) => return Some(broken_off(error)),
            };
            if count == 0 {
                return self.finish().err();
            }
            self.consume(count);
            read += count as u64;
        }
        None
    }

    /// Reads to the end, and says whether all that came is whole.
    pub(super) fn finish(mut self) -> Result<Checked, ImageError> {
        loop {
            let count = self.fill_buf().map_err(broken_off)?.len();
            if count == 0 {
                break;
            }
            self.consume(count);
        }
        self.check.add(&self.buffer[self.start..self.end]);
        self.check.finish()
    }
}

impl<R: Read> BufRead for Unsealing<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.end - self.start <= LENGTH {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            match self.from.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(&[]),
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.buffer[self.start..self.end - LENGTH])
    }

    fn consume(&mut self, count: usize) {
        self.check.add(&self.buffer[self.start..self.start + count]);
        self.start += count;
    }
}

impl<R: Read> Read for Unsealing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let there = self.fill_buf()?;
        let count = there.len().min(buffer.len());
        buffer[..count].copy_from_slice(&there[..count]);
        self.consume(count);
        Ok(count)
    }
}

/// The stream itself failed.
pub(super) fn broken_off(error: io::Error) -> ImageError {
    ImageError::BadArchive { reason: format!("it broke off: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_whole_and_nothing_else_is() {
        let mut sealing = Sealing::new(Vec::new());
        sealing.write_all(b"some content").unwrap();
        let mut all = sealing.to.clone();
        all.extend(seal(&sealing.digest));
        let made = sealing.finish().unwrap();
        let check = |bytes: &[u8]| {
            let mut check = SealCheck::default();
            bytes.chunks(7).for_each(|piece| check.add(piece));
            (check.finish(), Unsealing::new(bytes).finish())
        };
        let (pushed, pulled) = check(&all);
        assert_eq!((pushed.unwrap(), pulled.unwrap()), (made.clone(), made.clone()));
        assert_eq!(made.sha256, crate::digest::sha256_hex(&all));
        for at in 0..all.len() {
            let mut changed = all.clone();
            changed[at] ^= 1;
            let (pushed, pulled) = check(&changed);
            assert!(pushed.is_err() && pulled.is_err(), "byte {at}");
            let (pushed, pulled) = check(&all[..at]);
            assert!(pushed.is_err() && pulled.is_err(), "cut at {at}");
        }
        all.push(0);
        assert!(check(&all).0.is_err());
    }
}
