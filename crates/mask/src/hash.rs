//! A quick hash for tables in memory: folded multiplication. Not keyed, and in no output.

use std::hash::{BuildHasherDefault, Hasher};

/// Numbers without a pattern.
const MIX: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];

/// 64 bits of some bytes.
pub fn hash(bytes: &[u8]) -> u64 {
    absorb(MIX[0], bytes)
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn absorb(state: u64, bytes: &[u8]) -> u64 {
    let mut state = state ^ (bytes.len() as u64).wrapping_mul(MIX[1]);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state = fold(state ^ u64::from_le_bytes(*word), MIX[1]).wrapping_add(MIX[0]);
    }
    fold(fold(state ^ tail(bytes, rest), MIX[1]) ^ MIX[0], MIX[0] | 1)
}

/// The bytes behind the last whole word. Loads that overlap: to copy them into a word first and to load that would make the
/// processor wait for the copy.
fn tail(bytes: &[u8], rest: &[u8]) -> u64 {
    match rest {
        [] => 0,
        _ if bytes.len() >= 8 => bytes.last_chunk().map_or(0, |last| u64::from_le_bytes(*last)),
        [first] => u64::from(*first),
        [first, second] => u64::from(*first) | u64::from(*second) << 8,
        [first, second, third] => u64::from(*first) | u64::from(*second) << 8 | u64::from(*third) << 16,
        _ => match (rest.first_chunk::<4>(), rest.last_chunk::<4>()) {
            (Some(first), Some(last)) => {
                u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32
            }
            _ => 0,
        },
    }
}

/// The same for the tables of the standard library.
#[derive(Default, Clone, Copy)]
pub struct Quick(u64);

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = absorb(self.0 ^ MIX[0], bytes);
    }
    fn write_u8(&mut self, _: u8) {
        // The end of a text, which says nothing where there is one.
    }
}

/// For the tables of the standard library.
pub type QuickState = BuildHasherDefault<Quick>;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn it_is_even_enough_to_sample_by() {
        let hashes: Vec<u64> = (0..100_000).map(|number: u32| hash(number.to_string().as_bytes())).collect();
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len());
        for bit in 0..64 {
            let set = hashes.iter().filter(|hash| *hash >> bit & 1 == 1).count();
            assert!((49_000..51_000).contains(&set), "bit {bit}: {set}");
        }
        assert_ne!(hash(b"\0"), hash(b""));
        assert_ne!(hash(b"abcdefgh"), hash(b"abcdefgh\0"));
    }
}
