//! From a value to numbers that nobody can foretell without the key: HMAC-SHA-256 of (domain, value).

use ring::hmac;
use sha2::block_api::compress256;

use crate::Key;

/// The keyed function of one domain. Equal values of one domain give equal draws, in every file and every run.
#[derive(Clone)]
pub struct Prf {
    key: hmac::Key,
    /// SHA-256's state after a block that holds the key: what one more block gives is the round function of
    /// [`crate::permute`], at half the price of an HMAC.
    keyed: [u32; 8],
}

impl Prf {
    /// For `domain`, under `key`.
    pub fn new(key: &Key, domain: &str) -> Self {
        let key = key.derive(domain).hmac();
        let mut block = [0; 64];
        block[..32].copy_from_slice(hmac::sign(&key, b"round function").as_ref());
        let mut keyed =
            [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
        compress256(&mut keyed, &[block]);
        Self { key, keyed }
    }

    /// What belongs to `value`.
    pub fn draw(&self, value: &[u8]) -> Draw {
        let tag = hmac::sign(&self.key, value);
        let mut state = [0; 4];
        for (word, bytes) in state.iter_mut().zip(tag.as_ref().chunks_exact(8)) {
            *word = bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        Draw { state }
    }

    /// What belongs to `value` on the `attempt`th try, for when the first was no good.
    pub fn draw_again(&self, value: &[u8], attempt: u8) -> Draw {
        if attempt == 0 {
            return self.draw(value);
        }
        let mut longer = Vec::with_capacity(value.len() + 2);
        longer.extend_from_slice(value);
        longer.extend_from_slice(&[0, attempt]);
        self.draw(&longer)
    }

    /// The round function: 64 bits from a round's number, the size of the permutation, and a half.
    pub fn round(&self, round: u8, size: u128, half: u64) -> u64 {
        let mut block = [0; 64];
        block[0] = round;
        block[8..24].copy_from_slice(&size.to_le_bytes());
        block[24..32].copy_from_slice(&half.to_le_bytes());
        let mut state = self.keyed;
        compress256(&mut state, &[block]);
        u64::from(state[0]) << 32 | u64::from(state[1])
    }
}

/// A stream of numbers: xoshiro256**, begun with the 256 bits of an HMAC.
pub struct Draw {
    state: [u64; 4],
}

impl Draw {
    /// 64 bits.
    pub fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound`, or 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// One of several.
    pub fn pick<'a, T: ?Sized>(&mut self, all: &'a [&'a T]) -> Option<&'a T> {
        all.get(self.below(all.len() as u64) as usize).copied()
    }

    /// A fraction in 0..1.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Appends `length` of the 32 letters and digits that cannot be taken for one another. 13 hold 65 bits: two of a
    /// hundred million values get the same with a chance of one in four thousand.
    pub fn token(&mut self, length: usize, out: &mut String) {
        const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
        for _ in 0..length {
            out.push(char::from(ALPHABET[(self.next() >> 59) as usize]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_hmac_sha_256_of_domain_and_value() {
        // Computed with Python: hmac.new(hmac.new(bytes(32), b"domain\0email", "sha256").digest(), b"a", "sha256")
        let prf = Prf::new(&Key::from_bytes([0; 32]), "email");
        assert_eq!(prf.draw(b"a").state[0], EXPECTED);
        assert_ne!(prf.draw(b"a").state, prf.draw(b"b").state);
        assert_ne!(prf.draw(b"a").state, Prf::new(&Key::from_bytes([0; 32]), "phone").draw(b"a").state);
        assert_ne!(prf.draw(b"a").state, prf.draw_again(b"a", 1).state);
    }

    const EXPECTED: u64 = 0x79acc4cdcf13577c;
}
