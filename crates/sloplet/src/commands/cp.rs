//! `sloplet cp`

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, bail};
use bytes::Bytes;
use futures_util::{StreamExt, stream as streams};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use serde_json::json;
use sloplet_image::{CopyOut, Draft};
use tokio::sync::mpsc;

use crate::api::{Body, Refused, Server, encode, full, stream, tar};
use crate::progress::ProgressLine;
use crate::relay::input;
use crate::relay::output::{Sink, Stream};
use crate::table::size;

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Side<'a> {
    /// Standard input or output.
    Standard,
    Host(&'a Path),
    /// `s3://BUCKET/KEY`.
    Object(&'a str),
    Inside {
        sandbox: &'a str,
        path: &'a str,
    },
}

impl<'a> Side<'a> {
    /// `NAME:PATH`, unless a slash comes before the colon: `./a:b` is a path.
    fn parse(text: &'a str) -> Self {
        match text.split_once(':') {
            _ if text == "-" => Self::Standard,
            _ if text.starts_with("s3://") => Self::Object(text),
            Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains('/') => Self::Inside { sandbox, path },
            _ => Self::Host(Path::new(text)),
        }
    }
}

/// A sandbox, a path in it, and on whose behalf.
struct Inside<'a> {
    server: &'a Server,
    sandbox: &'a str,
    user: Option<String>,
}

pub async fn run(server: &Server, source: &str, destination: &str, user: Option<String>) -> anyhow::Result<u8> {
    let progress = Counter::default();
    let at = |sandbox| Inside { server, sandbox, user };
    match (Side::parse(source), Side::parse(destination)) {
        (Side::Standard, Side::Inside { sandbox, path }) => {
            if path.ends_with('/') || path.is_empty() {
                bail!("{destination}: name the file that standard input is to become");
            }
            at(sandbox).write(path, None, progress.count(received(input::read()))).await?;
        }
        (Side::Host(from), Side::Inside { sandbox, path }) => upload(&at(sandbox), from, path, &progress).await?,
        (Side::Inside { sandbox, path }, Side::Standard) => {
            let inside = at(sandbox);
            let what = if inside.kind(path).await?.as_deref() == Some("directory") { "archive" } else { "files" };
            print(inside.get(what, path).await?).await?;
        }
        (Side::Inside { sandbox, path }, Side::Host(to)) => download(&at(sandbox), path, to, &progress).await?,
        (Side::Inside { sandbox, path }, Side::Object(object)) => at(sandbox).transfer("out", path, object).await?,
        (Side::Object(object), Side::Inside { sandbox, path }) => {
            let inside = at(sandbox);
            let is_folder = inside.kind(path).await?.as_deref() == Some("directory");
            let name = object.rsplit('/').next().unwrap_or_default();
            inside.transfer("in", &place(path, is_folder, name), object).await?;
        }
        (Side::Host(_) | Side::Standard, Side::Object(object)) => {
            bail!("for what is on this host: curl --upload-file FILE \"$(sloplet presign put {object})\"")
        }
        (Side::Object(object), Side::Host(_) | Side::Standard) => {
            bail!("for what is to come to this host: curl \"$(sloplet presign get {object})\"")
        }
        _ => bail!("one side must be a path on the host (or -), the other NAME:PATH in a sandbox"),
    }
    progress.line.clear();
    Ok(0)
}

impl Inside<'_> {
    fn path(&self, what: &str, path: &str) -> String {
        let user = self.user.as_deref().map_or_else(String::new, |user| format!("&user={}", encode(user)));
        // Nothing after the colon is the home.
        let path = if path.is_empty() { "." } else { path };
        format!("/sandboxes/{}/{what}?path={}{user}", encode(self.sandbox), encode(path))
    }

    /// What a path is; `None` if there is nothing. A symlink is what it points to, as far as that can be told.
    async fn kind(&self, path: &str) -> anyhow::Result<Option<String>> {
        let path = if path.ends_with('/') && path.len() > 1 { path.trim_end_matches('/') } else { path };
        match self.server.get(&self.path("files/stat", path)).await {
            Ok(entry) => Ok(entry["kind"].as_str().map(str::to_owned)),
            Err(error) if error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == 404) => {
                // No such file, or no such sandbox?
                self.server.get(&format!("/sandboxes/{}", encode(self.sandbox))).await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Has the server copy between a file inside and S3.
    async fn transfer(&self, direction: &str, path: &str, object: &str) -> anyhow::Result<()> {
        let mut body = json!({"direction": direction, "path": path, "object": object});
        if let Some(user) = &self.user {
            body["user"] = user.as_str().into();
        }
        let done = self.server.post(&format!("/sandboxes/{}/transfers", encode(self.sandbox)), &body).await?;
        let bytes = |name: &str| size(done[name].as_u64().unwrap_or(0));
        let resumed = match done["resumed"].as_u64() {
            Some(1..) => format!(" ({} were there already)", bytes("resumed")),
            _ => String::new(),
        };
        say!("{object}: {}{resumed}, sha256:{}", bytes("bytes"), done["sha256"].as_str().unwrap_or_default());
        Ok(())
    }

    async fn get(&self, what: &str, path: &str) -> anyhow::Result<Incoming> {
        let answer = self.server.send(Method::GET, &self.path(what, path), "application/json", full("")).await?;
        Ok(answer.into_body())
    }

    async fn write(&self, path: &str, mode: Option<u32>, body: Body) -> anyhow::Result<()> {
        let mode = mode.map_or_else(String::new, |mode| format!("&mode={:04o}", mode & 0o777));
        let path = format!("{}{mode}", self.path("files", path));
        self.server.send(Method::PUT, &path, "application/octet-stream", body).await.map(drop)
    }
}

/// Where a copy of `name` goes: into a folder, or in place of what is there.
fn place(path: &str, is_folder: bool, name: &str) -> String {
    if is_folder || path.ends_with('/') || path.is_empty() {
        let path = if path.is_empty() { "." } else { path };
        return format!("{}/{name}", path.trim_end_matches('/'));
    }
    path.to_owned()
}

async fn upload(inside: &Inside<'_>, from: &Path, path: &str, progress: &Counter) -> anyhow::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let missing = || format!("cannot read {}", from.display());
    let meta = std::fs::metadata(from).with_context(missing)?;
    let name = std::fs::canonicalize(from).with_context(missing)?;
    let name = name.file_name().context("this folder has no name")?.to_string_lossy().into_owned();
    let is_folder = inside.kind(path).await?.as_deref() == Some("directory");
    let path = place(path, is_folder, &name);
    if meta.is_dir() {
        let target = inside.path("archive", &path);
        let body = progress.count_body(tar(from.to_owned()));
        return inside.server.send(Method::PUT, &target, "application/x-tar", body).await.map(drop);
    }
    let file = File::open(from).with_context(missing)?;
    inside.write(&path, Some(meta.mode()), progress.count(read(file))).await
}

async fn download(inside: &Inside<'_>, path: &str, to: &Path, progress: &Counter) -> anyhow::Result<()> {
    let Some(kind) = inside.kind(path).await? else { bail!("{path}: there is no such file in {}", inside.sandbox) };
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = if matches!(name, "" | "." | "..") { inside.sandbox } else { name };
    let wants_folder = to.as_os_str().as_encoded_bytes().ends_with(b"/");
    let to = if to.is_dir() || wants_folder { to.join(name) } else { to.to_owned() };
    if kind == "directory" {
        let body = inside.get("archive", path).await?;
        return unpack(progress.count(chunks(body)), to).await;
    }
    let mut body = inside.get("files", path).await?;
    let write = async {
        let mut draft = Draft::of(&to)?;
        while let Some(frame) = body.frame().await {
            if let Ok(bytes) = frame?.into_data() {
                progress.add(bytes.len());
                draft.file().write_all(&bytes)?;
            }
        }
        anyhow::Ok(draft.keep()?)
    };
    write.await.with_context(|| format!("cannot write {}", to.display()))
}

/// Unpacks an archive that was made inside.
async fn unpack(mut body: Body, to: PathBuf) -> anyhow::Result<()> {
    let target = CopyOut::into(&to)?;
    let (sender, receiver) = mpsc::channel(4);
    let work = tokio::task::spawn_blocking(move || target.unpack(Chunks { receiver, rest: Bytes::new() }));
    while let Some(frame) = body.frame().await {
        let frame = frame.map(|frame| frame.into_data().unwrap_or_default());
        if sender.send(frame).await.is_err() {
            break;
        }
    }
    drop(sender);
    work.await?.with_context(|| format!("cannot copy to {}", to.display()))
}

/// Pieces as a file to read.
struct Chunks {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    rest: Bytes,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.receiver.blocking_recv() {
                Some(bytes) => self.rest = bytes?,
                None => return Ok(0),
            }
        }
        let count = self.rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

/// Reads a file in a thread of its own. What could not be read whole ends with an error, and is not taken for whole.
pub(super) fn read(mut file: File) -> impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static {
    let (sender, receiver) = mpsc::channel(4);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 256 * 1024];
        loop {
            let piece = match file.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => Ok(Bytes::copy_from_slice(&buffer[..count])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = piece.is_err();
            if sender.blocking_send(piece).is_err() || failed {
                return;
            }
        }
    });
    streams::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) })
}

pub(super) fn received(
    receiver: mpsc::Receiver<Vec<u8>>,
) -> impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static {
    streams::unfold(receiver, |mut receiver| async move { Some((Ok(receiver.recv().await?.into()), receiver)) })
}

fn chunks(body: Incoming) -> impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static {
    body.into_data_stream().map(|piece| piece.map_err(io::Error::other))
}

/// Passes a body on to standard output.
async fn print(mut body: Incoming) -> anyhow::Result<()> {
    let mut sink = Sink::new(u64::MAX, false);
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.context("the transfer broke off")?.into_data() {
            sink.write(Stream::Out, bytes).await?;
        }
    }
    sink.flush().await;
    Ok(())
}

/// Tells how far it is.
#[derive(Default)]
pub(super) struct Counter {
    pub(super) line: Arc<ProgressLine>,
    bytes: Arc<AtomicU64>,
}

impl Counter {
    pub(super) fn add(&self, count: usize) {
        let total = self.bytes.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        self.line.show(|| Some(format!("copied {}", size(total))));
    }

    pub(super) fn count(&self, from: impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
        let counter = Self { line: self.line.clone(), bytes: self.bytes.clone() };
        stream(from.inspect(move |piece| counter.add(piece.as_ref().map_or(0, Bytes::len))))
    }

    fn count_body(&self, body: Body) -> Body {
        self.count(body.into_data_stream())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_names_a_sandbox_unless_a_slash_comes_first() {
        assert_eq!(Side::parse("-"), Side::Standard);
        assert_eq!(Side::parse("my:/x:y"), Side::Inside { sandbox: "my", path: "/x:y" });
        assert_eq!(Side::parse("s3://b/k"), Side::Object("s3://b/k"));
        assert_eq!(Side::parse("my:"), Side::Inside { sandbox: "my", path: "" });
        for path in ["./a:b", "/a:b", ":x", "plain"] {
            assert_eq!(Side::parse(path), Side::Host(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn a_copy_goes_into_a_folder_or_in_place_of_what_is_there() {
        assert_eq!(place("/home/user/", false, "x"), "/home/user/x");
        assert_eq!(place("/tmp", true, "x"), "/tmp/x");
        assert_eq!(place("/tmp/y", false, "x"), "/tmp/y");
        assert_eq!(place("", false, "x"), "./x");
        assert_eq!(place("/", true, "x"), "/x");
    }
}
