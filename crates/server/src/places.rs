//! Places for connections: who has one, and who gives theirs up for somebody new.
//!
//! A connection that waits for nothing can be let go at any time, so it never keeps anybody out: when there is no place left,
//! the one goes that has been idle for longest. Only connections with a request under way can fill a server, and those are
//! counted for each address, too.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::refusals::network;

/// The places of one listener.
pub(crate) struct Places {
    /// Connections in all.
    most: usize,
    /// Connections from one address.
    most_each: usize,
    /// How long one may be idle.
    patience: Duration,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    held: BTreeMap<u64, Arc<Held>>,
    each: HashMap<IpAddr, usize>,
}

impl Places {
    /// So many in all and for each address, and so long for those that are idle.
    pub(crate) fn new(most: usize, most_each: usize, patience: Duration) -> Arc<Self> {
        Arc::new(Self { most, most_each, patience, taken: Mutex::default() })
    }

    /// A place for somebody from there; the one who has been idle for longest goes for it. `None`: all are in use.
    pub(crate) fn take(self: &Arc<Self>, from: IpAddr) -> Option<Place> {
        let from = network(from);
        let mut taken = self.lock();
        let crowded = taken.each.get(&from).is_some_and(|count| *count >= self.most_each);
        if crowded || taken.held.len() >= self.most {
            let candidates = taken.held.iter().filter(|(_, held)| !crowded || held.from == from);
            let idle = candidates.filter_map(|(id, held)| Some((held.idle_since()?, *id)));
            let (_, longest) = idle.min()?;
            if let Some(held) = taken.remove(longest) {
                held.let_go();
            }
        }
        let id = taken.next;
        taken.next += 1;
        let held =
            Arc::new(Held { from, patience: self.patience, state: Mutex::new(State::new()), changed: Notify::new() });
        taken.held.insert(id, held.clone());
        *taken.each.entry(from).or_default() += 1;
        Some(Place { places: self.clone(), id, held })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn remove(&mut self, id: u64) -> Option<Arc<Held>> {
        let held = self.held.remove(&id)?;
        if let Some(count) = self.each.get_mut(&held.from) {
            *count -= 1;
            if *count == 0 {
                self.each.remove(&held.from);
            }
        }
        Some(held)
    }
}

/// A connection's place, for as long as this lives.
pub(crate) struct Place {
    places: Arc<Places>,
    id: u64,
    /// How it is used.
    pub(crate) held: Arc<Held>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().remove(self.id);
        // Also where somebody else still knows of it. Not while it is locked: what goes may count itself out here.
        let kept = std::mem::take(&mut self.held.lock().kept);
        drop(kept);
    }
}

/// How a place is used.
pub(crate) struct Held {
    from: IpAddr,
    patience: Duration,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    requests: usize,
    /// Since when there is none.
    since: Instant,
    let_go: bool,
    /// What goes with the connection.
    kept: Vec<Box<dyn Any + Send>>,
}

impl State {
    fn new() -> Self {
        Self { requests: 0, since: Instant::now(), let_go: false, kept: Vec::new() }
    }
}

impl Held {
    /// A request is under way until that is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> UnderWay {
        self.lock().requests += 1;
        UnderWay(self.clone())
    }

    /// Keeps something as long as the connection is there.
    pub(crate) fn keep(&self, thing: impl Any + Send) {
        self.lock().kept.push(Box::new(thing));
    }

    /// Whether no request is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle_since().is_some()
    }

    /// Resolves when the connection is to end: it was idle for too long, or somebody else needs its place.
    pub(crate) async fn over(&self) {
        loop {
            let changed = self.changed.notified();
            let until = {
                let state = self.lock();
                match (state.let_go, state.requests) {
                    (true, _) => return,
                    (false, 0) => Some(state.since + self.patience),
                    _ => None,
                }
            };
            match until {
                Some(until) if until <= Instant::now() => return,
                Some(until) => drop(tokio::time::timeout_at(until.into(), changed).await),
                None => changed.await,
            }
        }
    }

    fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.requests == 0).then_some(state.since)
    }

    fn let_go(&self) {
        self.lock().let_go = true;
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request on a connection.
pub(crate) struct UnderWay(Arc<Held>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.requests -= 1;
        state.since = Instant::now();
        drop(state);
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn idle_connections_never_keep_anybody_out() {
        let places = Places::new(4, 4, LONG);
        let first = places.take(at("10.0.0.1")).unwrap();
        let busy = first.held.begin();
        let others: Vec<Place> = (0..3).map(|_| places.take(at("10.0.0.2")).unwrap()).collect();
        let newest = places.take(at("10.0.0.3")).unwrap();
        assert!(others[0].held.lock().let_go, "the one that was idle for longest goes");
        assert!(!others[1].held.lock().let_go && !first.held.lock().let_go && !newest.held.lock().let_go);
        // Dropped late, as a connection ends: its place was given away already, and is not freed twice.
        drop(others);
        assert_eq!(places.lock().held.len(), 2);
        drop(busy);
    }

    #[test]
    fn requests_under_way_fill_the_places_of_their_address_only() {
        let places = Places::new(8, 4, LONG);
        let taken: Vec<Place> = (0..4).map(|_| places.take(at("10.0.0.1")).unwrap()).collect();
        let busy: Vec<UnderWay> = taken.iter().map(|place| place.held.begin()).collect();
        assert!(places.take(at("10.0.0.1")).is_none());
        let other = places.take(at("10.0.0.2")).unwrap();
        drop(busy);
        assert!(places.take(at("10.0.0.1")).is_some() && !other.held.lock().let_go);
        drop(taken);
        // One network of IPv6 is one client.
        let six: Vec<Place> = (0..4).map(|n| places.take(at(&format!("2001:db8::{n}"))).unwrap()).collect();
        let _busy: Vec<UnderWay> = six.iter().map(|place| place.held.begin()).collect();
        assert!(places.take(at("2001:db8::9")).is_none() && places.take(at("2001:db8:0:1::9")).is_some());
    }

    #[tokio::test]
    async fn an_idle_connection_is_over_after_a_while_and_one_in_use_is_not() {
        let places = Places::new(4, 4, Duration::from_millis(30));
        let place = places.take(at("10.0.0.1")).unwrap();
        tokio::time::timeout(LONG, place.held.over()).await.unwrap();
        let request = place.held.begin();
        let short = Duration::from_millis(200);
        assert!(tokio::time::timeout(short, place.held.over()).await.is_err());
        drop(request);
        tokio::time::timeout(LONG, place.held.over()).await.unwrap();
    }

    #[test]
    fn what_was_kept_goes_with_the_connection() {
        let places = Places::new(4, 4, LONG);
        let place = places.take(at("10.0.0.1")).unwrap();
        let (known, thing) = (place.held.clone(), Arc::new(()));
        // As a connection that was upgraded does: its request lasts as long as it does.
        known.keep((thing.clone(), known.begin()));
        assert!(!known.is_idle());
        drop(place);
        assert!(Arc::strong_count(&thing) == 1 && known.is_idle());
    }
}
