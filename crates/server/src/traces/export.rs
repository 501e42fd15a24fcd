//! Sends spans to a collector.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsConnector;

use super::{Traces, otlp};

/// Spans that wait to be sent; more are lost.
const WAITING: usize = 4096;

/// Spans of one batch.
const BATCH: usize = 512;

/// How long the first span of a batch waits for others.
const DELAY: Duration = Duration::from_secs(1);

/// How long the collector may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the last spans may take when the server ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// A collector that cannot be reached is complained about so often.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// Where spans go, from OpenTelemetry's own variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    address: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    service: String,
}

impl Collector {
    /// As the environment says; `None` if nobody wants traces. `OTEL_EXPORTER_OTLP_ENDPOINT` (or, for traces alone,
    /// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`), `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, `OTEL_SDK_DISABLED`.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> io::Result<Option<Self>> {
        let given = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        if given("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let base = given("OTEL_EXPORTER_OTLP_ENDPOINT").map(|base| format!("{}/v1/traces", base.trim_end_matches('/')));
        let Some(address) = given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or(base) else { return Ok(None) };
        let bad = |what: &str| io::Error::other(format!("{what}: must be like http://127.0.0.1:4318"));
        let address: Uri = address.trim().parse().map_err(|_| bad(&address))?;
        if address.host().is_none() || !matches!(address.scheme_str(), Some("http" | "https")) {
            return Err(bad(&address.to_string()));
        }
        let listed = given("OTEL_EXPORTER_OTLP_TRACES_HEADERS").or_else(|| given("OTEL_EXPORTER_OTLP_HEADERS"));
        let mut headers = Vec::new();
        for pair in listed.iter().flat_map(|list| list.split(',')).filter(|pair| !pair.trim().is_empty()) {
            let bad = || io::Error::other("OTEL_EXPORTER_OTLP_HEADERS: must be like name=value,other=value");
            let (name, value) = pair.split_once('=').ok_or_else(bad)?;
            let value = percent_decode_str(value.trim()).decode_utf8_lossy();
            let mut value = HeaderValue::from_str(&value).map_err(|_| bad())?;
            value.set_sensitive(true);
            headers.push((HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| bad())?, value));
        }
        let service = given("OTEL_SERVICE_NAME").unwrap_or_else(|| "sloplet".into());
        Ok(Some(Self { address, headers, service }))
    }

    async fn send(&self, tls: Option<&TlsConnector>, spans: Vec<Value>) -> io::Result<()> {
        let host = self.address.host().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let secure = self.address.scheme_str() == Some("https");
        let port = self.address.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let stream = TcpStream::connect((bare, port)).await?;
        let mut request = Request::post(self.address.path_and_query().map_or("/v1/traces", |path| path.as_str()))
            .header(HOST, self.address.authority().map_or(host, |authority| authority.as_str()))
            .header(CONTENT_TYPE, "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let body = otlp::batch(&self.service, spans).to_string();
        let request = request.body(Full::new(Bytes::from(body))).map_err(io::Error::other)?;
        match tls {
            None => exchange(stream, request).await,
            Some(tls) => {
                let name = ServerName::try_from(bare.to_owned()).map_err(io::Error::other)?;
                exchange(tls.connect(name, stream).await?, request).await
            }
        }
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(io::Error::other)?;
    let status = response.status();
    // What it says is not needed, and may be without end.
    let _ = http_body_util::Limited::new(response.into_body(), 64 * 1024).collect().await;
    if status.is_success() { Ok(()) } else { Err(io::Error::other(format!("it answered {status}"))) }
}

/// What sends spans; made before there is a runtime, run in it.
pub struct Exporter {
    collector: Collector,
    tls: Option<TlsConnector>,
    incoming: mpsc::Receiver<Value>,
}

/// Ends an exporter.
pub struct Ending {
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<()>,
}

impl Exporter {
    /// Sends to a collector what the layer hears of.
    pub fn new(collector: Collector) -> io::Result<(Traces, Self)> {
        let tls = match collector.address.scheme_str() {
            Some("https") => Some(trusting()?),
            _ => None,
        };
        let (outgoing, incoming) = mpsc::channel(WAITING);
        Ok((Traces { outgoing }, Self { collector, tls, incoming }))
    }

    /// Starts sending.
    pub fn start(mut self) -> Ending {
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(async move {
            let mut complained: Option<Instant> = None;
            tokio::pin!(stopped);
            let mut over = false;
            while !over {
                tokio::select! {
                    _ = &mut stopped => over = true,
                    () = self.wait() => {}
                }
                loop {
                    let mut spans = Vec::new();
                    while spans.len() < BATCH
                        && let Ok(span) = self.incoming.try_recv()
                    {
                        spans.push(span);
                    }
                    if spans.is_empty() {
                        break;
                    }
                    let sending = self.collector.send(self.tls.as_ref(), spans);
                    let sent = tokio::time::timeout(PATIENCE, sending).await;
                    let Err(error) = sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) else { continue };
                    if complained.is_none_or(|at| at.elapsed() > COMPLAIN_EVERY) {
                        complained = Some(Instant::now());
                        tracing::warn!(%error, collector = %self.collector.address, "cannot send traces: they are lost");
                    }
                }
            }
        });
        Ending { stop, ended }
    }

    /// Until there is something to send, and a little longer, so that more comes along.
    async fn wait(&self) {
        while self.incoming.is_empty() {
            tokio::time::sleep(DELAY / 4).await;
        }
        tokio::time::sleep(DELAY).await;
    }
}

impl Ending {
    /// Sends what is left, for a while.
    pub async fn finish(self) {
        let _ = self.stop.send(());
        let _ = tokio::time::timeout(FAREWELL, self.ended).await;
    }
}

/// Trusts whom the host trusts; `SSL_CERT_FILE` names others.
fn trusting() -> io::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collector(variables: &[(&str, &str)]) -> io::Result<Option<Collector>> {
        Collector::from_environment(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn opentelemetrys_own_variables_are_understood() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318/");
        assert_eq!(collector(&[]).unwrap(), None);
        assert_eq!(collector(&[base, ("OTEL_SDK_DISABLED", "TRUE")]).unwrap(), None);
        let found = collector(&[base, ("OTEL_EXPORTER_OTLP_HEADERS", "a=b%20c, x-key=1")]).unwrap().unwrap();
        assert_eq!(
            (found.address.to_string().as_str(), found.service.as_str()),
            ("http://127.0.0.1:4318/v1/traces", "sloplet")
        );
        assert_eq!(found.headers[0], (HeaderName::from_static("a"), HeaderValue::from_static("b c")));
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector.example.com/own");
        assert_eq!(collector(&[base, traces]).unwrap().unwrap().address.to_string(), traces.1);
        for bad in ["127.0.0.1:4318", "grpc://x", "http://", "not an address"] {
            assert!(collector(&[("OTEL_EXPORTER_OTLP_ENDPOINT", bad)]).is_err(), "{bad}");
        }
        assert!(collector(&[base, ("OTEL_EXPORTER_OTLP_HEADERS", "nothing")]).is_err());
    }
}
