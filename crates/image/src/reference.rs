//! Where an image of a registry is: `alpine`, `registry.example.com/owner/image:tag`, `localhost:5000/image@sha256:…`.

/// A registry, a repository of it, and what of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Host and perhaps port of the registry.
    pub registry: String,
    /// The repository.
    pub repository: String,
    /// The tag, or else the digest, which says more.
    pub version: String,
}

/// What is meant where no registry is named.
const DEFAULT: &str = "index.docker.io";

impl Reference {
    /// Reads a name that is in the form of a stored image's.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        let (registry, rest) = match name.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
            _ => ("docker.io", name),
        };
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (rest, None),
        };
        let part = |part: &str| !part.is_empty() && part.bytes().all(is_part_of_repository);
        if !repository.split('/').all(part) {
            return Err("a repository has lower-case letters, digits and . _ - between its slashes");
        }
        if digest.is_some_and(|digest| crate::oci::hex_of(digest).is_err()) {
            return Err("a digest is written sha256: and 64 hexadecimal digits");
        }
        let (registry, repository) = match registry {
            "docker.io" | DEFAULT if !repository.contains('/') => (DEFAULT, format!("library/{repository}")),
            "docker.io" => (DEFAULT, repository.to_owned()),
            registry => (registry, repository.to_owned()),
        };
        let version = digest.or(tag).unwrap_or("latest").to_owned();
        Ok(Self { registry: registry.to_ascii_lowercase(), repository, version })
    }

    /// Host and port of the registry.
    pub fn host_and_port(&self) -> (&str, Option<u16>) {
        match self.registry.split_once(':') {
            Some((host, port)) => (host, port.parse().ok()),
            None => (&self.registry, None),
        }
    }

    /// Whether the registry is on this machine: only there is TLS not needed, because nobody sits in between.
    pub(crate) fn is_loopback(&self) -> bool {
        let (host, _) = self.host_and_port();
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

fn is_part_of_repository(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_as_everybody_does() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, expected) in [
            ("alpine", (DEFAULT, "library/alpine", "latest")),
            ("alpine:3", (DEFAULT, "library/alpine", "3")),
            ("owner/image:1.0", (DEFAULT, "owner/image", "1.0")),
            ("docker.io/library/alpine", (DEFAULT, "library/alpine", "latest")),
            ("Registry.Example.com/owner/image:tag", ("registry.example.com", "owner/image", "tag")),
            ("localhost/image", ("localhost", "image", "latest")),
            ("localhost:5000/a/b/c", ("localhost:5000", "a/b/c", "latest")),
            (&format!("127.0.0.1:5000/x:1@{digest}"), ("127.0.0.1:5000", "x", &digest)),
        ] {
            let read = Reference::parse(text).unwrap();
            assert_eq!((&*read.registry, &*read.repository, &*read.version), expected, "{text}");
        }
        for bad in ["", "UPPER", "localhost:5000/", "a//b", "x@sha256:1", "a/../b c"] {
            assert!(Reference::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn plain_http_is_for_loopback_only() {
        let loopback = |registry: &str| Reference::parse(&format!("{registry}/x")).unwrap().is_loopback();
        assert!(loopback("localhost") && loopback("localhost:5000") && loopback("127.0.0.1:5000"));
        for registry in ["docker.io", "localhost.evil.com:5000", "127.0.0.1.evil.com", "10.0.0.1:5000"] {
            assert!(!loopback(registry), "{registry}");
        }
    }
}
