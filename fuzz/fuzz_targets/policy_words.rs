//! Rules, sizes, times, secrets, mounts as people write them: what is read is written back as the same.

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &["GiB", "/tcp", ":443", "*.", "/8", "18446744073709551615", "ms", "@", "=env:", "=file:", "=command:", "xn--"], longest: 256 };

fn run(bytes: &[u8]) {
    parsed(&String::from_utf8_lossy(bytes))
}

fn seeds() -> Vec<Vec<u8>> {
    support::texts(&["*.example.com:443", "10.0.0.0/8:1-1024", "[2001:db8::/32]:80", "api.test/tcp", "1.5GiB", "2h30m", "0.25", "1500m", "K=env:K@a.test,b.test:8443", "./a:/b:rw,unguarded", "$12.50", "1.5M"])
}

fn again<T: std::str::FromStr + std::fmt::Display + PartialEq + std::fmt::Debug>(text: &str) -> Option<T> {
    let read = text.parse::<T>().ok()?;
    let written = read.to_string();
    assert_eq!(written.parse::<T>().ok().as_ref(), Some(&read), "{text:?} written as {written:?}");
    Some(read)
}

fn parsed(text: &str) {
    use sloplet_policy::network::{Network, Wanted};
    if let Some(rule) = again::<sloplet_policy::Rule>(text) {
        let network = Network { deny: vec![rule], internet: true, ..Network::default() };
        for name in ["example.com", "a.example.com", text] {
            let _ = network.decide(Wanted::Name(name), 443);
        }
        let _ = network.check();
    }
    let _ = (again::<sloplet_policy::ByteSize>(text), again::<sloplet_policy::Span>(text), again::<sloplet_policy::Cpus>(text));
    let _ = (again::<sloplet_policy::budget::Usd>(text), again::<sloplet_policy::budget::Tokens>(text));
    let _ = (text.parse::<sloplet_policy::SecretRule>(), again::<sloplet_policy::secret::HostPattern>(text));
    let _ = text.parse::<sloplet_policy::Bind>().map(|bind| bind.check());
    let _ = sloplet_policy::network::is_name(text);
}
