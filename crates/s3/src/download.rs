//! An object as one stream, which goes on where it broke off.

use bytes::Bytes;
use futures_util::{Stream, stream};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rusty_s3::S3Action;

use crate::client::{ATTEMPTS, Client, Head, SIGNED_FOR, head_of, pause};
use crate::error::S3Error;
use crate::object::Object;
use crate::wire::text;

/// How long nothing may come.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// An object on its way.
pub struct Download {
    /// What is known of it.
    pub head: Head,
    client: Client,
    object: Object,
    body: Option<Incoming>,
    at: u64,
    failures: u32,
}

impl Client {
    /// Begins to read an object.
    pub async fn get(&self, object: &Object) -> Result<Download, S3Error> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.range(object, 0, None).await {
                Ok((head, body)) => {
                    let (client, object, body) = (self.clone(), object.clone(), Some(body));
                    return Ok(Download { head, client, object, body, at: 0, failures: 0 });
                }
                Err(error) if error.passes() && attempt < ATTEMPTS => pause(attempt).await,
                Err(error) => return Err(error),
            }
        }
    }

    async fn range(&self, object: &Object, at: u64, etag: Option<&str>) -> Result<(Head, Incoming), S3Error> {
        let (bucket, what) = (self.bucket(object)?, object.to_string());
        let url = bucket.get_object(Some(&self.credentials), &object.key).sign(SIGNED_FOR);
        let mut headers = Vec::new();
        if let Some(etag) = etag {
            headers.push(("if-match", etag.to_owned()));
            headers.push(("range", format!("bytes={at}-")));
        }
        let response = self.wire.send(hyper::Method::GET, &url, &headers, Bytes::new(), &what).await?;
        let status = response.status().as_u16();
        match (status, etag) {
            (200, None) => {}
            // rclone says 200, with the range.
            (200 | 206, Some(_)) => {
                let range = response.headers().get("content-range").and_then(|value| value.to_str().ok());
                if !range.is_some_and(|range| range.starts_with(&format!("bytes {at}-"))) {
                    return Err(S3Error::Broken { what, reason: "another range than was asked for".into() });
                }
            }
            (200..=299, _) => return Err(S3Error::Broken { what, reason: format!("an answer with status {status}") }),
            _ => return Err(text(response, &what).await.err().unwrap_or(S3Error::NotFound(what))),
        }
        let head = head_of(&response, &what)?;
        // Not all look at the condition.
        if etag.is_some_and(|etag| etag != head.etag) {
            return Err(S3Error::Changed(what));
        }
        Ok((head, response.into_body()))
    }
}

impl Download {
    /// The next bytes; `None` once all have come.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, S3Error> {
        loop {
            let broken = match &mut self.body {
                None => "the connection was closed".to_owned(),
                Some(body) => match tokio::time::timeout(PATIENCE, body.frame()).await {
                    Err(_) => "nothing came for a minute".to_owned(),
                    Ok(Some(Err(error))) => error.to_string(),
                    Ok(None) if self.at == self.head.size => return Ok(None),
                    Ok(None) => "the connection was closed".to_owned(),
                    Ok(Some(Ok(frame))) => match frame.into_data() {
                        Ok(bytes) if bytes.is_empty() => continue,
                        Ok(bytes) => {
                            self.at += bytes.len() as u64;
                            self.failures = 0;
                            return Ok(Some(bytes));
                        }
                        Err(_) => continue,
                    },
                },
            };
            self.body = None;
            self.failures += 1;
            if self.failures >= ATTEMPTS {
                return Err(S3Error::Broken { what: self.object.to_string(), reason: broken });
            }
            if self.at == self.head.size {
                return Ok(None);
            }
            pause(self.failures).await;
            match self.client.range(&self.object, self.at, Some(&self.head.etag)).await {
                Ok((_, body)) => self.body = Some(body),
                Err(error) if error.passes() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// All of it.
    pub fn stream(self) -> impl Stream<Item = Result<Bytes, S3Error>> + Send + 'static {
        stream::try_unfold(
            self,
            |mut download| async move { Ok(download.chunk().await?.map(|bytes| (bytes, download))) },
        )
    }
}
