//! The spawner's talk with its engine. It never waits for the engine: deadlines must be kept even if that one hangs.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;

use crate::protocol::{Order, Report, receive, send_now};

/// A connection to an engine.
#[derive(Debug)]
pub struct Conversation {
    socket: OwnedFd,
    /// What did not fit into the socket yet.
    unsent: VecDeque<(Report, Vec<OwnedFd>)>,
}

/// What came in.
#[derive(Debug)]
pub enum Heard {
    /// Something to do.
    Order(Order, Vec<OwnedFd>),
    /// Nothing that could be understood, or nothing after all.
    Nothing,
    /// The engine is gone.
    End,
}

impl Conversation {
    /// Begins one, and watches the socket under `token`.
    pub fn begin(socket: OwnedFd, events: &OwnedFd, token: u64) -> rustix::io::Result<Self> {
        epoll::add(events, &socket, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        Ok(Self { socket, unsent: VecDeque::new() })
    }

    /// Takes the next order.
    pub fn hear(&self) -> Heard {
        match receive::<Order>(&self.socket) {
            Ok(Some((order, fds))) => Heard::Order(order, fds),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::InvalidData) => Heard::Nothing,
            Ok(None) | Err(_) => Heard::End,
        }
    }

    /// Says something, now or when there is room. If the engine is gone, [`Self::hear`] will tell.
    pub fn say(&mut self, report: Report, fds: &[BorrowedFd<'_>], events: &OwnedFd, token: u64) {
        if self.unsent.is_empty() {
            match send_now(&self.socket, &report, fds) {
                Err(error) if is_for_now(&error) => {
                    let both = epoll::EventFlags::IN | epoll::EventFlags::OUT;
                    let _ = epoll::modify(events, &self.socket, epoll::EventData::new_u64(token), both);
                }
                _ => return,
            }
        }
        let fds = fds.iter().filter_map(|fd| fd.try_clone_to_owned().ok()).collect();
        self.unsent.push_back((report, fds));
    }

    /// There is room in the socket.
    pub fn flush(&mut self, events: &OwnedFd, token: u64) {
        while let Some((report, fds)) = self.unsent.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match send_now(&self.socket, report, &fds) {
                Err(error) if is_for_now(&error) => return,
                _ => self.unsent.pop_front(),
            };
        }
        let _ = epoll::modify(events, &self.socket, epoll::EventData::new_u64(token), epoll::EventFlags::IN);
    }

    /// Whether all was said.
    pub fn is_quiet(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Ends it, for the other side to see at once; returns the ends of sandboxes that were not said any more.
    pub fn end(self, events: &OwnedFd) -> Vec<Report> {
        let _ = epoll::delete(events, &self.socket);
        // A copy may be the standard input of this process.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        let gone = |report: &Report| matches!(report, Report::Gone { .. });
        self.unsent.into_iter().map(|(report, _)| report).filter(gone).collect()
    }
}

/// Whether it is full: of messages, or of descriptors that nobody has received yet.
fn is_for_now(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(Errno::TOOMANYREFS.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Gone;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn an_engine_that_does_not_listen_is_not_waited_for_and_misses_nothing() {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut conversation = Conversation::begin(ours, &events, 0).unwrap();
        let end = Gone { oom_kills: 0, timed_out: false };
        for number in 0..5000 {
            conversation.say(Report::Gone { id: number.to_string(), end }, &[], &events, 0);
        }
        assert!(!conversation.is_quiet());
        for number in 0..4000 {
            let (report, _) = receive::<Report>(&theirs).unwrap().unwrap();
            assert!(matches!(report, Report::Gone { id, .. } if id == number.to_string()));
            conversation.flush(&events, 0);
        }
        conversation.end(&events);
        let mut number = 4000;
        while let Ok(Some((Report::Gone { id, .. }, _))) = receive::<Report>(&theirs) {
            assert_eq!(id, number.to_string());
            number += 1;
        }
        assert!(number > 4000);
    }

    #[test]
    fn what_was_not_said_any_more_can_be_told_to_the_next() {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (ours, _theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut conversation = Conversation::begin(ours, &events, 0).unwrap();
        let end = Gone { oom_kills: 0, timed_out: false };
        for number in 0..5000 {
            conversation.say(Report::Done { ticket: number }, &[], &events, 0);
        }
        conversation.say(Report::Gone { id: "x".into(), end }, &[], &events, 0);
        let rest = conversation.end(&events);
        assert!(matches!(&rest[..], [Report::Gone { id, .. }] if id == "x"));
    }
}
