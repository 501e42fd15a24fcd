//! How much memory clients may make the server hold: in all, and for each owner. Whoever buffers something for them takes
//! from their allowance first, and gives it back with the buffer.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Bytes for all, unless the operator says otherwise.
pub const USUAL: u64 = 512 * 1024 * 1024;

/// The part of the whole that only owners get who hold little: one in so many.
const RESERVE: u64 = 16;

/// The part of the whole that is little: one in so many. At the least size, that is two requests at once.
const LITTLE: u64 = 64;

/// The memory for all clients; clones share it.
#[derive(Debug, Clone)]
pub struct Allowances(Arc<Whole>);

#[derive(Debug)]
struct Whole {
    most: u64,
    held: AtomicU64,
    shares: Mutex<HashMap<String, Weak<Share>>>,
    spares: Mutex<VecDeque<(String, Weak<dyn Spare>)>>,
}

/// Something that is kept only as long as nobody needs its memory.
pub trait Spare: Send + Sync + std::fmt::Debug {
    /// Gives all of it back.
    fn give_up(&self);
}

/// What one owner may have of it: up to a half, so that nobody can take it all. Clones share it.
///
/// A part of the whole (`RESERVE`) is for owners who hold little (`LITTLE`): several who take all they can get together
/// do not keep out somebody who just asks for a list.
#[derive(Debug, Clone)]
pub struct Allowance(Arc<Share>);

#[derive(Debug)]
struct Share {
    owner: String,
    most: u64,
    held: AtomicU64,
    whole: Arc<Whole>,
}

/// Some bytes that are taken until this is dropped.
#[derive(Debug)]
pub struct Taken {
    from: Allowance,
    bytes: u64,
}

impl Default for Allowances {
    fn default() -> Self {
        Self::new(USUAL)
    }
}

impl Allowances {
    /// So many bytes in all.
    pub fn new(most: u64) -> Self {
        Self(Arc::new(Whole { most, held: AtomicU64::new(0), shares: Mutex::default(), spares: Mutex::default() }))
    }

    /// An owner's share.
    pub fn of(&self, owner: &str) -> Allowance {
        let mut shares = self.0.shares();
        if let Some(share) = shares.get(owner).and_then(Weak::upgrade) {
            return Allowance(share);
        }
        let most = self.0.most / 2;
        let share = Share { owner: owner.to_owned(), most, held: AtomicU64::new(0), whole: self.0.clone() };
        let share = Arc::new(share);
        shares.insert(owner.to_owned(), Arc::downgrade(&share));
        Allowance(share)
    }

    /// Bytes in all.
    pub fn most(&self) -> u64 {
        self.0.most
    }

    /// Bytes that are taken.
    pub fn held(&self) -> u64 {
        self.0.held.load(Ordering::Relaxed)
    }
}

impl Whole {
    fn shares(&self) -> MutexGuard<'_, HashMap<String, Weak<Share>>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spares(&self) -> MutexGuard<'_, VecDeque<(String, Weak<dyn Spare>)>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = self.whole.shares();
        if shares.get(&self.owner).is_some_and(|share| share.strong_count() == 0) {
            shares.remove(&self.owner);
        }
    }
}

impl Allowance {
    /// Nothing yet.
    pub fn begin(&self) -> Taken {
        Taken { from: self.clone(), bytes: 0 }
    }

    /// Offers something that may be given up, the oldest first, when memory is short.
    pub fn offer(&self, spare: Weak<dyn Spare>) {
        let mut spares = self.0.whole.spares();
        if spares.len() >= 1024 && spares.len().is_power_of_two() {
            spares.retain(|(_, spare)| spare.strong_count() > 0);
        }
        spares.push_back((self.0.owner.clone(), spare));
    }

    /// Has something given up to make room for so many bytes: the oldest that this owner offered, or else the oldest of anybody,
    /// unless it is the owner's own share that is full. False if there is nothing.
    pub fn reclaim(&self, bytes: u64) -> bool {
        let spare = {
            let mut spares = self.0.whole.spares();
            let own = spares.iter().position(|(owner, _)| *owner == self.0.owner);
            let fits = self.0.held.load(Ordering::Relaxed).saturating_add(bytes) <= self.0.most;
            own.or(fits.then_some(0)).and_then(|at| spares.remove(at))
        };
        if let Some(spare) = spare.as_ref().and_then(|(_, spare)| spare.upgrade()) {
            spare.give_up();
        }
        spare.is_some()
    }

    /// Takes some; `None` if there is not so much left.
    pub fn take(&self, bytes: u64) -> Option<Taken> {
        let mut taken = self.begin();
        taken.grow(bytes).then_some(taken)
    }
}

impl Taken {
    /// Takes more, and has something given up for it if that must be.
    pub fn grow_reclaiming(&mut self, more: u64) -> bool {
        while !self.grow(more) {
            if !self.from.reclaim(more) {
                return false;
            }
        }
        true
    }

    /// Takes more; false, and nothing is taken, if there is not so much left.
    pub fn grow(&mut self, more: u64) -> bool {
        let share = &self.from.0;
        if !add(&share.held, more, share.most) {
            return false;
        }
        let (held, most) = (share.held.load(Ordering::Relaxed), share.whole.most);
        let most = if held <= most / LITTLE { most } else { most - most / RESERVE };
        if !add(&share.whole.held, more, most) {
            share.held.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        self.bytes += more;
        true
    }

    /// Gives some back.
    pub fn shrink(&mut self, less: u64) {
        let less = less.min(self.bytes);
        self.bytes -= less;
        let share = &self.from.0;
        share.held.fetch_sub(less, Ordering::Relaxed);
        share.whole.held.fetch_sub(less, Ordering::Relaxed);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

fn add(held: &AtomicU64, more: u64, most: u64) -> bool {
    let fits = |held: u64| held.checked_add(more).filter(|sum| *sum <= most);
    held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_more_than_a_half_nor_all_more_than_the_whole() {
        let all = Allowances::new(100);
        let (one, two, three) = (all.of("1"), all.of("2"), all.of("3"));
        let mut first = one.take(30).unwrap();
        assert!(all.of("1").take(21).is_none(), "it is the same share");
        assert!(first.grow(20) && !first.grow(1));
        let second = two.take(40).unwrap();
        assert!(three.take(5).is_none() && three.take(4).is_some(), "the whole, without the reserve");
        first.shrink(25);
        assert_eq!(all.held(), 65);
        drop((first, second));
        assert_eq!(all.held(), 0);
        assert!(one.take(u64::MAX).is_none());
    }

    #[test]
    fn owners_who_take_all_they_can_get_leave_something_for_those_who_want_little() {
        let all = Allowances::new(6400);
        let (one, two, three) = (all.of("1"), all.of("2"), all.of("3"));
        let greedy: Vec<Taken> = (0..100).flat_map(|_| [one.take(64), two.take(64)]).flatten().collect();
        assert!((5900..=6400 - 400).contains(&all.held()), "all but the reserve");
        let mut little = three.take(100).unwrap();
        assert!(!little.grow(1), "somebody who holds little, not more");
        assert!(all.of("4").take(100).is_some() && one.take(1).is_none());
        drop(greedy);
        assert!(little.grow(1));
    }

    #[derive(Debug)]
    struct Kept(Mutex<Option<Taken>>);

    impl Spare for Kept {
        fn give_up(&self) {
            *self.0.lock().unwrap() = None;
        }
    }

    fn keep(allowance: &Allowance, bytes: u64) -> Arc<Kept> {
        let kept = Arc::new(Kept(Mutex::new(allowance.take(bytes))));
        let spare: Arc<dyn Spare> = kept.clone();
        allowance.offer(Arc::downgrade(&spare));
        kept
    }

    #[test]
    fn an_owner_whose_share_is_full_makes_nobody_else_give_anything_up() {
        let all = Allowances::new(100);
        let (one, two) = (all.of("1"), all.of("2"));
        let (theirs, own) = (keep(&two, 30), keep(&one, 20));
        let mut greedy = one.take(30).unwrap();
        assert!(greedy.grow_reclaiming(20), "its own goes first");
        assert!(own.0.lock().unwrap().is_none() && theirs.0.lock().unwrap().is_some());
        assert!(!greedy.grow_reclaiming(1), "its share is full");
        assert!(theirs.0.lock().unwrap().is_some());
        // Where all is full, the oldest goes, whose ever it is.
        assert!(all.of("3").begin().grow_reclaiming(40));
        assert!(theirs.0.lock().unwrap().is_none());
    }

    #[test]
    fn a_share_that_nobody_has_is_forgotten() {
        let all = Allowances::new(100);
        let taken = all.of("1").take(10).unwrap();
        drop(all.of("2"));
        assert_eq!(all.0.shares().len(), 1);
        drop(taken);
        assert!(all.0.shares().is_empty());
    }
}
