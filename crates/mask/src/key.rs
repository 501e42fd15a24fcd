//! The secret that makes fakes: who has it can find out which fake belongs to which value, by trying values.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::MaskError;

/// 256 bits. Never printed, never written anywhere but to the file it was made for.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

impl Key {
    /// Makes a new key and writes it to a file that must not exist yet, readable by its owner only.
    pub fn create(path: &Path) -> Result<Self, MaskError> {
        let mut bytes = [0; 32];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| MaskError::Key { path: path.to_owned(), why: "the system gives no random bytes".into() })?;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(MaskError::file("make the key", path))?;
        writeln!(file, "{}", hex(&bytes)).and_then(|()| file.sync_all()).map_err(MaskError::file("write", path))?;
        Ok(Self(bytes))
    }

    /// Reads a key that [`Key::create`] wrote.
    pub fn load(path: &Path) -> Result<Self, MaskError> {
        let wrong = |why: &str| MaskError::Key { path: path.to_owned(), why: why.to_owned() };
        let meta = fs::metadata(path).map_err(|error| {
            wrong(&format!("{error}: make one with `sloplet mask --new-key {}`", path.to_string_lossy()))
        })?;
        if meta.permissions().mode() & 0o077 != 0 {
            return Err(wrong("others can read it: chmod 600 it, and make a new one if it may have been read"));
        }
        if meta.len() > 1024 {
            return Err(wrong("it is too long to be a key"));
        }
        let text = fs::read_to_string(path).map_err(MaskError::file("read", path))?;
        Self::parse(&text).ok_or_else(|| wrong("a key is 64 hexadecimal digits"))
    }

    /// A key as it is in a file: 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// A key that is no secret: for rows that belong to nobody, made again from the same number.
    pub fn from_seed(seed: u64) -> Self {
        Self::from_bytes(Self([0; 32]).sign(format!("seed\0{seed}").as_bytes()))
    }

    /// A key from its bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key of one purpose.
    pub(crate) fn derive(&self, purpose: &str) -> Self {
        Self(self.sign(format!("domain\0{purpose}").as_bytes()))
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn sign(&self, message: &[u8]) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), message).as_ref());
        bytes
    }
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_private_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let made = Key::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Key::load(&path).unwrap().0, made.0);
        assert_eq!(format!("{made:?}"), "Key(secret)");
        assert!(Key::create(&path).is_err(), "an existing key is never replaced");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Key::load(&path).unwrap_err().to_string().contains("chmod 600"));
        assert!(Key::parse("zz").is_none());
    }
}
