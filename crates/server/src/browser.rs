//! Web pages as clients. E2B's JavaScript package works in browsers, too, which ask first whether a page may talk to another
//! origin, and show it no answer that does not say so.
//!
//! Every page may, but E2B's API only: all that can be done there needs a key or a token in a header, and a page has one
//! only if somebody gave it one. Browsers are told to send no cookies along. What servers inside say of themselves is
//! passed on as they say it.

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::gate::ENVD_PORT;
use crate::record::INTERPRETER;

/// How long a browser may remember the answer: two hours, which is as long as any does.
const REMEMBERED: HeaderValue = HeaderValue::from_static("7200");

/// Whether pages may use a path of the control plane: all but our own API, metrics and previews.
pub fn may_use_path(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or("");
    !matches!(first, "v1" | "metrics" | "preview")
}

/// Whether pages may use a port of a sandbox: the code interpreter belongs to E2B's API, too.
pub fn may_use_port(port: u16) -> bool {
    port == ENVD_PORT || port == INTERPRETER
}

/// Whether a page asks.
pub fn is_page(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN)
}

/// The answer, if its browser only asks whether it may.
pub fn asked<B>(request: &Request<B>) -> Option<Response> {
    let headers = request.headers();
    if request.method() != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let mut response = StatusCode::NO_CONTENT.into_response();
    let said = response.headers_mut();
    said.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE"));
    if let Some(wanted) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        said.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    said.insert(ACCESS_CONTROL_MAX_AGE, REMEMBERED);
    said.insert(VARY, HeaderValue::from_static("access-control-request-headers"));
    Some(response)
}

/// Lets the page see an answer.
pub fn show(response: &mut Response) {
    let headers = response.headers_mut();
    if !headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_may_use_e2bs_api_alone() {
        for (path, expected) in [
            ("/v2/sandboxes", true),
            ("/process.Process/Start", true),
            ("/v1/sandboxes", false),
            ("/v1", false),
            ("//v1/sandboxes", false),
            ("/preview/abc/3000/", false),
            ("/metrics", false),
        ] {
            assert_eq!(may_use_path(path), expected, "{path}");
        }
        assert!(may_use_port(49983) && may_use_port(49999) && !may_use_port(3000));
    }

    #[test]
    fn only_a_browsers_question_is_answered_here() {
        let ask = |method: &str, name: &str| {
            let request = Request::builder().method(method).header(name, "x-api-key").body(()).unwrap();
            asked(&request)
        };
        assert!(ask("OPTIONS", "origin").is_none() && ask("POST", "access-control-request-method").is_none());
        assert_eq!(ask("OPTIONS", "access-control-request-method").unwrap().status(), StatusCode::NO_CONTENT);
    }

    #[test]
    fn what_a_server_inside_says_stays() {
        let mut response = StatusCode::OK.into_response();
        response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("https://one.example"));
        show(&mut response);
        assert_eq!(response.headers()[ACCESS_CONTROL_ALLOW_ORIGIN], "https://one.example");
    }
}
