//! The host's own addresses, which no sandbox may reach by a name that happens to lead there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For how long they are taken for the same: reading the kernel's tables takes longer than all else about opening a way out.
const RECENT: Duration = Duration::from_secs(1);

/// The addresses of this machine's interfaces, as the kernel listed them a moment ago.
pub fn addresses() -> Vec<IpAddr> {
    static KNOWN: Mutex<Option<(Instant, Vec<IpAddr>)>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, addresses)) = known.as_ref().filter(|(when, _)| when.elapsed() < RECENT) {
        return addresses.clone();
    }
    let now = read();
    *known = Some((Instant::now(), now.clone()));
    now
}

fn read() -> Vec<IpAddr> {
    let v4 = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let v6 = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let mut found: Vec<IpAddr> = local_v4(&v4).map(IpAddr::V4).chain(local_v6(&v6).map(IpAddr::V6)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Leaves of the routing trie: an address, then a line that says what it is.
fn local_v4(trie: &str) -> impl Iterator<Item = Ipv4Addr> {
    let lines = trie.lines().zip(trie.lines().skip(1));
    lines.filter(|(_, what)| what.trim() == "/32 host LOCAL").filter_map(|(leaf, _)| {
        let address = leaf.trim().strip_prefix("|-- ")?;
        address.parse().ok()
    })
}

/// One address a line, as 32 hexadecimal digits.
fn local_v6(table: &str) -> impl Iterator<Item = Ipv6Addr> {
    table.lines().filter_map(|line| {
        let digits = line.split_ascii_whitespace().next()?;
        u128::from_str_radix(digits, 16).ok().map(Ipv6Addr::from_bits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 93.184.216.34\n        /32 host LOCAL\n     |-- 93.184.216.255\n        /32 link BROADCAST\n";
        assert_eq!(local_v4(trie).collect::<Vec<_>>(), [Ipv4Addr::new(93, 184, 216, 34)]);
        let table = "00000000000000000000000000000001 01 80 10 80       lo\nnonsense\n";
        assert_eq!(local_v6(table).collect::<Vec<_>>(), [Ipv6Addr::LOCALHOST]);
        assert!(addresses().contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
}
