//! `POST /files`: content of files into a sandbox.

use std::collections::BTreeMap;
use std::io;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use multer::Multipart;
use serde::Serialize;
use sloplet_client::Upload;
use sloplet_wire::{Attribute, Entry};

use super::entry::{self, METADATA};
use super::files::{Access, refused};
use super::{gzip, rest};
use crate::app::App;
use crate::error::ApiError;
use crate::record::{Digest, TOKEN};

/// Permission bits of new files.
const FILE_MODE: u32 = 0o644;

/// Files of one request.
const MAX_FILES: usize = 10_000;

/// Headers that become metadata.
const METADATA_HEADER: &str = "x-metadata-";

/// Bytes of a key: the kernel's limit of an attribute's name.
const MAX_KEY: usize = 255 - "user.".len() - METADATA.len();

/// Bytes of all metadata of a file.
const MAX_METADATA: usize = 4096;

type Content = BoxStream<'static, io::Result<Bytes>>;

#[derive(Debug, Serialize)]
struct Written {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    path: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

impl Written {
    fn new(entry: &Entry) -> Self {
        let path = entry::clean(&String::from_utf8_lossy(&entry.path));
        Self { name: entry::name(&path).to_owned(), kind: "file", metadata: entry::metadata(entry), path }
    }
}

/// `POST /files`.
pub async fn upload(State(app): State<App>, request: Request) -> Response {
    let (access, headers, body) = match Access::new(&app, request).await {
        Ok(allowed) => allowed,
        Err(response) => return response,
    };
    let (mut content, result) = match decoded(&headers, body) {
        Ok(mut content) => {
            let result = receive(&access, &headers, &mut content).await;
            (content, result)
        }
        Err((content, error)) => (content, Err(error)),
    };
    match result {
        Ok(written) => Json(written).into_response(),
        Err(error) => {
            rest::discard(&mut content).await;
            error.into_response()
        }
    }
}

fn decoded(headers: &HeaderMap, body: Body) -> Result<Content, (Content, ApiError)> {
    let plain = body.into_data_stream().map(|bytes| bytes.map_err(io::Error::other)).boxed();
    match gzip::is_given(headers) {
        Ok(true) => Ok(gzip::decompress(plain).boxed()),
        Ok(false) => Ok(plain),
        Err(error) => Err((plain, error)),
    }
}

async fn receive(access: &Access, headers: &HeaderMap, content: &mut Content) -> Result<Vec<Written>, ApiError> {
    let attributes = metadata(headers)?;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/octet-stream" {
        let path = access.address.path.as_deref().filter(|path| !path.is_empty());
        let path = path.ok_or_else(|| ApiError::bad_request("the path query parameter is needed"))?;
        return Ok(vec![write(access, path, attributes, content).await?]);
    }
    if essence.starts_with("multipart/") {
        let boundary = multer::parse_boundary(kind).map_err(|error| ApiError::bad_request(error.to_string()))?;
        return receive_parts(access, &boundary, &attributes, content).await;
    }
    let message = format!("unsupported content type '{kind}': send multipart/form-data or application/octet-stream");
    Err(ApiError::bad_request(message))
}

async fn receive_parts(
    access: &Access,
    boundary: &str,
    attributes: &[Attribute],
    content: &mut Content,
) -> Result<Vec<Written>, ApiError> {
    let bad = |error: multer::Error| ApiError::bad_request(format!("the form is malformed: {error}"));
    // Lent: what is left of a form that is refused has to be read by somebody, or its sender never hears why.
    let mut form = Multipart::new(&mut *content, boundary);
    let mut written: Vec<Written> = Vec::new();
    let mut paths: Vec<String> = Vec::new();
    while let Some(field) = form.next_field().await.map_err(bad)? {
        if field.name() != Some("file") {
            continue;
        }
        let path = access.address.path.as_deref().or(field.file_name()).unwrap_or_default().to_owned();
        if path.is_empty() {
            return Err(ApiError::bad_request("a part has no file name, and the path query parameter is not given"));
        }
        if paths.contains(&path) {
            let message = format!("you cannot upload multiple files to the same path '{path}' in one request");
            return Err(ApiError::bad_request(message));
        }
        if written.len() >= MAX_FILES {
            return Err(ApiError::bad_request(format!("more than {MAX_FILES} files in one request")));
        }
        let mut part = field.map(|bytes| bytes.map_err(io::Error::other));
        written.push(write(access, &path, attributes.to_vec(), &mut part).await?);
        paths.push(path);
    }
    if written.is_empty() {
        return Err(ApiError::bad_request("the form has no part named 'file'"));
    }
    Ok(written)
}

async fn write<S>(access: &Access, path: &str, attributes: Vec<Attribute>, content: &mut S) -> Result<Written, ApiError>
where
    S: Stream<Item = io::Result<Bytes>> + Unpin,
{
    let target = access.target(path)?;
    let opened = access.sandbox.agent().write_with(target, FILE_MODE, true, attributes).await;
    let mut upload: Upload<Entry> = opened.map_err(|error| refused(path, &error))?;
    let mut digest = Digest::default();
    while let Some(bytes) = content.next().await {
        // Dropping the upload leaves what was there before.
        let bytes = bytes.map_err(|error| ApiError::bad_request(format!("the content broke off: {error}")))?;
        digest.add(&bytes);
        upload.write(bytes).await.map_err(|error| refused(path, &error))?;
    }
    let entry = upload.finish().await.map_err(|error| refused(path, &error))?;
    digest.note(&access.sandbox, TOKEN, &entry.path);
    Ok(Written::new(&entry))
}

/// The metadata that the headers name.
pub(crate) fn metadata(headers: &HeaderMap) -> Result<Vec<Attribute>, ApiError> {
    let invalid = |message: String| ApiError::bad_request(format!("invalid metadata: {message}"));
    let printable = |bytes: &[u8]| bytes.iter().all(|byte| (0x20..0x7f).contains(byte));
    let (mut found, mut size) = (Vec::new(), 0);
    for name in headers.keys() {
        let Some(key) = name.as_str().strip_prefix(METADATA_HEADER).filter(|key| !key.is_empty()) else { continue };
        let Some(value) = headers.get(name).map(|value| value.as_bytes()) else { continue };
        if key.len() > MAX_KEY {
            return Err(invalid(format!("a key exceeds {MAX_KEY} bytes")));
        }
        if !printable(key.as_bytes()) || !printable(value) {
            return Err(invalid(format!("'{key}' is not printable ASCII")));
        }
        let name = format!("{METADATA}{key}");
        size += "user.".len() + name.len() + value.len();
        found.push(Attribute { name: name.into_bytes().into(), value: value.to_vec().into() });
    }
    if size > MAX_METADATA {
        return Err(invalid(format!("it exceeds {MAX_METADATA} bytes in all")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderName;

    fn of(pairs: &[(&str, &[u8])]) -> Option<Vec<(String, Vec<u8>)>> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, axum::http::HeaderValue::from_bytes(value).unwrap());
        }
        let found = metadata(&headers).ok()?;
        Some(found.iter().map(|it| (String::from_utf8_lossy(&it.name).into_owned(), it.value.to_vec())).collect())
    }

    #[test]
    fn headers_become_metadata() {
        let two: &[(&str, &[u8])] =
            &[("X-Metadata-Author", b"me"), ("x-metadata-author", b"you"), ("x-metadata-", b"")];
        assert_eq!(of(two), Some(vec![("e2b.author".into(), b"me".to_vec())]));
        assert_eq!(of(&[("content-type", b"x")]), Some(vec![]));
    }

    #[test]
    fn metadata_is_bounded_and_printable() {
        assert_eq!(of(&[("x-metadata-a", "ä".as_bytes())]), None);
        assert_eq!(of(&[("x-metadata-a", b"a\tb")]), None);
        assert_eq!(of(&[(&format!("x-metadata-{}", "k".repeat(MAX_KEY + 1)), b"")]), None);
        assert!(of(&[(&format!("x-metadata-{}", "k".repeat(MAX_KEY)), b"")]).is_some());
        assert_eq!(of(&[("x-metadata-a", &[b'x'; 4096])]), None);
    }
}
