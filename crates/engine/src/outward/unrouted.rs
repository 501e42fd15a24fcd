//! Attempts to reach addresses where nothing leads out: the kernel refuses and counts them, and tells nobody where they went.

use std::fs;

/// How often something was sent or connected for which there was no route, in the network of this process since it was made.
/// 0 where that cannot be known.
pub(crate) fn attempts(pid: i32) -> u64 {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    of_v4(&read("snmp")).saturating_add(of_v6(&read("snmp6")))
}

/// A line with names, and one with values in the same places.
fn of_v4(text: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let found = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "OutNoRoutes");
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// A name and its value on each line.
fn of_v6(text: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix("Ip6OutNoRoutes"));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        assert_eq!(of_v4("Ip: Forwarding OutDiscards OutNoRoutes ReasmOKs\nIp: 2 0 7 0\nIcmp: InMsgs\nIcmp: 3\n"), 7);
        assert_eq!(of_v6("Ip6InReceives                   \t0\nIp6OutNoRoutes                  \t5\n"), 5);
        assert_eq!((of_v4(""), of_v6("Ip6OutNoRoutes x")), (0, 0));
        assert_eq!(attempts(i32::MAX), 0);
    }
}
