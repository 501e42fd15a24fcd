//! What is sent along with a request.

use std::io::{self, Write};
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt, stream as streams};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;

/// What is sent along with a request.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Bytes that are there already.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Bytes that come by and by.
pub fn stream(bytes: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    StreamBody::new(bytes.map_ok(Frame::data)).boxed_unsync()
}

/// A folder's content as a tar archive, made while it is sent.
pub fn tar(folder: PathBuf) -> Body {
    let (sender, receiver) = mpsc::channel(4);
    std::thread::spawn(move || {
        let mut archive = tar::Builder::new(io::BufWriter::with_capacity(64 * 1024, Pieces(sender.clone())));
        archive.follow_symlinks(false);
        let made = archive.append_dir_all(".", &folder).and_then(|()| archive.into_inner()?.flush());
        if let Err(error) = made {
            // A body that ends with an error is not taken for a whole one.
            let _ = sender.blocking_send(Err(error));
        }
    });
    stream(streams::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) }))
}

/// Hands what is written to whoever sends it.
struct Pieces(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
