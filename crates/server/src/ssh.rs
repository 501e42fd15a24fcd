//! What the HTTP side knows of SSH: whose public keys those are, and the door that streams can be handed to.

use std::future::Future;
use std::pin::Pin;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sloplet_engine::life::Record;
use sloplet_engine::life::clock::now_ms;
use sloplet_store::{Collection, Document, Store, StoreError};
use tokio::io::DuplexStream;

use crate::app::App;
use crate::auth::Access;
use crate::error::ApiError;
use crate::v1::{self, CreateSandbox};

/// Kinds of keys that logins may use.
const KINDS: [&str; 7] = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
];

/// Bytes of a line with a key. An RSA key of 16384 bits has less than 3000.
const LINE: usize = 8 * 1024;

/// After how long a sandbox that was made by a login sleeps when nobody uses it.
const IDLE: &str = "15m";

/// Characters of a label.
const LABEL: usize = 100;

/// A public key, as a line of `authorized_keys` or of a `.pub` file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    /// `ssh-ed25519` and the like.
    pub kind: String,
    /// As it goes over the wire.
    pub blob: Vec<u8>,
    /// What follows it, for people.
    pub comment: String,
}

impl PublicKey {
    /// Reads a line; the error says what is wrong with it.
    pub fn parse(line: &str) -> Result<Self, String> {
        let line = line.trim();
        if line.starts_with("-----BEGIN") {
            return Err("that is a private key: give the file that ends with .pub".into());
        }
        if line.len() > LINE || line.contains(['\n', '\r', '\0']) {
            return Err(format!("a public key is one line of {LINE} bytes at most"));
        }
        let mut words = line.splitn(3, [' ', '\t']);
        let (kind, text) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if !KINDS.contains(&kind) {
            let kind: String = kind.chars().take(40).collect();
            return Err(format!("'{}' is not a kind of key that can be used here", kind.escape_default()));
        }
        let blob = STANDARD.decode(text).or_else(|_| STANDARD_NO_PAD.decode(text));
        let blob = blob.map_err(|_| "what follows the kind of the key is not Base64".to_owned())?;
        // The blob says its kind again, as a text with its length before it.
        let inner =
            blob.split_first_chunk::<4>().and_then(|(length, rest)| rest.get(..u32::from_be_bytes(*length) as usize));
        if inner != Some(kind.as_bytes()) {
            return Err("the key is not of the kind that its line says".into());
        }
        let comment = words.next().unwrap_or_default().trim().chars().filter(|c| !c.is_control());
        Ok(Self { kind: kind.to_owned(), comment: comment.take(LABEL).collect(), blob })
    }

    /// `ssh-ed25519 AAAA…`.
    pub fn line(&self) -> String {
        format!("{} {}", self.kind, STANDARD.encode(&self.blob))
    }
}

/// `SHA256:…`, as `ssh-keygen -l` shows it.
pub fn fingerprint(blob: &[u8]) -> String {
    format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(blob)))
}

/// What a key is kept under: half of its digest.
fn id_of(blob: &[u8]) -> String {
    Sha256::digest(blob).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A public key of somebody who has an API key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshKey {
    /// Half of the digest of the key: no key can be two people's.
    pub id: String,
    /// Whose sandboxes it opens.
    pub owner: String,
    /// The API key it was added with, and without which it opens nothing; absent: the server's own user.
    pub key: Option<String>,
    /// For people.
    pub label: String,
    /// `ssh-ed25519 AAAA…`.
    pub public: String,
    /// As `ssh-keygen -l` shows it.
    pub fingerprint: String,
    /// When it was added, in milliseconds since 1970.
    pub created_ms: u64,
}

impl Document for SshKey {
    const KIND: &'static str = "ssh-key";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn created_ms(&self) -> u64 {
        self.created_ms
    }
}

/// All public keys that were added.
pub struct SshKeys(Collection<SshKey>);

impl SshKeys {
    /// Reads them.
    pub fn open(store: &Store) -> Self {
        Self(store.collection())
    }

    /// Adds one. `Taken` if it is there already, whoever added it.
    pub fn add(&self, access: &Access, public: &PublicKey, label: Option<&str>) -> Result<SshKey, StoreError> {
        let key = SshKey {
            id: id_of(&public.blob),
            owner: access.owner.clone(),
            key: access.key.clone(),
            label: label.unwrap_or(&public.comment).to_owned(),
            public: public.line(),
            fingerprint: fingerprint(&public.blob),
            created_ms: now_ms(),
        };
        self.0.insert(&key)?;
        Ok(key)
    }

    /// An owner's, newest first.
    pub fn list(&self, owner: &str) -> Result<Vec<SshKey>, StoreError> {
        self.0.of(owner)
    }

    /// Forgets one of an owner's, by its id, fingerprint or label; false if there was none.
    pub fn remove(&self, owner: &str, name: &str) -> Result<bool, StoreError> {
        let mine = self.0.of(owner)?;
        let found = mine.iter().find(|key| key.id == name || key.fingerprint == name || key.label == name);
        found.map_or(Ok(false), |key| self.0.remove(&key.id))
    }

    /// Who this key belongs to.
    pub fn find(&self, blob: &[u8]) -> Result<Option<SshKey>, StoreError> {
        self.0.get(&id_of(blob))
    }
}

impl App {
    /// Makes the sandbox that somebody named when they logged in: it stays until it is removed, sleeps when nobody uses it,
    /// and is woken by whoever comes.
    pub async fn make_for_login(&self, access: &Access, name: &str, image: Option<String>) -> Result<Record, ApiError> {
        let wanted = CreateSandbox {
            image,
            name: Some(name.to_owned()),
            // Names of sandboxes may have dots and underscores, which those of hosts may not.
            hostname: Some(name.replace(['.', '_'], "-")),
            timeout: Some(None),
            auto_resume: true,
            idle_timeout: Some(IDLE.into()),
            ..CreateSandbox::default()
        };
        v1::make(self, access, wanted, None).await
    }

    /// Who may log in with this key, if anybody. Once it is `shown` that they have its private half, it counts as a request of
    /// the API key that it was added with: not before, because anybody can name a public key.
    pub fn who_logs_in(&self, blob: &[u8], shown: bool) -> Option<Access> {
        let known = self.ssh_keys().find(blob).ok().flatten()?;
        match &known.key {
            None => Some(Access::local()),
            Some(id) => self.keys().access_of(id, shown).filter(|access| access.owner == known.owner),
        }
    }
}

/// What a client must find the server's key to be.
#[derive(Debug, Clone)]
pub struct HostKey {
    /// `ssh-ed25519 AAAA…`.
    pub public: String,
    /// As `ssh-keygen -l` shows it.
    pub fingerprint: String,
}

/// The SSH server, for streams that reach it over HTTP.
pub trait Door: Send + Sync {
    /// What a client must find its key to be.
    fn host_key(&self) -> HostKey;

    /// Where it listens, if it does.
    fn address(&self) -> Option<String>;

    /// Serves a client whose API key was checked already.
    fn serve(&self, stream: DuplexStream, access: Access) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@example.com";

    #[test]
    fn a_line_is_a_key_or_says_why_not() {
        let key = PublicKey::parse(KEY).unwrap();
        assert_eq!((key.kind.as_str(), key.comment.as_str(), key.blob.len()), ("ssh-ed25519", "me@example.com", 51));
        assert!(KEY.starts_with(&key.line()));
        for (bad, why) in [
            ("", "not a kind"),
            ("ssh-dss AAAA", "not a kind"),
            ("-----BEGIN OPENSSH PRIVATE KEY-----", "private key"),
            ("ssh-ed25519 ???", "Base64"),
            ("ssh-ed25519 AAAA", "not of the kind"),
            ("ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f", "not of the kind"),
            ("command=\"x\" ssh-ed25519 AAAA", "not a kind"),
            ("ssh-ed25519 AAAA\nssh-ed25519 AAAA", "one line"),
        ] {
            let error = PublicKey::parse(bad).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn a_key_belongs_to_whoever_added_it_first() {
        let keys = SshKeys::open(&Store::in_memory().unwrap());
        let key = PublicKey::parse(KEY).unwrap();
        let one = Access { owner: "one".into(), ..Access::local() };
        let other = Access { owner: "other".into(), ..Access::local() };
        keys.add(&one, &key, None).unwrap();
        assert!(matches!(keys.add(&other, &key, None), Err(StoreError::Taken(_))));
        assert_eq!(keys.find(&key.blob).unwrap().unwrap().owner, "one");
        assert!(!keys.remove("other", &fingerprint(&key.blob)).unwrap());
        assert!(keys.remove("one", &fingerprint(&key.blob)).unwrap());
        assert!(keys.find(&key.blob).unwrap().is_none());
    }
}
