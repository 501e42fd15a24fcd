//! The part of an address after the question mark.

use std::str::FromStr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;

use crate::error::ApiError;

/// Pairs of names and values.
#[derive(Debug, Clone, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Takes `a=1&b=2` apart.
    pub fn parse(text: &str) -> Self {
        let pair = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decode(name), decode(value))
        };
        Self(text.split('&').filter(|part| !part.is_empty()).map(pair).collect())
    }

    /// A value, if it was given and is not empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// A value that must be given.
    pub fn needed(&self, name: &str) -> Result<&str, ApiError> {
        self.text(name).ok_or_else(|| ApiError::bad_request(format!("the parameter '{name}' is missing")))
    }

    /// A number, or something else that is written as one word.
    pub fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| ApiError::bad_request(format!("the parameter '{name}' is not valid")))
    }

    /// All values of a name, which may be repeated or hold several between commas.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let values = self.0.iter().filter(|(known, _)| known == name || known.strip_suffix("[]") == Some(name));
        values.flat_map(|(_, value)| value.split(',')).filter(|value| !value.is_empty()).collect()
    }

    /// Metadata: pairs within a value, whose names and values are encoded once more.
    pub fn metadata(&self) -> Vec<(String, String)> {
        let Some(text) = self.text("metadata") else { return Vec::new() };
        let again = |text: String| percent_decode_str(&text).decode_utf8_lossy().into_owned();
        Self::parse(text).0.into_iter().map(|(name, value)| (again(name), again(value))).collect()
    }
}

/// `+` is a space here.
fn decode(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found() {
        let query = Query::parse("limit=5&state=running%2Cpaused&state=x&empty=&path=%2Fa+b%2Bc&sandbox_ids[]=q");
        assert_eq!(query.number::<usize>("limit").unwrap(), Some(5));
        assert_eq!(query.all("state"), ["running", "paused", "x"]);
        assert_eq!(query.all("sandbox_ids"), ["q"]);
        assert_eq!(query.text("empty"), None);
        assert_eq!(query.text("path"), Some("/a b+c"));
        assert!(query.needed("none").is_err());
        assert!(Query::parse("limit=x").number::<usize>("limit").is_err());
        assert!(Query::parse("limit=-1").number::<usize>("limit").is_err());
    }

    #[test]
    fn metadata_are_encoded_three_times() {
        // {"a b": "c=d&e", "p": "50%"} as the SDKs send it.
        let inner = "a%2520b=c%253Dd%2526e&p=50%2525";
        let outer: String = inner.replace('%', "%25").replace('=', "%3D").replace('&', "%26");
        let wanted = [("a b".to_owned(), "c=d&e".to_owned()), ("p".to_owned(), "50%".to_owned())];
        assert_eq!(Query::parse(&format!("metadata={outer}")).metadata(), wanted);
        assert!(Query::parse("").metadata().is_empty());
    }
}
