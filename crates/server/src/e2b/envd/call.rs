//! A call: which sandbox, as whom, until when.

use std::time::Duration;

use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use sloplet_engine::life::Reached;
use sloplet_wire::Target;
use tokio::time::Instant;

use super::connect::{self, Messages, RpcError};
use crate::account::Account;
use crate::app::App;
use crate::gate::SandboxId;

/// Without a wish of the client's: how often a silent stream says that it is alive.
const KEEPALIVE: Duration = Duration::from_secs(90);

/// A call.
pub struct Call {
    /// The sandbox's id.
    pub id: String,
    /// The sandbox.
    pub sandbox: Reached,
    /// Whom the client named; the sandbox's usual user if nobody.
    pub user: Option<String>,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// When that is over.
    pub deadline: Option<Instant>,
    /// How often a silent stream says that it is alive.
    pub keepalive: Duration,
}

impl Call {
    async fn new(app: &App, id: SandboxId, headers: &HeaderMap) -> Result<Self, RpcError> {
        let user = user(headers)?;
        let timeout = timeout(headers)?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let keepalive = text(headers, "keepalive-ping-interval").and_then(|value| value.parse().ok());
        let keepalive = keepalive.map_or(KEEPALIVE, |seconds: u64| Duration::from_secs(seconds.clamp(1, 3600)));
        let sandbox = app.sandboxes().reach(&id.0).await?;
        Ok(Self { id: id.0, sandbox, user, timeout, deadline, keepalive })
    }

    /// A path, used for the caller's user. As in E2B, files may be used that only root may: the same client can name
    /// `root` as its user anyway.
    pub fn target(&self, path: &str) -> Result<Target, RpcError> {
        target(path, self.user.clone()).map_err(RpcError::invalid)
    }
}

/// A path for a user; `~` and nothing are the home.
pub fn target(path: &str, user: Option<String>) -> Result<Target, String> {
    let path = match path.strip_prefix('~') {
        None if path.is_empty() => ".",
        None => path,
        Some("") => ".",
        Some(rest) => match rest.trim_start_matches('/') {
            below if below.len() == rest.len() => {
                return Err(format!("cannot use '{path}': only one's own home can be named with '~'"));
            }
            "" => ".",
            below => below,
        },
    };
    Ok(Target { path: path.as_bytes().to_vec().into(), user, privileged: true })
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whom the client names: the user of HTTP's basic authentication, without a password.
pub(crate) fn user(headers: &HeaderMap) -> Result<Option<String>, RpcError> {
    let Some(encoded) = text(headers, "authorization").and_then(|value| value.strip_prefix("Basic ")) else {
        return Ok(None);
    };
    let decoded = STANDARD.decode(encoded.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let decoded = decoded.ok_or_else(|| RpcError::invalid("the Authorization header is malformed"))?;
    let name = decoded.split_once(':').map_or(&*decoded, |(name, _)| name);
    Ok((!name.is_empty()).then(|| name.to_owned()))
}

pub(crate) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, RpcError> {
    let Some(value) = headers.get("connect-timeout-ms") else { return Ok(None) };
    let number = value.to_str().ok().filter(|text| text.len() <= 10 && text.bytes().all(|byte| byte.is_ascii_digit()));
    let milliseconds: Option<u64> = number.and_then(|text| text.parse().ok());
    let milliseconds =
        milliseconds.ok_or_else(|| RpcError::invalid("Connect-Timeout-Ms is not a number of up to ten digits"))?;
    Ok((milliseconds > 0).then(|| Duration::from_millis(milliseconds)))
}

/// A call with a single message.
pub struct Single<T>(pub Call, pub T);

impl<T: DeserializeOwned> FromRequest<App> for Single<T> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &App) -> Result<Self, Response> {
        connect::check_type(request.headers(), connect::SINGLE).map_err(|response| *response)?;
        let account = request.extensions().get::<Account>().cloned();
        let (call, body) = open(request, app, "content-encoding").await.map_err(IntoResponse::into_response)?;
        let message = connect::read_single(body, account.as_ref()).await.map_err(IntoResponse::into_response)?;
        Ok(Self(call, message))
    }
}

/// A streaming call with one message.
pub struct Streaming<T>(pub Call, pub T);

impl<T: DeserializeOwned> FromRequest<App> for Streaming<T> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &App) -> Result<Self, Response> {
        let Inputs(call, mut messages) = Inputs::from_request(request, app).await?;
        match messages.next().await {
            Ok(Some(message)) => {
                // The end of the request comes by itself, perhaps later than the answer: a connection that is closed
                // before it was read is reset, and the client loses what it has not read of the answer.
                tokio::spawn(async move { messages.discard().await });
                Ok(Self(call, message))
            }
            Ok(None) => Err(RpcError::invalid("the request has no message").streamed()),
            Err(error) => Err(error.streamed()),
        }
    }
}

/// A streaming call with many messages.
pub struct Inputs(pub Call, pub Messages);

impl FromRequest<App> for Inputs {
    type Rejection = Response;

    async fn from_request(request: Request, app: &App) -> Result<Self, Response> {
        connect::check_type(request.headers(), connect::STREAM).map_err(|response| *response)?;
        let account = request.extensions().get::<Account>().cloned();
        let opened = open(request, app, "connect-content-encoding").await;
        let (call, body) = opened.map_err(|error| error.streamed())?;
        Ok(Self(call, Messages::new(body, account)))
    }
}

async fn open(request: Request, app: &App, encoding: &str) -> Result<(Call, axum::body::Body), RpcError> {
    connect::check_compression(request.headers(), encoding)?;
    let (parts, body) = request.into_parts();
    let id = parts.extensions.get::<SandboxId>().cloned();
    let id = id.ok_or_else(|| RpcError::invalid("no sandbox is named"))?;
    Ok((Call::new(app, id, &parts.headers).await?, body))
}

/// Ends calls with single messages when their time is over.
pub async fn within_timeout(request: Request, next: Next) -> Response {
    match timeout(request.headers()) {
        Ok(Some(limit)) => match tokio::time::timeout(limit, next.run(request)).await {
            Ok(response) => response,
            Err(_) => RpcError::late().into_response(),
        },
        Ok(None) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_has_short_names() {
        let path = |given: &str| target(given, None).map(|target| String::from_utf8_lossy(&target.path).into_owned());
        for (given, meant) in
            [("", "."), ("~", "."), ("~/", "."), ("~/a", "a"), ("~//a", "a"), ("a~", "a~"), ("/~", "/~")]
        {
            assert_eq!(path(given).as_deref(), Ok(meant), "{given}");
        }
        assert!(path("~root/x").is_err());
    }

    #[test]
    fn headers_name_user_and_time() {
        let mut headers = HeaderMap::new();
        assert_eq!(user(&headers), Ok(None));
        headers.insert("authorization", "Basic cm9vdDo=".parse().unwrap());
        assert_eq!(user(&headers), Ok(Some("root".into())));
        headers.insert("authorization", "Bearer cm9vdDo=".parse().unwrap());
        assert_eq!(user(&headers), Ok(None));
        headers.insert("authorization", "Basic ???".parse().unwrap());
        assert!(user(&headers).is_err());
        for (value, meant) in
            [("1500", Some(Some(1500))), ("0", Some(None)), ("-1", None), ("1e3", None), ("99999999999", None)]
        {
            headers.insert("connect-timeout-ms", value.parse().unwrap());
            assert_eq!(timeout(&headers).ok(), meant.map(|ms: Option<u64>| ms.map(Duration::from_millis)), "{value}");
        }
    }
}
