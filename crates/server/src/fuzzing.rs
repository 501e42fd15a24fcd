//! What the fuzz targets in `fuzz/` may call of this crate, with what must hold for any bytes from strangers or the inside.

use std::cell::RefCell;

use axum::body::Body;
use axum::http::header::{COOKIE, HOST, SET_COOKIE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::runtime::{Builder, Runtime};

use crate::auth::Access;
use crate::e2b::control::page::Page;
use crate::e2b::control::query::Query;
use crate::e2b::control::{self, time};
use crate::e2b::envd::connect::{self, Messages};
use crate::e2b::envd::signature::Address;
use crate::e2b::envd::{call, entry, gzip, upload};
use crate::{gate, preview, v1};

fn within_runtime<T>(future: impl Future<Output = T>) -> Option<T> {
    thread_local! {
        static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
    }
    RUNTIME.with_borrow_mut(|runtime| {
        if runtime.is_none() {
            *runtime = Builder::new_current_thread().enable_time().build().ok();
        }
        runtime.as_ref().map(|runtime| runtime.block_on(future))
    })
}

fn pieces(
    bytes: &[u8],
    size: usize,
) -> impl futures_util::Stream<Item = std::io::Result<Bytes>> + Send + Unpin + use<> {
    let pieces: Vec<_> = bytes.chunks(size.max(1)).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    stream::iter(pieces)
}

/// A stream of Connect messages in pieces of `size` bytes: the same messages as in one piece.
pub fn connect_stream(bytes: &[u8], size: usize) {
    let read = |size: usize| {
        let mut messages = Messages::new(Body::from_stream(pieces(bytes, size)), None);
        within_runtime(async move {
            let mut found = Vec::new();
            loop {
                match messages.next::<serde_json::Value>().await {
                    Ok(Some(message)) => found.push(message.to_string()),
                    Ok(None) => return (found, None),
                    Err(error) => return (found, Some(error)),
                }
            }
        })
    };
    let whole = read(bytes.len());
    assert_eq!(read(size), whole);
    if let Some((found, None)) = whole {
        let written: Vec<u8> = found
            .iter()
            .filter_map(|text| serde_json::from_str::<serde_json::Value>(text).ok())
            .flat_map(|value| connect::message(&value))
            .collect();
        assert!(written.len() >= found.len() * 5);
    }
}

/// A compressed upload in pieces of `size` bytes: the same content or failure, in bounded pieces.
pub fn gzip_upload(bytes: &[u8], size: usize) {
    let read = |size: usize| {
        let plain = gzip::decompress(pieces(bytes, size));
        within_runtime(async move {
            let mut plain = std::pin::pin!(plain);
            let mut found = Vec::new();
            while let Some(piece) = plain.next().await {
                match piece {
                    Ok(piece) => {
                        assert!(piece.len() <= 64 << 20, "{} bytes at once", piece.len());
                        found.extend_from_slice(&piece);
                    }
                    Err(_) => return (found, false),
                }
                if found.len() > 8 << 20 {
                    break;
                }
            }
            (found, true)
        })
    };
    let (one, two) = (read(size), read(bytes.len()));
    if let (Some((one, true)), Some((two, true))) = (one, two)
        && one.len() <= 8 << 20
        && two.len() <= 8 << 20
    {
        assert_eq!(one, two);
    }
}

/// A form of several parts, as uploads are sent.
pub fn multipart(bytes: &[u8], size: usize) {
    let mut form = multer::Multipart::new(pieces(bytes, size), "X-BOUNDARY");
    let _ = within_runtime(async move {
        while let Ok(Some(mut field)) = form.next_field().await {
            let _ = (field.name().map(str::len), field.file_name().map(str::len));
            while let Ok(Some(_)) = field.chunk().await {}
        }
    });
}

/// Text in every place of an address: times, queries, pages, paths, modes, kinds.
pub fn address_text(text: &str) {
    if let Some(moment) = time::parse(text) {
        let again = time::format(moment);
        assert_eq!(time::parse(&again), Some(moment.min(253_402_300_799_999)), "{text:?} written as {again}");
    }
    let query = Query::parse(text);
    let _ = (query.metadata(), query.all("state"), query.number::<u64>("limit"), Page::of(&query).is_ok());
    let cleaned = entry::clean(text);
    assert!(cleaned.starts_with('/') && cleaned.split('/').skip(1).all(|part| part != ".." && part != "."));
    assert_eq!(entry::clean(&cleaned), cleaned);
    let _ = (entry::name(text), call::target(text, None));
    if let Ok(target) = v1::files::target(text.to_owned(), None) {
        assert!(!target.path.contains(&0) && target.path.len() <= 4095);
    }
    if let Ok(bits) = v1::files::mode(text) {
        assert!(bits <= 0o7777);
    }
    let _ = (v1::audit::moment("since", text), v1::audit::kinds(text), v1::ports::listening(text));
    let _ = gate::has_signature(Some(text));
    if let Ok(uri) = text.parse::<Uri>() {
        let address = axum::extract::Query::<Address>::try_from_uri(&uri);
        if let Ok(axum::extract::Query(address)) = address {
            assert!(address.check("a token", &Method::GET).is_err(), "a signature nobody made");
        }
    }
    if let Ok(key) = crate::ssh::PublicKey::parse(text) {
        assert!(crate::ssh::PublicKey::parse(&key.line()).is_ok(), "{text:?}");
    }
}

/// Headers of a stranger, one on each line, to a preview and to the E2B doors.
pub fn request_headers(text: &[u8]) {
    const PREFIX: &str = "/preview/abc/8000";
    let mut headers = HeaderMap::new();
    for line in text.split(|byte| *byte == b'\n').take(64) {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let _ = (call::user(&headers), call::timeout(&headers), gzip::is_wanted(&headers), gzip::is_given(&headers));
    if let Ok(attributes) = upload::metadata(&headers) {
        assert!(attributes.iter().all(|one| one.value.iter().all(|byte| (0x20..0x7f).contains(byte))));
    }
    let _ = connect::check_type(&headers, connect::SINGLE);
    let target = headers.get("x-target").and_then(|value| value.to_str().ok()).unwrap_or(PREFIX);
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = target.parse().unwrap_or_default();
    *request.headers_mut() = headers.clone();
    if let Some((_, id)) = gate::from_host(&request) {
        assert!(!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()));
    }
    if preview::prepare(&mut request, "127.0.0.1:8000", PREFIX).is_ok() {
        assert!(request.uri().path().starts_with('/') && request.headers().get_all(HOST).iter().count() == 1);
        for secret in ["x-api-key", "x-access-token", "e2b-traffic-access-token"] {
            assert!(!request.headers().contains_key(secret), "{secret} went inside");
        }
        for cookie in request.headers().get_all(COOKIE) {
            assert!(!cookie.as_bytes().starts_with(b"sloplet_link"), "a link's cookie went inside");
        }
    }
    preview::confine(&mut headers, PREFIX);
    for cookie in headers.get_all(SET_COOKIE) {
        let cookie = String::from_utf8_lossy(cookie.as_bytes()).to_ascii_lowercase();
        assert!(cookie.starts_with("sloplet_abc_8000_"), "{cookie:?}");
        let mut attributes = cookie.split(';').skip(1).map(|part| part.split('=').next().unwrap_or_default().trim());
        assert!(attributes.all(|name| name != "domain"), "{cookie:?}");
        assert!(cookie.ends_with("; path=/preview/abc/8000/"), "{cookie:?}");
    }
}

/// A request's JSON body.
pub fn json_bodies(bytes: &[u8]) {
    let _ = v1::extract::parse::<v1::CreateSandbox>(bytes);
    if let Ok(base64) = serde_json::from_slice::<crate::e2b::envd::json::Base64>(bytes) {
        assert!(base64.0.len() <= bytes.len());
    }
    let _ = serde_json::from_slice::<crate::e2b::envd::json::Number>(bytes);
    let _ = serde_json::from_slice::<control::create::Asked>(bytes);
    let _ = serde_json::from_slice::<control::templates::Asked>(bytes);
    let _ = serde_json::from_slice::<control::templates::Start>(bytes);
    let _ = serde_json::from_slice::<control::secrets::Asked>(bytes);
    let _ = serde_json::from_slice::<control::tags::Assign>(bytes);
    if let Ok(network) = serde_json::from_slice::<control::network::Network>(bytes)
        && let Ok(kept) = control::network::kept(None, Some(network))
    {
        let _ = control::network::headers(kept.as_ref());
        if let Ok(policy) = control::network::policy(kept.as_ref(), true, &Access::local()) {
            assert!(policy.check().is_ok(), "{policy:?}");
        }
    }
}
