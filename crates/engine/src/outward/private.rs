//! What of a sandbox is a secret, and what programs inside need to know of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use sloplet_gateway::authority::AuthorityError;
use sloplet_gateway::trust::{TrustError, java_trust_store, trust_environment};
use sloplet_gateway::value::ValueError;
use sloplet_gateway::{Authority, Secret, SecretValue, placeholder};
use sloplet_policy::Spec;

use crate::driver::{PutFile, When};

/// Where programs inside find whom to trust.
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

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
}

/// What must be remembered of them for as long as the sandbox lives. Whoever can read it knows the secrets.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Kept {
    authority: Option<String>,
    /// Placeholder and value, by name.
    secrets: BTreeMap<String, (String, Vec<u8>)>,
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
    /// For a sandbox like this. Values that were not `given` are taken from their sources, on this host.
    pub fn prepare(spec: &Spec, given: &BTreeMap<String, SecretValue>) -> Result<Self, PrivateError> {
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
        Ok(Self { authority: Some(Arc::new(Authority::new()?)), secrets })
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
        Ok(Self { authority, secrets: secrets.collect::<Result<_, PrivateError>>()? })
    }

    /// To be remembered.
    pub fn kept(&self) -> Kept {
        let secret =
            |secret: &Secret| (secret.rule.name.clone(), (secret.placeholder.clone(), secret.value.expose().to_vec()));
        Kept {
            authority: self.authority.as_ref().map(|authority| authority.to_pem().to_string()),
            secrets: self.secrets.iter().map(secret).collect(),
        }
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
