//! Reading a file of the sandbox, a bounded part of it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use hyper::header::CONTENT_LENGTH;
use sloplet_remote::{Server, encode, full};

use crate::answer::{TEXT, text};
use crate::failure::Failure;

/// Bytes that are skipped at most to get to a line.
const SKIPPED: usize = 64 * 1024 * 1024;

/// Bytes of a file that is not text.
const BINARY: usize = 1024 * 1024;

/// Bytes that tell whether a file is text.
const LOOKED_AT: usize = 8 * 1024;

/// How pictures begin that models can see.
const PICTURES: [(&str, &[u8]); 4] = [
    ("image/png", b"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", b"\xff\xd8\xff"),
    ("image/gif", b"GIF8"),
    ("image/webp", b"RIFF"),
];

/// What was read.
pub enum Read {
    /// Lines of text.
    Text {
        /// The text.
        text: String,
        /// Bytes of the whole file, if it has a size.
        size: Option<u64>,
        /// Lines that were read.
        lines: u64,
        /// There is more.
        more: bool,
    },
    /// Something else, all of it.
    Bytes {
        /// What it is.
        kind: &'static str,
        /// In base64.
        base64: String,
        /// Bytes.
        size: u64,
    },
}

/// Which lines.
#[derive(Clone, Copy)]
pub struct Lines {
    /// From this one on; the first is 1.
    pub from: u64,
    /// How many at most.
    pub most: u64,
}

impl Lines {
    /// All, as far as there is room.
    pub const ALL: Self = Self { from: 1, most: u64::MAX };
}

/// Reads a file.
pub async fn read(server: &Server, sandbox: &str, path: &str, lines: Lines) -> Result<Read, Failure> {
    let address = format!("/sandboxes/{}/files?path={}", encode(sandbox), encode(path));
    let response = server.send(Method::GET, &address, "application/json", full("")).await?;
    let length = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let mut body = Body { body: response.into_body(), first: Vec::new() };
    body.peek().await?;
    if is_text(&body.first) {
        return lines_of(body, length, lines).await;
    }
    let size = length.unwrap_or(0);
    let refused = |size: String| {
        let failure = Failure::new(format!("{path} is not text, and {size} are too many to show"));
        failure.hint("Look at it with a program inside (exec), or let the user have it (download).")
    };
    if size > BINARY as u64 {
        return Err(refused(format!("{size} bytes")));
    }
    let mut bytes = std::mem::take(&mut body.first);
    while let Some(more) = body.next().await? {
        bytes.extend_from_slice(&more);
        if bytes.len() > BINARY {
            return Err(refused("its bytes".into()));
        }
    }
    let kind =
        PICTURES.iter().find(|(_, start)| bytes.starts_with(start)).map_or("application/octet-stream", |it| it.0);
    Ok(Read::Bytes { kind, size: bytes.len() as u64, base64: BASE64.encode(&bytes) })
}

struct Body {
    body: Incoming,
    first: Vec<u8>,
}

impl Body {
    async fn peek(&mut self) -> Result<(), Failure> {
        while self.first.len() < LOOKED_AT {
            match self.frame().await? {
                Some(bytes) => self.first.extend_from_slice(&bytes),
                None => break,
            }
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        if !self.first.is_empty() {
            return Ok(Some(std::mem::take(&mut self.first)));
        }
        self.frame().await
    }

    async fn frame(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| Failure::new(format!("the file broke off: {error}")))?;
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes.to_vec()));
            }
        }
        Ok(None)
    }
}

/// No NUL, and no picture; a few bytes that are not UTF-8 do not matter.
fn is_text(start: &[u8]) -> bool {
    let start = &start[..start.len().min(LOOKED_AT)];
    let wrong = String::from_utf8_lossy(start).chars().filter(|c| *c == char::REPLACEMENT_CHARACTER).count();
    !start.contains(&0) && !PICTURES.iter().any(|(_, magic)| start.starts_with(magic)) && wrong * 10 <= start.len()
}

async fn lines_of(mut body: Body, size: Option<u64>, lines: Lines) -> Result<Read, Failure> {
    let (mut held, mut number, mut skipped, mut more) = (Vec::new(), 1, 0, false);
    let end = lines.from.saturating_add(lines.most);
    'reading: while let Some(bytes) = body.next().await? {
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            if number >= end || held.len() >= TEXT {
                more = true;
                break 'reading;
            }
            let line = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
            let (piece, after) = rest.split_at(line);
            if number >= lines.from {
                let room = piece.len().min(TEXT - held.len());
                held.extend_from_slice(&piece[..room]);
                if room < piece.len() {
                    more = true;
                    break 'reading;
                }
            } else {
                skipped += piece.len();
                if skipped > SKIPPED {
                    let failure =
                        Failure::new(format!("line {} is more than {SKIPPED} bytes into the file", lines.from));
                    return Err(failure.hint("Use exec with sed, tail or the like."));
                }
            }
            number += u64::from(piece.ends_with(b"\n"));
            rest = after;
        }
    }
    if held.is_empty() && number < lines.from {
        return Err(Failure::new(format!("the file has only {} lines", number.saturating_sub(1))));
    }
    let lines = number.saturating_sub(lines.from) + u64::from(!held.is_empty() && !held.ends_with(b"\n"));
    Ok(Read::Text { text: text(&held), size, lines, more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_told_from_the_rest() {
        assert!(
            is_text(b"")
                && is_text(b"hello\n")
                && is_text("äöü".as_bytes())
                && is_text(b"some latin: \xe4 and more text")
        );
        assert!(!is_text(b"a\0b") && !is_text(b"\x89PNG\r\n\x1a\nrest") && !is_text(&[0xfe; 100]));
    }
}
