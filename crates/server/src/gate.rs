//! One listener for everything: looks at a request and says whose it is.

use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::{Json, routing};
use serde_json::json;
use sloplet_engine::life::{Record, State};
use tower::ServiceExt;
use tracing::Instrument as _;

use crate::account;
use crate::app::App;
use crate::auth::{self, OwnUser, same_secret};
use crate::error::ApiError;
use crate::refusals::{Peer, Refusal, Refused};
use crate::{browser, e2b, metrics, preview, record, v1};

/// The port on which a sandbox seems to offer processes and files.
pub const ENVD_PORT: u16 = 49983;

/// The sandbox that a request is for. Whoever asks may use it.
#[derive(Debug, Clone)]
pub struct SandboxId(pub String);

/// Sends requests where they belong; clones are cheap.
#[derive(Clone)]
pub struct Gate {
    app: App,
    control: Router,
    envd: Router,
}

impl Gate {
    /// To these front ends.
    pub fn new(app: App) -> Self {
        let guarded = Router::new()
            .merge(e2b::control::router())
            .nest("/v1", v1::router())
            .route("/metrics", routing::get(metrics::serve))
            .route_layer(middleware::from_fn_with_state(app.clone(), record::calls))
            .route_layer(middleware::from_fn_with_state(app.clone(), auth::require_key));
        let control = Router::new()
            .merge(guarded)
            .merge(e2b::control::open_router())
            .merge(v1::open_router())
            .merge(preview::router())
            .route("/health", routing::get(|| async { StatusCode::NO_CONTENT }))
            .fallback(|| async { ApiError::not_found("no such path: see /v1/openapi.json") })
            .method_not_allowed_fallback(|| async {
                ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this path does not know that method")
            })
            .with_state(app.clone());
        let envd = e2b::envd::router()
            .fallback(|| async { ApiError::not_found("no such path on a sandbox") })
            .with_state(app.clone());
        Self { app, control, envd }
    }

    /// Writes down what was only counted so far, because the server ends.
    pub fn end(&self) {
        self.app.refusals().flush(self.app.ledger());
    }

    /// Answers a request.
    pub async fn answer(&self, request: Request<Body>) -> Response {
        let asked = Instant::now();
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let peer = request.extensions().get::<Peer>().copied();
        // The path alone: a query may hold a signature.
        let span = tracing::debug_span!(
            "request",
            otel.name = method.as_str(),
            otel.kind = "server",
            http.request.method = method.as_str(),
            url.path = path,
            traceparent = request.headers().get("traceparent").and_then(|value| value.to_str().ok()),
            http.response.status_code = tracing::field::Empty,
            sandbox.id = tracing::field::Empty,
        );
        let whose = whose(&self.app, &request);
        let page = browser::is_page(request.headers()) && whose.may_be_asked_by_pages(&path);
        let mut sandbox = None;
        let sending = async {
            let question = if page { browser::asked(&request) } else { None };
            let mut response = match (question, whose) {
                (Some(answer), _) => answer,
                (None, Whose::Control) => self.control.clone().oneshot(request).await.into_response(),
                (None, Whose::Sandbox { id, port }) => {
                    tracing::Span::current().record("sandbox.id", &id);
                    sandbox = Some(id.clone());
                    // In a box: most requests should not carry its size along.
                    Box::pin(self.for_sandbox(id, port, request)).await
                }
            };
            if page {
                browser::show(&mut response);
            }
            response
        };
        let response = sending.instrument(span.clone()).await;
        span.record("http.response.status_code", response.status().as_u16());
        drop(span);
        if let Some(Refused { key }) = response.extensions().get() {
            let refusal = Refusal {
                from: peer.map(|peer| peer.0),
                key: key.clone(),
                // Whoever was refused may name any.
                sandbox: sandbox.filter(|id| self.app.sandboxes().get_any(id).is_ok()),
                method: method.to_string(),
                path: path.clone(),
                status: response.status().as_u16(),
            };
            self.app.refusals().note(self.app.ledger(), refusal);
        }
        self.app.metrics().answered(response.status(), asked.elapsed());
        tracing::debug!(%method, path, status = response.status().as_u16(), us = asked.elapsed().as_micros(), "answered");
        response
    }

    async fn for_sandbox(&self, id: String, port: u16, mut request: Request<Body>) -> Response {
        let record = match self.app.sandboxes().get_any(&id) {
            Ok(record) => record,
            Err(_) => return unreachable_sandbox(&id),
        };
        if port != ENVD_PORT {
            return preview::by_host(&self.app, &record, port, request).await;
        }
        let sleeping = matches!(record.state, State::Paused | State::Stopped) && !record.request.auto_resume;
        if sleeping || matches!(record.state, State::Failed | State::Creating) {
            return unreachable_sandbox(&id);
        }
        let path = request.uri().path();
        let open = path == "/health" || (path == "/files" && has_signature(request.uri().query()));
        if !open && !may_use(&self.app, &record, &request) {
            return ApiError::unauthorized("a token of this sandbox is needed: send it as X-Access-Token")
                .into_response();
        }
        let call = record::envd_call(&request);
        if call.is_some()
            && let Err(error) = self.app.paces().admit(&record.owner, &request)
        {
            return error.into_response();
        }
        request.extensions_mut().insert(SandboxId(id.clone()));
        let envd = self.envd.clone();
        let answer = |request| async { envd.oneshot(request).await.into_response() };
        let response = account::within(&self.app, &record.owner, request, answer).await;
        if let Some(call) = call {
            call.note(&self.app, Some(&id), record::TOKEN, None, &response);
        }
        response
    }
}

enum Whose {
    Control,
    Sandbox { id: String, port: u16 },
}

impl Whose {
    /// Whether web pages of other origins may ask this, with a key or a token.
    fn may_be_asked_by_pages(&self, path: &str) -> bool {
        match self {
            Self::Control => browser::may_use_path(path),
            Self::Sandbox { port, .. } => browser::may_use_port(*port),
        }
    }
}

fn whose(app: &App, request: &Request<Body>) -> Whose {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    if let Some(id) = header("e2b-sandbox-id") {
        let port = header("e2b-sandbox-port").and_then(|port| port.parse().ok()).unwrap_or(ENVD_PORT);
        return Whose::Sandbox { id: id.to_owned(), port };
    }
    if let Some((port, id)) = from_host(request) {
        return Whose::Sandbox { id, port };
    }
    let uri = request.uri();
    if uri.path() == "/files"
        && has_signature(uri.query())
        && let Some(id) = e2b::envd::signed_for(app, request.method(), uri, request.extensions().get().copied())
    {
        return Whose::Sandbox { id, port: ENVD_PORT };
    }
    Whose::Control
}

/// Takes `<port>-<id>.<domain>` apart.
pub(crate) fn from_host(request: &Request<Body>) -> Option<(u16, String)> {
    let host = request.uri().host().or_else(|| {
        let host = request.headers().get(header::HOST)?.to_str().ok()?;
        Some(host.rsplit_once(':').map_or(host, |(name, _)| name))
    })?;
    let (first, _) = host.split_once('.')?;
    let (port, id) = first.split_once('-')?;
    let plain = id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()) && !id.is_empty();
    plain.then_some((port.parse().ok()?, id.to_owned()))
}

pub(crate) fn has_signature(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|pair| pair.starts_with("signature=")))
}

/// Whether a request shows the sandbox's token or a key of its owner.
pub fn may_use(app: &App, record: &Record, request: &Request<Body>) -> bool {
    let headers: &HeaderMap = request.headers();
    let shows = |name: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|given| same_secret(given, &record.token))
    };
    if shows("x-access-token") || shows("e2b-traffic-access-token") || record.request.spec.lacks("sandbox-tokens") {
        return true;
    }
    let own_user = request.extensions().get::<OwnUser>().is_some();
    matches!(auth::identify(app, headers, own_user), Ok(Some(access))
        if access.owner == record.owner && access.scope >= auth::Scope::Use)
}

/// What E2B's SDKs take for a sandbox that is gone or paused.
pub fn unreachable_sandbox(id: &str) -> Response {
    let body = json!({"sandboxId": id, "message": "The sandbox was not found", "code": 502});
    (StatusCode::BAD_GATEWAY, [("should-retry", "false")], Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Option<(u16, String)> {
        from_host(&Request::builder().uri("/").header(header::HOST, name).body(Body::empty()).unwrap())
    }

    #[test]
    fn a_host_names_a_port_of_a_sandbox_or_nothing() {
        assert_eq!(host("3000-abc2.example.com"), Some((3000, "abc2".into())));
        assert_eq!(host("3000-abc2.localhost:7070"), Some((3000, "abc2".into())));
        for other in [
            "localhost:7070",
            "127.0.0.1",
            "a-b.example.com",
            "99999-abc.example.com",
            "3000-A.b",
            "3-.x",
            "[::1]:7070",
        ] {
            assert_eq!(host(other), None, "{other}");
        }
    }
}
