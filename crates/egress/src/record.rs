//! One connection from inside: where it wants to go, what was said about it, what it moved.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Instant;

use sloplet_policy::addresses::HOST_NAME;
use sloplet_policy::network::{Decision, Wanted};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::egress::{Core, Locked};
use crate::event::{Event, Protocol};
use crate::refuse::Problem;
use crate::relay;

/// Where a connection wants to go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// To a name.
    Name(String),
    /// To an address that no name led to.
    Address(IpAddr),
}

impl Place {
    pub(crate) fn wanted(&self) -> Wanted<'_> {
        match self {
            Self::Name(name) => Wanted::Name(name),
            Self::Address(address) => Wanted::Address(*address),
        }
    }

    pub(crate) fn name(&self) -> Option<String> {
        if let Self::Name(name) = self { Some(name.clone()) } else { None }
    }

    pub(crate) fn address(&self) -> Option<IpAddr> {
        if let Self::Address(address) = self { Some(*address) } else { None }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(v4)) => write!(f, "{v4}"),
            Self::Address(IpAddr::V6(v6)) => write!(f, "[{v6}]"),
        }
    }
}

/// One connection from inside. Listed among the live ones until it is dropped.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) core: Arc<Core>,
    pub(crate) id: u64,
    pub(crate) place: Place,
    pub(crate) port: u16,
    /// Cancelled when the connection is cut.
    pub(crate) end: CancellationToken,
    /// Whether a person allowed it.
    pub(crate) approved: AtomicBool,
    started: Instant,
    up: AtomicU64,
    down: AtomicU64,
    /// Whether it was reported as allowed.
    told: AtomicBool,
    /// Whether it was reported as denied, after which nothing more is said.
    over: AtomicBool,
    about: Locked<About>,
}

#[derive(Debug, Default)]
struct About {
    rule: String,
    dialed: Option<IpAddr>,
    /// The name that it showed, where it goes to an address.
    shown: Option<String>,
    sockets: Vec<Weak<TcpStream>>,
}

impl Record {
    pub(crate) fn open(core: &Arc<Core>, place: Place, port: u16, client: &Arc<TcpStream>) -> Arc<Self> {
        let about = About { sockets: vec![Arc::downgrade(client)], ..About::default() };
        let record = Arc::new(Self {
            core: Arc::clone(core),
            id: core.next_id(),
            place,
            port,
            end: core.end.child_token(),
            approved: AtomicBool::new(false),
            started: Instant::now(),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            told: AtomicBool::new(false),
            over: AtomicBool::new(false),
            about: Locked::new(about),
        });
        core.live.lock().insert(record.id, Arc::downgrade(&record));
        record
    }

    pub(crate) fn by(&self, rule: String) {
        self.about.lock().rule = rule;
    }

    pub(crate) fn dialed(&self, address: IpAddr) {
        self.about.lock().dialed = Some(address);
    }

    pub(crate) fn shows(&self, name: &str) {
        self.about.lock().shown = Some(name.to_owned());
    }

    /// Resets this connection, too, if it is cut.
    pub(crate) fn holds(&self, stream: &Arc<TcpStream>) {
        self.about.lock().sockets.push(Arc::downgrade(stream));
    }

    /// Counts bytes that leave the sandbox; an error if they are too many.
    pub(crate) fn up(&self, count: usize) -> io::Result<()> {
        self.up.fetch_add(count as u64, Relaxed);
        self.core.sums.add_up(count as u64).inspect_err(|_| self.used_up("bytes_up"))
    }

    /// Counts bytes that come in; an error if they are too many.
    pub(crate) fn down(&self, count: usize) -> io::Result<()> {
        self.down.fetch_add(count as u64, Relaxed);
        self.core.sums.add_down(count as u64).inspect_err(|_| self.used_up("bytes_down"))
    }

    fn used_up(&self, limit: &'static str) {
        self.core.limited(limit);
        self.stopped(&Problem::denied(format!("the limit {limit} is used up")), None);
    }

    /// Reports that it was let through; once.
    pub(crate) fn passed(&self, protocol: Protocol) {
        if self.over.load(Relaxed) || self.told.swap(true, Relaxed) {
            return;
        }
        self.core.sums.allowed.fetch_add(1, Relaxed);
        let (rule, address) = {
            let about = self.about.lock();
            (about.rule.clone(), about.dialed)
        };
        let (connection, name, port) = (self.id, self.place.name(), self.port);
        self.core.tell(Event::Allowed { connection, name, address, port, protocol, rule });
    }

    /// Reports that it does not go on; once.
    pub(crate) fn stopped(&self, problem: &Problem, protocol: Option<Protocol>) {
        if self.over.swap(true, Relaxed) {
            return;
        }
        let (connection, name, address, port) = (self.id, self.place.name(), self.place.address(), self.port);
        let reason = problem.reason.clone();
        self.core.tell(if problem.denied {
            self.core.sums.denied.fetch_add(1, Relaxed);
            Event::Denied { connection, name, address, port, protocol, reason }
        } else {
            Event::Failed { connection, name, address, port, reason }
        });
    }

    /// Asks the rules again, which have changed; cuts it if they no longer allow it.
    pub(crate) fn decide_again(&self) {
        let network = self.core.network();
        let (dialed, shown) = {
            let about = self.about.lock();
            (about.dialed, about.shown.clone())
        };
        let decided = match network.decide(self.place.wanted(), self.port) {
            Decision::Allow { .. } => true,
            Decision::Ask { .. } => self.approved.load(Relaxed),
            Decision::Deny { .. } => false,
        };
        let on_host = self.place.wanted() == Wanted::Name(HOST_NAME);
        let own = self.core.options.own_addresses();
        let dialable = dialed.is_none_or(|address| on_host || network.may_dial(address, self.port, &own).is_ok());
        let shown_denied = shown.is_some_and(|name| network.denied_by(Wanted::Name(&name), self.port).is_some());
        if !decided || !dialable || shown_denied {
            self.stopped(&Problem::denied("the rules changed"), None);
            self.cut();
        }
    }

    /// Resets both ends, and ends whatever serves it.
    pub(crate) fn cut(&self) {
        for socket in self.about.lock().sockets.iter().filter_map(Weak::upgrade) {
            relay::reset(&socket);
        }
        self.end.cancel();
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.core.live.lock().remove(&self.id);
        if self.told.load(Relaxed) {
            let (connection, up, down) = (self.id, self.up.load(Relaxed), self.down.load(Relaxed));
            let duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.core.tell(Event::Closed { connection, up, down, duration_ms });
        }
    }
}
