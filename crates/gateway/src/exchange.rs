//! One request, and its answer.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, ALT_SVC, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue,
    UPGRADE,
};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use sloplet_egress::intercept::Target;

use crate::body::{Body, HoldError, Redacted, full, hold};
use crate::denied::Denied;
use crate::event::Event;
use crate::gateway::Shared;
use crate::headers::{is_for, set_headers, strip_hop, upgrade};
use crate::llm::{Refused, Shape};
use crate::meter::{Meter, Metered};
use crate::unasked::WithoutUsage;
use crate::upstream::{SendError, Upstream};
use crate::vault::Vault;

/// Longest body that is held to be read or changed; the APIs take no longer ones.
pub(crate) const HELD: usize = 32 << 20;

/// One connection's requests.
pub(crate) struct Exchange {
    pub shared: Arc<Shared>,
    pub target: Target,
    pub upstream: Upstream,
}

impl Exchange {
    /// Passes a request on and answers with what comes back, or says why not.
    pub async fn serve(&self, request: Request<Incoming>) -> Response<Body> {
        match self.pass(request).await {
            Ok(response) => response,
            Err(denied) => {
                let reason = denied.message.clone();
                self.tell(Event::Refused {
                    connection: self.target.connection,
                    host: self.target.name.clone(),
                    reason,
                });
                denied.response()
            }
        }
    }

    pub fn tell(&self, event: Event) {
        (self.shared.events)(event);
    }

    async fn pass(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Denied> {
        let Target { name, port, tls, .. } = &self.target;
        if !is_for(&request, name, *port, *tls) {
            let message =
                format!("sloplet: this connection was allowed to {name}:{port}, and the request is for another host");
            return Err(Denied::new(StatusCode::MISDIRECTED_REQUEST, message));
        }
        if request.method() == Method::CONNECT {
            return Err(Denied::new(StatusCode::METHOD_NOT_ALLOWED, "sloplet: no tunnel through this host"));
        }
        let config = self.shared.config();
        let mut vault = Vault::new(&config.secrets, name, *port, *tls);
        let protocol = upgrade(&request);
        let upgraded = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        strip_hop(&mut parts.headers);
        let head = parts.method == Method::HEAD;

        let address = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let budget = config.account.budget();
        let metered = self.metered(&config, &budget, &parts.method, &address, protocol.is_some())?;
        // Held while the body is: a sandbox's requests together take no more memory than this.
        let _room;
        let (mut meter, body) = match metered {
            Some(endpoint) => {
                _room = self.room(&parts.headers).await;
                let held = self.held(body, Some(endpoint.shape())).await?;
                let (meter, body) = self.admit(&config, &budget, endpoint, &parts.headers, held)?;
                let filled = vault.body(&parts.headers, &body).map_err(|error| Denied::put(&error))?;
                (meter, set(&mut parts.headers, filled.map_or(body, Bytes::from)))
            }
            None if vault.fills_bodies() && !hyper::body::Body::is_end_stream(&body) => {
                _room = self.room(&parts.headers).await;
                let held = self.held(body, None).await?;
                let filled = vault.body(&parts.headers, &held).map_err(|error| Denied::put(&error))?;
                (None, set(&mut parts.headers, filled.map_or(held, Bytes::from)))
            }
            None => (None, body.map_err(Into::into).boxed_unsync()),
        };
        vault.headers(&mut parts.headers).map_err(|error| Denied::put(&error))?;
        set_headers(&mut parts.headers, &config.headers, name, *port).map_err(|header| {
            let message = format!("sloplet: the header '{header}', which is set on requests to {name}, cannot be sent");
            Denied::new(StatusCode::BAD_GATEWAY, message)
        })?;
        let address = vault.query(&address).map_err(|error| Denied::put(&error))?.unwrap_or(address);
        let used = vault.seen.iter().any(|seen| seen.used);
        self.tell_seen(&vault);
        if meter.is_some() || !vault.needles.is_empty() {
            // What is compressed can be neither searched nor read.
            parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if let Some(protocol) = protocol {
            parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(UPGRADE, protocol);
        }
        let mut onward = Request::new(body);
        *onward.method_mut() = parts.method;
        *onward.headers_mut() = parts.headers;

        if let Some(meter) = &mut meter {
            meter.sent();
        }
        let answered = match self.upstream.send(onward, address).await {
            Ok(answered) => answered,
            Err(error) => {
                if let (Some(meter), SendError::Unreached(_)) = (meter.take(), &error) {
                    meter.release(StatusCode::BAD_GATEWAY.as_u16());
                }
                return Err(Denied::new(
                    StatusCode::BAD_GATEWAY,
                    format!("sloplet: {name}:{port} was not reached: {error}"),
                ));
            }
        };
        self.answer(answered, meter, &vault, upgraded, head, used)
    }

    /// Waits for room to hold a body.
    async fn room(&self, headers: &HeaderMap) -> Option<tokio::sync::OwnedSemaphorePermit> {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let kib = length.unwrap_or(HELD).min(HELD).div_ceil(1024).max(1);
        self.shared.room.clone().acquire_many_owned(u32::try_from(kib).unwrap_or(1)).await.ok()
    }

    async fn held(&self, body: Incoming, shape: Option<Shape>) -> Result<Bytes, Denied> {
        hold(body, HELD).await.map_err(|error| {
            let shape = shape.map(|shape| (shape, Refused::Request));
            let (status, message) = match error {
                HoldError::TooLong => {
                    (StatusCode::PAYLOAD_TOO_LARGE, format!("sloplet: the body is longer than {HELD} bytes"))
                }
                HoldError::Broken => (StatusCode::BAD_REQUEST, "sloplet: the body did not come to its end".to_owned()),
            };
            Denied { status, message, shape, retry_after: None }
        })
    }

    fn tell_seen(&self, vault: &Vault<'_>) {
        for seen in &vault.seen {
            let (connection, host) = (self.target.connection, self.target.name.clone());
            let (name, place) = (seen.name.clone(), seen.place);
            self.tell(match seen.used {
                true => Event::SecretUsed { connection, name, host, place },
                false => Event::PlaceholderLeaving { connection, name, host, place },
            });
        }
    }

    /// Passes an answer back: counted, and without values.
    fn answer(
        &self,
        answered: Response<Incoming>,
        meter: Option<Meter>,
        vault: &Vault<'_>,
        upgraded: Option<hyper::upgrade::OnUpgrade>,
        head: bool,
        used: bool,
    ) -> Result<Response<Body>, Denied> {
        let status = answered.status();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return self.join(answered, upgraded);
        }
        let (mut parts, body) = answered.into_parts();
        let encoded = parts.headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity");
        if used && encoded {
            let message = "sloplet: the host compressed its answer although it was asked not to, so it cannot be searched for the secret";
            return Err(Denied::new(StatusCode::BAD_GATEWAY, message));
        }
        strip_hop(&mut parts.headers);
        // Other ways to the host do not lead through here.
        parts.headers.remove(ALT_SVC);
        let mut body: Body = body.map_err(Into::into).boxed_unsync();
        if let Some(mut meter) = meter {
            if status.is_success() {
                let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
                meter.begin(status.as_u16(), kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream"));
                let asked = !meter.usage_added;
                body = Metered::new(body, meter).boxed_unsync();
                if !asked {
                    body = WithoutUsage::new(body).boxed_unsync();
                    parts.headers.remove(CONTENT_LENGTH);
                }
            } else {
                meter.release(status.as_u16());
            }
        }
        if !vault.needles.is_empty() {
            vault.needles.replace_headers(&mut parts.headers);
            let empty = head || status == StatusCode::NOT_MODIFIED || status == StatusCode::NO_CONTENT;
            if !empty && !encoded {
                parts.headers.remove(CONTENT_LENGTH);
                body = Redacted::new(body, vault.needles.clone()).boxed_unsync();
            }
        }
        parts.version = hyper::Version::default();
        parts.extensions.clear();
        Ok(Response::from_parts(parts, body))
    }

    /// Both sides speak something else from now on; it is passed as it is.
    fn join(
        &self,
        mut answered: Response<Incoming>,
        upgraded: Option<hyper::upgrade::OnUpgrade>,
    ) -> Result<Response<Body>, Denied> {
        let Some(client) = upgraded else {
            return Err(Denied::new(StatusCode::BAD_GATEWAY, "sloplet: the host changed the protocol unasked"));
        };
        let host = hyper::upgrade::on(&mut answered);
        tokio::spawn(async move {
            if let (Ok(client), Ok(host)) = tokio::join!(client, host) {
                let (mut client, mut host) = (TokioIo::new(client), TokioIo::new(host));
                let _ = tokio::io::copy_bidirectional(&mut client, &mut host).await;
            }
        });
        let (mut parts, _) = answered.into_parts();
        let protocol = parts.headers.get(UPGRADE).cloned();
        strip_hop(&mut parts.headers);
        parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        if let Some(protocol) = protocol {
            parts.headers.insert(UPGRADE, protocol);
        }
        parts.extensions.clear();
        Ok(Response::from_parts(parts, full(Bytes::new())))
    }
}

/// A body that was held, with its length.
fn set(headers: &mut HeaderMap, body: Bytes) -> Body {
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    full(body)
}
