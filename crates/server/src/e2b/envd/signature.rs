//! Signed addresses of files: whoever has one needs no token.

use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use sloplet_engine::life::clock::now_ms;

use crate::auth::same_secret;
use crate::error::ApiError;

/// What an address of a file says.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Address {
    /// Which file.
    pub path: Option<String>,
    /// On whose behalf.
    pub username: Option<String>,
    /// Made with the sandbox's token.
    pub signature: Option<String>,
    /// Until when, in seconds since 1970.
    pub signature_expiration: Option<i64>,
    /// The sandbox, for those who name it. The SDKs name it in the host or not at all.
    pub sandbox_id: Option<String>,
}

impl Address {
    /// Whether there is a signature of the right form.
    pub fn may_be_signed(&self) -> bool {
        let digest = self.signature.as_deref().and_then(|signature| signature.strip_prefix("v1_"));
        digest.is_some_and(|digest| digest.len() == 43)
    }

    /// Whether this token made the signature; it may have expired.
    pub fn is_signed_with(&self, token: &str, method: &Method) -> bool {
        let Some(given) = &self.signature else { return false };
        same_secret(given, &self.sign(token, method))
    }

    /// Refuses what this token did not sign, or not for so long.
    pub fn check(&self, token: &str, method: &Method) -> Result<(), ApiError> {
        if self.signature.is_none() {
            return Err(ApiError::unauthorized("missing signature query parameter"));
        }
        if !self.is_signed_with(token, method) {
            return Err(ApiError::unauthorized("invalid signature"));
        }
        match self.signature_expiration {
            Some(end) if end < (now_ms() / 1000) as i64 => Err(ApiError::unauthorized("signature is already expired")),
            _ => Ok(()),
        }
    }

    fn sign(&self, token: &str, method: &Method) -> String {
        let operation = if matches!(*method, Method::GET | Method::HEAD) { "read" } else { "write" };
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let mut signed = format!("{}:{operation}:{}:{token}", text(&self.path), text(&self.username));
        if let Some(end) = self.signature_expiration {
            signed.push_str(&format!(":{end}"));
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(signed.as_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(expiration: Option<i64>) -> Address {
        let mut address = Address {
            path: Some("a.txt".into()),
            username: Some("user".into()),
            signature: None,
            signature_expiration: expiration,
            sandbox_id: None,
        };
        address.signature = Some(address.sign("token", &Method::GET));
        address
    }

    fn refusal(address: &Address, token: &str, method: &Method) -> Option<String> {
        address.check(token, method).err().map(|error| error.message)
    }

    #[test]
    fn signatures_are_those_of_the_sdks() {
        // printf 'a.txt:read:user:token' | sha256sum, in base64.
        let known = "v1_".to_owned() + &STANDARD_NO_PAD.encode(Sha256::digest(b"a.txt:read:user:token"));
        assert_eq!(address(None).signature.as_deref(), Some(&*known));
        assert!(address(None).may_be_signed());
        assert_eq!(refusal(&address(None), "token", &Method::GET), None);
        assert_eq!(refusal(&address(None), "token", &Method::HEAD), None);
    }

    #[test]
    fn what_was_not_signed_is_refused() {
        let invalid = Some("invalid signature".to_owned());
        assert_eq!(refusal(&address(None), "other", &Method::GET), invalid);
        assert_eq!(refusal(&address(None), "token", &Method::POST), invalid);
        assert_eq!(refusal(&Address { path: Some("b".into()), ..address(None) }, "token", &Method::GET), invalid);
        // An expiration cannot be taken off or put off.
        assert_eq!(
            refusal(&Address { signature_expiration: None, ..address(Some(5)) }, "token", &Method::GET),
            invalid
        );
        assert!(refusal(&Address { signature: None, ..address(None) }, "token", &Method::GET).is_some());
    }

    #[test]
    fn signatures_expire() {
        let expired = Some("signature is already expired".to_owned());
        assert_eq!(refusal(&address(Some(1)), "token", &Method::GET), expired);
        assert_eq!(refusal(&address(Some(i64::MAX)), "token", &Method::GET), None);
    }
}
