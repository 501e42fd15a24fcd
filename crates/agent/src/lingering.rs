//! Output that nobody wants any more but somebody may still write.
//!
//! `sh -c 'server &'` ends at once; the server goes on and logs to the pipe it inherited. Closing our end would kill it
//! with SIGPIPE at its next line, so the pipe is drained for nobody.

use std::collections::BTreeMap;
use std::rc::Rc;

use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::context::Context;
use crate::poll::{Part, Token};

/// Pipes kept; more than these and the oldest is closed.
const MAX_LINGERING: usize = 256;

/// Reads of one pipe in one turn.
const READS_PER_TURN: usize = 4;

/// Pipes of processes that are gone, by the process's number; numbers grow, so the first is the oldest.
#[derive(Debug, Default)]
pub(crate) struct Lingering {
    pipes: BTreeMap<(u32, Part), Rc<OwnedFd>>,
}

impl Lingering {
    pub(crate) fn add(&mut self, process: u32, part: Part, pipe: Rc<OwnedFd>) {
        self.pipes.insert((process, part), pipe);
        if self.pipes.len() > MAX_LINGERING {
            self.pipes.pop_first();
        }
    }

    pub(crate) fn holds(&self, process: u32, part: Part) -> bool {
        self.pipes.contains_key(&(process, part))
    }

    /// Throws away what is readable; `true` if there may be more.
    pub(crate) fn drain(&mut self, process: u32, part: Part, scratch: &mut [u8], context: &Context) -> bool {
        let Some(pipe) = self.pipes.get(&(process, part)) else {
            return false;
        };
        for _ in 0..READS_PER_TURN {
            match rustix::io::read(pipe, &mut *scratch) {
                Ok(1..) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let _ = context.poll.rearm(&**pipe, Token::Process(process, part));
                    return false;
                }
                Ok(0) | Err(_) => {
                    self.pipes.remove(&(process, part));
                    return false;
                }
            }
        }
        true
    }
}
