//! [`Egress`]: serves a doorway until it is dropped.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::future::Shared;
use sloplet_policy::network::{Host, Network};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::ask::{Answer, Ask, Nobody};
use crate::connection::{self, Place, Record};
use crate::doorway::Doorway;
use crate::event::{Counters, Event};
use crate::host;
use crate::intercept::{Intercept, Pending};
use crate::limits::{Bucket, Seldom};
use crate::names::{self, Names};
use crate::relay;
use crate::resolve::{Connect, Resolve, System};

/// Lookups under way at once.
const MAX_LOOKUPS: usize = 16;

/// After an error of the doorway: most often there are no descriptors left, and some will come back.
const PAUSE: Duration = Duration::from_millis(50);

/// Errors of the doorway in a row after which it is gone.
const MAX_ERRORS: u32 = 1000;

/// What an egress works with.
#[derive(Clone)]
pub struct Options {
    /// Finds the real addresses of allowed names.
    pub resolver: Arc<dyn Resolve>,
    /// Connects to what was vetted.
    pub connector: Arc<dyn Connect>,
    /// Told of everything; called on the egress's tasks, so it should return at once.
    pub events: Arc<dyn Fn(Event) + Send + Sync>,
    /// Takes connections over.
    pub intercept: Option<Arc<dyn Intercept>>,
    /// Asks a person.
    pub ask: Arc<dyn Ask>,
    /// The host's addresses, which are refused like private ones; those that it has at that moment, if left out.
    pub own_addresses: Option<Vec<IpAddr>>,
    /// Names of hosts that may be reached in no way: their addresses are refused, too, whatever the rules say.
    pub protected: Vec<String>,
    /// A protection that is taken away, to test who should notice.
    pub weaken: Option<&'static str>,
}

impl Default for Options {
    /// The host's resolver and addresses; nobody is told or asked.
    fn default() -> Self {
        Self {
            resolver: Arc::new(System),
            connector: Arc::new(System),
            events: Arc::new(|_| {}),
            intercept: None,
            ask: Arc::new(Nobody),
            own_addresses: None,
            protected: Vec::new(),
            weaken: None,
        }
    }
}

impl Options {
    /// The host's addresses.
    pub(crate) fn own_addresses(&self) -> Cow<'_, [IpAddr]> {
        self.own_addresses.as_ref().map_or_else(|| host::addresses().into(), Into::into)
    }

    /// Whether a protection was taken away. Release builds have them all.
    pub(crate) fn lacks(&self, protection: &str) -> bool {
        cfg!(debug_assertions) && self.weaken == Some(protection)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("own_addresses", &self.own_addresses).finish_non_exhaustive()
    }
}

/// Serves a sandbox's connections and questions until it is dropped, which cuts everything that it relays.
#[derive(Debug)]
pub struct Egress {
    core: Arc<Core>,
}

impl Egress {
    /// Begins to serve, on tasks of the current tokio runtime.
    pub fn start(doorway: Arc<dyn Doorway>, network: Network, options: Options) -> Self {
        let core = Arc::new(Core::new(network, options));
        tokio::spawn(serve_connections(Arc::clone(&core), Arc::clone(&doorway)));
        tokio::spawn(serve_questions(Arc::clone(&core), doorway));
        Self { core }
    }

    /// Replaces the rules. Connections that they no longer allow are cut; answers of people are forgotten.
    pub fn set_network(&self, network: Network) {
        self.core.set_network(network);
    }

    /// The rules in force.
    pub fn network(&self) -> Arc<Network> {
        self.core.network()
    }

    /// Sums since the start.
    pub fn counters(&self) -> Counters {
        self.core.sums.read()
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.core.end.cancel();
        for record in self.core.live_records() {
            record.cut();
        }
    }
}

async fn serve_connections(core: Arc<Core>, doorway: Arc<dyn Doorway>) {
    let mut errors = 0;
    while let Some(arrival) = core.end.run_until_cancelled(doorway.connection()).await {
        match arrival {
            Ok(arrival) => {
                errors = 0;
                core.sums.connections.fetch_add(1, Relaxed);
                match core.admit() {
                    Some(place) => drop(tokio::spawn(connection::arrive(Arc::clone(&core), arrival, place))),
                    None => relay::reset(&arrival.stream),
                }
            }
            Err(_) if errors < MAX_ERRORS => {
                errors += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(_) => return,
        }
    }
}

async fn serve_questions(core: Arc<Core>, doorway: Arc<dyn Doorway>) {
    let mut errors = 0;
    while let Some(question) = core.end.run_until_cancelled(doorway.question()).await {
        match question {
            Ok(question) => {
                errors = 0;
                core.leak(&question.message);
                if let Some(answer) = core.answer(&question.message) {
                    (question.answer)(&answer);
                }
            }
            Err(_) if errors < MAX_ERRORS => {
                errors += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(_) => return,
        }
    }
}

/// A mutex that nothing can poison: what it guards is consistent between any two statements.
#[derive(Debug, Default)]
pub(crate) struct Locked<T>(Mutex<T>);

impl<T> Locked<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question to a person that several connections wait for.
pub(crate) type Asking = Shared<Pending<'static, Answer>>;

/// What all tasks of one egress share.
pub(crate) struct Core {
    pub(crate) options: Options,
    pub(crate) end: CancellationToken,
    pub(crate) names: Locked<Names>,
    pub(crate) live: Locked<HashMap<u64, Weak<Record>>>,
    pub(crate) sums: Sums,
    /// Names and ports that a person allowed until the rules change.
    pub(crate) approved: Locked<HashSet<(Place, u16)>>,
    pub(crate) asking: Locked<HashMap<(Place, u16), Asking>>,
    pub(crate) cache: Locked<HashMap<String, (Instant, Vec<IpAddr>)>>,
    pub(crate) lookups: Semaphore,
    pub(crate) protected: tokio::sync::Mutex<crate::protected::Known>,
    network: Locked<Arc<Network>>,
    next: AtomicU64,
    new_connections: Bucket,
    questions: Bucket,
    said: [(&'static str, Seldom); 5],
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("network", &self.network).field("sums", &self.sums).finish_non_exhaustive()
    }
}

impl Core {
    fn new(network: Network, options: Options) -> Self {
        let core = Self {
            options,
            end: CancellationToken::new(),
            names: Locked::new(Names::new(names::CAPACITY)),
            live: Locked::default(),
            sums: Sums::default(),
            approved: Locked::default(),
            asking: Locked::default(),
            cache: Locked::default(),
            lookups: Semaphore::new(MAX_LOOKUPS),
            protected: tokio::sync::Mutex::default(),
            network: Locked::default(),
            next: AtomicU64::new(1),
            new_connections: Bucket::default(),
            questions: Bucket::default(),
            said: ["connections", "new_per_second", "dns_per_second", "bytes_up", "bytes_down"]
                .map(|limit| (limit, Seldom::default())),
        };
        core.set_network(network);
        core
    }

    pub(crate) fn network(&self) -> Arc<Network> {
        Arc::clone(&self.network.lock())
    }

    fn set_network(&self, network: Network) {
        let limit = |size: Option<sloplet_policy::ByteSize>| size.map_or(u64::MAX, |size| size.0);
        self.sums.most_up.store(limit(network.limits.bytes_up), Relaxed);
        self.sums.most_down.store(limit(network.limits.bytes_down), Relaxed);
        {
            // Known names have their addresses before anyone asks: a program may remember one from before a restart.
            let mut names = self.names.lock();
            for rule in network.allow.iter().chain(&network.ask) {
                if let Host::Name(name) = &rule.host {
                    names.number(name);
                }
            }
        }
        *self.network.lock() = Arc::new(network);
        self.approved.lock().clear();
        // A connection is in the list before it reads the rules: none slips through between the two.
        for record in self.live_records() {
            record.decide_again();
        }
    }

    pub(crate) fn live_records(&self) -> Vec<Arc<Record>> {
        self.live.lock().values().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn tell(&self, event: Event) {
        (self.options.events)(event);
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// A place among the connections at once, unless a limit is hit.
    fn admit(self: &Arc<Self>) -> Option<Seat> {
        let network = self.network();
        if self.sums.open.load(Relaxed) >= u64::from(network.limits.connections) {
            self.limited("connections");
            return None;
        }
        if !self.new_connections.take(network.limits.new_per_second, Instant::now()) {
            self.limited("new_per_second");
            return None;
        }
        self.sums.open.fetch_add(1, Relaxed);
        Some(Seat(Arc::clone(self)))
    }

    /// Whether one more question may be answered.
    pub(crate) fn may_ask(&self) -> bool {
        let may = self.questions.take(self.network().limits.dns_per_second, Instant::now());
        if !may {
            self.limited("dns_per_second");
        }
        may
    }

    pub(crate) fn limited(&self, limit: &'static str) {
        self.sums.limited.fetch_add(1, Relaxed);
        let said = self.said.iter().find(|(name, _)| *name == limit);
        if let Some(count) = said.and_then(|(_, seldom)| seldom.count(Instant::now())) {
            self.tell(Event::Limited { limit, count });
        }
    }
}

/// A place among the connections at once.
#[derive(Debug)]
pub(crate) struct Seat(Arc<Core>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.sums.open.fetch_sub(1, Relaxed);
    }
}

/// Sums, and where they end.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pub(crate) open: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) allowed: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) limited: AtomicU64,
    pub(crate) lookups: AtomicU64,
    pub(crate) lookups_denied: AtomicU64,
    pub(crate) bytes_up: AtomicU64,
    pub(crate) bytes_down: AtomicU64,
    most_up: AtomicU64,
    most_down: AtomicU64,
}

impl Sums {
    fn read(&self) -> Counters {
        Counters {
            open: self.open.load(Relaxed),
            connections: self.connections.load(Relaxed),
            allowed: self.allowed.load(Relaxed),
            denied: self.denied.load(Relaxed),
            limited: self.limited.load(Relaxed),
            lookups: self.lookups.load(Relaxed),
            lookups_denied: self.lookups_denied.load(Relaxed),
            bytes_up: self.bytes_up.load(Relaxed),
            bytes_down: self.bytes_down.load(Relaxed),
        }
    }

    /// Counts bytes; an error if they are too many.
    pub(crate) fn add_up(&self, count: u64) -> io::Result<()> {
        let sum = self.bytes_up.fetch_add(count, Relaxed).saturating_add(count);
        if sum > self.most_up.load(Relaxed) { Err(io::ErrorKind::QuotaExceeded.into()) } else { Ok(()) }
    }

    /// The same for the other direction.
    pub(crate) fn add_down(&self, count: u64) -> io::Result<()> {
        let sum = self.bytes_down.fetch_add(count, Relaxed).saturating_add(count);
        if sum > self.most_down.load(Relaxed) { Err(io::ErrorKind::QuotaExceeded.into()) } else { Ok(()) }
    }

    /// The limit of bytes that is used up.
    pub(crate) fn used_up(&self) -> Option<&'static str> {
        if self.bytes_up.load(Relaxed) >= self.most_up.load(Relaxed) {
            return Some("bytes_up");
        }
        (self.bytes_down.load(Relaxed) >= self.most_down.load(Relaxed)).then_some("bytes_down")
    }
}
