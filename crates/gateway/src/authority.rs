//! The certificates shown inside a sandbox.
//!
//! Each sandbox has an authority of its own: what one trusts, no other does. Its key never leaves the host. The authority is
//! not bound to names: a sandbox's rules may change while it runs, and only egress, which knows the rules, uses it.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;
use zeroize::Zeroizing;

/// Life of an authority: longer than a sandbox is kept, shorter than clients accept.
const AUTHORITY_DAYS: i64 = 365;

/// Life of a host's certificate. A new one is made when half of it is over.
const LEAF_DAYS: i64 = 2;

/// Clocks inside and on the host may differ.
const BACKDATED: Duration = Duration::from_secs(86_400);

/// Hosts whose certificates are kept.
const KEPT: usize = 256;

/// A sandbox's own certificate authority.
pub struct Authority {
    certificate_pem: String,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    /// One key for all hosts: making keys is what takes time.
    leaf_key: KeyPair,
    provider: Arc<CryptoProvider>,
    hosts: Mutex<HashMap<String, (OffsetDateTime, Arc<ServerConfig>)>>,
}

/// An authority that could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A certificate could not be made.
    #[error("could not make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// What was stored is not an authority.
    #[error(
        "the stored authority cannot be read ({0}): make a new one; programs inside must then be given its certificate"
    )]
    Stored(String),
    /// TLS refuses it.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

impl Authority {
    /// A new one.
    pub fn new() -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let certificate = params(&key).self_signed(&key)?;
        Self::with(key, certificate.pem(), certificate.der().clone())
    }

    /// One that was stored with [`Self::to_pem`].
    pub fn from_pem(pem: &str) -> Result<Self, AuthorityError> {
        let stored = |error: &dyn fmt::Display| AuthorityError::Stored(error.to_string());
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| stored(&error))?;
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| stored(&error))?;
        let key = KeyPair::try_from(&PrivateKeyDer::Pkcs8(der)).map_err(|error| stored(&error))?;
        let end = "-----END CERTIFICATE-----";
        let text = pem.find("-----BEGIN CERTIFICATE").zip(pem.find(end)).and_then(|(from, to)| pem.get(from..to));
        let text = format!("{}{end}\n", text.ok_or_else(|| stored(&"no certificate"))?);
        Self::with(key, text, certificate)
    }

    fn with(key: KeyPair, pem: String, certificate: CertificateDer<'static>) -> Result<Self, AuthorityError> {
        Ok(Self {
            certificate_pem: pem,
            certificate,
            issuer: Issuer::new(params(&key), key),
            leaf_key: KeyPair::generate()?,
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            hosts: Mutex::new(HashMap::new()),
        })
    }

    /// Its certificate, for the stores inside.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Certificate and private key, to be stored on the host and nowhere else.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let key = Zeroizing::new(self.issuer.key().serialize_pem());
        Zeroizing::new(format!("{}{}", self.certificate_pem, key.as_str()))
    }

    /// How TLS is spoken as this host. Clients that name another are refused in the handshake.
    pub(crate) fn server_config(&self, name: &str) -> Result<Arc<ServerConfig>, AuthorityError> {
        let now = OffsetDateTime::now_utc();
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((until, config)) = hosts.get(name)
            && now < *until
        {
            return Ok(config.clone());
        }
        let mut params = CertificateParams::new([name.to_owned()])?;
        // Java refuses a certificate without any; the names that count are the alternative ones.
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "sloplet gateway");
        params.not_before = now - BACKDATED;
        params.not_after = now + time::Duration::days(LEAF_DAYS);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(&self.leaf_key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(self.leaf_key.serialize_der().into());
        let key = self.provider.key_provider.load_private_key(key)?;
        let chain = vec![leaf.der().clone(), self.certificate.clone()];
        let only = Only { name: name.to_owned(), certified: Arc::new(CertifiedKey::new(chain, key)) };
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(only));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let config = Arc::new(config);
        if hosts.len() >= KEPT {
            hosts.clear();
        }
        hosts.insert(name.to_owned(), (now + time::Duration::days(LEAF_DAYS) / 2, config.clone()));
        Ok(config)
    }
}

/// What an authority with this key is: derived from the key alone, so that a stored one is made the same again.
fn params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = OffsetDateTime::now_utc() - BACKDATED;
    params.not_after = OffsetDateTime::now_utc() + time::Duration::days(AUTHORITY_DAYS);
    let digest = ring::digest::digest(&ring::digest::SHA256, key.public_key_raw());
    let id: String = digest.as_ref().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("sloplet sandbox {id}"));
    params
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority(…)")
    }
}

/// Shows a certificate to those who ask for this host, and to nobody else.
#[derive(Debug)]
struct Only {
    name: String,
    certified: Arc<CertifiedKey>,
}

impl ResolvesServerCert for Only {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let same = match hello.server_name() {
            Some(asked) => asked.eq_ignore_ascii_case(&self.name),
            // Addresses are not named in a handshake.
            None => self.name.parse::<IpAddr>().is_ok(),
        };
        same.then(|| self.certified.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_authority_goes_on_as_the_same() {
        let first = Authority::new().unwrap();
        let again = Authority::from_pem(&first.to_pem()).unwrap();
        assert_eq!(first.certificate_pem(), again.certificate_pem());
        assert_eq!(*first.to_pem(), *again.to_pem());
        assert!(!first.certificate_pem().contains("PRIVATE"));
    }

    #[test]
    fn what_is_no_authority_is_refused() {
        for text in ["", "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n"] {
            assert!(matches!(Authority::from_pem(text), Err(AuthorityError::Stored(_))), "{text}");
        }
        let only_public = Authority::new().unwrap().certificate_pem().to_owned();
        assert!(matches!(Authority::from_pem(&only_public), Err(AuthorityError::Stored(_))));
    }

    #[test]
    fn a_hosts_certificate_is_made_once() {
        let authority = Authority::new().unwrap();
        let one = authority.server_config("h.example").unwrap();
        assert!(Arc::ptr_eq(&one, &authority.server_config("h.example").unwrap()));
        assert!(!Arc::ptr_eq(&one, &authority.server_config("other.example").unwrap()));
    }
}
