//! Files with holes in an archive: GNU tar's format 1.0, in which a list of the parts that are there comes before them.
//!
//! The list is decimal numbers, one in each line: how many parts, then of each where it begins and how long it is. It is
//! filled up to whole blocks.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::error::ImageError;
use crate::tarstream::{BLOCK, TarStream, stream_error};

/// Parts of one file. What has more is written without the holes between the last of them.
pub(crate) const MAX_PARTS: usize = 1 << 16;

/// The parts of a file that are there: where each begins, and how long it is.
pub(crate) fn parts(file: impl AsFd, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let (mut parts, mut at) = (Vec::new(), 0);
    while at < size {
        at = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            start => start?,
        };
        let end = match parts.len() + 1 < MAX_PARTS {
            true => rustix::fs::seek(&file, SeekFrom::Hole(at))?.min(size),
            false => size,
        };
        if at < end {
            parts.push((at, end - at));
        }
        at = end;
    }
    Ok(parts)
}

/// The list of parts, as it is written.
pub(crate) fn list(parts: &[(u64, u64)]) -> Vec<u8> {
    let mut text = format!("{}\n", parts.len());
    for (at, length) in parts {
        text.push_str(&format!("{at}\n{length}\n"));
    }
    let mut bytes = text.into_bytes();
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

/// Reads a file of `size` bytes with its holes. Returns the bytes that were there.
pub(crate) fn read<R: Read>(
    path: &[u8],
    size: u64,
    stream: &mut TarStream<R>,
    file: &File,
    buffer: &mut [u8],
    mut noted: Option<&mut Sha256>,
) -> Result<u64, ImageError> {
    let bad = || ImageError::refused(path, "a list of the parts of a file that makes no sense");
    let mut numbers = Numbers { stream, block: [0; BLOCK], at: BLOCK };
    let count = numbers.next(path)?;
    if count > MAX_PARTS as u64 {
        return Err(bad());
    }
    let (mut parts, mut end, mut total) = (Vec::new(), 0, 0u64);
    for _ in 0..count {
        let (at, length) = (numbers.next(path)?, numbers.next(path)?);
        let next = at.checked_add(length).filter(|next| at >= end && *next <= size).ok_or_else(bad)?;
        (end, total) = (next, total + length);
        parts.push((at, length));
    }
    let fail = |e: io::Error| ImageError::unpack(path, e);
    file.set_len(size).map_err(fail)?;
    for (mut at, mut left) in parts {
        if let Some(digest) = &mut noted {
            digest.update(at.to_le_bytes());
            digest.update(left.to_le_bytes());
        }
        while left > 0 {
            let want = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = stream.read_body(&mut buffer[..want]).map_err(stream_error)?;
            if count == 0 {
                return Err(bad());
            }
            file.write_all_at(&buffer[..count], at).map_err(fail)?;
            if let Some(digest) = &mut noted {
                digest.update(&buffer[..count]);
            }
            (at, left) = (at + count as u64, left - count as u64);
        }
    }
    match stream.read_body(&mut buffer[..1]).map_err(stream_error)? {
        0 => Ok(total),
        _ => Err(bad()),
    }
}

/// What is said of one that an image has.
pub(crate) fn refused(path: &[u8]) -> ImageError {
    ImageError::refused(path, "sparse tar entries are not supported; pack it without --sparse")
}

/// Numbers out of the blocks at the beginning of a member.
struct Numbers<'a, R> {
    stream: &'a mut TarStream<R>,
    block: [u8; BLOCK],
    at: usize,
}

impl<R: Read> Numbers<'_, R> {
    fn next(&mut self, path: &[u8]) -> Result<u64, ImageError> {
        let bad = || ImageError::refused(path, "a list of the parts of a file that makes no sense");
        let mut number: Option<u64> = None;
        loop {
            if self.at == BLOCK {
                let mut filled = 0;
                while filled < BLOCK {
                    match self.stream.read_body(&mut self.block[filled..]).map_err(stream_error)? {
                        0 => return Err(bad()),
                        count => filled += count,
                    }
                }
                self.at = 0;
            }
            let byte = self.block[self.at];
            self.at += 1;
            number = match (byte, number) {
                (b'0'..=b'9', so_far) => {
                    let shifted = so_far.unwrap_or(0).checked_mul(10);
                    Some(shifted.and_then(|n| n.checked_add(u64::from(byte - b'0'))).ok_or_else(bad)?)
                }
                (b'\n', Some(number)) => return Ok(number),
                _ => return Err(bad()),
            };
        }
    }
}
