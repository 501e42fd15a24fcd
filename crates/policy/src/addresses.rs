//! Addresses that exist only between a sandbox and the host's egress.
//!
//! A sandbox has no route to anything real. All that it can name is either synthetic (handed out by the host's resolver for
//! one name) or refused. The ranges are reserved for benchmarks (RFC 2544) and local use (RFC 4193): nobody routes them.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The resolver inside, IPv4.
pub const RESOLVER_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// The resolver inside, IPv6.
pub const RESOLVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd53, 0x6c6f, 0x706c, 0, 0, 0, 0, 1);

/// What the sandbox's own packets come from.
pub const INSIDE_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// The same, IPv6.
pub const INSIDE_V6: Ipv6Addr = Ipv6Addr::new(0xfd53, 0x6c6f, 0x706c, 0, 0, 0, 0, 2);

/// The first synthetic address; the range is 198.19.0.0/16.
pub const SYNTHETIC_V4: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 0);

/// How many synthetic IPv4 addresses there are.
pub const SYNTHETIC_V4_COUNT: u32 = 1 << 16;

/// The first synthetic address of IPv6; the low 16 bits count as those of IPv4 do.
pub const SYNTHETIC_V6: Ipv6Addr = Ipv6Addr::new(0xfd53, 0x6c6f, 0x706c, 1, 0, 0, 0, 0);

/// The port of the host's own sockets inside, on the resolver's addresses: the only one that programs there cannot have.
pub const OUTLET_PORT: u16 = 1;

/// The port inside where those who set proxy variables find a proxy, on [`RESOLVER_V4`] and [`RESOLVER_V6`].
pub const PROXY_PORT: u16 = 3128;

/// The name inside under which ports of the host's loopback are found, where that was allowed.
pub const HOST_NAME: &str = "host.sloplet.internal";
