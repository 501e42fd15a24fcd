//! What can be asked of S3.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use hyper::body::Incoming;
use rusty_s3::{Bucket, Credentials, S3Action};
use url::Url;

use crate::error::S3Error;
use crate::object::Object;
use crate::settings::Settings;
use crate::wire::{Wire, refusal, text};

/// How long a signature of our own requests is good for.
pub(crate) const SIGNED_FOR: Duration = Duration::from_secs(900);

/// The longest that S3 lets an address be good for.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// How often something that may pass is tried.
pub(crate) const ATTEMPTS: u32 = 5;

/// S3, with our credentials. Clones are cheap.
#[derive(Clone)]
pub struct Client {
    settings: Arc<Settings>,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) wire: Wire,
}

impl fmt::Debug for Client {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(to)
    }
}

/// What is known of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Its bytes.
    pub size: u64,
    /// Which version it is.
    pub etag: String,
}

/// What an address lets do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Read.
    Get,
    /// Write, as a whole.
    Put,
    /// Remove.
    Delete,
}

impl Client {
    /// With these settings.
    pub fn new(settings: Settings) -> Result<Self, S3Error> {
        let credentials = match &settings.token {
            Some(token) => Credentials::new_with_token(&settings.key, &settings.secret, token),
            None => Credentials::new(&settings.key, &settings.secret),
        };
        Ok(Self { settings: Arc::new(settings), credentials: Arc::new(credentials), wire: Wire::new()? })
    }

    pub(crate) fn bucket(&self, object: &Object) -> Result<Bucket, S3Error> {
        let Settings { endpoint, style, region, .. } = &*self.settings;
        Bucket::new(endpoint.clone(), *style, object.bucket.clone(), region.clone())
            .map_err(|error| S3Error::Settings(error.to_string()))
    }

    /// An address with which anybody may read or write an object until it expires.
    pub fn presign(&self, method: Method, object: &Object, expires: Duration) -> Result<String, S3Error> {
        if expires.is_zero() || expires > LONGEST {
            return Err(S3Error::Settings("an address is good for at least a second and at most seven days".into()));
        }
        let (bucket, credentials) = (self.bucket(object)?, Some(&*self.credentials));
        let url = match method {
            Method::Get => bucket.get_object(credentials, &object.key).sign(expires),
            Method::Delete => bucket.delete_object(credentials, &object.key).sign(expires),
            Method::Put => bucket.put_object(credentials, &object.key).sign(expires),
        };
        Ok(url.into())
    }

    /// Looks at an object.
    pub async fn head(&self, object: &Object) -> Result<Head, S3Error> {
        let bucket = self.bucket(object)?;
        let what = object.to_string();
        again(|| async {
            let url = bucket.head_object(Some(&self.credentials), &object.key).sign(SIGNED_FOR);
            let response = self.wire.send(hyper::Method::HEAD, &url, &[], Bytes::new(), &what).await?;
            if !response.status().is_success() {
                return Err(refusal(response.status().as_u16(), "", &what));
            }
            head_of(&response, &what)
        })
        .await
    }

    /// Removes an object; none is fine.
    pub async fn delete(&self, object: &Object) -> Result<(), S3Error> {
        let bucket = self.bucket(object)?;
        let what = object.to_string();
        again(|| async {
            let url = bucket.delete_object(Some(&self.credentials), &object.key).sign(SIGNED_FOR);
            let response = self.wire.send(hyper::Method::DELETE, &url, &[], Bytes::new(), &what).await?;
            text(response, &what).await.map(drop)
        })
        .await
    }

    pub(crate) async fn ask(
        &self,
        method: hyper::Method,
        url: &Url,
        body: Bytes,
        what: &str,
    ) -> Result<String, S3Error> {
        text(self.wire.send(method, url, &[], body, what).await?, what).await
    }
}

/// Size and version, out of the headers of an answer.
pub(crate) fn head_of(response: &Response<Incoming>, what: &str) -> Result<Head, S3Error> {
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let size = header("content-length").and_then(|value| value.parse().ok());
    match (size, header("etag")) {
        (Some(size), Some(etag)) => Ok(Head { size, etag: etag.to_owned() }),
        _ => Err(S3Error::Broken { what: what.to_owned(), reason: "an answer without size or ETag".into() }),
    }
}

/// Tries until it works, or cannot work, or has been tried enough.
pub(crate) async fn again<T, F: Future<Output = Result<T, S3Error>>>(ask: impl Fn() -> F) -> Result<T, S3Error> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match ask().await {
            Err(error) if error.passes() && attempt < ATTEMPTS => pause(attempt).await,
            result => return result,
        }
    }
}

/// Longer each time.
pub(crate) async fn pause(attempt: u32) {
    tokio::time::sleep(Duration::from_millis(100 << attempt.min(6))).await;
}
