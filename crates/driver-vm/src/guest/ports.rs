//! The machine's port: one pipe to the host, which carries all streams.
//!
//! A port has no event that says "somebody else is there now": a machine that was saved goes on in the middle of whatever it
//! was reading and writing. So every visitor begins with a password of 16 bytes, the machine's own, which is looked for in all
//! that comes; what is under way then is dropped, and 16 bytes that follow it are sent back: the visitor drops what comes
//! before. The first 16 bytes of all are the password itself.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use memchr::memmem::Finder;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use tokio::sync::mpsc;

/// Bytes of a password, and of what is sent back.
pub const WORD: usize = 16;

/// How often it is looked whether somebody has come.
const LOOK: Duration = Duration::from_millis(5);

/// Pieces that wait to be read.
const WAITING: usize = 16;

/// Somebody at the port.
#[derive(Debug)]
pub struct Visitor {
    /// What he says.
    pub incoming: mpsc::Receiver<Vec<u8>>,
    /// What is said to him; what was said before he came is not for him.
    pub outgoing: mpsc::UnboundedSender<Vec<u8>>,
}

/// Opens the port that the host calls `name`.
fn open(name: &str) -> io::Result<File> {
    for _ in 0..1000 {
        for entry in fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
            let path = Path::new("/dev").join(entry.file_name());
            if fs::read_to_string(entry.path().join("name")).unwrap_or_default().trim() == name && path.exists() {
                let flags = OFlags::NONBLOCK.bits() as i32;
                return OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
            }
        }
        std::thread::sleep(LOOK);
    }
    Err(io::Error::other(format!("there is no port '{name}'")))
}

/// Hands every visitor of the port on, one after the other.
pub fn serve(name: &str, visitors: mpsc::UnboundedSender<Visitor>) -> io::Result<()> {
    let port = Arc::new(open(name)?);
    let (outgoing, pieces) = mpsc::unbounded_channel();
    let writing = port.clone();
    std::thread::Builder::new().name("port-out".into()).spawn(move || write(&writing, pieces))?;
    std::thread::Builder::new().name("port-in".into()).spawn(move || read(&port, &outgoing, &visitors))?;
    Ok(())
}

/// Waits until the port can be read or written; a while at most, and longer if nobody has its other end.
fn wait(port: &File, flags: PollFlags) {
    let mut fds = [PollFd::new(port, flags)];
    let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
    if poll(&mut fds, Some(&limit)).is_ok() && fds[0].revents().contains(PollFlags::HUP) {
        std::thread::sleep(LOOK);
    }
}

fn write(mut port: &File, mut pieces: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(piece) = pieces.blocking_recv() {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            match port.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(_) => wait(port, PollFlags::OUT),
            }
        }
    }
}

fn read(
    mut port: &File,
    outgoing: &mpsc::UnboundedSender<Vec<u8>>,
    visitors: &mpsc::UnboundedSender<Visitor>,
) -> Option<()> {
    let mut door = Door::default();
    let mut session: Option<mpsc::Sender<Vec<u8>>> = None;
    let mut space = vec![0; 64 * 1024];
    loop {
        let count = match port.read(&mut space) {
            Ok(count) if count > 0 => count,
            _ => {
                wait(port, PollFlags::IN);
                continue;
            }
        };
        for heard in door.hear(&space[..count]) {
            match heard {
                Heard::Piece(bytes) => {
                    // Whoever broke the rules is not listened to any more.
                    if session.as_ref().is_some_and(|session| session.blocking_send(bytes).is_err()) {
                        session = None;
                    }
                }
                Heard::Visitor(word) => {
                    let (sender, incoming) = mpsc::channel(WAITING);
                    session = Some(sender);
                    outgoing.send(word.to_vec()).ok()?;
                    visitors.send(Visitor { incoming, outgoing: outgoing.clone() }).ok()?;
                }
            }
        }
    }
}

/// What a stretch of bytes means.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// Bytes of the visitor who is there.
    Piece(Vec<u8>),
    /// Another visitor, and what he wants sent back.
    Visitor([u8; WORD]),
}

/// Notices visitors.
#[derive(Default)]
struct Door {
    password: Option<Finder<'static>>,
    /// The last bytes that were heard, fewer than a password has.
    last: Vec<u8>,
    /// What a new visitor has said so far of the word to be sent back.
    word: Option<Vec<u8>>,
}

impl Door {
    fn hear(&mut self, bytes: &[u8]) -> Vec<Heard> {
        let (mut heard, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            if let Some(word) = &mut self.word {
                let (taken, others) = rest.split_at(rest.len().min(WORD - word.len()));
                word.extend_from_slice(taken);
                rest = others;
                if let Ok(whole) = <[u8; WORD]>::try_from(&word[..]) {
                    self.word = None;
                    heard.push(Heard::Visitor(whole));
                }
                continue;
            }
            let Some(password) = &self.password else {
                let (taken, others) = rest.split_at(rest.len().min(WORD - self.last.len()));
                self.last.extend_from_slice(taken);
                rest = others;
                if self.last.len() == WORD {
                    self.password = Some(Finder::new(&std::mem::take(&mut self.last)).into_owned());
                    self.word = Some(Vec::new());
                }
                continue;
            };
            // It may have begun in what was heard before.
            let seam: Vec<u8> = self.last.iter().chain(rest.iter().take(WORD - 1)).copied().collect();
            let end = match password.find(&seam) {
                Some(at) => Some(at + WORD - self.last.len()),
                None => password.find(rest).map(|at| at + WORD),
            };
            match end {
                Some(end) => {
                    rest = &rest[end..];
                    self.last.clear();
                    self.word = Some(Vec::new());
                }
                None => {
                    heard.push(Heard::Piece(rest.to_vec()));
                    self.last.extend_from_slice(&rest[rest.len().saturating_sub(WORD - 1)..]);
                    let over = self.last.len().saturating_sub(WORD - 1);
                    self.last.drain(..over);
                    rest = &[];
                }
            }
        }
        heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visitor_is_noticed_wherever_the_bytes_are_cut() {
        let password: Vec<u8> = (0..WORD as u8).map(|byte| byte % 5).collect();
        let (first, second) = ([1; WORD], [2; WORD]);
        // The one before is cut off amid something that begins like a password.
        let before = [b"something".as_slice(), &password[..7]].concat();
        let all = [&password, first.as_slice(), &before, &password, &second, b"more"].concat();
        for size in 1..all.len() {
            let mut door = Door::default();
            let mut seen: Vec<Heard> = Vec::new();
            for heard in all.chunks(size).flat_map(|part| door.hear(part)) {
                match (seen.last_mut(), heard) {
                    (Some(Heard::Piece(bytes)), Heard::Piece(more)) => bytes.extend(more),
                    (_, heard) => seen.push(heard),
                }
            }
            let visitors: Vec<usize> = (0..seen.len()).filter(|at| matches!(seen[*at], Heard::Visitor(_))).collect();
            assert_eq!(visitors.len(), 2, "pieces of {size}: {seen:?}");
            assert_eq!((&seen[visitors[0]], &seen[visitors[1]]), (&Heard::Visitor(first), &Heard::Visitor(second)));
            assert_eq!(seen.last(), Some(&Heard::Piece(b"more".to_vec())), "pieces of {size}");
        }
    }
}
