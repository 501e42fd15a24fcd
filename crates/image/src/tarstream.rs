//! Reads the members of a tar stream with bounded memory.
//!
//! The `tar` crate parses the header fields, but its iterator reads GNU long names and PAX records of any size into
//! memory, which a hostile archive can use; here they are capped, and nothing but the current member is kept.

use std::io::{self, Read};

use tar::{EntryType, Header};

use crate::error::{ImageError, printable};
use crate::limits::LimitExceeded;

pub(crate) const BLOCK: usize = 512;

/// Long names and PAX records of one member; real ones are a few hundred bytes.
pub(crate) const MAX_EXTENSION_BYTES: u64 = 1 << 20;

/// How the names of PAX records of extended attributes begin.
pub(crate) const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    Hardlink,
    Fifo,
    /// A device.
    Device,
    /// The device 0:0, with which an overlay marks a removed file.
    Removed,
}

/// One member; its content is read through [`TarStream::read_body`].
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) kind: Kind,
    pub(crate) path: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) mtime: i64,
    pub(crate) mtime_nanos: u32,
    /// Extended attributes, by name. Images lose theirs, snapshots do not.
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// The size of a file with holes, of which the content is a list of its parts and then the parts.
    pub(crate) sparse: Option<u64>,
    /// Bytes of content that follow.
    pub(crate) size: u64,
}

/// A tar stream being read.
pub(crate) struct TarStream<R> {
    inner: R,
    body_left: u64,
    padding: u64,
}

#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// `GNU.sparse.`: major and minor version, name, size; all four or none.
    sparse: [Option<Vec<u8>>; 4],
    other_sparse: bool,
}

impl<R: Read> TarStream<R> {
    pub(crate) fn new(inner: R) -> Self {
        TarStream { inner, body_left: 0, padding: 0 }
    }

    /// The next member, or `None` at the end of the archive.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, ImageError> {
        self.skip_body()?;
        let mut extensions = Extensions::default();
        loop {
            let Some(header) = self.read_header()? else {
                return Ok(None);
            };
            let size = header.entry_size().map_err(|e| malformed(&header, e))?;
            let kind = match header.entry_type() {
                EntryType::GNULongName => {
                    extensions.path = Some(until_nul(self.read_extension(size)?));
                    continue;
                }
                EntryType::GNULongLink => {
                    extensions.link = Some(until_nul(self.read_extension(size)?));
                    continue;
                }
                EntryType::XHeader => {
                    let records = self.read_extension(size)?;
                    extensions.parse_pax(&records, &header)?;
                    continue;
                }
                EntryType::XGlobalHeader => {
                    self.read_extension(size)?; // comments of git archives; nothing of it matters here
                    continue;
                }
                EntryType::Regular | EntryType::Continuous => Kind::File,
                EntryType::Directory => Kind::Directory,
                EntryType::Symlink => Kind::Symlink,
                EntryType::Link => Kind::Hardlink,
                EntryType::Fifo => Kind::Fifo,
                EntryType::Char => device(&header),
                EntryType::Block => Kind::Device,
                EntryType::GNUSparse => return Err(sparse(&header)),
                other => {
                    let reason = format!("unknown tar entry type {:#04x}", other.as_byte());
                    return Err(ImageError::refused(&header.path_bytes(), reason));
                }
            };
            return self.member(kind, &header, size, extensions).map(Some);
        }
    }

    fn member(&mut self, kind: Kind, header: &Header, size: u64, ext: Extensions) -> Result<Member, ImageError> {
        let (name, sparse) = match ext.sparse {
            [None, None, None, None] if !ext.other_sparse => (None, None),
            [Some(major), Some(minor), Some(name), Some(size)] if major == b"1" && minor == b"0" => {
                (Some(name), Some(parse(&size).ok_or_else(|| sparse(header))?))
            }
            _ => return Err(sparse(header)),
        };
        let path = name.or(ext.path).unwrap_or_else(|| header.path_bytes().into_owned());
        // Ancient tars mark a directory by a trailing slash only.
        let kind = if kind == Kind::File && path.ends_with(b"/") { Kind::Directory } else { kind };
        // Only files have content, whatever size the header of a link or directory claims: so reads Go, thus Docker.
        let size = if kind == Kind::File { ext.size.unwrap_or(size) } else { 0 };
        self.set_body(size);
        let (mtime, mtime_nanos) = match ext.mtime {
            Some(time) => time,
            None => (i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0), 0),
        };
        Ok(Member {
            kind,
            link: ext.link.or_else(|| header.link_name_bytes().map(|b| b.into_owned())).unwrap_or_default(),
            mode: header.mode().map_err(|e| malformed(header, e))? & 0o7777,
            uid: ext.uid.map_or_else(|| header.uid(), Ok).map_err(|e| malformed(header, e))?,
            gid: ext.gid.map_or_else(|| header.gid(), Ok).map_err(|e| malformed(header, e))?,
            mtime,
            mtime_nanos,
            attributes: ext.attributes,
            sparse,
            size,
            path,
        })
    }

    /// Reads content of the current member; 0 at its end.
    pub(crate) fn read_body(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.body_left).unwrap_or(usize::MAX).min(buf.len());
        if want == 0 {
            return Ok(0);
        }
        let n = self.inner.read(&mut buf[..want])?;
        if n == 0 {
            return Err(truncated());
        }
        self.body_left -= n as u64;
        Ok(n)
    }

    /// Reads whatever follows the archive, so that a digest covers all of the stream; gives back the inner reader.
    pub(crate) fn finish(mut self) -> Result<R, ImageError> {
        self.drain()?;
        Ok(self.inner)
    }

    /// Reads whatever follows the archive.
    pub(crate) fn drain(&mut self) -> Result<(), ImageError> {
        io::copy(&mut self.inner, &mut io::sink()).map(drop).map_err(stream_error)
    }

    /// The inner reader, wherever it is.
    pub(crate) fn into_inner(self) -> R {
        self.inner
    }

    /// The inner reader.
    pub(crate) fn get_mut(&mut self) -> &mut R {
        &mut self.inner
    }

    fn set_body(&mut self, size: u64) {
        self.body_left = size;
        self.padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
    }

    fn skip_body(&mut self) -> Result<(), ImageError> {
        let left = self.body_left.checked_add(self.padding).ok_or_else(|| stream_error(truncated()))?;
        let skipped = io::copy(&mut (&mut self.inner).take(left), &mut io::sink()).map_err(stream_error)?;
        if skipped < left {
            return Err(stream_error(truncated()));
        }
        (self.body_left, self.padding) = (0, 0);
        Ok(())
    }

    fn read_extension(&mut self, size: u64) -> Result<Vec<u8>, ImageError> {
        if size > MAX_EXTENSION_BYTES {
            return Err(LimitExceeded::Metadata(MAX_EXTENSION_BYTES).into());
        }
        self.set_body(size);
        let mut bytes = Vec::new();
        (&mut self.inner).take(size).read_to_end(&mut bytes).map_err(stream_error)?;
        self.body_left -= bytes.len() as u64;
        self.skip_body()?;
        Ok(bytes)
    }

    fn read_header(&mut self) -> Result<Option<Header>, ImageError> {
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        let mut filled = 0;
        while filled < BLOCK {
            match self.inner.read(&mut block[filled..]).map_err(stream_error)? {
                0 if filled == 0 => return Ok(None), // many tools leave the closing zero blocks out
                0 => return Err(stream_error(truncated())),
                n => filled += n,
            }
        }
        if block.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let sum: u32 =
            block.iter().enumerate().map(|(i, b)| if (148..156).contains(&i) { 32 } else { u32::from(*b) }).sum();
        match header.cksum() {
            Ok(announced) if announced == sum => Ok(Some(header)),
            _ => Err(ImageError::refused(
                &header.path_bytes(),
                "its tar header has a wrong checksum (no tar, or a damaged one)",
            )),
        }
    }
}

impl Extensions {
    /// Records are `<length> <key>=<value>\n`, where the length counts all of it.
    fn parse_pax(&mut self, mut records: &[u8], header: &Header) -> Result<(), ImageError> {
        let bad = || ImageError::refused(&header.path_bytes(), "malformed PAX header");
        while !records.is_empty() {
            let space = records.iter().take(20).position(|b| *b == b' ').ok_or_else(bad)?;
            let length: usize = parse(&records[..space]).ok_or_else(bad)?;
            let record = records.get(space + 1..length).ok_or_else(bad)?.strip_suffix(b"\n").ok_or_else(bad)?;
            records = &records[length..];
            let equals = record.iter().position(|b| *b == b'=').ok_or_else(bad)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(parse(value).ok_or_else(bad)?),
                b"uid" => self.uid = Some(parse(value).ok_or_else(bad)?),
                b"gid" => self.gid = Some(parse(value).ok_or_else(bad)?),
                b"mtime" => self.mtime = parse_time(value),
                b"GNU.sparse.major" => self.sparse[0] = Some(value.to_vec()),
                b"GNU.sparse.minor" => self.sparse[1] = Some(value.to_vec()),
                b"GNU.sparse.name" => self.sparse[2] = Some(value.to_vec()),
                b"GNU.sparse.realsize" => self.sparse[3] = Some(value.to_vec()),
                _ if key.starts_with(b"GNU.sparse.") => self.other_sparse = true,
                _ => {
                    if let Some(name) = key.strip_prefix(ATTRIBUTE) {
                        self.attributes.push((decoded(name), value.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }
}

fn parse<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// What a character device is. Many tars do not say the numbers of theirs.
fn device(header: &Header) -> Kind {
    match (header.device_major(), header.device_minor()) {
        (Ok(Some(0)), Ok(Some(0))) => Kind::Removed,
        _ => Kind::Device,
    }
}

/// `%3D` and `%25` in the names of attributes, as GNU tar writes `=` and `%`.
fn decoded(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'%', [b'3', b'D', after @ ..]) => (b'=', after),
            (b'%', [b'2', b'5', after @ ..]) => (b'%', after),
            _ => (*first, after),
        };
        plain.push(byte);
        rest = after;
    }
    plain
}

/// `1700000000.123456789`; before 1970 the whole is negative, and the kernel wants nanoseconds that are not.
fn parse_time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let (whole, nanos): (i64, u32) = (seconds.parse().ok()?, digits.parse().ok()?);
    match seconds.starts_with('-') && nanos > 0 {
        true => Some((whole.checked_sub(1)?, 1_000_000_000 - nanos)),
        false => Some((whole, nanos)),
    }
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|b| *b == 0) {
        bytes.truncate(end);
    }
    bytes
}

fn sparse(header: &Header) -> ImageError {
    crate::sparse::refused(&header.path_bytes())
}

fn malformed(header: &Header, error: io::Error) -> ImageError {
    ImageError::refused(
        &header.path_bytes(),
        format!("malformed tar header: {}", printable(error.to_string().as_bytes())),
    )
}

fn truncated() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends in the middle of an entry")
}

/// Errors of the stream below: a cap hit by the decompressor travels as an `io::Error` and is unwrapped here.
pub(crate) fn stream_error(error: io::Error) -> ImageError {
    match error.get_ref().and_then(|e| e.downcast_ref::<LimitExceeded>()) {
        Some(limit) => limit.clone().into(),
        None => ImageError::Refused { entry: "archive".to_owned(), reason: error.to_string() },
    }
}
