//! From a value to numbers that nobody can foretell without the key: HMAC-SHA-256 of (domain, value).

use sha2::block_api::compress256;

use crate::Key;

/// Where SHA-256 begins (FIPS 180-4).
const INITIAL: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The keyed function of one domain. Equal values of one domain give equal draws, in every file and every run.
#[derive(Clone)]
pub struct Prf {
    /// SHA-256 after the key's block, for the inner and the outer digest of HMAC (RFC 2104): for a value of less than
    /// 56 bytes two blocks are left to digest.
    inner: [u32; 8],
    outer: [u32; 8],
    /// The key of the round function of [`crate::permute`]: SipHash-2-4, at a tenth of the price of an HMAC.
    round: (u64, u64),
}

impl Prf {
    /// For `domain`, under `key`.
    pub fn new(key: &Key, domain: &str) -> Self {
        let key = key.derive(domain);
        let padded = |pad: u8| {
            let (mut block, mut state) = ([pad; 64], INITIAL);
            block.iter_mut().zip(key.bytes()).for_each(|(byte, key)| *byte ^= key);
            compress256(&mut state, &[block]);
            state
        };
        let mut prf = Self { inner: padded(0x36), outer: padded(0x5c), round: (0, 0) };
        let mut draw = prf.draw(b"\0round function");
        prf.round = (draw.bits(), draw.bits());
        prf
    }

    /// What belongs to `value`.
    pub fn draw(&self, value: &[u8]) -> Draw {
        self.wrap(finish(self.inner, value))
    }

    /// What belongs to each of two values: side by side, for a processor waits for one digest as long as for two.
    pub fn draw_two(&self, [first, second]: [&[u8]; 2]) -> [Draw; 2] {
        let (first, second) = (finish(self.inner, first), finish(self.inner, second));
        [self.wrap(first), self.wrap(second)]
    }

    /// The outer half of HMAC.
    fn wrap(&self, inner: [u32; 8]) -> Draw {
        let mut digest = [0; 32];
        let (words, _) = digest.as_chunks_mut::<4>();
        words.iter_mut().zip(inner).for_each(|(bytes, word)| *bytes = word.to_be_bytes());
        let tag = finish(self.outer, &digest);
        let word = |at: usize| u64::from(tag[at]) << 32 | u64::from(tag[at + 1]);
        Draw { state: [word(0), word(2), word(4), word(6)] }
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

    /// The round function: 64 bits from a half. `size` sets permutations of different sizes apart.
    pub fn round(&self, round: u8, size: u128) -> Round {
        let tweak = (size as u64 ^ (size >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(round);
        Round::new(self.round, tweak)
    }
}

/// Digests what is left after a first block of 64 bytes.
fn finish(mut state: [u32; 8], message: &[u8]) -> [u32; 8] {
    let (blocks, rest) = message.as_chunks::<64>();
    if !blocks.is_empty() {
        compress256(&mut state, blocks);
    }
    let mut last = [0; 64];
    last[..rest.len()].copy_from_slice(rest);
    last[rest.len()] = 0x80;
    if rest.len() >= 56 {
        compress256(&mut state, &[last]);
        last = [0; 64];
    }
    last[56..].copy_from_slice(&((64 + message.len() as u64) * 8).to_be_bytes());
    compress256(&mut state, &[last]);
    state
}

/// SipHash-2-4 of two words, the first of which is known: a keyed function made for short input (Aumasson and Bernstein,
/// 2012).
#[derive(Clone, Copy)]
pub struct Round([u64; 4]);

impl Round {
    fn new((k0, k1): (u64, u64), first: u64) -> Self {
        let mut v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        Self::absorb(&mut v, first);
        Self(v)
    }

    /// What it is for the second word.
    pub fn of(&self, second: u64) -> u64 {
        let [only] = self.of_each([second]);
        only
    }

    /// What it is for each of several second words, side by side: each step of one waits for the step before.
    #[inline(always)]
    pub fn of_each<const N: usize>(&self, second: [u64; N]) -> [u64; N] {
        let mut all = [self.0; N];
        for (v, word) in all.iter_mut().zip(second) {
            v[3] ^= word;
        }
        Self::turns::<2, N>(&mut all);
        for (v, word) in all.iter_mut().zip(second) {
            v[0] ^= word;
            v[3] ^= 16 << 56;
        }
        Self::turns::<2, N>(&mut all);
        for v in &mut all {
            v[0] ^= 16 << 56;
            v[2] ^= 0xff;
        }
        Self::turns::<4, N>(&mut all);
        all.map(|v| v[0] ^ v[1] ^ v[2] ^ v[3])
    }

    #[inline(always)]
    fn turns<const COUNT: usize, const N: usize>(all: &mut [[u64; 4]; N]) {
        for _ in 0..COUNT {
            all.iter_mut().for_each(Self::turn);
        }
    }

    fn absorb(v: &mut [u64; 4], word: u64) {
        v[3] ^= word;
        Self::turn(v);
        Self::turn(v);
        v[0] ^= word;
    }

    #[inline(always)]
    fn turn(v: &mut [u64; 4]) {
        v[0] = v[0].wrapping_add(v[1]);
        v[2] = v[2].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[1]);
        v[0] = v[0].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].rotate_left(32);
    }
}

/// A stream of numbers: xoshiro256**, begun with the 256 bits of an HMAC.
#[derive(Clone)]
pub struct Draw {
    state: [u64; 4],
}

impl Draw {
    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
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
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// One of several.
    pub fn pick<'a, T: ?Sized>(&mut self, all: &'a [&'a T]) -> Option<&'a T> {
        all.get(self.below(all.len() as u64) as usize).copied()
    }

    /// A fraction in 0..1.
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Appends `length` of the 32 letters and digits that cannot be taken for one another. 13 hold 65 bits: two of a
    /// hundred million values get the same with a chance of one in four thousand.
    pub fn token(&mut self, length: usize, out: &mut String) {
        const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
        for _ in 0..length {
            out.push(char::from(ALPHABET[(self.bits() >> 59) as usize]));
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

    #[test]
    fn values_of_every_length_are_digested_as_another_hmac_does() {
        use ring::hmac;
        let (key, value) = (Key::from_bytes([7; 32]), [0x5a; 300]);
        let theirs = hmac::Key::new(hmac::HMAC_SHA256, key.derive("d").bytes());
        let prf = Prf::new(&key, "d");
        for length in 0..value.len() {
            let tag = hmac::sign(&theirs, &value[..length]);
            let own: Vec<u8> = prf.draw(&value[..length]).state.iter().flat_map(|word| word.to_be_bytes()).collect();
            assert_eq!(own, tag.as_ref(), "{length} bytes");
            let two = prf.draw_two([&value[..length], b"other"]);
            assert_eq!(two.map(|one| one.state), [prf.draw(&value[..length]).state, prf.draw(b"other").state]);
        }
    }

    #[test]
    #[allow(deprecated, reason = "the standard library's own, to compare with")]
    fn it_is_siphash_2_4() {
        use std::hash::{Hasher, SipHasher};
        for (key, message) in [((0, 0), [0, 0]), ((1, 2), [3, u64::MAX]), ((u64::MAX, 7), [1 << 63, 9])] {
            let mut theirs = SipHasher::new_with_keys(key.0, key.1);
            theirs.write(&[message[0].to_le_bytes(), message[1].to_le_bytes()].concat());
            let round = Round::new(key, message[0]);
            assert_eq!(round.of(message[1]), theirs.finish());
            assert_eq!(round.of_each([message[1], 5]), [round.of(message[1]), round.of(5)]);
        }
    }

    const EXPECTED: u64 = 0x79acc4cdcf13577c;
}
