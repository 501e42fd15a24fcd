//! From a compressed layer to a plain tar stream: detected by content, hashed before and after, with bombs stopped.

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use crate::digest::HashingReader;
use crate::limits::{Budget, LimitExceeded, Limits};

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
    Xz,
}

/// Tells the compression from the first bytes; announced media types are not believed.
pub(crate) fn detect(start: &[u8]) -> Compression {
    match start {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
        // A skippable frame may come first (zstd:chunked, pzstd).
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Compression::Xz,
        _ => Compression::None,
    }
}

/// A layer as a plain tar stream.
pub(crate) struct LayerStream<'a> {
    plain: HashingReader<Capped<'a>>,
}

impl<'a> LayerStream<'a> {
    /// Wraps `source`, compressed or not.
    pub(crate) fn new(source: impl Read + 'a, budget: &Budget) -> io::Result<Self> {
        let source: Box<dyn Read + 'a> = Box::new(source);
        let compressed = Shared(Rc::new(RefCell::new(HashingReader::new(source))));
        let mut buffered = BufReader::with_capacity(128 << 10, compressed.clone());
        let compression = detect(buffered.fill_buf()?);
        let inner: Box<dyn Read + 'a> = match compression {
            Compression::None => Box::new(buffered),
            Compression::Gzip => Box::new(MultiGzDecoder::new(buffered)),
            Compression::Zstd => Box::new(zstd_frames(buffered)?),
            Compression::Xz => {
                let hint = "xz is understood for a whole rootfs tar only, not for a layer of an image";
                return Err(io::Error::new(io::ErrorKind::Unsupported, hint));
            }
        };
        let capped = Capped {
            inner,
            compressed,
            limits: budget.limits,
            plain_left: budget.bytes_left(),
            plain: 0,
            checked: compression != Compression::None,
        };
        Ok(LayerStream { plain: HashingReader::new(capped) })
    }

    /// Uncompressed bytes read so far.
    pub(crate) fn plain_bytes(&self) -> u64 {
        self.plain.count()
    }

    /// Reads both streams to their end and returns the digests (of the plain and of the compressed bytes), in hex.
    pub(crate) fn digests(mut self) -> io::Result<(String, String)> {
        io::copy(&mut self.plain, &mut io::sink())?;
        let plain = self.plain.hex();
        let mut compressed = self.plain.into_inner().compressed;
        io::copy(&mut compressed, &mut io::sink())?;
        let compressed = compressed.0.borrow().hex();
        Ok((plain, compressed))
    }
}

impl Read for LayerStream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.plain.read(buf)
    }
}

/// The compressed stream, also looked at while the decompressor owns it.
struct Shared<'a>(Rc<RefCell<HashingReader<Box<dyn Read + 'a>>>>);

impl Clone for Shared<'_> {
    fn clone(&self) -> Self {
        Shared(Rc::clone(&self.0))
    }
}

impl Read for Shared<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().read(buf)
    }
}

/// Stops bombs while they inflate.
struct Capped<'a> {
    inner: Box<dyn Read + 'a>,
    compressed: Shared<'a>,
    limits: Limits,
    plain_left: u64,
    plain: u64,
    checked: bool,
}

impl Read for Capped<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.plain += n as u64;
        if self.plain > self.plain_left {
            return Err(io::Error::other(LimitExceeded::Bytes(self.limits.total_bytes)));
        }
        if self.checked && self.plain > self.limits.ratio_grace_bytes {
            let compressed = self.compressed.0.borrow().count().max(1);
            if self.plain / compressed > self.limits.compression_ratio {
                return Err(io::Error::other(LimitExceeded::Ratio(self.limits.compression_ratio)));
            }
        }
        Ok(n)
    }
}

/// All frames of a zstd stream. Windows above 128 MiB are refused, which bounds memory.
pub(crate) fn zstd_frames<R: BufRead>(source: R) -> io::Result<zstd::stream::read::Decoder<'static, R>> {
    const WINDOW_LOG: u32 = 27;
    let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
    decoder.window_log_max(WINDOW_LOG)?;
    Ok(decoder)
}
