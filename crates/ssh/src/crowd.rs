//! Clients that are not let in yet: how many there may be at once, in all and of one network.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::strikes::network;

/// At once.
const STRANGERS: usize = 64;

/// Of one network: whoever takes all of theirs leaves some for others.
const OF_ONE: usize = 48;

/// Those who are there, by network.
#[derive(Debug, Clone, Default)]
pub(crate) struct Crowd(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A place in it. Dropping it makes room.
#[derive(Debug)]
pub(crate) struct Stranger {
    crowd: Crowd,
    network: IpAddr,
}

impl Crowd {
    /// A place for one more, if there is one.
    pub(crate) fn admit(&self, from: IpAddr) -> Option<Stranger> {
        let network = network(from);
        let mut counts = self.lock();
        let all: usize = counts.values().sum();
        let count = counts.get(&network).copied().unwrap_or(0);
        if all >= STRANGERS || count >= OF_ONE {
            return None;
        }
        counts.insert(network, count + 1);
        Some(Stranger { crowd: self.clone(), network })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut counts = self.crowd.lock();
        match counts.get_mut(&self.network) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.network)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_network_leaves_places_for_others_and_all_of_them_have_an_end() {
        let crowd = Crowd::default();
        let (one, neighbour): (IpAddr, IpAddr) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let mut greedy: Vec<Stranger> = (0..OF_ONE).map(|_| crowd.admit(one).unwrap()).collect();
        assert!(crowd.admit(one).is_none() && crowd.admit(neighbour).is_none());
        let others: Vec<Stranger> =
            (0..STRANGERS - OF_ONE).map(|last| crowd.admit(IpAddr::from([10, 0, 0, last as u8])).unwrap()).collect();
        assert!(crowd.admit(IpAddr::from([10, 0, 1, 0])).is_none());
        greedy.pop();
        let again = crowd.admit(neighbour).unwrap();
        drop((greedy, others, again));
        assert!(crowd.lock().is_empty(), "nothing is remembered of those who left");
    }
}
