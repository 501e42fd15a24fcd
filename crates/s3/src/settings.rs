//! Where S3 is and who we are there: the variables that its other clients know, and those of do-app-sandbox.

use std::fmt;

use rusty_s3::UrlStyle;
use url::Url;

use crate::error::S3Error;

/// Where S3 is and who we are there.
#[derive(Clone)]
pub struct Settings {
    pub(crate) endpoint: Url,
    pub(crate) region: String,
    pub(crate) style: UrlStyle,
    pub(crate) key: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
    /// A bucket that was named along with it.
    pub bucket: Option<String>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Settings").field("endpoint", &self.endpoint.as_str()).finish_non_exhaustive()
    }
}

impl Settings {
    /// Out of variables; `None` if there are no credentials.
    ///
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION` (or `AWS_DEFAULT_REGION`),
    /// `AWS_ENDPOINT_URL_S3` (or `AWS_ENDPOINT_URL`); or `SPACES_ACCESS_KEY`, `SPACES_SECRET_KEY`, `SPACES_REGION`,
    /// `SPACES_BUCKET`. `SLOPLET_S3_PATH_STYLE`, `true` or `false`, says whether the bucket is in the path.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, S3Error> {
        let said = |name: &str| variable(name).filter(|value| !value.is_empty());
        let first = |names: [&str; 2]| names.iter().find_map(|name| said(name));
        let (key, secret) = match (said("AWS_ACCESS_KEY_ID"), said("AWS_SECRET_ACCESS_KEY")) {
            (Some(key), Some(secret)) => (key, secret),
            (None, None) => match (said("SPACES_ACCESS_KEY"), said("SPACES_SECRET_KEY")) {
                (Some(key), Some(secret)) => return Self::spaces(&said, key, secret).map(Some),
                (None, None) => return Ok(None),
                _ => return Err(S3Error::Settings("set both SPACES_ACCESS_KEY and SPACES_SECRET_KEY".into())),
            },
            _ => return Err(S3Error::Settings("set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY".into())),
        };
        let region = first(["AWS_REGION", "AWS_DEFAULT_REGION"]).unwrap_or_else(|| "us-east-1".into());
        let endpoint = first(["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
        let usual = format!("https://s3.{region}.amazonaws.com");
        let token = said("AWS_SESSION_TOKEN");
        Self::at(&said, &endpoint.unwrap_or(usual), region, key, secret, token).map(Some)
    }

    fn spaces(said: &impl Fn(&str) -> Option<String>, key: String, secret: String) -> Result<Self, S3Error> {
        let region = said("SPACES_REGION").ok_or_else(|| S3Error::Settings("set SPACES_REGION, like fra1".into()))?;
        let usual = format!("https://{region}.digitaloceanspaces.com");
        let endpoint = said("AWS_ENDPOINT_URL_S3").unwrap_or(usual);
        Self::at(said, &endpoint, region, key, secret, None)
    }

    fn at(
        said: &impl Fn(&str) -> Option<String>,
        endpoint: &str,
        region: String,
        key: String,
        secret: String,
        token: Option<String>,
    ) -> Result<Self, S3Error> {
        let wrong = || S3Error::Settings(format!("'{endpoint}' is no address like https://s3.example.com"));
        let address = Url::parse(endpoint).map_err(|_| wrong())?;
        let host = address.host_str().filter(|_| matches!(address.scheme(), "http" | "https")).ok_or_else(wrong)?;
        let known = host.ends_with(".amazonaws.com") || host.ends_with(".digitaloceanspaces.com");
        let style = match said("SLOPLET_S3_PATH_STYLE").as_deref() {
            Some("true" | "1") => UrlStyle::Path,
            Some("false" | "0") => UrlStyle::VirtualHost,
            Some(_) => return Err(S3Error::Settings("SLOPLET_S3_PATH_STYLE is true or false".into())),
            None if known => UrlStyle::VirtualHost,
            None => UrlStyle::Path,
        };
        let bucket = said("SPACES_BUCKET");
        Ok(Self { endpoint: address, region, style, key, secret, token, bucket })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Option<Settings>, S3Error> {
        Settings::from_environment(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn variables_of_both_kinds_are_understood_and_never_shown() {
        assert!(of(&[]).unwrap().is_none());
        let aws = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "very secret")];
        let plain = of(&aws).unwrap().unwrap();
        assert_eq!(plain.endpoint.as_str(), "https://s3.us-east-1.amazonaws.com/");
        assert!(matches!(plain.style, UrlStyle::VirtualHost));
        assert!(!format!("{plain:?}").contains("secret"));
        let own = of(&[&aws[..], &[("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000")]].concat()).unwrap().unwrap();
        assert!(matches!(own.style, UrlStyle::Path));
        let spaces =
            [("SPACES_ACCESS_KEY", "i"), ("SPACES_SECRET_KEY", "s"), ("SPACES_REGION", "fra1"), ("SPACES_BUCKET", "b")];
        let spaces = of(&spaces).unwrap().unwrap();
        assert_eq!(spaces.endpoint.as_str(), "https://fra1.digitaloceanspaces.com/");
        assert_eq!(spaces.bucket.as_deref(), Some("b"));
        for wrong in
            [&aws[..1], &[("SPACES_ACCESS_KEY", "i")], &[&aws[..], &[("AWS_ENDPOINT_URL_S3", "ftp://x")]].concat()]
        {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }
}
