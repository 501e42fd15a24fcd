//! The signing key, and what is signed with it.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;

use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::error::LedgerError;
use crate::folder::{self, Folder};
use crate::line::{Hash, hex, unhex};

/// The key that a ledger's heads are checked with: 64 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = LedgerError;

    fn from_str(text: &str) -> Result<Self, LedgerError> {
        let bytes = unhex(text.trim()).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or(LedgerError::BadPublicKey)
    }
}

impl PublicKey {
    fn accepts(&self, message: &str, signature: &str) -> bool {
        let Some(signature) = unhex(signature) else { return false };
        UnparsedPublicKey::new(&ED25519, self.0).verify(message.as_bytes(), &signature).is_ok()
    }
}

/// A signed statement: up to record `seq`, the chain is the one that ends in `hash`. Kept elsewhere, it proves later that
/// nothing before it was cut or changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The last record it speaks for; 0 for an empty ledger.
    pub seq: u64,
    /// That record's hash.
    pub hash: String,
    /// When it was signed, in milliseconds since 1970.
    pub time_ms: u64,
    /// The public key.
    pub key: String,
    /// Ed25519.
    pub signature: String,
}

impl Head {
    /// Whether it was signed with this key.
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        self.key == key.to_string() && key.accepts(&self.message(), &self.signature)
    }

    fn message(&self) -> String {
        format!("sloplet ledger head\n{}\n{}\n{}\n", self.seq, self.hash, self.time_ms)
    }
}

/// A signed statement: segments up to this one were removed on purpose, and the next record's `prev` is `hash`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// The last segment that was removed.
    pub segment: u32,
    /// The last record that was removed.
    pub seq: u64,
    /// That record's hash.
    pub hash: String,
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// The public key.
    pub key: String,
    /// Ed25519.
    pub signature: String,
}

impl Checkpoint {
    /// Whether it was signed with this key.
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        self.key == key.to_string() && key.accepts(&self.message(), &self.signature)
    }

    fn message(&self) -> String {
        format!("sloplet ledger checkpoint\n{}\n{}\n{}\n{}\n", self.segment, self.seq, self.hash, self.time_ms)
    }
}

/// The secret half.
pub(crate) struct Key {
    pair: Ed25519KeyPair,
}

impl Key {
    /// Reads the key, or makes it. The caller holds the lock.
    pub fn open(folder: &Folder) -> Result<Self, LedgerError> {
        let path = folder.key();
        let bytes = match folder::read(&path)? {
            Some(bytes) => bytes,
            None => Self::make(&path)?,
        };
        let pair = Ed25519KeyPair::from_pkcs8(&bytes).map_err(|_| LedgerError::BadKey(path))?;
        let key = Self { pair };
        let public = folder.public_key();
        if folder::read(&public)?.is_none() {
            folder::replace(&public, format!("{}\n", key.public()).as_bytes())?;
        }
        Ok(key)
    }

    fn make(path: &Path) -> Result<Vec<u8>, LedgerError> {
        let failed = || LedgerError::io("make", path)(std::io::Error::other("no randomness"));
        let bytes = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| failed())?;
        folder::replace(path, bytes.as_ref())?;
        Ok(bytes.as_ref().to_vec())
    }

    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; 32];
        // An Ed25519 public key has 32 bytes.
        bytes.iter_mut().zip(self.pair.public_key().as_ref()).for_each(|(to, from)| *to = *from);
        PublicKey(bytes)
    }

    pub fn head(&self, seq: u64, hash: &Hash) -> Head {
        let mut head = Head {
            seq,
            hash: String::from_utf8_lossy(hash).into_owned(),
            time_ms: crate::now_ms(),
            key: self.public().to_string(),
            signature: String::new(),
        };
        head.signature = hex(self.pair.sign(head.message().as_bytes()).as_ref());
        head
    }

    pub fn checkpoint(&self, segment: u32, seq: u64, hash: &str) -> Checkpoint {
        let mut checkpoint = Checkpoint {
            segment,
            seq,
            hash: hash.to_owned(),
            time_ms: crate::now_ms(),
            key: self.public().to_string(),
            signature: String::new(),
        };
        checkpoint.signature = hex(self.pair.sign(checkpoint.message().as_bytes()).as_ref());
        checkpoint
    }
}

/// One line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> Vec<u8> {
    let mut line = Vec::new();
    // Structures of numbers and strings always serialise.
    if serde_json::to_writer(&mut line, value).is_ok() {
        let _ = line.write_all(b"\n");
    }
    line
}
