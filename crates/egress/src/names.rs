//! Synthetic addresses: each name that was asked for has one, so that a connection tells the name it is for.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sloplet_policy::addresses::{SYNTHETIC_V4, SYNTHETIC_V4_COUNT, SYNTHETIC_V6};

/// Names at once. A quarter of the addresses, so that a free one is found near the place where a name belongs.
pub(crate) const CAPACITY: usize = SYNTHETIC_V4_COUNT as usize / 4;

/// Names and their addresses. Bounded: the name that was not used for longest goes, unless it has open connections.
///
/// A name's place is its hash, so that after a restart most programs find the names that they remember where they were.
#[derive(Debug)]
pub(crate) struct Names {
    by_name: HashMap<String, u16>,
    slots: HashMap<u16, Slot>,
    /// Slots by when they were used last.
    order: BTreeMap<u64, u16>,
    tick: u64,
    capacity: usize,
}

#[derive(Debug)]
struct Slot {
    name: String,
    used: u64,
    open: u32,
}

impl Names {
    pub(crate) fn new(capacity: usize) -> Self {
        let (by_name, slots, order) = Default::default();
        Self { by_name, slots, order, tick: 0, capacity }
    }

    /// The number of a name's address; a new one if it has none. `None` if all are in use by open connections.
    pub(crate) fn number(&mut self, name: &str) -> Option<u16> {
        if let Some(&number) = self.by_name.get(name) {
            self.touch(number);
            return Some(number);
        }
        if self.slots.len() >= self.capacity {
            let oldest =
                self.order.values().copied().find(|number| self.slots.get(number).is_some_and(|s| s.open == 0))?;
            self.remove(oldest);
        }
        // The first and the last address of the range look like a network's and a broadcast's.
        let mut number = hash(name);
        while number == 0 || number == u16::MAX || self.slots.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        self.tick += 1;
        self.order.insert(self.tick, number);
        self.slots.insert(number, Slot { name: name.to_owned(), used: self.tick, open: 0 });
        self.by_name.insert(name.to_owned(), number);
        Some(number)
    }

    /// The name that has this number.
    pub(crate) fn name(&self, number: u16) -> Option<&str> {
        self.slots.get(&number).map(|slot| slot.name.as_str())
    }

    /// The name behind a number, kept there until [`Names::close`].
    pub(crate) fn open(&mut self, number: u16) -> Option<String> {
        self.touch(number);
        let slot = self.slots.get_mut(&number)?;
        slot.open += 1;
        Some(slot.name.clone())
    }

    /// Ends one [`Names::open`].
    pub(crate) fn close(&mut self, number: u16) {
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.open = slot.open.saturating_sub(1);
        }
    }

    fn touch(&mut self, number: u16) {
        if let Some(slot) = self.slots.get_mut(&number) {
            self.tick += 1;
            self.order.remove(&slot.used);
            slot.used = self.tick;
            self.order.insert(self.tick, number);
        }
    }

    fn remove(&mut self, number: u16) {
        if let Some(slot) = self.slots.remove(&number) {
            self.order.remove(&slot.used);
            self.by_name.remove(&slot.name);
        }
    }
}

/// FNV-1a, folded: the same in every build.
fn hash(name: &str) -> u16 {
    let full = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (full >> 16) as u16 ^ full as u16
}

/// A number's IPv4 address.
pub(crate) fn v4(number: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(SYNTHETIC_V4.to_bits() | u32::from(number))
}

/// A number's IPv6 address.
pub(crate) fn v6(number: u16) -> Ipv6Addr {
    Ipv6Addr::from_bits(SYNTHETIC_V6.to_bits() | u128::from(number))
}

/// The number of a synthetic address.
pub(crate) fn number(address: IpAddr) -> Option<u16> {
    match address {
        IpAddr::V4(address) => {
            let offset = address.to_bits().wrapping_sub(SYNTHETIC_V4.to_bits());
            (offset < SYNTHETIC_V4_COUNT).then_some(offset as u16)
        }
        IpAddr::V6(address) => {
            let offset = address.to_bits().wrapping_sub(SYNTHETIC_V6.to_bits());
            u16::try_from(offset).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_address_over_restarts() {
        let mut names = Names::new(CAPACITY);
        let first = names.number("api.github.com").unwrap();
        names.number("other.example").unwrap();
        assert_eq!(names.number("api.github.com"), Some(first));
        assert_eq!(Names::new(CAPACITY).number("api.github.com"), Some(first));
        assert_eq!(number(IpAddr::V4(v4(first))), Some(first));
        assert_eq!(number(IpAddr::V6(v6(first))), Some(first));
        for outside in ["198.18.255.255", "198.20.0.0", "fd53:6c6f:706c::1", "fd53:6c6f:706c:1::1:0", "::1"] {
            assert_eq!(number(outside.parse().unwrap()), None, "{outside}");
        }
    }

    #[test]
    fn the_oldest_name_goes_unless_it_has_connections() {
        let mut names = Names::new(3);
        let numbers: Vec<u16> = ["a", "b", "c"].iter().map(|name| names.number(name).unwrap()).collect();
        assert_eq!(names.open(numbers[0]).as_deref(), Some("a"));
        names.number("c");
        names.number("b");
        names.number("d");
        assert_eq!(names.name(numbers[0]), Some("a"), "it has a connection");
        assert_eq!(names.by_name.get("c"), None, "it was the oldest without");
        for name in ["e", "f"] {
            let number = names.number(name).unwrap();
            names.open(number);
        }
        assert_eq!(names.number("g"), None, "all have connections");
        names.close(numbers[0]);
        assert!(names.number("g").is_some());
        assert_eq!((names.slots.len(), names.order.len(), names.by_name.len()), (3, 3, 3));
    }

    #[test]
    fn many_names_have_addresses_of_their_own() {
        let mut names = Names::new(CAPACITY);
        let numbers: std::collections::HashSet<u16> =
            (0..CAPACITY).filter_map(|i| names.number(&format!("n{i}.example"))).collect();
        assert_eq!(numbers.len(), CAPACITY);
        for i in 0..CAPACITY {
            names.number(&format!("m{i}.example"));
        }
        assert_eq!(names.slots.len(), CAPACITY);
    }
}
