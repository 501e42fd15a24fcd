//! What of SFTP is written down: files that were written, moved and removed, as the client asked and the sandbox answered.
//!
//! The server for it runs inside and needs none of this. Both streams are only looked at here: what cannot be read is passed on
//! all the same, and from then on nothing more is understood.

use std::collections::HashMap;

use ring::digest::{Context, SHA256};
use sloplet_engine::Journal;
use sloplet_ledger::event::{FileAction, FileChanged};
use sloplet_ledger::{Event, Text};

/// Bytes of a message.
const MESSAGE: usize = 256 * 1024;

/// Requests without an answer, and files that are open, that are remembered.
const REMEMBERED: usize = 1024;

const OPEN: u8 = 3;
const CLOSE: u8 = 4;
const WRITE: u8 = 6;
const REMOVE: u8 = 13;
const RMDIR: u8 = 15;
const MKDIR: u8 = 14;
const RENAME: u8 = 18;
const SYMLINK: u8 = 20;
const EXTENDED: u8 = 200;
const STATUS: u8 = 101;
const HANDLE: u8 = 102;

/// A file is opened to be written if any of these is set.
const WRITES: u32 = 2 | 4 | 8 | 16;

/// Looks at a session.
pub(crate) struct Uploads {
    journal: Journal,
    actor: String,
    requests: Messages,
    answers: Messages,
    pending: HashMap<u32, Pending>,
    files: HashMap<Vec<u8>, File>,
}

enum Pending {
    Open(Vec<u8>),
    Close(Vec<u8>),
    Change(FileChanged),
}

/// A file that is being written.
struct File {
    path: Vec<u8>,
    bytes: u64,
    /// Of what came so far, while it comes in order.
    hashing: Option<Context>,
}

impl Uploads {
    pub(crate) fn new(journal: Journal, actor: String) -> Self {
        Self {
            journal,
            actor,
            requests: Messages::default(),
            answers: Messages::default(),
            pending: HashMap::new(),
            files: HashMap::new(),
        }
    }

    /// The client said this.
    pub(crate) fn asked(&mut self, bytes: &[u8]) {
        self.requests.add(bytes);
        while let Some(message) = self.requests.next() {
            let _ = self.request(&message);
        }
    }

    /// The sandbox said this.
    pub(crate) fn answered(&mut self, bytes: &[u8]) {
        self.answers.add(bytes);
        while let Some(message) = self.answers.next() {
            let _ = self.answer(&message);
        }
    }

    fn request(&mut self, message: &[u8]) -> Option<()> {
        let mut fields = Fields(message);
        let (kind, id) = (fields.byte()?, fields.number()?);
        let path = |bytes: &[u8]| Text::from_bytes(bytes);
        let removed =
            |bytes: &[u8]| FileChanged { action: FileAction::Removed, path: path(bytes), ..Default::default() };
        let pending = match kind {
            OPEN => {
                let (path, flags) = (fields.bytes()?, fields.number()?);
                (flags & WRITES != 0).then(|| Pending::Open(path.to_vec()))?
            }
            CLOSE => Pending::Close(fields.bytes()?.to_vec()),
            WRITE => {
                let (handle, offset, data) = (fields.bytes()?, fields.long()?, fields.bytes()?);
                let file = self.files.get_mut(handle)?;
                if file.bytes != offset {
                    file.hashing = None;
                }
                if let Some(hashing) = &mut file.hashing {
                    hashing.update(data);
                }
                file.bytes = file.bytes.max(offset.saturating_add(data.len() as u64));
                return None;
            }
            REMOVE | RMDIR => Pending::Change(removed(fields.bytes()?)),
            MKDIR => Pending::Change(FileChanged { path: path(fields.bytes()?), ..Default::default() }),
            SYMLINK => {
                fields.bytes()?;
                Pending::Change(FileChanged { path: path(fields.bytes()?), ..Default::default() })
            }
            RENAME => Pending::Change(moved(&mut fields)?),
            EXTENDED => match fields.bytes()? {
                b"posix-rename@openssh.com" => Pending::Change(moved(&mut fields)?),
                b"hardlink@openssh.com" => {
                    fields.bytes()?;
                    Pending::Change(FileChanged { path: path(fields.bytes()?), ..Default::default() })
                }
                _ => return None,
            },
            _ => return None,
        };
        if self.pending.len() < REMEMBERED {
            self.pending.insert(id, pending);
        }
        Some(())
    }

    fn answer(&mut self, message: &[u8]) -> Option<()> {
        let mut fields = Fields(message);
        let (kind, id) = (fields.byte()?, fields.number()?);
        match (kind, self.pending.remove(&id)?) {
            (HANDLE, Pending::Open(path)) if self.files.len() < REMEMBERED => {
                let file = File { path, bytes: 0, hashing: Some(Context::new(&SHA256)) };
                self.files.insert(fields.bytes()?.to_vec(), file);
            }
            (STATUS, Pending::Close(handle)) if fields.number()? == 0 => {
                let File { path, bytes, hashing } = self.files.remove(&handle)?;
                let digest = hashing.map(|hashing| hashing.finish());
                let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
                self.note(FileChanged {
                    path: Text::from_bytes(&path),
                    bytes: Some(bytes),
                    sha256: digest.map(|digest| hex(digest.as_ref()).into()),
                    ..Default::default()
                });
            }
            (STATUS, Pending::Change(change)) if fields.number()? == 0 => self.note(change),
            _ => {}
        }
        Some(())
    }

    fn note(&self, change: FileChanged) {
        self.journal.note_by(&self.actor, Event::FileChanged(change));
    }
}

fn moved(fields: &mut Fields<'_>) -> Option<FileChanged> {
    let (from, to) = (fields.bytes()?, fields.bytes()?);
    let to = Some(Text::from_bytes(to));
    Some(FileChanged { action: FileAction::Moved, path: Text::from_bytes(from), to, ..Default::default() })
}

/// A stream, cut into messages.
#[derive(Default)]
pub(crate) struct Messages {
    bytes: Vec<u8>,
    lost: bool,
}

impl Messages {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        if !self.lost {
            self.bytes.extend_from_slice(bytes);
        }
    }

    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        let (length, rest) = self.bytes.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        if length > MESSAGE {
            self.lost = true;
            self.bytes = Vec::new();
            return None;
        }
        let message = rest.get(..length)?.to_vec();
        self.bytes.drain(..4 + length);
        Some(message)
    }
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn long(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.number()? as usize;
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_cut_into_messages_wherever_it_was_split() {
        let mut messages = Messages::default();
        let stream = [&[0, 0, 0, 2, 7, 8][..], &[0, 0, 0, 0], &[0, 0, 0, 1, 9]].concat();
        let mut found = Vec::new();
        for byte in stream {
            messages.add(&[byte]);
            while let Some(message) = messages.next() {
                found.push(message);
            }
        }
        assert_eq!(found, [vec![7, 8], vec![], vec![9]]);
        messages.add(&[0xff; 64]);
        assert!(messages.next().is_none());
        messages.add(&[0; 1024]);
        assert!(messages.next().is_none() && messages.bytes.is_empty(), "it listens on");
    }
}
