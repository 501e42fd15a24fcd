//! From what the kernel said to what the host is told.

use std::fmt::Display;

use rustix::io::Errno;
use sloplet_wire::{ErrorCode, Failure};

/// Longest path shown in a message; names inside are the sandbox's choice.
const SHOWN_BYTES: usize = 512;

/// A failure with a message of its own.
pub(crate) fn fail(code: ErrorCode, message: impl Into<String>) -> Failure {
    Failure { code, message: message.into() }
}

/// A failure of a system call; `what` was being tried.
pub(crate) fn errno(errno: Errno, what: impl Display) -> Failure {
    let text = match errno {
        Errno::XDEV => "leads out of the folder that may be used (or to another file system)".to_owned(),
        Errno::AGAIN => "busy: too many processes, or the file is changing or leased".to_owned(),
        _ => std::io::Error::from(errno).to_string(),
    };
    fail(code(errno), format!("{what}: {text}"))
}

fn code(errno: Errno) -> ErrorCode {
    match errno {
        Errno::NOENT | Errno::SRCH => ErrorCode::NotFound,
        Errno::EXIST => ErrorCode::Exists,
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::XDEV => ErrorCode::Denied,
        Errno::NOTDIR | Errno::ISDIR => ErrorCode::WrongType,
        Errno::INVAL | Errno::NAMETOOLONG | Errno::LOOP | Errno::NOTEMPTY | Errno::NOEXEC | Errno::TOOBIG => {
            ErrorCode::Invalid
        }
        Errno::NOSPC
        | Errno::DQUOT
        | Errno::MFILE
        | Errno::NFILE
        | Errno::NOMEM
        | Errno::AGAIN
        | Errno::FBIG
        | Errno::MLINK => ErrorCode::Exhausted,
        Errno::CONNREFUSED => ErrorCode::Refused,
        _ => ErrorCode::Io,
    }
}

/// Bytes from inside as text that is safe to show: no control characters (terminal escapes), not too long.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(SHOWN_BYTES)];
    let mut text: String =
        String::from_utf8_lossy(cut).chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if cut.len() < bytes.len() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_cannot_steer_a_terminal() {
        assert_eq!(shown(b"a\x1b[2Jb"), "a\u{fffd}[2Jb");
        assert!(shown(&[b'x'; 100_000]).len() < 1000);
    }
}
