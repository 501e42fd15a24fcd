//! Every address is this sandbox's own: whatever it connects to, it connects to the same network namespace.

use std::io;
use std::net::IpAddr;

use super::netlink::{Batch, CREATE};

/// `RTM_NEWADDR` with `IFA_ADDRESS` and `IFA_LOCAL`; `IFA_F_NODAD`: nobody else could have it.
const NEW_ADDRESS: u16 = 20;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const NO_DUPLICATE_SEARCH: u8 = 2;

/// `RTM_NEWROUTE` with `RTA_OIF` and `RTA_PREFSRC`.
const NEW_ROUTE: u16 = 24;
const DEVICE: u16 = 4;
const SOURCE: u16 = 7;

/// In a fresh network namespace, that is `lo`.
const LOOPBACK: u32 = 1;

/// `RT_TABLE_LOCAL`, `RTPROT_STATIC`, `RT_SCOPE_HOST`, `RTN_LOCAL`.
const LOCAL_TABLE: u8 = 255;
const STATIC: u8 = 4;
const HOST_SCOPE: u8 = 254;
const LOCAL_ROUTE: u8 = 2;

/// Leads all addresses of the family of `source` back here; connections come from that one. More specific routes stay: what
/// goes to the loopback addresses comes from there.
pub fn lead_everything_here(source: IpAddr) -> io::Result<()> {
    let (family, bytes) = match source {
        IpAddr::V4(address) => (rustix::net::AddressFamily::INET, address.octets().to_vec()),
        IpAddr::V6(address) => (rustix::net::AddressFamily::INET6, address.octets().to_vec()),
    };
    let family = family.as_raw() as u8;
    let (length, flags, scope) = if source.is_ipv6() { (128, NO_DUPLICATE_SEARCH, 0) } else { (32, 0, HOST_SCOPE) };
    let mut batch = Batch::default();
    let device = LOOPBACK.to_ne_bytes();
    let address = [&[family, length, flags, 0][..], &device].concat();
    batch.message(NEW_ADDRESS, CREATE, &address, |message| {
        message.add(LOCAL, &bytes).add(ADDRESS, &bytes);
    });
    let route = [family, 0, 0, 0, LOCAL_TABLE, STATIC, scope, LOCAL_ROUTE, 0, 0, 0, 0];
    batch.message(NEW_ROUTE, CREATE, &route, |message| {
        message.add(DEVICE, &device).add(SOURCE, &bytes);
    });
    batch.ask();
    batch.send(None)
}
