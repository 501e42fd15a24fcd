//! What a sandbox may reach. Pure data and pure decisions: who dials, and when, is the egress's business.
//!
//! Nothing is allowed by default. A [`Rule`] names a host and ports; of the rules that match, those that deny win, then
//! those that ask a person, then those that allow. A name that is allowed does not open the address behind it: every
//! address is vetted (see [`vet`]) before it is dialed, and private ones are refused unless a rule names that very
//! address or a private network around it. A network that merely happens to hold some, like `128.0.0.0/1`, does not open them.

mod rule;
mod vet;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use rule::{Cidr, Host, Ports, Rule, RuleError, is_name};
pub use vet::{Refusal, vet};

use crate::addresses::HOST_NAME;
use crate::units::{ByteSize, Span};

/// Rules of one list that are accepted: they are looked through for every connection.
const MAX_RULES: usize = 4096;

/// How long a person may take to answer, at least and at most: a connection waits meanwhile, and counts as one.
const ASK_TIMEOUTS: [Span; 2] = [Span(Duration::from_secs(1)), Span(Duration::from_secs(86_400))];

/// What a sandbox may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// What it may reach. A rule without ports means 80 and 443.
    pub allow: Vec<Rule>,
    /// What it may not reach, whatever else is said. A rule without ports means every port.
    pub deny: Vec<Rule>,
    /// What a person is asked about, each time. A rule without ports means 80 and 443.
    pub ask: Vec<Rule>,
    /// How long that person may take; without an answer it is no.
    pub ask_timeout: Span,
    /// Ports of the host's loopback that are reachable inside as `host.sloplet.internal`.
    pub host_ports: Vec<u16>,
    /// Whether every public address and name may be reached, on any port. Private ones stay refused.
    pub internet: bool,
    /// Whether names have IPv6 addresses inside.
    pub ipv6: bool,
    /// How much of it.
    pub limits: NetworkLimits,
}

impl Default for Network {
    /// Nothing. Where a person is asked, they have two minutes.
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: Vec::new(),
            ask: Vec::new(),
            ask_timeout: Span(Duration::from_secs(120)),
            host_ports: Vec::new(),
            internet: false,
            ipv6: false,
            limits: NetworkLimits::default(),
        }
    }
}

/// How much a sandbox may use of the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkLimits {
    /// Connections at once.
    pub connections: u32,
    /// New connections per second; twice as many may come at once after a quiet time.
    pub new_per_second: u32,
    /// Bytes it may send over its life.
    pub bytes_up: Option<ByteSize>,
    /// Bytes it may receive over its life.
    pub bytes_down: Option<ByteSize>,
    /// Questions to the resolver per second; twice as many may come at once after a quiet time.
    pub dns_per_second: u32,
}

impl Default for NetworkLimits {
    fn default() -> Self {
        Self { connections: 256, new_per_second: 100, bytes_up: None, bytes_down: None, dns_per_second: 200 }
    }
}

/// What a program wants to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// A name, in lower case, without a trailing dot.
    Name(&'a str),
    /// An address that no name led to.
    Address(IpAddr),
}

/// What the rules say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It may be dialed, once its address is vetted.
    Allow {
        /// The rule, as it was written.
        rule: String,
        /// Whether it opts out of checks: `/tcp`.
        tcp: bool,
    },
    /// A person decides.
    Ask {
        /// The rule, as it was written.
        rule: String,
        /// Whether it opts out of checks: `/tcp`.
        tcp: bool,
    },
    /// It may not.
    Deny {
        /// Why.
        reason: Denial,
    },
}

/// Why something may not be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// A rule of `deny`.
    Rule(String),
    /// The host's loopback, at a port that was not opened.
    HostPort,
    /// The name is allowed, at other ports.
    Port,
    /// Nothing allows it.
    Unlisted,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => write!(f, "the rule '{rule}' denies it"),
            Self::HostPort => f.write_str("this port of the host is not opened"),
            Self::Port => f.write_str("it is allowed on other ports only"),
            Self::Unlisted => f.write_str("no rule allows it"),
        }
    }
}

impl Denial {
    /// The flag that would allow it; none where a rule denies it.
    pub fn hint(&self, wanted: Wanted<'_>, port: u16) -> Option<String> {
        match (self, wanted) {
            (Self::Rule(_), _) => None,
            (Self::HostPort, _) => Some(format!("--allow-host-port {port}")),
            (_, Wanted::Name(name)) => Some(format!("--allow {name}:{port}")),
            (_, Wanted::Address(IpAddr::V4(v4))) => Some(format!("--allow {v4}:{port}")),
            (_, Wanted::Address(IpAddr::V6(v6))) => Some(format!("--allow '[{v6}]:{port}'")),
        }
    }
}

/// A network description that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Port 0.
    #[error(
        "port 0 of the host cannot be opened: give the port that the service listens on, like --allow-host-port 5432"
    )]
    PortZero,
    /// Too many rules.
    #[error("{0} network rules are too many: at most {MAX_RULES} of each kind; use *.suffix or a CIDR")]
    TooMany(usize),
    /// A limit of nothing.
    #[error("network limit {0} must be at least 1; to allow nothing, give no rules")]
    Zero(&'static str),
    /// A person has too little time, or a connection waits too long for them.
    #[error("ask_timeout {0} is out of bounds: give a person {min} to {max}, like 30s or 10m", min = ASK_TIMEOUTS[0], max = ASK_TIMEOUTS[1])]
    AskTimeout(Span),
}

impl Network {
    /// Whether nothing at all can be reached.
    pub fn is_nothing(&self) -> bool {
        self.allow.is_empty() && self.ask.is_empty() && self.host_ports.is_empty() && !self.internet
    }

    /// Refuses what a parsed rule cannot already exclude.
    pub fn check(&self) -> Result<(), NetworkError> {
        let longest = [self.allow.len(), self.deny.len(), self.ask.len(), self.host_ports.len()].into_iter().max();
        let limits = &self.limits;
        match longest {
            Some(count) if count > MAX_RULES => Err(NetworkError::TooMany(count)),
            _ if self.host_ports.contains(&0) => Err(NetworkError::PortZero),
            _ if limits.connections == 0 => Err(NetworkError::Zero("connections")),
            _ if limits.new_per_second == 0 => Err(NetworkError::Zero("new_per_second")),
            _ if limits.dns_per_second == 0 => Err(NetworkError::Zero("dns_per_second")),
            _ if !(ASK_TIMEOUTS[0]..=ASK_TIMEOUTS[1]).contains(&self.ask_timeout) => {
                Err(NetworkError::AskTimeout(self.ask_timeout))
            }
            _ => Ok(()),
        }
    }

    /// What the rules say about reaching `wanted` at `port`. Deny wins, then ask, then allow.
    pub fn decide(&self, wanted: Wanted<'_>, port: u16) -> Decision {
        if let Some(rule) = self.denied_by(wanted, port) {
            return Decision::Deny { reason: Denial::Rule(rule.to_string()) };
        }
        if wanted == Wanted::Name(HOST_NAME) {
            return if self.host_ports.contains(&port) {
                Decision::Allow { rule: format!("host port {port}"), tcp: true }
            } else {
                Decision::Deny { reason: Denial::HostPort }
            };
        }
        // Of several rules that hold, one that opts out of checks counts: somebody wrote it for that.
        let hit = |rules: &[Rule]| {
            let hits = || rules.iter().filter(|rule| rule.host.matches(wanted) && rule.ports.allow(port));
            hits().find(|rule| rule.tcp).or_else(|| hits().next()).map(|rule| (rule.to_string(), rule.tcp))
        };
        if let Some((rule, tcp)) = hit(&self.ask) {
            return Decision::Ask { rule, tcp };
        }
        if let Some((rule, tcp)) = hit(&self.allow) {
            return Decision::Allow { rule, tcp };
        }
        if self.internet {
            return Decision::Allow { rule: "internet".into(), tcp: false };
        }
        let listed = self.allow.iter().chain(&self.ask).any(|rule| rule.host.matches(wanted));
        Decision::Deny { reason: if listed { Denial::Port } else { Denial::Unlisted } }
    }

    /// The rule of `deny` that names this.
    pub fn denied_by(&self, wanted: Wanted<'_>, port: u16) -> Option<&Rule> {
        self.deny.iter().find(|rule| rule.host.matches(wanted) && rule.ports.deny(port))
    }

    /// Whether a name has an address inside: whether there is a port at which it is not denied.
    pub fn resolves(&self, name: &str) -> bool {
        let wanted = Wanted::Name(name);
        if self.deny.iter().any(|rule| rule.host.matches(wanted) && rule.ports.deny_all()) {
            return false;
        }
        if name == HOST_NAME {
            return !self.host_ports.is_empty();
        }
        self.internet || self.allow.iter().chain(&self.ask).any(|rule| rule.host.matches(wanted))
    }

    /// Whether `address` may be dialed at `port`, for a name that was allowed or for itself. `own` are the host's addresses.
    ///
    /// An address that is not public is dialed only if a rule names it, or a private network that holds it, with that port;
    /// one of the host's own only if a rule names that very address.
    pub fn may_dial(&self, address: IpAddr, port: u16, own: &[IpAddr]) -> Result<(), Refusal> {
        if self.denied_by(Wanted::Address(address), port).is_some() {
            return Err(Refusal { address, reason: "denied by a rule" });
        }
        let private = |net: &Cidr| !net.is_public() && !own.contains(&address);
        if self.opened(address, port, private) {
            return Ok(());
        }
        vet(address, own)
    }

    /// Whether a rule names this very address with that port.
    pub fn names_address(&self, address: IpAddr, port: u16) -> bool {
        self.opened(address, port, |_| false)
    }

    /// Whether a rule names this very address with that port, or a network that holds it and is one of those.
    fn opened(&self, address: IpAddr, port: u16, network: impl Fn(&Cidr) -> bool) -> bool {
        let opens = |rule: &Rule| match &rule.host {
            Host::Net(net) => net.holds(address) && rule.ports.allow(port) && (net.is_single() || network(net)),
            Host::Name(_) | Host::Below(_) => false,
        };
        self.allow.iter().chain(&self.ask).any(opens)
    }

    /// A rule that opens something near the host: one of its own addresses, or a private one.
    pub fn nearby(&self, own: &[IpAddr]) -> Option<&Rule> {
        let near = |rule: &&Rule| match &rule.host {
            Host::Net(net) => !net.is_public() || (net.is_single() && own.contains(&net.address)),
            Host::Name(_) | Host::Below(_) => false,
        };
        self.allow.iter().chain(&self.ask).find(near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> Vec<Rule> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn network(allow: &[&str], ask: &[&str], deny: &[&str]) -> Network {
        Network { allow: rules(allow), ask: rules(ask), deny: rules(deny), ..Network::default() }
    }

    fn verdict(network: &Network, host: &str, port: u16) -> &'static str {
        let wanted = host.parse().map_or(Wanted::Name(host), Wanted::Address);
        match network.decide(wanted, port) {
            Decision::Allow { .. } => "allow",
            Decision::Ask { .. } => "ask",
            Decision::Deny { .. } => "deny",
        }
    }

    #[test]
    fn nothing_is_allowed_by_default() {
        let nothing = Network::default();
        assert!(nothing.is_nothing());
        assert_eq!(nothing, serde_json::from_str("{}").unwrap());
        for (host, port) in [("example.com", 443), ("1.1.1.1", 443), (HOST_NAME, 80), ("", 0)] {
            assert_eq!(verdict(&nothing, host, port), "deny", "{host}");
            assert!(!nothing.resolves(host), "{host}");
        }
        assert!(!network(&[], &["a.example"], &[]).is_nothing());
    }

    #[test]
    fn names_match_exactly() {
        let network = network(&["ok.com", "*.example.com:443", "db.internal:5432"], &[], &[]);
        for (host, port, expected) in [
            ("ok.com", 443, "allow"),
            ("ok.com", 80, "allow"),
            ("ok.com", 22, "deny"),
            ("ok.com", 25, "deny"),
            ("ok.com", 6379, "deny"),
            ("evil-ok.com", 443, "deny"),
            ("ok.com.evil", 443, "deny"),
            ("www.ok.com", 443, "deny"),
            ("a.example.com", 443, "allow"),
            ("a.b.example.com", 443, "allow"),
            ("a.example.com", 80, "deny"),
            ("example.com", 443, "deny"),
            ("notexample.com", 443, "deny"),
            (".example.com", 443, "deny"),
            ("db.internal", 5432, "allow"),
            ("db.internal", 5433, "deny"),
            ("1.2.3.4", 443, "deny"),
        ] {
            assert_eq!(verdict(&network, host, port), expected, "{host}:{port}");
        }
        assert_eq!(
            network.decide(Wanted::Name("ok.com"), 22),
            Decision::Deny { reason: Denial::Port },
            "says that the port is what is missing"
        );
    }

    #[test]
    fn deny_wins_then_ask_then_allow() {
        let network =
            network(&["*.a.com:*", "10.0.0.0/8:1-100"], &["pay.a.com", "*.ask.a.com"], &["x.ask.a.com", "10.1.0.0/16"]);
        for (host, port, expected) in [
            ("b.a.com", 9, "allow"),
            ("pay.a.com", 443, "ask"),
            ("pay.a.com", 22, "allow"),
            ("y.ask.a.com", 443, "ask"),
            ("x.ask.a.com", 443, "deny"),
            ("x.ask.a.com", 7777, "deny"),
            ("10.2.3.4", 100, "allow"),
            ("10.2.3.4", 101, "deny"),
            ("10.1.3.4", 100, "deny"),
        ] {
            assert_eq!(verdict(&network, host, port), expected, "{host}:{port}");
        }
        assert!(network.resolves("y.ask.a.com") && !network.resolves("x.ask.a.com"));
    }

    #[test]
    fn a_rule_for_tcp_opts_out_whatever_its_place_and_nothing_else_does() {
        let opts_out = |network: &Network, host| match network.decide(Wanted::Name(host), 443) {
            Decision::Allow { rule, tcp } | Decision::Ask { rule, tcp } => {
                assert_eq!(tcp, rule.ends_with("/tcp"), "{rule}");
                tcp
            }
            Decision::Deny { .. } => panic!("{host} is denied"),
        };
        let listed = network(&["*.a.com", "db.a.com:443/tcp", "b.a.com/tcp"], &["b.a.com"], &[]);
        assert!(opts_out(&listed, "db.a.com") && !opts_out(&listed, "x.a.com"));
        assert!(!opts_out(&listed, "b.a.com"), "what a person is asked about is what they see");
        let internet = Network { internet: true, ..network(&["db.a.com/tcp"], &[], &[]) };
        assert!(opts_out(&internet, "db.a.com") && !opts_out(&internet, "x.a.com"));
    }

    #[test]
    fn the_internet_is_what_is_public() {
        let network = Network { internet: true, deny: rules(&["*.evil.com", "9.9.9.0/24"]), ..Network::default() };
        assert_eq!(verdict(&network, "any.example", 6667), "allow");
        assert_eq!(verdict(&network, "a.evil.com", 6667), "deny");
        assert_eq!(verdict(&network, HOST_NAME, 6667), "deny");
        assert!(!network.resolves("a.evil.com") && network.resolves("evil.com") && !network.resolves(HOST_NAME));
        let dial = |text: &str| network.may_dial(text.parse().unwrap(), 443, &["5.5.5.5".parse().unwrap()]).is_ok();
        assert!(dial("1.1.1.1") && dial("2606:4700::1111"));
        for refused in
            ["10.0.0.1", "169.254.169.254", "127.0.0.1", "9.9.9.9", "5.5.5.5", "fd00:ec2::254", "::ffff:10.0.0.1"]
        {
            assert!(!dial(refused), "{refused}");
        }
    }

    #[test]
    fn a_private_address_is_dialed_only_if_a_rule_names_it_with_that_port() {
        let network =
            network(&["ok.com:*", "10.0.0.5:5432/tcp", "192.168.1.0/24"], &["[fd00::/8]:22"], &["192.168.1.9"]);
        for (address, port, expected) in [
            ("10.0.0.5", 5432, true),
            ("10.0.0.5", 443, false),
            ("10.0.0.6", 5432, false),
            ("192.168.1.7", 443, true),
            ("192.168.1.7", 8443, false),
            ("192.168.1.9", 443, false),
            ("fd12::1", 22, true),
            ("fd12::1", 23, false),
            ("8.8.8.8", 23, true),
            ("::ffff:10.0.0.5", 5432, false),
        ] {
            assert_eq!(network.may_dial(address.parse().unwrap(), port, &[]).is_ok(), expected, "{address}:{port}");
        }
    }

    #[test]
    fn a_wide_network_opens_what_is_public_in_it() {
        let own = ["45.33.7.7".parse().unwrap(), "10.0.0.1".parse().unwrap()];
        let network = network(&["128.0.0.0/1:*", "0.0.0.0/1:*", "[::/1]:*", "[8000::/1]:*", "10.0.0.0/8:22"], &[], &[]);
        for (address, port, expected) in [
            ("192.0.66.1", 22, true),
            ("2600::1", 22, true),
            ("10.2.3.4", 22, true),
            ("10.2.3.4", 23, false),
            ("10.0.0.1", 22, false),
            ("45.33.7.7", 22, false),
            ("169.254.169.254", 80, false),
            ("192.168.1.1", 80, false),
            ("127.0.0.1", 80, false),
            ("fd00:ec2::254", 80, false),
            ("::1", 80, false),
        ] {
            assert_eq!(network.may_dial(address.parse().unwrap(), port, &own).is_ok(), expected, "{address}:{port}");
        }
        let near = |rule: &str| Network { allow: rules(&[rule]), ..Network::default() }.nearby(&own).is_some();
        for rule in
            ["10.0.0.0/8", "45.33.7.7", "169.254.169.254:80", "[fd00::/8]:443", "192.168.0.0/15", "[4000::/3]:1"]
        {
            assert_eq!(near(rule), rule != "192.168.0.0/15", "{rule}");
        }
        assert!(!near("45.33.0.0/16") && !near("128.0.0.0/1") && !near("example.com"));
    }

    #[test]
    fn host_ports_are_opened_one_by_one() {
        let network = Network { host_ports: vec![5432], ..Network::default() };
        assert!(network.resolves(HOST_NAME) && !network.is_nothing());
        assert_eq!(verdict(&network, HOST_NAME, 5432), "allow");
        assert_eq!(network.decide(Wanted::Name(HOST_NAME), 22), Decision::Deny { reason: Denial::HostPort });
        assert_eq!(Denial::HostPort.hint(Wanted::Name(HOST_NAME), 22).unwrap(), "--allow-host-port 22");
        assert_eq!(verdict(&network, "127.0.0.1", 5432), "deny");
        assert_eq!(Network { host_ports: vec![0], ..Network::default() }.check(), Err(NetworkError::PortZero));
    }

    #[test]
    fn a_person_has_a_bounded_time_to_answer() {
        let with = |text: &str| serde_json::from_str::<Network>(&format!(r#"{{"ask_timeout":{text}}}"#)).unwrap();
        assert_eq!(Network::default().ask_timeout.to_string(), "2m");
        assert_eq!(with("\"1m30s\""), with("90"));
        for (text, fine) in
            [("\"1s\"", true), ("30", true), ("\"24h\"", true), ("\"999ms\"", false), ("\"25h\"", false)]
        {
            assert_eq!(with(text).check().is_ok(), fine, "{text}");
        }
        let said = with("\"2d\"").check().unwrap_err().to_string();
        assert!(said.contains("48h is out of bounds") && said.contains("1s to 24h"), "{said}");
    }

    #[test]
    fn json_has_rules_as_text_and_knows_its_fields() {
        let text = r#"{"allow":["Api.GitHub.com","[fd00::/8]:443"],"host_ports":[5432],"limits":{"bytes_up":"1MiB"}}"#;
        let network: Network = serde_json::from_str(text).unwrap();
        assert_eq!(network.allow[0].to_string(), "api.github.com");
        assert_eq!(network.limits.bytes_up, Some(ByteSize::mib(1)));
        assert_eq!(network.limits.connections, 256);
        let again: Network = serde_json::from_str(&serde_json::to_string(&network).unwrap()).unwrap();
        assert_eq!(again, network);
        for wrong in [r#"{"alow":[]}"#, r#"{"allow":["*"]}"#, r#"{"limits":{"bites":1}}"#] {
            assert!(serde_json::from_str::<Network>(wrong).is_err(), "{wrong}");
        }
        assert!(Network::default().check().is_ok());
        let none = Network { limits: NetworkLimits { connections: 0, ..Default::default() }, ..Default::default() };
        assert_eq!(none.check(), Err(NetworkError::Zero("connections")));
    }
}
