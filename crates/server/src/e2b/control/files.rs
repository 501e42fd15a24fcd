//! Files that are uploaded for the build of a template.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::TryStreamExt;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use sloplet_engine::template::{UploadError, Uploads};

use super::extract::Path;
use super::query::Query;
use crate::app::App;
use crate::auth::{Access, Scope};
use crate::error::ApiError;

/// Says whether the files are here, and where they can be sent to.
pub async fn address(
    State(app): State<App>,
    access: Access,
    headers: HeaderMap,
    Path((template, hash)): Path<(String, String)>,
) -> Result<(StatusCode, axum::Json<Value>), ApiError> {
    access.require(Scope::Use)?;
    Uploads::check_hash(&hash)?;
    app.templates().get(&access.owner, &template)?;
    let uploads = app.templates().uploads();
    let (expires, signature) = uploads.ticket(&access.owner, &hash);
    let owner = utf8_percent_encode(&access.owner, NON_ALPHANUMERIC);
    let base = base_url(&app.config().url, &headers);
    let url = format!("{base}/uploads/{owner}/{hash}?expires={expires}&signature={signature}");
    let present = uploads.has(&access.owner, &hash);
    Ok((StatusCode::CREATED, axum::Json(json!({"present": present, "url": url}))))
}

/// This server as the client calls it: it may be reached by other addresses than its own.
fn base_url(own: &str, headers: &HeaderMap) -> String {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let plain = |host: &&str| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte))
    };
    let scheme = match header("x-forwarded-proto") {
        Some("https") => "https",
        Some("http") => "http",
        _ => own.split("://").next().unwrap_or("http"),
    };
    match header(header::HOST.as_str()).filter(plain) {
        Some(host) => format!("{scheme}://{host}"),
        None => own.to_owned(),
    }
}

/// Takes the files. Whoever has the address may send them.
pub async fn upload(
    State(app): State<App>,
    Path((owner, hash)): Path<(String, String)>,
    query: Query,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let uploads = app.templates().uploads();
    let expires = query.number("expires")?.unwrap_or(0);
    if !uploads.admits(&owner, &hash, expires, query.needed("signature")?) {
        return Err(ApiError::new(StatusCode::FORBIDDEN, "this address is not good any more: ask for another one"));
    }
    let mut incoming = uploads.receive(&owner, &hash).await?;
    let mut stream = body.into_data_stream();
    let broken = |error: axum::Error| ApiError::bad_request(format!("the upload broke off: {error}"));
    while let Some(bytes) = stream.try_next().await.map_err(broken)? {
        incoming.write(&bytes).await.map_err(refused)?;
    }
    incoming.finish().await.map_err(refused)?;
    Ok(StatusCode::OK)
}

fn refused(error: UploadError) -> ApiError {
    let status = match error {
        UploadError::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        _ => StatusCode::INSUFFICIENT_STORAGE,
    };
    ApiError::new(status, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_sent_to_where_the_client_asked() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect::<HeaderMap>()
        };
        let own = "http://127.0.0.1:7070";
        assert_eq!(base_url(own, &headers(&[])), own);
        assert_eq!(base_url(own, &headers(&[("host", "box:80")])), "http://box:80");
        assert_eq!(base_url(own, &headers(&[("host", "a/b@c")])), own);
        let proxied = headers(&[("host", "api.example.com"), ("x-forwarded-proto", "https")]);
        assert_eq!(base_url(own, &proxied), "https://api.example.com");
    }
}
