//! Files that are there whole or not at all, with digests of what went in and out.

use std::fs::{File, Permissions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ring::digest;
use tempfile::{Builder, NamedTempFile};

use crate::MaskError;
use crate::key::hex;

/// A file under another name until it is complete.
pub struct Output {
    path: PathBuf,
    file: NamedTempFile,
}

impl Output {
    /// Beside `path`, so that it can be renamed; `source` must not be the same file.
    pub fn create(path: &Path, source: Option<&Path>) -> Result<Self, MaskError> {
        if let (Some(Ok(from)), Ok(to)) = (source.map(std::fs::metadata), std::fs::metadata(path))
            && (from.dev(), from.ino()) == (to.dev(), to.ino())
        {
            let error = io::Error::other("it is the file to be masked: give --out another name");
            return Err(MaskError::file("write", path)(error));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = Builder::new()
            .prefix(".mask-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(MaskError::file("write", path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// The name it has until then.
    pub fn temporary(&self) -> &Path {
        self.file.path()
    }

    /// A buffered writer that knows the digest.
    pub fn writer(&self) -> Result<Sink, MaskError> {
        let file = self.file.as_file().try_clone().map_err(MaskError::file("write", &self.path))?;
        Ok(BufWriter::with_capacity(1 << 18, Digesting::new(file)))
    }

    /// Gives it its name.
    pub fn keep(self) -> Result<(), MaskError> {
        let Self { path, file } = self;
        file.persist(&path).map(drop).map_err(|error| MaskError::file("write", &path)(error.error))
    }
}

/// Where masked data go.
pub type Sink = BufWriter<Digesting<File>>;
/// Where real data come from.
pub type Source = BufReader<Digesting<File>>;

/// Opens a file to be masked.
pub fn open(path: &Path) -> Result<Source, MaskError> {
    let file = File::open(path).map_err(MaskError::file("read", path))?;
    Ok(BufReader::with_capacity(1 << 18, Digesting::new(file)))
}

/// Reads to the end, so that the digest is that of the whole file, and returns it with the number of bytes.
pub fn drain(mut source: Source) -> io::Result<(String, u64)> {
    io::copy(&mut source, &mut io::sink())?;
    Ok(source.into_inner().digest())
}

/// Writes all that is left and returns the digest.
pub fn flush(sink: Sink) -> io::Result<String> {
    Ok(sink.into_inner().map_err(io::IntoInnerError::into_error)?.digest().0)
}

/// Passes bytes on and digests them.
pub struct Digesting<T> {
    inner: T,
    context: digest::Context,
    bytes: u64,
}

impl<T> Digesting<T> {
    /// Around a reader or writer.
    pub fn new(inner: T) -> Self {
        Self { inner, context: digest::Context::new(&digest::SHA256), bytes: 0 }
    }

    /// SHA-256 so far, and of how much.
    pub fn digest(self) -> (String, u64) {
        (hex(self.context.finish().as_ref()), self.bytes)
    }

    fn saw(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

impl<T: Read> Read for Digesting<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.saw(&buffer[..read]);
        Ok(read)
    }
}

impl<T: Write> Write for Digesting<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.saw(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
