//! How much memory clients may make the server hold: in all, and for each owner. Whoever buffers something for them takes
//! from their allowance first, and gives it back with the buffer.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Bytes for all, unless the operator says otherwise.
pub const USUAL: u64 = 512 * 1024 * 1024;

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

    /// Has something given up: the oldest that this owner offered, or else anybody. False if there is nothing.
    pub fn reclaim(&self) -> bool {
        let spare = {
            let mut spares = self.0.whole.spares();
            let own = spares.iter().position(|(owner, _)| *owner == self.0.owner).unwrap_or(0);
            spares.remove(own)
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
    /// Takes more; false, and nothing is taken, if there is not so much left.
    pub fn grow(&mut self, more: u64) -> bool {
        let share = &self.from.0;
        if !add(&share.held, more, share.most) {
            return false;
        }
        if !add(&share.whole.held, more, share.whole.most) {
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
        assert!(three.take(11).is_none() && three.take(10).is_some(), "the whole");
        first.shrink(25);
        assert_eq!(all.held(), 65);
        drop((first, second));
        assert_eq!(all.held(), 0);
        assert!(one.take(u64::MAX).is_none());
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
