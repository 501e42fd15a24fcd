//! How programs inside come to trust the sandbox's authority.

use std::path::Path;

use ring::digest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// What Java's own stores have; it guards nothing, the certificates are public.
const JAVA_PASSWORD: &str = "changeit";

/// A bundle of certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// Not PEM.
    #[error("not a bundle of PEM certificates: {0}")]
    Pem(String),
    /// Nothing in it.
    #[error("the bundle holds no certificate")]
    Empty,
}

/// The system's certificates and the sandbox's own, in one bundle. Programs that are given a bundle look at nothing else.
pub fn bundle(system_pem: &str, authority_pem: &str) -> String {
    format!("{}\n{}\n", system_pem.trim_end(), authority_pem.trim_end())
}

/// A store for Java (JKS) with all certificates of these PEM bundles.
pub fn java_trust_store(pems: &[&str]) -> Result<Vec<u8>, TrustError> {
    let mut certificates = Vec::new();
    for pem in pems {
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            certificates.push(certificate.map_err(|error| TrustError::Pem(error.to_string()))?);
        }
    }
    if certificates.is_empty() {
        return Err(TrustError::Empty);
    }
    let mut store = Vec::new();
    store.extend(0xFEED_FEED_u32.to_be_bytes());
    store.extend(2u32.to_be_bytes());
    store.extend(size(certificates.len()).to_be_bytes());
    for (number, certificate) in certificates.iter().enumerate() {
        store.extend(2u32.to_be_bytes()); // a certificate that is trusted, without a key
        text(&mut store, &format!("sloplet-{number}"));
        store.extend(0u64.to_be_bytes()); // when it was put in: always the same, so that the same bundle gives the same store
        text(&mut store, "X.509");
        store.extend(size(certificate.len()).to_be_bytes());
        store.extend_from_slice(certificate);
    }
    // The format's own check: SHA-1 over the password in UTF-16, these words, and the store.
    let mut sum = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    for unit in JAVA_PASSWORD.encode_utf16() {
        sum.update(&unit.to_be_bytes());
    }
    sum.update(b"Mighty Aphrodite");
    sum.update(&store);
    store.extend_from_slice(sum.finish().as_ref());
    Ok(store)
}

fn size(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn text(store: &mut Vec<u8>, text: &str) {
    store.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    store.extend_from_slice(text.as_bytes());
}

/// Variables that make programs trust the bundle, where they do not look at the system's store by themselves.
///
/// `bundle` must also hold the system's certificates: most of these replace the usual ones.
pub fn trust_environment(bundle: &Path, java: &Path) -> Vec<(String, String)> {
    let bundle = bundle.display().to_string();
    let mut variables: Vec<(String, String)> = [
        "SSL_CERT_FILE",                    // OpenSSL: Python, Ruby, wget; Go; rustls-native-certs
        "REQUESTS_CA_BUNDLE",               // Python's requests
        "PIP_CERT",                         // pip
        "CURL_CA_BUNDLE",                   // curl
        "GIT_SSL_CAINFO",                   // git
        "NODE_EXTRA_CA_CERTS",              // Node, in addition to its own
        "NPM_CONFIG_CAFILE",                // npm
        "CARGO_HTTP_CAINFO",                // cargo
        "AWS_CA_BUNDLE",                    // AWS's command line and libraries
        "DENO_CERT",                        // Deno, in addition to its own
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", // gRPC
        "HEX_CACERTS_PATH",                 // Elixir's packages
    ]
    .map(|name| (name.to_owned(), bundle.clone()))
    .into();
    let java = format!(
        "-Djavax.net.ssl.trustStore={} -Djavax.net.ssl.trustStoreType=JKS -Djavax.net.ssl.trustStorePassword={JAVA_PASSWORD}",
        java.display()
    );
    variables.push(("JAVA_TOOL_OPTIONS".to_owned(), java));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::Authority;

    #[test]
    fn a_java_store_holds_every_certificate_and_its_check() {
        let (one, two) = (Authority::new().unwrap(), Authority::new().unwrap());
        let store = java_trust_store(&[&bundle(one.certificate_pem(), two.certificate_pem())]).unwrap();
        assert_eq!(store[..12], [0xFE, 0xED, 0xFE, 0xED, 0, 0, 0, 2, 0, 0, 0, 2]);
        for authority in [one, two] {
            let der = CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes()).unwrap();
            assert!(memchr::memmem::find(&store, &der).is_some());
        }
        let mut checked: Vec<u8> = "changeit".encode_utf16().flat_map(u16::to_be_bytes).collect();
        checked.extend_from_slice(b"Mighty Aphrodite");
        checked.extend_from_slice(&store[..store.len() - 20]);
        let sum = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &checked);
        assert_eq!(sum.as_ref(), &store[store.len() - 20..]);
    }

    #[test]
    fn what_holds_no_certificate_is_refused() {
        assert!(matches!(java_trust_store(&[""]), Err(TrustError::Empty)));
        let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(matches!(java_trust_store(&[broken]), Err(TrustError::Pem(_))));
    }

    #[test]
    fn every_kind_of_program_gets_its_variable() {
        let variables = trust_environment(Path::new("/ca.pem"), Path::new("/ca.jks"));
        let value = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        assert_eq!(value("SSL_CERT_FILE"), Some("/ca.pem"));
        assert!(value("JAVA_TOOL_OPTIONS").is_some_and(|value| value.contains("trustStore=/ca.jks")));
    }
}
