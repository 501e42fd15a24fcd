//! A stream as an object, in parts.

use std::collections::HashMap;
use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use md5::{Digest as _, Md5};
use rusty_s3::S3Action;
use rusty_s3::actions::{CompleteMultipartUploadResponse, CreateMultipartUpload, ListParts};
use sha2::Sha256;
use tokio::task::JoinSet;

use crate::answer::{as_usual, list_of_parts};
use crate::client::{Client, SIGNED_FOR, again};
use crate::error::S3Error;
use crate::object::Object;
use crate::wire::text;

/// Bytes of a part, at least: fewer round trips, and three of them fit into any memory.
pub const PART: usize = 8 << 20;

/// S3 takes no more parts.
const PARTS: usize = 10_000;

/// Parts that are on their way at once.
const PARALLEL: usize = 3;

/// Bytes of a part of something of that size.
pub fn part_bytes(size: u64) -> usize {
    let smallest = usize::try_from(size.div_ceil(PARTS as u64 - 1)).unwrap_or(usize::MAX);
    smallest.max(PART).next_multiple_of(1 << 20)
}

/// A part that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    etag: String,
    size: u64,
}

/// What is there now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uploaded {
    /// The object's version.
    pub etag: String,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes that were there from an earlier attempt, and were not sent again.
    pub resumed: u64,
    /// The SHA-256 of all, in hex.
    pub sha256: String,
}

impl Client {
    /// Begins an upload; returns what it is called.
    pub async fn begin(&self, object: &Object) -> Result<String, S3Error> {
        let (bucket, what) = (self.bucket(object)?, object.to_string());
        again(|| async {
            let url = bucket.create_multipart_upload(Some(&self.credentials), &object.key).sign(SIGNED_FOR);
            let answer = self.ask(hyper::Method::POST, &url, Bytes::new(), &what).await?;
            let made = CreateMultipartUpload::parse_response(&as_usual(&answer, "InitiateMultipartUploadResult"));
            made.map(|made| made.upload_id().to_owned()).map_err(|error| unreadable(&what, error))
        })
        .await
    }

    /// The parts of an upload that are there; `None` if there is no such upload any more.
    pub async fn parts(&self, object: &Object, upload: &str) -> Result<Option<HashMap<u16, Part>>, S3Error> {
        let (bucket, what) = (self.bucket(object)?, object.to_string());
        let (mut found, mut after) = (HashMap::new(), None);
        loop {
            let answer = again(|| async {
                let mut action = bucket.list_parts(Some(&self.credentials), &object.key, upload);
                if let Some(after) = after {
                    action.set_part_number_marker(after);
                }
                self.ask(hyper::Method::GET, &action.sign(SIGNED_FOR), Bytes::new(), &what).await
            });
            let answer = match answer.await {
                Err(S3Error::NotFound(_) | S3Error::Refused { status: 404, .. }) => return Ok(None),
                answer => answer?,
            };
            let listed =
                ListParts::parse_response(&list_of_parts(&answer)).map_err(|error| unreadable(&what, error))?;
            let next = listed.next_part_number_marker;
            found.extend(listed.parts.into_iter().map(|part| (part.number, Part { etag: part.etag, size: part.size })));
            match next {
                Some(next) if after.is_none_or(|after| next > after) => after = Some(next),
                _ => return Ok(Some(found)),
            }
        }
    }

    /// Gives an upload up: nothing of it stays.
    pub async fn abort(&self, object: &Object, upload: &str) -> Result<(), S3Error> {
        let (bucket, what) = (self.bucket(object)?, object.to_string());
        let gone = again(|| async {
            let url = bucket.abort_multipart_upload(Some(&self.credentials), &object.key, upload).sign(SIGNED_FOR);
            self.ask(hyper::Method::DELETE, &url, Bytes::new(), &what).await
        });
        match gone.await {
            Ok(_) | Err(S3Error::NotFound(_) | S3Error::Refused { status: 404, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sends what comes, except for the parts that are `there` already, and makes an object of it.
    pub async fn upload(
        &self,
        object: &Object,
        upload: &str,
        there: &HashMap<u16, Part>,
        part_bytes: usize,
        pieces: impl Stream<Item = io::Result<Bytes>> + Send,
    ) -> Result<Uploaded, S3Error> {
        let mut pieces = std::pin::pin!(pieces);
        let mut sending = JoinSet::new();
        let (mut etags, mut digests) = (Vec::<String>::new(), Vec::<[u8; 16]>::new());
        let (mut whole, mut bytes, mut resumed) = (Sha256::new(), 0u64, 0u64);
        let mut buffer = BytesMut::with_capacity(part_bytes);
        let mut over = false;
        while !over {
            match pieces.next().await {
                Some(piece) => buffer.extend_from_slice(&piece.map_err(S3Error::Source)?),
                None => over = true,
            }
            while buffer.len() >= part_bytes || (over && (!buffer.is_empty() || etags.is_empty())) {
                let part = buffer.split_to(buffer.len().min(part_bytes)).freeze();
                if etags.len() == PARTS {
                    return Err(S3Error::TooLarge(object.to_string()));
                }
                let hashed = tokio::task::spawn_blocking(move || {
                    whole.update(&part);
                    let digest: [u8; 16] = Md5::digest(&part).into();
                    (whole, digest, part)
                });
                let (updated, digest, part) = hashed.await.map_err(|error| S3Error::Source(io::Error::other(error)))?;
                whole = updated;
                bytes += part.len() as u64;
                let number = u16::try_from(etags.len() + 1).unwrap_or(u16::MAX);
                digests.push(digest);
                match there.get(&number) {
                    Some(known) if known.size == part.len() as u64 && plain(&known.etag) == hex(&digest) => {
                        resumed += known.size;
                        etags.push(known.etag.clone());
                    }
                    _ => {
                        etags.push(String::new());
                        while sending.len() >= PARALLEL {
                            settle(&mut sending, &mut etags).await?;
                        }
                        let (client, object, upload) = (self.clone(), object.clone(), upload.to_owned());
                        sending.spawn(async move { client.part(&object, &upload, number, part, digest).await });
                    }
                }
            }
        }
        while !sending.is_empty() {
            settle(&mut sending, &mut etags).await?;
        }
        let etag = self.complete(object, upload, &etags).await?;
        // Where the digests of parts are what they usually are, so is that of the object.
        let usual = etags.iter().zip(&digests).all(|(etag, digest)| plain(etag) == hex(digest));
        let expected = format!("{}-{}", hex(&Md5::digest(digests.concat())), digests.len());
        if usual && plain(&etag).contains('-') && plain(&etag) != expected {
            return Err(S3Error::Damaged(object.to_string()));
        }
        Ok(Uploaded { etag, bytes, resumed, sha256: hex(&whole.finalize()) })
    }

    async fn part(
        &self,
        object: &Object,
        upload: &str,
        number: u16,
        part: Bytes,
        digest: [u8; 16],
    ) -> Result<(u16, String), S3Error> {
        let (bucket, what) = (self.bucket(object)?, object.to_string());
        let md5 = BASE64.encode(digest);
        again(|| async {
            let mut action = bucket.upload_part(Some(&self.credentials), &object.key, number, upload);
            action.headers_mut().insert("content-md5", md5.clone());
            let url = action.sign(SIGNED_FOR);
            let headers = [("content-md5", md5.clone())];
            let response = self.wire.send(hyper::Method::PUT, &url, &headers, part.clone(), &what).await?;
            let etag = response.headers().get("etag").and_then(|etag| etag.to_str().ok()).map(str::to_owned);
            text(response, &what).await?;
            let missing = || S3Error::Broken { what: what.clone(), reason: "an answer without ETag".into() };
            Ok((number, etag.ok_or_else(missing)?))
        })
        .await
    }

    async fn complete(&self, object: &Object, upload: &str, etags: &[String]) -> Result<String, S3Error> {
        let (bucket, what) = (self.bucket(object)?, object.to_string());
        again(|| async {
            let list = etags.iter().map(String::as_str);
            let action = bucket.complete_multipart_upload(Some(&self.credentials), &object.key, upload, list);
            let url = action.sign(SIGNED_FOR);
            let answer = self.ask(hyper::Method::POST, &url, action.body().into(), &what).await?;
            let answer = as_usual(&answer, "CompleteMultipartUploadResult");
            let made = CompleteMultipartUploadResponse::parse(&answer).map_err(|error| unreadable(&what, error))?;
            Ok(made.etag().to_owned())
        })
        .await
    }
}

/// Waits for one of the parts that are on their way.
async fn settle(sending: &mut JoinSet<Result<(u16, String), S3Error>>, etags: &mut [String]) -> Result<(), S3Error> {
    match sending.join_next().await {
        Some(Ok(sent)) => {
            let (number, etag) = sent?;
            etags[usize::from(number) - 1] = etag;
            Ok(())
        }
        Some(Err(error)) => Err(S3Error::Source(io::Error::other(error))),
        None => Ok(()),
    }
}

fn plain(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unreadable(what: &str, error: impl std::fmt::Display) -> S3Error {
    S3Error::Broken { what: what.to_owned(), reason: format!("an answer that makes no sense ({error})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_large_enough_for_anything() {
        assert_eq!(part_bytes(0), PART);
        assert_eq!(part_bytes(64 << 20), PART);
        for size in [80u64 << 30, 1 << 40, 5 << 40] {
            assert!(size.div_ceil(part_bytes(size) as u64) <= PARTS as u64, "{size}");
        }
    }
}
