//! Files between the host and the sandbox: only within folders that the user shares.

use std::io::{self, Write};
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::stream as streams;
use http_body_util::BodyExt;
use hyper::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sloplet_remote::{encode, full, stream};
use tokio::io::AsyncReadExt;

use crate::answer::Answer;
use crate::call::Call;
use crate::catalogue::{About, Effect, Entry};
use crate::desk::Desk;
use crate::failure::Failure;
use crate::share::Share;

/// Bytes of a file that is copied.
const LARGEST: u64 = 1024 * 1024 * 1024;

/// Bytes that are read at once.
const PIECE: usize = 64 * 1024;

/// The tools of this file.
pub fn entries() -> Vec<Entry> {
    vec![
        Entry::new(
            About {
                name: "upload",
                group: "share",
                title: "Copy a file into the sandbox",
                description: "Copy a file of the user's machine into the sandbox. Only files in folders that the user shares \
                              (--share) can be copied; sandbox_info lists them.",
                effect: Effect::Changes,
                begins: true,
            },
            upload,
        ),
        Entry::new(
            About {
                name: "download",
                group: "share",
                title: "Copy a file out of the sandbox",
                description: "Copy a file of the sandbox to the user's machine, into a folder that the user shares (--share).",
                effect: Effect::Changes,
                begins: false,
            },
            download,
        ),
    ]
}

/// Arguments of `upload`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Upload {
    /// The file on the user's machine: absolute, or relative to the shared folder.
    host_path: String,
    /// Where it goes in the sandbox: absolute, or relative to the user's home.
    path: String,
}

/// Arguments of `download`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Download {
    /// The file in the sandbox: absolute, or relative to the user's home.
    path: String,
    /// Where it goes on the user's machine: absolute, or relative to the shared folder. Its folder must exist.
    host_path: String,
    /// Replace a file that is there.
    #[serde(default)]
    overwrite: bool,
}

/// A file that was copied.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Copied {
    /// In the sandbox.
    path: String,
    /// On the user's machine.
    host_path: String,
    /// Its bytes.
    size: u64,
}

/// The shared folder that a path is in.
fn find<'d>(desk: &'d Desk, path: &str, write: bool) -> Result<(&'d Share, PathBuf), Failure> {
    let shares = &desk.options.shares;
    let fits = |share: &&Share| share.below(path).is_some() && (!write || share.writable);
    let share = shares.iter().find(fits).ok_or_else(|| {
        let roots: Vec<String> = shares.iter().map(describe).collect();
        let path = path.escape_default();
        let failure = Failure::new(format!("'{path}' is in no folder that the user shares for this"));
        failure.hint(format!("Shared are: {}.", roots.join(", ")))
    })?;
    let below = share.below(path).unwrap_or_default();
    Ok((share, below))
}

/// A shared folder, as people read it.
pub fn describe(share: &Share) -> String {
    format!("{}{}", share.root().display(), if share.writable { "" } else { " (to read)" })
}

async fn upload(call: Call, asked: Upload) -> Result<Answer<Copied>, Failure> {
    let (share, below) = find(&call.desk, &asked.host_path, false)?;
    let wrong = |error: io::Error| Failure::new(format!("cannot read '{}': {error}", asked.host_path.escape_default()));
    let (file, size) = share.read(&below).map_err(wrong)?;
    if size > LARGEST {
        return Err(Failure::new(format!("the file has {size} bytes; {LARGEST} can be copied")));
    }
    let file = tokio::fs::File::from_std(file).take(LARGEST);
    let pieces = streams::unfold(file, |mut file| async move {
        let mut buffer = vec![0; PIECE];
        match file.read(&mut buffer).await {
            Ok(0) => None,
            Ok(count) => {
                buffer.truncate(count);
                Some((Ok(Bytes::from(buffer)), file))
            }
            Err(error) => Some((Err(error), file)),
        }
    });
    let address = call.path(&format!("/files?path={}", encode(&asked.path))).await?;
    let response = call.server().send(Method::PUT, &address, "application/octet-stream", stream(pieces)).await?;
    let entry = sloplet_remote::json(response).await?;
    let size = entry["size"].as_u64().unwrap_or(0);
    let copied = Copied {
        path: entry["path"].as_str().unwrap_or_default().to_owned(),
        host_path: share.root().join(&below).display().to_string(),
        size,
    };
    Ok(Answer::new(format!("copied {size} bytes to {}", copied.path), copied))
}

async fn download(call: Call, asked: Download) -> Result<Answer<Copied>, Failure> {
    let (share, below) = find(&call.desk, &asked.host_path, true)?;
    let shown = share.root().join(&below).display().to_string();
    let wrong = |error: io::Error| Failure::new(format!("cannot write '{}': {error}", shown.escape_default()));
    let made = share.create(&below).map_err(wrong)?;
    let address = call.path(&format!("/files?path={}", encode(&asked.path))).await?;
    let mut body = call.server().send(Method::GET, &address, "application/json", full("")).await?.into_body();
    let mut file = made.file().map_err(wrong)?;
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::new(format!("the file broke off: {error}")))?;
        let Ok(bytes) = frame.into_data() else { continue };
        size += bytes.len() as u64;
        if size > LARGEST {
            return Err(Failure::new(format!("the file has more than {LARGEST} bytes")));
        }
        file = tokio::task::spawn_blocking(move || file.write_all(&bytes).map(|()| file))
            .await
            .map_err(|error| Failure::new(error.to_string()))?
            .map_err(wrong)?;
    }
    made.finish(asked.overwrite).map_err(wrong)?;
    Ok(Answer::new(format!("copied {size} bytes to {shown}"), Copied { path: asked.path, host_path: shown, size }))
}
