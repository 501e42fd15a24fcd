//! What of a sandbox is a secret, and what programs inside need to know of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use sloplet_gateway::authority::AuthorityError;
use sloplet_gateway::trust::{TrustError, java_trust_store, trust_environment};
use sloplet_gateway::value::ValueError;
use sloplet_gateway::{Authority, Secret, SecretValue, placeholder};
use sloplet_policy::{SecretRule, Spec};

use crate::driver::{PutFile, When};

/// Where programs inside find whom to trust.
pub const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The same in the form that Java reads.
const JAVA: &str = "/etc/ssl/certs/java-trust.jks";

/// The largest store for Java: it goes to the spawner in one message. Distributions' bundles make about 150 KiB of it.
const JAVA_MOST: usize = 164 * 1024;

/// The host's bundle, whose authorities Java programs inside go on trusting.
const HOST_BUNDLES: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// The secrets of one sandbox; on the host only.
#[derive(Clone, Default)]
pub struct Private {
    authority: Option<Arc<Authority>>,
    secrets: Vec<Secret>,
    /// Its machine was there before the authority: only its bundle of certificates was told.
    late: bool,
}

/// What must be remembered of them for as long as the sandbox lives. Whoever can read it knows the secrets.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Kept {
    authority: Option<String>,
    /// Placeholder and value, by name.
    secrets: BTreeMap<String, (String, Vec<u8>)>,
    #[serde(default)]
    late: bool,
}

/// Secrets that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    /// A value.
    #[error("secret {name}: {source}")]
    Value {
        /// Of which.
        name: String,
        /// Why.
        source: ValueError,
    },
    /// The authority.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// What Java is to trust.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// Random numbers.
    #[error("the host has no random numbers to make a placeholder of")]
    Random,
    /// What was remembered does not fit the description.
    #[error("what was remembered of the secret {0} is gone: make the sandbox anew")]
    Forgotten(String),
}

impl Private {
    /// For a machine that nobody has claimed yet: whom its programs trust.
    pub fn without_secrets() -> Result<Self, PrivateError> {
        Ok(Self { authority: Some(Arc::new(Authority::new()?)), ..Self::default() })
    }

    /// For a sandbox like this. Values that were not `given` are taken from their sources, on this host.
    pub fn prepare(spec: &Spec, given: &BTreeMap<String, SecretValue>) -> Result<Self, PrivateError> {
        Self::prepare_on(spec, given, &Kept::default())
    }

    /// The same where a machine may trust an authority already, which is then `kept`.
    pub fn prepare_on(spec: &Spec, given: &BTreeMap<String, SecretValue>, kept: &Kept) -> Result<Self, PrivateError> {
        if !spec.is_read_along() {
            return Ok(Self::default());
        }
        let secrets = spec.secrets.iter().map(|rule| {
            let value = match given.get(&rule.name) {
                Some(value) => value.clone(),
                None => SecretValue::resolve(&rule.source)
                    .map_err(|source| PrivateError::Value { name: rule.name.clone(), source })?,
            };
            let placeholder = placeholder(rule).map_err(|_| PrivateError::Random)?;
            Ok(Secret { rule: rule.clone(), value, placeholder })
        });
        let secrets = secrets.collect::<Result<_, PrivateError>>()?;
        let authority = match &kept.authority {
            Some(pem) => Authority::from_pem(pem)?,
            None => Authority::new()?,
        };
        Ok(Self { authority: Some(Arc::new(authority)), secrets, late: false })
    }

    /// The same with more secrets, for a machine that is there; those of the same name are replaced.
    pub fn with(&self, rules: &[SecretRule], given: &BTreeMap<String, SecretValue>) -> Result<Self, PrivateError> {
        let mut more = self.clone();
        if more.authority.is_none() {
            (more.authority, more.late) = (Some(Arc::new(Authority::new()?)), true);
        }
        for rule in rules {
            let value = given.get(&rule.name).cloned().ok_or_else(|| PrivateError::Forgotten(rule.name.clone()))?;
            let placeholder = placeholder(rule).map_err(|_| PrivateError::Random)?;
            more.secrets.retain(|secret| secret.rule.name != rule.name);
            more.secrets.push(Secret { rule: rule.clone(), value, placeholder });
        }
        Ok(more)
    }

    /// As it was remembered.
    pub fn restore(spec: &Spec, kept: &Kept) -> Result<Self, PrivateError> {
        let authority = kept.authority.as_deref().map(Authority::from_pem).transpose()?.map(Arc::new);
        let secrets = spec.secrets.iter().map(|rule| {
            let forgotten = || PrivateError::Forgotten(rule.name.clone());
            let (placeholder, value) = kept.secrets.get(&rule.name).ok_or_else(forgotten)?;
            let value = SecretValue::new(value.clone());
            Ok(Secret { rule: rule.clone(), value, placeholder: placeholder.clone() })
        });
        Ok(Self { authority, secrets: secrets.collect::<Result<_, PrivateError>>()?, late: kept.late })
    }

    /// To be remembered.
    pub fn kept(&self) -> Kept {
        let secret =
            |secret: &Secret| (secret.rule.name.clone(), (secret.placeholder.clone(), secret.value.expose().to_vec()));
        Kept {
            authority: self.authority.as_ref().map(|authority| authority.to_pem().to_string()),
            secrets: self.secrets.iter().map(secret).collect(),
            late: self.late,
        }
    }

    /// For a machine that is about to be made: its programs trust the authority from the start.
    pub(crate) fn in_time(self) -> Self {
        Self { late: false, ..self }
    }

    /// Whether its machine was there before its authority.
    pub(crate) fn is_late(&self) -> bool {
        self.late
    }

    /// The bundle of certificates inside with its authority's, in place of what is there now.
    pub(crate) fn bundle(&self, there: &[u8]) -> Vec<u8> {
        let Some(authority) = &self.authority else { return there.to_vec() };
        let there = if there.is_empty() { host_bundle().as_bytes() } else { there };
        [there.trim_ascii_end(), b"\n", authority.certificate_pem().as_bytes()].concat()
    }

    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.authority.is_none()
    }

    pub(crate) fn authority(&self) -> Option<&Arc<Authority>> {
        self.authority.as_ref()
    }

    pub(crate) fn secrets(&self) -> &[Secret] {
        &self.secrets
    }

    /// Variables of all commands inside: placeholders, and whom to trust. `bare` puts the values themselves there, to test who
    /// should notice.
    pub(crate) fn environment(&self, bare: bool) -> Vec<(String, String)> {
        if self.authority.is_none() {
            return Vec::new();
        }
        let shown = |secret: &Secret| match bare {
            true => String::from_utf8_lossy(secret.value.expose()).into_owned(),
            false => secret.placeholder.clone(),
        };
        let placeholders = self.secrets.iter().map(|secret| (secret.rule.name.clone(), shown(secret)));
        if self.late {
            return placeholders.collect();
        }
        trust_environment(Path::new(BUNDLE), Path::new(JAVA)).into_iter().chain(placeholders).collect()
    }

    /// Files that make programs inside trust the sandbox's authority.
    pub(crate) fn files(&self) -> Result<Vec<PutFile>, PrivateError> {
        let Some(authority) = &self.authority else { return Ok(Vec::new()) };
        let pem = authority.certificate_pem();
        let mut java = java_trust_store(&[host_bundle(), pem])?;
        if java.len() > JAVA_MOST {
            // Hosts where keys are put in are what Java programs here most likely want.
            java = java_trust_store(&[pem])?;
        }
        Ok(vec![PutFile::certificates(pem), PutFile::new(JAVA, When::Always, java)])
    }
}

impl std::fmt::Debug for Private {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.secrets.iter().map(|secret| &secret.rule.name)).finish()
    }
}

/// The host's certificates; none where there are none.
fn host_bundle() -> &'static str {
    static BUNDLE: OnceLock<String> = OnceLock::new();
    BUNDLE.get_or_init(|| HOST_BUNDLES.iter().find_map(|path| std::fs::read_to_string(path).ok()).unwrap_or_default())
}
