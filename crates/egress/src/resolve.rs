//! Names on the host: where allowed names really are.

use std::io;
use std::net::IpAddr;

use crate::intercept::Pending;

/// Finds the addresses of a name. Asked only about names that were allowed, when they are dialed.
pub trait Resolve: Send + Sync + 'static {
    /// The addresses, best first.
    fn resolve<'a>(&'a self, name: &'a str) -> Pending<'a, io::Result<Vec<IpAddr>>>;
}

/// The host's own resolver, `getaddrinfo`.
///
/// A resolver crate would read `/etc/resolv.conf` by itself and miss what the host's administrator set up beside it:
/// nsswitch, split DNS of a VPN, mDNS, systemd-resolved's links. What `curl` on the host reaches is what is meant by a rule.
/// The price, no TTLs and a thread for each lookup under way, is paid by a short cache and a bound on lookups.
#[derive(Debug, Clone, Copy, Default)]
pub struct System;

impl Resolve for System {
    fn resolve<'a>(&'a self, name: &'a str) -> Pending<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            // A dot at the end keeps search domains out, which could make another name of it; but then the hosts file,
            // and whatever knows single labels, is not looked at.
            let hosts = tokio::fs::read_to_string("/etc/hosts").await.unwrap_or_default();
            let absolute = name.contains('.') && !in_hosts(&hosts, name);
            let query = if absolute { format!("{name}.") } else { name.to_owned() };
            let mut found = Vec::new();
            for address in tokio::net::lookup_host((query, 0)).await? {
                if !found.contains(&address.ip()) {
                    found.push(address.ip());
                }
            }
            Ok(found)
        })
    }
}

fn in_hosts(hosts: &str, name: &str) -> bool {
    let entries = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    entries.flat_map(|line| line.split_ascii_whitespace().skip(1)).any(|host| host.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_hosts_file_counts() {
        assert!(in_hosts("# x\n127.0.0.1 a localhost # b.example\n", "LOCALHOST"));
        assert!(!in_hosts("127.0.0.1 a # b.example\n", "b.example") && !in_hosts("127.0.0.1 a", "127.0.0.1"));
        assert!(System.resolve("localhost").await.unwrap().iter().all(IpAddr::is_loopback));
    }
}
