//! Requests and their answers.

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::request::Builder;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::Server;
use super::body::{Body, full};

/// Bytes of an answer that is held in memory.
const ANSWER: usize = 64 * 1024 * 1024;

/// What need not be escaped in a path or a query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Text as a part of a path or a query.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// The server's refusal.
#[derive(Debug)]
pub struct Refused {
    /// The HTTP status.
    pub status: u16,
    /// What the server said.
    pub message: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.message)?;
        if self.status == 401 {
            to.write_str(" (the variable SLOPLET_API_KEY)")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}

impl Server {
    /// A request's headers.
    pub(super) fn builder(&self, method: Method, path: &str) -> anyhow::Result<Builder> {
        self.head(method, &format!("{}/v1{path}", self.base()))
    }

    fn head(&self, method: Method, uri: &str) -> anyhow::Result<Builder> {
        let mut builder = Request::builder().method(method).uri(uri).header(HOST, self.authority());
        if let Some(key) = &self.key {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}")).context("SLOPLET_API_KEY")?;
            value.set_sensitive(true);
            builder = builder.header(AUTHORIZATION, value);
        }
        if let Some(via) = &self.via {
            builder = builder.header("x-sloplet-via", via);
        }
        Ok(builder)
    }

    /// Sends a request, and takes an answer that says that it was carried out.
    pub async fn send(&self, method: Method, path: &str, kind: &str, body: Body) -> anyhow::Result<Response<Incoming>> {
        self.exchange(self.builder(method, path)?.header(CONTENT_TYPE, kind).body(body)?).await
    }

    /// Sends JSON to a server inside a sandbox, which listens on this port. Sandboxes have to be named by their ids here.
    pub async fn send_inside(
        &self,
        (sandbox, port): (&str, u16),
        method: Method,
        path: &str,
        body: Body,
    ) -> anyhow::Result<Response<Incoming>> {
        let head = self.head(method, &format!("{}{path}", self.base()))?;
        let head = head.header("e2b-sandbox-id", sandbox).header("e2b-sandbox-port", port);
        self.exchange(head.header(CONTENT_TYPE, "application/json").body(body)?).await
    }

    async fn exchange(&self, request: Request<Body>) -> anyhow::Result<Response<Incoming>> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(self.connect().await?)).await?;
        tokio::spawn(connection);
        let response = sender.send_request(request).await.context("the server did not answer")?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = whole(response).await.unwrap_or_default();
        Err(refused(status, &text).into())
    }

    /// Asks for something.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(Method::GET, path, None).await
    }

    /// Asks for bytes; also gives a header of the answer.
    pub async fn bytes(&self, path: &str, header: &str) -> anyhow::Result<(Bytes, Option<String>)> {
        let response = self.send(Method::GET, path, "application/json", full("")).await?;
        let value = response.headers().get(header).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok((whole(response).await?, value))
    }

    /// Asks for something to be done.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.ask(Method::POST, path, Some(body)).await
    }

    /// Asks for something to be removed.
    pub async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.ask(Method::DELETE, path, None).await.map(drop)
    }

    /// Asks, with JSON and for JSON; an empty answer is null.
    pub async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        json(self.send(method, path, "application/json", full(body)).await?).await
    }
}

/// What an answer says; an empty one says null.
pub async fn json(response: Response<Incoming>) -> anyhow::Result<Value> {
    let answer = whole(response).await?;
    if answer.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&answer).context("the server's answer is not JSON: is this a sloplet server?")
}

fn refused(status: StatusCode, text: &[u8]) -> Refused {
    let said: Option<Value> = serde_json::from_slice(text).ok();
    let message = said.as_ref().and_then(|said| said["message"].as_str()).map(str::to_owned);
    Refused { status: status.as_u16(), message: message.unwrap_or_else(|| format!("the server answered {status}")) }
}

async fn whole(response: Response<Incoming>) -> anyhow::Result<Bytes> {
    let body = Limited::new(response.into_body(), ANSWER).collect().await;
    Ok(body.map_err(|error| anyhow::anyhow!("the server's answer broke off: {error}"))?.to_bytes())
}
