//! Connections to the host that was allowed, over TLS that is verified.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{HOST, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery, Scheme, Uri};
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use sloplet_egress::intercept::{Dial, Stream, Target};
use tokio_rustls::TlsConnector;

use crate::body::Body;
use crate::headers::join_cookies;

/// How long a connection may take to stand.
const CONNECT_WITHIN: Duration = Duration::from_secs(30);

/// Connections that are kept for the next request of the same client connection.
const IDLE: usize = 8;

/// How TLS is spoken to hosts.
#[derive(Clone)]
pub(crate) struct Tls {
    http1: Arc<ClientConfig>,
    /// Offers HTTP/2, too.
    any: Arc<ClientConfig>,
}

impl Tls {
    pub fn new(roots: Arc<RootCertStore>) -> Result<Self, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut http1 = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut any = http1.clone();
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        any.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { http1: Arc::new(http1), any: Arc::new(any) })
    }
}

/// A request that was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// It was not sent.
    #[error("{0}")]
    Unreached(String),
    /// It may have been sent.
    #[error("the connection broke: {0}")]
    Broken(hyper::Error),
}

/// The way to one host, for one connection of a client.
pub(crate) struct Upstream {
    dial: Arc<dyn Dial>,
    target: Target,
    tls: Tls,
    /// What the client speaks is preferred: HTTP/1.1 has upgrades, HTTP/2 has trailers.
    http2: bool,
    idle: Mutex<Vec<http1::SendRequest<Body>>>,
    shared: tokio::sync::Mutex<Option<http2::SendRequest<Body>>>,
}

enum Sender {
    One(http1::SendRequest<Body>),
    Shared(http2::SendRequest<Body>),
}

impl Upstream {
    pub fn new(dial: Arc<dyn Dial>, target: Target, tls: Tls, http2: bool) -> Self {
        Self { dial, target, tls, http2, idle: Mutex::default(), shared: tokio::sync::Mutex::default() }
    }

    /// How the host is named in requests.
    fn authority(&self) -> String {
        let usual = if self.target.tls { 443 } else { 80 };
        match self.target.port {
            port if port == usual => self.target.name.clone(),
            port => format!("{}:{port}", self.target.name),
        }
    }

    /// Sends a request, with the path and query given, to the host.
    pub async fn send(&self, request: Request<Body>, address: PathAndQuery) -> Result<Response<Incoming>, SendError> {
        let mut request = request;
        // A kept connection may be closed at the moment it is used; then the request is given back, unsent, and tried anew.
        loop {
            let (sender, kept) = self.connected().await?;
            let (error, unsent) = match sender {
                Sender::One(sender) => match self.one(sender, request, &address).await {
                    Ok(response) => return Ok(response),
                    Err(failed) => failed,
                },
                Sender::Shared(mut sender) => {
                    *request.version_mut() = Version::HTTP_2;
                    *request.uri_mut() = self.absolute(address.clone())?;
                    request.headers_mut().remove(HOST);
                    match sender.try_send_request(request).await {
                        Ok(response) => return Ok(response),
                        Err(mut error) => {
                            let unsent = error.take_message();
                            (error.into_error(), unsent)
                        }
                    }
                }
            };
            match unsent {
                Some(unsent) if kept => request = unsent,
                Some(_) => return Err(SendError::Unreached(error.to_string())),
                None => return Err(SendError::Broken(error)),
            }
        }
    }

    fn absolute(&self, address: PathAndQuery) -> Result<Uri, SendError> {
        let authority: Authority =
            self.authority().parse().map_err(|_| SendError::Unreached("the host's name is none".to_owned()))?;
        let builder = Uri::builder().scheme(Scheme::HTTPS).authority(authority).path_and_query(address);
        builder.build().map_err(|error| SendError::Unreached(error.to_string()))
    }

    async fn one(
        &self,
        mut sender: http1::SendRequest<Body>,
        mut request: Request<Body>,
        address: &PathAndQuery,
    ) -> Result<Response<Incoming>, (hyper::Error, Option<Request<Body>>)> {
        *request.version_mut() = Version::HTTP_11;
        *request.uri_mut() = Uri::from(address.clone());
        if let Ok(host) = HeaderValue::from_str(&self.authority()) {
            request.headers_mut().insert(HOST, host);
        }
        join_cookies(request.headers_mut());
        match sender.try_send_request(request).await {
            Ok(response) => {
                let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
                if idle.len() < IDLE {
                    idle.push(sender);
                }
                Ok(response)
            }
            Err(mut error) => {
                let unsent = error.take_message();
                Err((error.into_error(), unsent))
            }
        }
    }

    /// A kept connection whose last answer is over.
    fn kept(&self) -> Option<http1::SendRequest<Body>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|sender| !sender.is_closed());
        let ready = idle.iter().position(http1::SendRequest::is_ready)?;
        Some(idle.swap_remove(ready))
    }

    /// A connection, and whether it was used before.
    async fn connected(&self) -> Result<(Sender, bool), SendError> {
        if let Some(kept) = self.kept() {
            return Ok((Sender::One(kept), true));
        }
        if !self.http2 {
            return Ok((self.connect(false).await?, false));
        }
        let mut shared = self.shared.lock().await;
        if let Some(sender) = shared.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok((Sender::Shared(sender.clone()), true));
        }
        let sender = self.connect(true).await?;
        *shared = match &sender {
            Sender::Shared(sender) => Some(sender.clone()),
            Sender::One(_) => None,
        };
        Ok((sender, false))
    }

    async fn connect(&self, http2: bool) -> Result<Sender, SendError> {
        let standing = tokio::time::timeout(CONNECT_WITHIN, self.stand(http2)).await;
        standing.unwrap_or_else(|_| Err(SendError::Unreached(format!("no connection within {CONNECT_WITHIN:?}"))))
    }

    async fn stand(&self, http2: bool) -> Result<Sender, SendError> {
        let unreached = |error: &dyn std::fmt::Display| SendError::Unreached(error.to_string());
        let stream = self.dial.dial().await.map_err(|error| unreached(&error))?;
        if !self.target.tls {
            return talk_http1(stream).await.map(Sender::One).map_err(|error| unreached(&error));
        }
        let name = ServerName::try_from(self.target.name.clone()).map_err(|error| unreached(&error))?;
        let config = if http2 { &self.tls.any } else { &self.tls.http1 };
        let stream = TlsConnector::from(config.clone()).connect(name, stream).await;
        let stream = stream.map_err(|error| unreached(&format!("TLS: {error}")))?;
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            let shaken = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
            let (sender, connection) = shaken.map_err(|error| unreached(&error))?;
            tokio::spawn(connection);
            return Ok(Sender::Shared(sender));
        }
        talk_http1(stream).await.map(Sender::One).map_err(|error| unreached(&error))
    }
}

async fn talk_http1(stream: impl Stream) -> hyper::Result<http1::SendRequest<Body>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the client's connection: the sender and the answer's body are what keeps it.
    tokio::spawn(connection.with_upgrades());
    Ok(sender)
}
