//! Which registries the keys of a server may pull from, and whom such a pull may connect to.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use sloplet_image::{Reference, Vet, Vetting};
use sloplet_policy::network::vet;

/// A registry that the operator lists: `HOST` or `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryHost {
    host: String,
    port: Option<u16>,
}

/// What stands for the usual registry, as people write it and as it is reached.
const HUB: [&str; 2] = ["docker.io", "index.docker.io"];

/// A port of HTTPS.
const HTTPS: u16 = 443;

impl FromStr for RegistryHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let problem = || {
            format!("'{}' is no registry: write HOST or HOST:PORT, like registry.example.com", text.escape_default())
        };
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| problem())?)),
            None => (text, None),
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if host.is_empty() || !host.bytes().all(plain) || port == Some(0) {
            return Err(problem());
        }
        let host = host.to_ascii_lowercase();
        let host = if HUB.contains(&host.as_str()) { HUB[1].to_owned() } else { host };
        Ok(Self { host, port })
    }
}

impl fmt::Display for RegistryHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

impl RegistryHost {
    fn is(&self, host: &str, port: u16) -> bool {
        self.host == host && self.port.is_none_or(|own| own == port)
    }
}

/// The operator's list. An empty one means every registry at a public address.
#[derive(Debug, Clone, Default)]
pub struct Registries(Vec<RegistryHost>);

impl Registries {
    /// Of these.
    pub fn new(listed: Vec<RegistryHost>) -> Self {
        Self(listed)
    }

    /// How an image is pulled for a key, if its registry may be asked at all.
    pub fn admit(&self, image: &str) -> Result<Vetting, String> {
        let reference = Reference::parse(image)?;
        let (host, port) = reference.host_and_port();
        if !self.0.is_empty() && !self.lists(host, port.unwrap_or(HTTPS)) {
            return Err(format!("the operator of this server has not listed the registry {}", reference.registry));
        }
        Ok(Vetting::new(self.clone()))
    }

    fn lists(&self, host: &str, port: u16) -> bool {
        self.0.iter().any(|listed| listed.is(host, port))
    }

    fn public(address: IpAddr) -> Result<(), String> {
        vet(address, &sloplet_egress::host::addresses()).map_err(|refusal| refusal.to_string())
    }
}

impl Vet for Registries {
    /// What is listed may be anywhere. Other places, to which registries lead, must be public.
    fn admit(&self, host: &str, port: u16, address: Option<IpAddr>) -> Result<(), String> {
        let host = host.to_ascii_lowercase();
        if self.lists(&host, port) {
            return Ok(());
        }
        match address {
            Some(address) => Self::public(address),
            None if self.0.iter().any(|listed| listed.host == host) => {
                Err(format!("the operator of this server has listed another port of {host} than {port}"))
            }
            None => Ok(()),
        }
    }

    fn dial(&self, name: &str, address: IpAddr) -> Result<(), String> {
        if self.0.iter().any(|listed| listed.host == name) { Ok(()) } else { Self::public(address) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registries(listed: &[&str]) -> Registries {
        Registries::new(listed.iter().map(|text| text.parse().unwrap()).collect())
    }

    #[test]
    fn without_a_list_every_registry_at_a_public_address_may_be_asked() {
        let all = registries(&[]);
        assert!(all.admit("alpine").is_ok() && all.admit("registry.example.com/a/b:1").is_ok());
        for (host, port, may) in [
            ("127.0.0.1", 5000, false),
            ("10.0.0.5", 443, false),
            ("169.254.169.254", 80, false),
            ("::1", 5000, false),
            ("1.1.1.1", 443, true),
        ] {
            assert_eq!(Vet::admit(&all, host, port, host.parse().ok()).is_ok(), may, "{host}");
        }
        // A name is judged by where it leads.
        assert!(Vet::admit(&all, "localhost", 5000, None).is_ok());
        assert!(all.dial("localhost", IpAddr::from([127, 0, 0, 1])).is_err());
        assert!(all.dial("evil.test", IpAddr::from([169, 254, 169, 254])).is_err());
        assert!(all.dial("registry.example.com", IpAddr::from([1, 1, 1, 1])).is_ok());
    }

    #[test]
    fn a_list_admits_what_it_names_wherever_that_is_and_nothing_else() {
        let listed = registries(&["docker.io", "Registry.internal:5000", "127.0.0.1:5000"]);
        assert!(listed.admit("alpine").is_ok() && listed.admit("registry.internal:5000/x").is_ok());
        assert!(listed.admit("registry.example.com/a/b").is_err() && listed.admit("registry.internal:5001/x").is_err());
        assert!(listed.dial("registry.internal", IpAddr::from([10, 0, 0, 5])).is_ok());
        assert!(Vet::admit(&listed, "registry.internal", 22, None).is_err(), "another port of it");
        assert!(Vet::admit(&listed, "127.0.0.1", 5000, Some(IpAddr::from([127, 0, 0, 1]))).is_ok());
        assert!(Vet::admit(&listed, "127.0.0.1", 5001, Some(IpAddr::from([127, 0, 0, 1]))).is_err());
        assert!(listed.dial("auth.evil.test", IpAddr::from([10, 0, 0, 5])).is_err(), "where a realm leads");
        for bad in ["", "a b", "https://registry.example.com", "x:0", "x:y", "x/y"] {
            assert!(bad.parse::<RegistryHost>().is_err(), "{bad}");
        }
        assert_eq!("docker.io".parse::<RegistryHost>().unwrap().to_string(), "index.docker.io");
    }
}
