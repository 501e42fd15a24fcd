//! Kinds of sockets that no sandbox needs.

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};

use crate::part::{Parts, Tried};
use crate::probe::{Kind, Probe};
use crate::settings::Settings;

pub const PROBE: Probe = Probe {
    name: "sockets",
    ids: &[22],
    tries: "packet, raw, netlink, vsock, crypto and other rare sockets",
    why: "raw packets reach neighbours; rare families are rarely tested code: CVE-2017-7308, CVE-2016-8655",
    needs: &[],
    // EPROTONOSUPPORT, ESOCKTNOSUPPORT
    kind: Kind::Attempts { parts, refusals: &[93, 94] },
};

fn parts(_: &Settings, parts: &mut Parts) {
    let mut parts = parts.of_kernel("kinds of sockets");
    parts.add("AF_PACKET", |_| made(17, 3, 0x300));
    parts.add("AF_PACKET datagrams", |_| made(17, 2, 0x300));
    parts.add("raw IPv4", |_| made(2, 3, 1));
    parts.add("netlink uevents", |_| made(16, 3, 15));
    for (name, family, kind, protocol) in [
        ("raw IPv6", 10, 3, 58),
        ("SOCK_PACKET", 2, 10, 0x300),
        ("netlink netfilter", 16, 3, 12),
        ("netlink audit", 16, 3, 9),
        ("AF_VSOCK", 40, 1, 0),
        ("AF_ALG", 38, 5, 0),
        ("AF_BLUETOOTH", 31, 3, 1),
        ("AF_CAN", 29, 3, 1),
        ("AF_TIPC", 30, 5, 0),
        ("AF_XDP", 44, 3, 0),
        ("AF_RXRPC", 33, 2, 2),
        ("AF_KEY", 15, 3, 2),
        ("AF_RDS", 21, 5, 0),
        ("AF_SMC", 43, 1, 0),
        ("AF_KCM", 41, 2, 0),
        ("AF_QIPCRTR", 42, 2, 0),
        ("SCTP", 2, 1, 132),
        ("DCCP", 2, 6, 33),
        ("MPTCP", 2, 1, 262),
        ("UDP-Lite", 2, 2, 136),
    ] {
        parts.optional(name, move |_| made(family, kind, protocol));
    }
}

fn made(family: u16, kind: u32, protocol: u32) -> Tried {
    let protocol = std::num::NonZeroU32::new(protocol).map(Protocol::from_raw);
    socket_with(AddressFamily::from_raw(family), SocketType::from_raw(kind), SocketFlags::CLOEXEC, protocol)?;
    Ok("made".into())
}
