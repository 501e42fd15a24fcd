//! The host's end of the way: where allowed names really are, and the connections to what was vetted.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::TcpStream;

use crate::intercept::Pending;

/// Finds the addresses of a name. Asked only about names that were allowed, when they are dialed.
pub trait Resolve: Send + Sync + 'static {
    /// The addresses, best first.
    fn resolve<'a>(&'a self, name: &'a str) -> Pending<'a, io::Result<Vec<IpAddr>>>;
}

/// Connects to addresses. Asked only about addresses that were vetted, and its answer is not vetted again: whoever puts
/// another one in place of the host's decides what is outside.
pub trait Connect: Send + Sync + 'static {
    /// A connection to this very address.
    fn connect(&self, address: SocketAddr) -> Pending<'_, io::Result<TcpStream>>;
}

/// The host's own resolver, `getaddrinfo`, and its own sockets.
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

impl Connect for System {
    fn connect(&self, address: SocketAddr) -> Pending<'_, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(address))
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
