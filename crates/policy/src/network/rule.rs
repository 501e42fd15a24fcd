//! One rule: a host and its ports, as people write them.
//!
//! ```text
//! api.github.com            that name, at 80 and 443
//! *.example.com:443         every name below it, not example.com itself
//! db.example.com:5432       one port
//! db.example.com:6379/tcp   one port, where nobody looks at what is said
//! 10.0.0.5:8000-8100        an address, a range of ports
//! 10.0.0.0/8:*              a network, every port
//! [fd00::5]:22  [fd00::/8]:443  fd00::/8
//! ```
//!
//! Without ports, a rule that allows means 80 and 443 (a name that may be browsed need not be a mail server), for
//! addresses too; a rule that denies means every port.
//!
//! `/tcp` opts out of what the egress checks on a connection to a name: neither the Host of HTTP requests nor the server
//! name of TLS is held against the name, and a protocol of text that could be taken for HTTP is passed on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Wanted;
use crate::addresses::HOST_NAME;

/// A host and its ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    /// What it names.
    pub host: Host,
    /// At which ports.
    pub ports: Ports,
    /// Whether what is said there is nobody's business: `/tcp`.
    pub tcp: bool,
}

/// What a rule names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// Exactly this name.
    Name(String),
    /// Every name that ends in a dot and this.
    Below(String),
    /// An address or a network.
    Net(Cidr),
}

/// A network, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    /// Its first address.
    pub address: IpAddr,
    /// Leading bits that are the same for all of it.
    pub prefix: u8,
}

/// Ports of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ports {
    /// Not said: 80 and 443 where it allows, every port where it denies.
    Unsaid,
    /// From the first to the last.
    Range(u16, u16),
}

/// A rule that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("network rule '{given}': {problem}")]
pub struct RuleError {
    given: String,
    problem: String,
}

impl Ports {
    /// Every port.
    pub const ALL: Self = Self::Range(1, u16::MAX);

    /// Whether a rule that allows or asks holds for this port.
    pub fn allow(self, port: u16) -> bool {
        match self {
            Self::Unsaid => port == 80 || port == 443,
            Self::Range(first, last) => (first..=last).contains(&port),
        }
    }

    /// Whether a rule that denies holds for this port.
    pub fn deny(self, port: u16) -> bool {
        self == Self::Unsaid || self.allow(port)
    }

    /// Whether a rule that denies leaves no port.
    pub fn deny_all(self) -> bool {
        matches!(self, Self::Unsaid | Self::ALL)
    }
}

impl Cidr {
    /// Whether `address` is in it. IPv4 and IPv6 are never the same, however they are wrapped.
    pub fn holds(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(net), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                net.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(net), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                net.to_bits() & mask == address.to_bits() & mask
            }
            _ => false,
        }
    }

    /// Whether it is one address.
    pub fn is_single(&self) -> bool {
        self.prefix == if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// The same with the bits behind the prefix cleared.
    fn masked(&self) -> Self {
        let address = match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        };
        Self { address, prefix: self.prefix }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_single() { write!(f, "{}", self.address) } else { write!(f, "{}/{}", self.address, self.prefix) }
    }
}

impl Host {
    /// Whether it names that.
    pub fn matches(&self, wanted: Wanted<'_>) -> bool {
        match (self, wanted) {
            (Self::Name(name), Wanted::Name(wanted)) => name == wanted,
            (Self::Below(suffix), Wanted::Name(wanted)) => {
                wanted.strip_suffix(suffix.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            (Self::Net(net), Wanted::Address(address)) => net.holds(address),
            _ => false,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => f.write_str(name)?,
            Host::Below(suffix) => write!(f, "*.{suffix}")?,
            Host::Net(net) if net.address.is_ipv6() && self.ports != Ports::Unsaid => write!(f, "[{net}]")?,
            Host::Net(net) => write!(f, "{net}")?,
        }
        match self.ports {
            Ports::Unsaid => {}
            Ports::ALL => f.write_str(":*")?,
            Ports::Range(first, last) if first == last => write!(f, ":{first}")?,
            Ports::Range(first, last) => write!(f, ":{first}-{last}")?,
        }
        if self.tcp { f.write_str("/tcp") } else { Ok(()) }
    }
}

impl TryFrom<String> for Rule {
    type Error = RuleError;

    fn try_from(text: String) -> Result<Self, RuleError> {
        text.parse()
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.to_string()
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        parse(text).map_err(|problem| RuleError {
            given: text.chars().take(80).flat_map(char::escape_debug).collect(),
            problem,
        })
    }
}

/// The problem is a sentence for a person, with the form that would have been right.
fn parse(text: &str) -> Result<Rule, String> {
    if text.len() > 300 {
        return Err("it is too long; a name has at most 253 characters, like api.example.com:443".into());
    }
    if text.is_empty() {
        return Err("it is empty; write a name, address or network, like api.example.com:443".into());
    }
    if let Some(odd) = text.chars().find(|c| c.is_whitespace() || c.is_control()) {
        let clean: String = text.chars().filter(|c| !c.is_whitespace() && !c.is_control()).take(80).collect();
        return Err(format!("{odd:?} cannot be part of it; write '{clean}', and each rule on its own"));
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        return Err(format!("rules are for hosts, not URLs; write '{}'", from_url(scheme, rest)));
    }
    let text = text.to_lowercase();
    if let Some((_, host)) = text.rsplit_once('@') {
        return Err(format!("a user name cannot be part of it; write '{host}'"));
    }
    let (text, tcp) = match text.strip_suffix("/tcp") {
        Some(rest) => (rest, true),
        None if text.ends_with("/udp") => {
            let rest = text.trim_end_matches("/udp");
            return Err(format!("only TCP leads out (names are resolved without a rule); write '{rest}'"));
        }
        None => (text.as_str(), false),
    };
    let (host, ports) = split_ports(text)?;
    let ports = ports.map_or(Ok(Ports::Unsaid), |ports| parse_ports(host, ports))?;
    Ok(Rule { host: parse_host(host)?, ports, tcp })
}

/// What was probably meant by a URL.
fn from_url(scheme: &str, rest: &str) -> String {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority).to_lowercase();
    let port = match scheme.to_ascii_lowercase().as_str() {
        "http" | "ws" => 80,
        "ssh" | "git+ssh" => 22,
        "ftp" => 21,
        "git" => 9418,
        "postgres" | "postgresql" => 5432,
        "redis" => 6379,
        "mysql" => 3306,
        _ => 443,
    };
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    if has_port { host } else { format!("{host}:{port}") }
}

/// The host, and what stands behind the colon after it.
fn split_ports(text: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']').ok_or("the bracket is not closed; write '[2001:db8::1]:443'")?;
        // `[fd00::]/8:443` as well as `[fd00::/8]:443`.
        if let Some(prefix) = after.strip_prefix('/') {
            let bits = prefix.split(':').next().unwrap_or(prefix);
            return Err(format!(
                "the brackets go around the whole network; write '[{inside}/{bits}]{}'",
                &prefix[bits.len()..]
            ));
        }
        return match after.strip_prefix(':') {
            Some(ports) => Ok((inside, Some(ports))),
            None if after.is_empty() => Ok((inside, None)),
            None => Err(format!("write '[{inside}]:443'")),
        };
    }
    // More than one colon: an IPv6 address without ports.
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Ok((text, None)),
        Some((host, ports)) => Ok((host, Some(ports))),
        None => Ok((text, None)),
    }
}

fn parse_ports(host: &str, text: &str) -> Result<Ports, String> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    if text == "*" {
        return Ok(Ports::ALL);
    }
    let number = |text: &str| -> Result<u16, String> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse::<u32>() {
            Ok(0) => Err(format!("there is no port 0; write '{host}:443', or '{host}:*' for every port")),
            Ok(port) if digits && port <= 65_535 => Ok(port as u16),
            _ => {
                let clean = text.split('/').next().unwrap_or_default();
                let clean = if clean.parse::<u16>().is_ok_and(|port| port > 0) { clean } else { "443" };
                Err(format!("ports are numbers from 1 to 65535; write '{host}:{clean}' or '{host}:8000-8100'"))
            }
        }
    };
    match text.split_once('-') {
        Some((first, last)) => match (number(first)?, number(last)?) {
            (first, last) if first > last => Err(format!("the range is backwards; write '{host}:{last}-{first}'")),
            (first, last) => Ok(Ports::Range(first, last)),
        },
        None => number(text).map(|port| Ports::Range(port, port)),
    }
}

fn parse_host(text: &str) -> Result<Host, String> {
    if text == "*" || text == "*.*" {
        return Err("'*' would allow everything; name the hosts, like '*.example.com', or use --allow-internet".into());
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        if address.to_canonical() != address {
            return Err(format!("an IPv4 address is written as one; write '{}'", address.to_canonical()));
        }
        return Ok(Host::Net(Cidr { address, prefix: if address.is_ipv4() { 32 } else { 128 } }));
    }
    if let Some((address, prefix)) = text.split_once('/') {
        return parse_cidr(address, prefix);
    }
    if text.contains(':') || text.contains('%') {
        return Err("it is not an IPv6 address; write '[2001:db8::1]:443', without a zone".into());
    }
    if let Some(address) = odd_ipv4(text) {
        return Err(format!("this is an address in an odd spelling; write '{address}'"));
    }
    let (below, name) = match text.strip_prefix("*.") {
        Some(suffix) => (true, suffix),
        None => (false, text),
    };
    let star = if below { "*." } else { "" };
    if name.contains('*') {
        let tail = name.rsplit('*').next().unwrap_or_default().trim_start_matches('.');
        let tail = if tail.contains('.') { tail } else { "example.com" };
        return Err(format!("'*' can only stand for whole labels in front; write '*.{tail}'"));
    }
    if let Some(bare) = name.strip_suffix('.') {
        return Err(format!("a trailing dot says nothing here; write '{star}{}'", bare.trim_end_matches('.')));
    }
    if !name.is_ascii() {
        return Err(match idna::domain_to_ascii(name) {
            Ok(ascii) => format!("write names as they are on the wire: '{star}{ascii}'"),
            Err(_) => "it is not a valid international name; write it as on the wire, 'xn--…'".into(),
        });
    }
    if name == "localhost" || name.ends_with(".localhost") {
        return Err("localhost is the sandbox itself; for a service of the host use --allow-host-port 5432".into());
    }
    if name == HOST_NAME {
        return Err("ports of the host are opened with --allow-host-port 5432".into());
    }
    if !is_name(name) {
        return Err(
            "it is not a host name, address or network; write it like api.example.com, 10.0.0.5:5432 or 10.0.0.0/8"
                .into(),
        );
    }
    Ok(if below { Host::Below(name.into()) } else { Host::Name(name.into()) })
}

fn parse_cidr(address: &str, prefix: &str) -> Result<Host, String> {
    let Ok(address) = address.parse::<IpAddr>() else {
        if let Some(v4) = odd_ipv4(address) {
            return Err(format!("this is an address in an odd spelling; write '{v4}/{prefix}'"));
        }
        if is_name(address) {
            return Err(format!("rules are for hosts, not for paths; write '{address}'"));
        }
        return Err("it is not a network; write it like '10.0.0.0/8' or 'fd00::/8'".into());
    };
    let most = if address.is_ipv4() { 32 } else { 128 };
    let digits = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_digit());
    let prefix = prefix.parse::<u8>().ok().filter(|prefix| digits && *prefix <= most);
    let Some(prefix) = prefix else {
        return Err(format!(
            "a network's prefix is a number from 0 to {most}; write '{address}/{most}' for this one address"
        ));
    };
    if prefix == 0 {
        return Err("that is every address; name the networks, like '10.0.0.0/8', or use --allow-internet".into());
    }
    let net = Cidr { address, prefix };
    if net.masked() != net {
        return Err(format!(
            "it has bits behind its prefix; write '{}', or '{address}' for this one address",
            net.masked()
        ));
    }
    Ok(Host::Net(net))
}

/// Whether this is a host name: labels of letters, digits, `-` and `_`, in lower case, the last one not a number.
///
/// What ends in a number is an address to some programs (`0x7f.1`), so it is a name to nobody.
pub fn is_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or(text);
    text.len() <= 253 && text.split('.').all(label) && !number_like(last)
}

fn number_like(label: &str) -> bool {
    label.bytes().all(|b| b.is_ascii_digit())
        || label.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// An IPv4 address as `inet_aton` reads it: fewer parts, octal, hexadecimal.
fn odd_ipv4(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<&str> = text.split('.').collect();
    if parts.len() > 4 {
        return None;
    }
    let mut numbers = Vec::with_capacity(4);
    for part in &parts {
        let number = match part.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(if hex.is_empty() { "0" } else { hex }, 16).ok()?,
            None if part.len() > 1 && part.starts_with('0') => u32::from_str_radix(part, 8).ok()?,
            None if part.bytes().all(|b| b.is_ascii_digit()) => part.parse().ok()?,
            None => return None,
        };
        numbers.push(number);
    }
    let last = numbers.pop()?;
    let mut bits = 0u32;
    for (index, number) in numbers.iter().enumerate() {
        bits |= u32::from(u8::try_from(*number).ok()?) << (24 - 8 * index);
    }
    let room = 32 - 8 * numbers.len() as u32;
    (room == 32 || last < 1 << room).then(|| Ipv4Addr::from_bits(bits | last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_back_as_they_are_written() {
        for (text, printed) in [
            ("api.github.com", "api.github.com"),
            ("API.GitHub.Com:443", "api.github.com:443"),
            ("*.example.com:443/TCP", "*.example.com:443/tcp"),
            ("example.com/tcp", "example.com/tcp"),
            ("_dmarc.example.com", "_dmarc.example.com"),
            ("xn--mnchen-3ya.de", "xn--mnchen-3ya.de"),
            ("db:5432", "db:5432"),
            ("10.0.0.5:5432/tcp", "10.0.0.5:5432/tcp"),
            ("10.0.0.0/8/tcp", "10.0.0.0/8/tcp"),
            ("[fd00::/8]:443/tcp", "[fd00::/8]:443/tcp"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.0.0.0/8:8000-8100", "10.0.0.0/8:8000-8100"),
            ("10.0.0.0/8:1-65535", "10.0.0.0/8:*"),
            ("ok.com:*", "ok.com:*"),
            ("fd00::/8", "fd00::/8"),
            ("[FD00::/8]:443", "[fd00::/8]:443"),
            ("[::1]:80", "[::1]:80"),
            ("2001:db8::1", "2001:db8::1"),
            ("10.0.0.5/32:22", "10.0.0.5:22"),
        ] {
            let rule: Rule = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(rule.to_string(), printed, "{text}");
            assert_eq!(printed.parse::<Rule>().as_ref(), Ok(&rule), "{printed}");
        }
    }

    #[test]
    fn bad_rules_are_refused_with_the_corrected_form() {
        for (text, correction) in [
            ("*", "--allow-internet"),
            ("*", "'*.example.com'"),
            ("*:443", "--allow-internet"),
            ("http://example.com/x?y", "'example.com:80'"),
            ("https://u:p@Example.com", "'example.com:443'"),
            ("https://example.com:8443/x", "'example.com:8443'"),
            ("ssh://git@example.com/r", "'example.com:22'"),
            ("example.com.", "'example.com'"),
            ("*.example.com.", "'*.example.com'"),
            ("user@example.com:22", "'example.com:22'"),
            ("münchen.de", "'xn--mnchen-3ya.de'"),
            ("*.MÜNCHEN.de:443", "'*.xn--mnchen-3ya.de'"),
            ("10.0.0.5/8", "'10.0.0.0/8'"),
            ("[fd00::1/8]:443", "'fd00::/8'"),
            ("[fd00::]/8:443", "'[fd00::/8]:443'"),
            ("10.0.0.0/33", "0 to 32"),
            ("10.0.0.0/", "'10.0.0.0/32'"),
            ("10.0.0.0/-1", "'10.0.0.0/32'"),
            ("0.0.0.0/0", "--allow-internet"),
            ("::/0", "--allow-internet"),
            ("10.0.0/8", "'10.0.0.0/8'"),
            ("example.com/path", "'example.com'"),
            ("example.com:0", "'example.com:443'"),
            ("example.com:443-80", "'example.com:80-443'"),
            ("example.com:70000", "1 to 65535"),
            ("example.com:https", "'example.com:443'"),
            ("example.com:443/path", "'example.com:443'"),
            ("example.com:", "'example.com:443'"),
            ("example.com:+80", "1 to 65535"),
            ("[::1]:0", "'[::1]:443'"),
            ("example.com:53/udp", "'example.com:53'"),
            ("a.com b.com", "each rule on its own"),
            ("exa\0mple.com", "'example.com'"),
            ("example.com\n", "'example.com'"),
            ("a.*.example.com", "'*.example.com'"),
            ("*example.com", "'*.example.com'"),
            ("2852039166", "'169.254.169.254'"),
            ("0xA9FEA9FE", "'169.254.169.254'"),
            ("0xa9.0xfe.0xa9.0xfe", "'169.254.169.254'"),
            ("0251.0376.0251.0376:80", "'169.254.169.254'"),
            ("169.254.43518", "'169.254.169.254'"),
            ("127.1", "'127.0.0.1'"),
            ("localhost:80", "--allow-host-port"),
            ("host.sloplet.internal:80", "--allow-host-port"),
            ("", "api.example.com"),
            ("-a.com", "api.example.com"),
            ("a..com", "api.example.com"),
            ("1.2.3.4.5", "api.example.com"),
            ("fe80::1%eth0", "without a zone"),
            ("[::ffff:10.0.0.5]:22", "'10.0.0.5'"),
            ("[::1", "[2001:db8::1]:443"),
            ("[::1]x", "'[::1]:443'"),
        ] {
            let error = text.parse::<Rule>().expect_err(text).to_string();
            assert!(error.contains(correction), "{text:?}: {error}");
            assert!(!error.contains(['\0', '\n', '\u{1b}']), "{error:?}");
        }
        assert!("a".repeat(64).parse::<Rule>().is_err());
        assert!(vec!["abc"; 70].join(".").parse::<Rule>().is_err());
        assert!("x".repeat(100_000).parse::<Rule>().is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,60}|[a-z0-9.:/*\\[\\]@%_-]{0,40}") {
            if let Ok(rule) = text.parse::<Rule>() {
                proptest::prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
            }
        }

        #[test]
        fn a_network_holds_what_shares_its_prefix(bits: u32, prefix in 0u8..=32, other: u32) {
            let net = Cidr { address: IpAddr::V4(Ipv4Addr::from_bits(bits)), prefix };
            let same = prefix == 0 || bits >> (32 - prefix) == other >> (32 - prefix);
            proptest::prop_assert_eq!(net.holds(IpAddr::V4(Ipv4Addr::from_bits(other))), same);
        }
    }
}
