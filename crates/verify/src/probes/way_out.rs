//! Attacks on a way out. A sandbox without one has nothing there to attack.

use crate::probe::{Kind, Probe};

const fn later(name: &'static str, ids: &'static [u8], tries: &'static str, why: &'static str) -> Probe {
    Probe { name, ids, tries, why, needs: &[], kind: Kind::WayOut }
}

pub const REDIRECT: Probe = later(
    "egress-redirect",
    &[50],
    "an allowed host that redirects to the metadata address",
    "the second hop counts, too",
);
pub const REBINDING: Probe =
    later("egress-rebinding", &[51], "a name whose address changes from public to private", "DNS rebinding");
pub const PROXY: Probe = later(
    "egress-proxy",
    &[52],
    "CONNECT to loopback, to the proxy itself and to the control plane",
    "a proxy that can be asked for anything reaches everything that it reaches itself",
);
pub const NAMES: Probe = later(
    "egress-names",
    &[53, 54, 55],
    "SNI, CONNECT and Host that differ; IP literals; look-alike names",
    "a rule about a name must be about the name that is connected to",
);
pub const REQUESTS: Probe =
    later("egress-requests", &[56], "requests that two parsers read differently", "RFC 9112: request smuggling");
pub const PORTS: Probe = later(
    "egress-ports",
    &[59],
    "an allowed host on ports that were not allowed",
    "mail and databases have ports of their own",
);
pub const FLOODS: Probe = later(
    "egress-floods",
    &[60],
    "slow requests, ten thousand tunnels, huge headers",
    "the way out is the host's process: it must stay bounded",
);
