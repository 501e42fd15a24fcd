//! Addresses of machines and identifiers without meaning.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::person::has_space;
use super::{Maker, UNIQUE};

impl Maker {
    /// An address in the range for benchmarks (RFC 2544) or documentation (RFC 3849), or a permutation of all if they
    /// are to stay unique. The length of a prefix stays.
    pub(super) fn ip(&mut self, value: &str, out: &mut String) -> Option<()> {
        let (address, prefix) =
            value.split_once('/').map_or((value, None), |(address, prefix)| (address, Some(prefix)));
        if prefix.is_some_and(|prefix| prefix.parse::<u8>().is_err()) {
            return None;
        }
        let mut draw = self.draw(address);
        let fake = match address.parse().ok()? {
            IpAddr::V4(address) if self.rule.unique => {
                let image = self.all.apply(1 << 32, u128::from(u32::from(address)))?;
                IpAddr::V4(Ipv4Addr::from(image as u32))
            }
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from(0xc612_0000 | draw.below(1 << 17) as u32)),
            IpAddr::V6(_) => {
                let low = u128::from(draw.bits()) | u128::from(draw.bits()) << 64;
                IpAddr::V6(Ipv6Addr::from(0x2001_0db8 << 96 | low >> 32))
            }
        };
        out.push_str(&fake.to_string());
        if let Some(prefix) = prefix {
            out.push('/');
            out.push_str(prefix);
        }
        Some(())
    }

    /// The scheme stays; host, path and whatever else are replaced, and what a URL says about a user goes.
    pub(super) fn url(&mut self, value: &str, out: &mut String) -> Option<()> {
        let (scheme, rest) = value.split_once("://")?;
        let valid = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if scheme.is_empty() || !scheme.chars().all(valid) || rest.is_empty() || has_space(value) {
            return None;
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let host = authority.rsplit('@').next().unwrap_or(authority);
        out.push_str(scheme);
        out.push_str("://");
        self.host(host, out);
        if path.len() > 1 || self.rule.unique {
            out.push('/');
            self.draw(value).token(if self.rule.unique { UNIQUE } else { 8 }, out);
        } else {
            out.push_str(path);
        }
        Some(())
    }

    /// Version and variant stay, as do dashes and case.
    pub(super) fn uuid(&mut self, value: &str, out: &mut String) -> Option<()> {
        let dashes: Vec<usize> = value.match_indices('-').map(|(at, _)| at).collect();
        let well_formed = value.len() == 36 && dashes == [8, 13, 18, 23] || value.len() == 32 && dashes.is_empty();
        if !well_formed || !value.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()) {
            return None;
        }
        let upper = value.bytes().any(|byte| byte.is_ascii_uppercase());
        let mut draw = self.draw(&value.to_lowercase());
        let mut digit = 0;
        for c in value.chars() {
            let fake = match (c, digit) {
                ('-', _) => '-',
                (_, 12 | 16) => c,
                _ => char::from_digit(draw.below(16) as u32, 16).unwrap_or('0'),
            };
            out.push(if upper { fake.to_ascii_uppercase() } else { fake });
            digit += usize::from(c != '-');
        }
        Some(())
    }

    pub(super) fn hash(&mut self, value: &str, out: &mut String) {
        let mut draw = self.draw(value);
        let length = self.rule.length.unwrap_or(32);
        let digits: String = (0..4).map(|_| format!("{:016x}", draw.bits())).collect();
        out.push_str(&digits[..length.min(digits.len())]);
    }
}
