//! One request over one connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::Url;

use crate::error::S3Error;

/// How long a connection may take to stand.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);

/// How long an answer may take to begin, after a part was sent over a slow line.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

/// Bytes of an answer that is held in memory.
const ANSWER: usize = 16 << 20;

/// How TLS is spoken.
#[derive(Clone)]
pub(crate) struct Wire {
    tls: TlsConnector,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Wire {
    /// Trusts whom the host trusts; `SSL_CERT_FILE` names others.
    pub(crate) fn new() -> Result<Self, S3Error> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| S3Error::Settings(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { tls: TlsConnector::from(Arc::new(config)) })
    }

    /// Sends a request and waits for the beginning of its answer. `what` names the object: the address has the signature.
    pub(crate) async fn send(
        &self,
        method: Method,
        url: &Url,
        headers: &[(&str, String)],
        body: Bytes,
        what: &str,
    ) -> Result<Response<Incoming>, S3Error> {
        let host = url.host_str().unwrap_or_default().to_owned();
        let port = url.port_or_known_default().unwrap_or(443);
        let unreached = |reason: String| S3Error::Unreached { endpoint: format!("{host}:{port}"), reason };
        let broken = |reason: String| S3Error::Broken { what: what.to_owned(), reason };
        let connecting = self.connect(url.scheme() == "https", &host, port);
        let stream = match tokio::time::timeout(CONNECT_WITHIN, connecting).await {
            Ok(stream) => stream.map_err(|error| unreached(error.to_string()))?,
            Err(_) => return Err(unreached("the connection took too long".into())),
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| unreached(error.to_string()))?;
        tokio::spawn(connection);
        let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        let authority = url.port().map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
        let mut request = Request::builder().method(method).uri(path).header("host", authority);
        request = request.header("connection", "close");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| S3Error::Settings(error.to_string()))?;
        match tokio::time::timeout(ANSWER_WITHIN, sender.send_request(request)).await {
            Ok(response) => response.map_err(|error| broken(error.to_string())),
            Err(_) => Err(broken("the answer took too long".into())),
        }
    }

    async fn connect(&self, tls: bool, host: &str, port: u16) -> std::io::Result<Box<dyn Stream>> {
        let plain = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((plain, port)).await?;
        stream.set_nodelay(true)?;
        if !tls {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(plain.to_owned()).map_err(std::io::Error::other)?;
        Ok(Box::new(self.tls.connect(name, stream).await?))
    }
}

/// An answer as text; a refusal as an error.
pub(crate) async fn text(response: Response<Incoming>, what: &str) -> Result<String, S3Error> {
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER).collect().await;
    let body = body.map_err(|error| S3Error::Broken { what: what.to_owned(), reason: error.to_string() })?.to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    if status.is_success() { Ok(body) } else { Err(refusal(status.as_u16(), &body, what)) }
}

/// What a refusal says.
pub(crate) fn refusal(status: u16, body: &str, what: &str) -> S3Error {
    let field = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        let (value, _) = rest.split_once(&format!("</{name}>"))?;
        Some(value.escape_debug().take(200).collect::<String>())
    };
    let code = field("Code").unwrap_or_else(|| match status {
        403 => "AccessDenied".into(),
        404 => "NoSuchKey".into(),
        412 => "PreconditionFailed".into(),
        _ => "an error".into(),
    });
    match (status, code.as_str()) {
        (404, "NoSuchKey") => S3Error::NotFound(what.to_owned()),
        (412, _) => S3Error::Changed(what.to_owned()),
        _ => {
            let message = field("Message").map_or_else(String::new, |message| format!(": {message}"));
            S3Error::Refused { what: what.to_owned(), status, code, message }
        }
    }
}
