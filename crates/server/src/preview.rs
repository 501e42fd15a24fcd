//! HTTP to a port inside a sandbox: at `<port>-<id>.<domain>/` and at `/preview/<id>/<port>/`.
//!
//! Private unless the sandbox says otherwise: a request shows the sandbox's token or a key of its owner in a header, or
//! comes with a signed link. A link carries its signature in the query; the answer to it sets a cookie, so that what the
//! page loads next comes through, too, and is a redirect that takes the signature out of the address.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, COOKIE, HOST, LOCATION, SET_COOKIE, UPGRADE};
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Router};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use sloplet_client::Connection;
use sloplet_engine::life::clock::now_ms;
use sloplet_engine::life::{LifeError, Reached, Record};
use sloplet_wire::ErrorCode;

use crate::account::{self, Account, STREAM};
use crate::app::App;
use crate::auth::{same_secret, signature};
use crate::error::ApiError;
use crate::gate::{may_use, unreachable_sandbox};
use crate::record;
use crate::refusals::Refused;

/// The query parameter, and the beginning of the cookie's name, that carry a link's signature.
const LINK: &str = "sloplet_link";

/// Longest life of a link.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

/// How long a server inside may take to begin its answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

/// Headers that are for one hop only.
const HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers that open the sandbox: not for what runs inside, nor to be seen by it.
const SECRETS: [&str; 4] = ["x-api-key", "x-access-token", "e2b-traffic-access-token", "e2b-sandbox-id"];

/// Headers of an answer that mean more than the answer: the whole origin, which previews by path share with this server
/// and with each other.
const ORIGIN_WIDE: [&str; 9] = [
    "alt-svc",
    "clear-site-data",
    "nel",
    "origin-agent-cluster",
    "public-key-pins",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "strict-transport-security",
];

/// `/preview/<id>/<port>/…`.
pub fn router() -> Router<App> {
    Router::new()
        .route("/preview/{id}/{port}", any(by_path))
        .route("/preview/{id}/{port}/", any(by_path))
        .route("/preview/{id}/{port}/{*rest}", any(by_path))
}

/// A link that opens a port in a browser for so long.
pub fn link(app: &App, record: &Record, port: u16, ttl: Duration) -> String {
    let expires = now_ms() / 1000 + ttl.min(LONGEST).as_secs();
    format!("{}?{LINK}={}", address(app, record, port), sign(record, port, expires))
}

/// Where a port is reached by those who may.
pub fn address(app: &App, record: &Record, port: u16) -> String {
    let config = app.config();
    match &config.domain {
        Some(domain) => {
            let scheme = config.url.split("://").next().unwrap_or("http");
            format!("{scheme}://{port}-{}.{domain}/", record.id)
        }
        None => format!("{}/preview/{}/{port}/", config.url, record.id),
    }
}

fn sign(record: &Record, port: u16, expires: u64) -> String {
    let mac = signature(&record.token, &format!("preview:{}:{port}:{expires}", record.id));
    format!("{expires}-{mac}")
}

fn is_signed(record: &Record, port: u16, shown: &str) -> bool {
    let Some(expires) = shown.split('-').next().and_then(|text| text.parse::<u64>().ok()) else { return false };
    expires > now_ms() / 1000 && same_secret(shown, &sign(record, port, expires))
}

async fn by_path(
    State(app): State<App>,
    Path(parts): Path<std::collections::HashMap<String, String>>,
    request: Request,
) -> Response {
    let (id, port) = (parts.get("id").map_or("", String::as_str), parts.get("port").and_then(|port| port.parse().ok()));
    let Some(port) = port else { return ApiError::bad_request("a port is a number up to 65535").into_response() };
    let prefix = format!("/preview/{id}/{port}");
    let Ok(record) = app.sandboxes().get_any(id) else {
        return ApiError::not_found(format!("sandbox '{id}' was not found")).into_response();
    };
    if request.uri().path() == prefix {
        // Relative addresses in the page need the slash.
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        return redirect(&format!("{prefix}/{query}"), None);
    }
    pass(&app, &record, port, request, &prefix).await
}

/// A request for `<port>-<id>.<domain>`, or with E2B's headers.
pub async fn by_host(app: &App, record: &Record, port: u16, request: Request<Body>) -> Response {
    pass(app, record, port, request, "").await
}

async fn pass(app: &App, record: &Record, port: u16, request: Request<Body>, prefix: &str) -> Response {
    let query = request.uri().query().unwrap_or("");
    let shown = query.split('&').find_map(|pair| pair.strip_prefix(LINK)?.strip_prefix('='));
    if let Some(shown) = shown {
        if !is_signed(record, port, shown) {
            return ApiError::unauthorized("this link has expired or was changed: ask for a new one").into_response();
        }
        let rest: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with(LINK)).collect();
        let mark = if rest.is_empty() { "" } else { "?" };
        let target = format!("{}{mark}{}", request.uri().path(), rest.join("&"));
        let path = if prefix.is_empty() { "/".to_owned() } else { format!("{prefix}/") };
        let cookie = format!("{LINK}_{port}={shown}; Path={path}; HttpOnly; SameSite=Lax");
        return redirect(&target, Some(&cookie));
    }
    let rules = record.request.network.as_ref();
    let public = rules.and_then(|rules| rules.get("allowPublicTraffic")?.as_bool());
    let by_cookie = cookie(request.headers(), &format!("{LINK}_{port}"));
    let allowed = public.unwrap_or(app.config().public_previews)
        || by_cookie.is_some_and(|shown| is_signed(record, port, shown))
        || may_use(app, record, &request);
    if !allowed {
        let message = "this preview is private: send the sandbox's token as X-Access-Token, or open a signed link";
        return match public {
            // As E2B says it of one that was made so.
            Some(false) => {
                (Extension(Refused::default()), ApiError::new(StatusCode::FORBIDDEN, message)).into_response()
            }
            _ => ApiError::unauthorized(message).into_response(),
        };
    }
    account::within(app, &record.owner, request, |request| pass_in(app, record, port, request, prefix)).await
}

/// Whoever asks may.
async fn pass_in(app: &App, record: &Record, port: u16, request: Request<Body>, prefix: &str) -> Response {
    let account = request.extensions().get::<Account>();
    if let Some(Err(error)) = account.map(|account| account.charge(STREAM)) {
        return error.into_response();
    }
    if record::is_cell(port, &request, prefix)
        && let Err(error) = app.paces().admit(&record.owner, &request)
    {
        return error.into_response();
    }
    let rules = record.request.network.as_ref();
    let reached = match app.sandboxes().reach(&record.id).await {
        Ok(reached) => reached,
        Err(LifeError::NotFound { .. } | LifeError::Paused(_)) => return unreachable_sandbox(&record.id),
        Err(error) => return ApiError::from(error).into_response(),
    };
    let mask = rules.and_then(|rules| rules.get("maskRequestHost")?.as_str());
    let host = mask.unwrap_or("localhost:${PORT}").replace("${PORT}", &port.to_string());
    let request = record::cell(&reached, port, request, prefix);
    match reached.agent().dial(port).await {
        Ok(connection) => forward(reached, connection, Inside { port, host }, request, prefix).await,
        Err(error) if error.failure().is_some_and(|failure| failure.code == ErrorCode::Refused) => {
            let message = format!("The sandbox is running but port is not open: nothing listens on {port} inside");
            let body = serde_json::json!({"sandboxId": record.id, "port": port, "message": message, "code": 502});
            (StatusCode::BAD_GATEWAY, axum::Json(body)).into_response()
        }
        Err(error) => ApiError::from(error).into_response(),
    }
}

fn redirect(target: &str, cookie: Option<&str>) -> Response {
    let (Ok(target), Ok(cookie)) = (HeaderValue::from_str(target), cookie.map(HeaderValue::from_str).transpose())
    else {
        return ApiError::bad_request("not an address").into_response();
    };
    let mut response = (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, target)]).into_response();
    if let Some(cookie) = cookie {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';')).find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// A server inside.
struct Inside {
    port: u16,
    /// What it is told to be called.
    host: String,
}

/// Passes a request on and its answer back, both as they come.
async fn forward(
    reached: Reached,
    connection: Connection,
    inside: Inside,
    mut request: Request<Body>,
    prefix: &str,
) -> Response {
    let port = inside.port;
    let bad_gateway = |message: String| ApiError::new(StatusCode::BAD_GATEWAY, message).into_response();
    // As clients have always written headers: some servers know no other way.
    let shake = http1::Builder::new().title_case_headers(true).handshake(TokioIo::new(connection));
    let (mut sender, driver) = match shake.await {
        Ok(both) => both,
        Err(error) => return bad_gateway(format!("port {port}: {error}")),
    };
    // In use until the last byte went through, an upgraded connection included.
    tokio::spawn(async move {
        let _ = driver.with_upgrades().await;
        drop(reached);
    });
    let client = hyper::upgrade::on(&mut request);
    if prepare(&mut request, &inside.host, prefix).is_err() {
        return ApiError::bad_request("not an address").into_response();
    }
    let mut response = match tokio::time::timeout(ANSWER_WITHIN, sender.send_request(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return bad_gateway(format!("the server on port {port} broke off: {error}")),
        Err(_) => {
            return ApiError::new(StatusCode::GATEWAY_TIMEOUT, format!("no answer from port {port}")).into_response();
        }
    };
    confine(response.headers_mut(), prefix);
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let server = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
                let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            }
        });
        return response.map(Body::new);
    }
    strip(response.headers_mut(), &HOP);
    response.map(Body::new)
}

/// Makes a client's request one to the server inside.
pub(crate) fn prepare(request: &mut Request<Body>, own_host: &str, prefix: &str) -> Result<(), axum::http::Error> {
    let whole = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    let rest = whole.strip_prefix(prefix).unwrap_or(whole);
    let rest = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
    *request.uri_mut() = Uri::builder().path_and_query(rest).build()?;
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    let upgrade = headers.get(UPGRADE).cloned();
    strip(headers, &HOP);
    strip(headers, &SECRETS);
    let cookies = own_cookies(headers, prefix);
    headers.remove(COOKIE);
    if !cookies.is_empty() {
        headers.insert(COOKIE, HeaderValue::from_str(&cookies)?);
    }
    let key = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    if key.is_some_and(|value| value.starts_with("Bearer e2b_")) {
        headers.remove(AUTHORIZATION);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(UPGRADE, upgrade);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    let host = headers.get(HOST).cloned();
    if let Some(host) = host {
        headers.insert(HeaderName::from_static("x-forwarded-host"), host);
    }
    headers.insert(HOST, HeaderValue::from_str(own_host)?);
    Ok(())
}

/// How the names of a preview's cookies begin in the browser, where it shares an origin with others: cookies belong to a
/// host, whatever its ports, and a request does not say for which path they were set.
fn cookie_mark(prefix: &str) -> String {
    match prefix.strip_prefix("/preview/") {
        Some(place) => format!("sloplet_{}_", place.replace('/', "_")),
        None => String::new(),
    }
}

/// The cookies of a request that the server inside has set: not a link's, and none of another preview or program.
fn own_cookies(headers: &HeaderMap, prefix: &str) -> String {
    let mark = cookie_mark(prefix);
    let all = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let pairs = all.flat_map(|value| value.split(';')).map(str::trim);
    let own = pairs.filter_map(|pair| pair.strip_prefix(mark.as_str())).filter(|pair| !pair.starts_with(LINK));
    own.filter(|pair| !pair.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Keeps an answer to its preview: no header that means the whole origin, and cookies for its own path alone.
pub(crate) fn confine(headers: &mut HeaderMap, prefix: &str) {
    if !prefix.is_empty() {
        strip(headers, &ORIGIN_WIDE);
    }
    let cookies: Vec<HeaderValue> = headers.get_all(SET_COOKIE).into_iter().cloned().collect();
    headers.remove(SET_COOKIE);
    for cookie in cookies {
        let confined = cookie.to_str().ok().and_then(|cookie| HeaderValue::from_str(&own_cookie(cookie, prefix)).ok());
        if let Some(confined) = confined {
            headers.append(SET_COOKIE, confined);
        }
    }
}

/// A cookie of the server inside as the browser gets it: for this host alone, and, by path, for the preview's path and
/// under a name of its own.
fn own_cookie(cookie: &str, prefix: &str) -> String {
    let mut parts = cookie.split(';');
    let pair = parts.next().unwrap_or_default().trim_start();
    let foreign = |part: &&str| {
        let name = part.split('=').next().unwrap_or_default().trim();
        name.eq_ignore_ascii_case("domain") || (!prefix.is_empty() && name.eq_ignore_ascii_case("path"))
    };
    let path = if prefix.is_empty() { String::new() } else { format!("; Path={prefix}/") };
    let rest: String = parts.filter(|part| !foreign(part)).map(|part| format!(";{part}")).collect();
    format!("{}{pair}{rest}{path}", cookie_mark(prefix))
}

fn strip(headers: &mut HeaderMap, names: &[&str]) {
    for name in names {
        headers.remove(*name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/preview/abc/8000";

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn an_answer_by_path_means_nothing_beyond_its_path() {
        let said = [
            ("service-worker-allowed", "/"),
            ("clear-site-data", "\"*\""),
            ("strict-transport-security", "max-age=1"),
            ("content-type", "text/html"),
            ("set-cookie", "a=b; Path=/; Domain=example.com; HttpOnly"),
            ("set-cookie", "sloplet_link_8000=1; path=/preview/other/8000/"),
        ];
        let mut by_path = headers(&said);
        confine(&mut by_path, PREFIX);
        let cookies: Vec<&str> = by_path.get_all(SET_COOKIE).iter().map(|value| value.to_str().unwrap()).collect();
        let link = "sloplet_abc_8000_sloplet_link_8000=1; Path=/preview/abc/8000/";
        assert_eq!(cookies, ["sloplet_abc_8000_a=b; HttpOnly; Path=/preview/abc/8000/", link]);
        assert_eq!(by_path.len(), 3, "{by_path:?}");
        let mut by_host = headers(&said);
        confine(&mut by_host, "");
        assert_eq!(by_host.get(SET_COOKIE).unwrap(), "a=b; Path=/; HttpOnly", "no cookie for its neighbours");
        assert!(by_host.contains_key("service-worker-allowed"), "it has an origin of its own");
    }

    #[test]
    fn a_server_inside_sees_its_own_cookies_alone() {
        let shown = "session=of-another-program; sloplet_abc_8000_a=b; sloplet_link_8000=1-2; sloplet_abc_80_c=d";
        let request = headers(&[("cookie", shown), ("cookie", "sloplet_abc_8000_e=f")]);
        assert_eq!(own_cookies(&request, PREFIX), "a=b; e=f");
        assert_eq!(own_cookies(&headers(&[("cookie", "a=b; sloplet_link_8000=1-2; c=d")]), ""), "a=b; c=d");
        assert_eq!(own_cookies(&HeaderMap::new(), PREFIX), "");
    }
}
