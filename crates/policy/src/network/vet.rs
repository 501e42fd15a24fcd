//! Which addresses are public. Everything else is refused, with the reason beside it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::rule::Cidr;

/// An address that is not dialed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the address {address} is refused: {reason}")]
pub struct Refusal {
    /// The address.
    pub address: IpAddr,
    /// What it is.
    pub reason: &'static str,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Cidr {
    Cidr { address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
}

const fn v6(segments: [u16; 8], prefix: u8) -> Cidr {
    let [a, b, c, d, e, f, g, h] = segments;
    Cidr { address: IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), prefix }
}

/// Not public, the particular before the general. From the IANA special-purpose registries, and what clouds say of their
/// metadata services.
const REFUSED: &[(Cidr, &str)] = &[
    // Metadata services hand out the credentials of the machine. Azure's is a public address.
    (v4(169, 254, 169, 254, 32), "metadata service"),
    (v4(169, 254, 170, 2, 32), "metadata service"),
    (v4(169, 254, 170, 23, 32), "metadata service"),
    (v4(100, 100, 100, 200, 32), "metadata service"),
    (v4(192, 0, 0, 192, 32), "metadata service"),
    (v4(168, 63, 129, 16, 32), "metadata service"),
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128), "metadata service"),
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23], 128), "metadata service"),
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), "metadata service"),
    (v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128), "metadata service"),
    // Connecting to 0.0.0.0 reaches the machine itself.
    (v4(0, 0, 0, 0, 8), "unspecified"),
    (v4(10, 0, 0, 0, 8), "private"),
    (v4(100, 64, 0, 0, 10), "shared by carriers (CGNAT)"),
    (v4(127, 0, 0, 0, 8), "loopback"),
    (v4(169, 254, 0, 0, 16), "link-local"),
    (v4(172, 16, 0, 0, 12), "private"),
    (v4(192, 0, 0, 0, 24), "reserved for protocols"),
    (v4(192, 0, 2, 0, 24), "documentation"),
    (v4(192, 88, 99, 0, 24), "6to4 relay"),
    (v4(192, 168, 0, 0, 16), "private"),
    (v4(198, 18, 0, 0, 15), "benchmarks"),
    (v4(198, 51, 100, 0, 24), "documentation"),
    (v4(203, 0, 113, 0, 24), "documentation"),
    (v4(224, 0, 0, 0, 4), "multicast"),
    (v4(255, 255, 255, 255, 32), "broadcast"),
    (v4(240, 0, 0, 0, 4), "reserved"),
    (v6([0; 8], 128), "unspecified"),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback"),
    // What wraps an IPv4 address could wrap a private one; somebody between here and there unwraps it.
    (v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96), "IPv4-mapped"),
    (v6([0; 8], 96), "IPv4-compatible"),
    (v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96), "IPv4-translated"),
    (v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96), "NAT64"),
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), "NAT64, local use"),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "6to4"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), "Teredo"),
    (v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48), "benchmarks"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), "reserved for protocols"),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), "documentation"),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "documentation"),
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), "discarded"),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "private (unique local)"),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "site-local"),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),
];

/// The only IPv6 space that is given out to the public.
const GLOBAL_UNICAST: Cidr = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

impl Cidr {
    /// Whether there is anything public in it.
    pub fn is_public(&self) -> bool {
        let within = |wide: &Cidr| wide.prefix <= self.prefix && wide.holds(self.address);
        let reserved =
            self.address.is_ipv6() && self.prefix >= GLOBAL_UNICAST.prefix && !GLOBAL_UNICAST.holds(self.address);
        !reserved && !REFUSED.iter().any(|(net, _)| within(net))
    }
}

/// Refuses addresses that are not public, and `own`, the host's.
pub fn vet(address: IpAddr, own: &[IpAddr]) -> Result<(), Refusal> {
    let refused = |reason| Err(Refusal { address, reason });
    if let Some((_, reason)) = REFUSED.iter().find(|(net, _)| net.holds(address)) {
        return refused(reason);
    }
    if address.is_ipv6() && !GLOBAL_UNICAST.holds(address) {
        return refused("reserved");
    }
    if own.contains(&address) {
        return refused("the host itself");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_public_is_refused_with_its_reason() {
        let own = ["93.184.216.34".parse().unwrap(), "2606:2800::1".parse().unwrap()];
        for (text, reason) in [
            ("169.254.169.254", "metadata service"),
            ("169.254.170.2", "metadata service"),
            ("100.100.100.200", "metadata service"),
            ("168.63.129.16", "metadata service"),
            ("192.0.0.192", "metadata service"),
            ("fd00:ec2::254", "metadata service"),
            ("fd20:ce::254", "metadata service"),
            ("169.254.0.1", "link-local"),
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("10.0.0.0", "private"),
            ("10.255.255.255", "private"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.168.0.1", "private"),
            ("100.64.0.1", "shared by carriers (CGNAT)"),
            ("100.127.255.255", "shared by carriers (CGNAT)"),
            ("127.0.0.1", "loopback"),
            ("127.255.0.1", "loopback"),
            ("192.0.0.8", "reserved for protocols"),
            ("192.88.99.1", "6to4 relay"),
            ("198.18.0.1", "benchmarks"),
            ("198.19.255.255", "benchmarks"),
            ("192.0.2.1", "documentation"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.250", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "broadcast"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::ffff:169.254.169.254", "IPv4-mapped"),
            ("::ffff:8.8.8.8", "IPv4-mapped"),
            ("::169.254.169.254", "IPv4-compatible"),
            ("::ffff:0:169.254.169.254", "IPv4-translated"),
            ("64:ff9b::a9fe:a9fe", "NAT64"),
            ("64:ff9b:1::a9fe:a9fe", "NAT64, local use"),
            ("2002:a9fe:a9fe::1", "6to4"),
            ("2001::1", "Teredo"),
            ("2001:2::1", "benchmarks"),
            ("2001:10::1", "reserved for protocols"),
            ("2001:db8::1", "documentation"),
            ("100::1", "discarded"),
            ("fc00::1", "private (unique local)"),
            ("fdff::1", "private (unique local)"),
            ("fe80::1", "link-local"),
            ("fec0::1", "site-local"),
            ("ff02::1", "multicast"),
            ("ff02::fb", "multicast"),
            ("4000::1", "reserved"),
            ("5f00::1", "reserved"),
            ("93.184.216.34", "the host itself"),
            ("2606:2800::1", "the host itself"),
        ] {
            let refusal = vet(text.parse().unwrap(), &own).unwrap_err();
            assert_eq!(refusal.reason, reason, "{text}");
        }
    }

    #[test]
    fn what_is_public_passes() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700:4700::1111",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2a00::1",
            "3ffe::1",
        ] {
            assert_eq!(vet(text.parse().unwrap(), &[]), Ok(()), "{text}");
        }
    }
}
