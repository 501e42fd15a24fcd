//! A host that answers as it is told, a gateway, and clients.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sloplet_egress::intercept::{Dial, Intercept, Pending, Stream, Target};
use sloplet_gateway::{Account, Accounts, Authority, Event, Gateway, LlmHost, Prices, Secret, SecretValue, Setup};
use sloplet_policy::{Budget, SecretRule};
use tokio::io::DuplexStream;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub const HOST: &str = "api.anthropic.com";

pub type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;
pub type Handler = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Answer> + Send + Sync>;

/// An answer in one piece.
pub fn answer(status: u16, body: impl Into<Bytes>) -> Answer {
    Response::builder().status(status).body(Full::new(body.into()).boxed_unsync()).unwrap()
}

/// Says what it got, headers and body.
pub fn echo() -> Handler {
    Arc::new(|request| {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let mut text = format!("{} {:?}\nuri: {}\n", parts.method, parts.version, parts.uri);
            for (name, value) in &parts.headers {
                text += &format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()));
            }
            answer(200, format!("{text}\n{}", String::from_utf8_lossy(&body)))
        })
    })
}

/// Headers and bodies of requests.
pub type Kept = Arc<Mutex<Vec<(hyper::HeaderMap, String)>>>;

/// Keeps what it got, as text; answers by a function.
pub fn keeping(answers: impl Fn(&str) -> Answer + Send + Sync + 'static) -> (Handler, Kept) {
    let kept: Kept = Arc::default();
    let (keep, answers) = (kept.clone(), Arc::new(answers));
    let handler: Handler = Arc::new(move |request| {
        let (keep, answers) = (keep.clone(), answers.clone());
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
            let answer = answers(&body);
            keep.lock().unwrap().push((parts.headers, body));
            answer
        })
    });
    (handler, kept)
}

/// Streams events; then ends, or goes on without a word.
pub fn sse(events: &'static [&'static str], forever: bool) -> (Handler, Arc<Mutex<Vec<String>>>) {
    let kept: Arc<Mutex<Vec<String>>> = Arc::default();
    let keep = kept.clone();
    let handler: Handler = Arc::new(move |request| {
        let keep = keep.clone();
        Box::pin(async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            keep.lock().unwrap().push(String::from_utf8(body.to_vec()).unwrap());
            let pieces = events.iter().map(|event| Bytes::from(format!("data: {event}\n\n")));
            pieces_answer("text/event-stream", pieces.collect(), forever)
        })
    });
    (handler, kept)
}

/// An answer in pieces.
pub fn pieces_answer(kind: &str, pieces: Vec<Bytes>, forever: bool) -> Answer {
    let frames = stream::iter(pieces).then(|piece| async {
        tokio::task::yield_now().await;
        Ok(Frame::data(piece))
    });
    let end = stream::once(async move {
        if forever {
            std::future::pending::<()>().await;
        }
        Ok(Frame::data(Bytes::new()))
    });
    Response::builder().header("content-type", kind).body(StreamBody::new(frames.chain(end)).boxed_unsync()).unwrap()
}

struct To(SocketAddr);

impl Dial for To {
    fn dial(&self) -> Pending<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async { Ok(Box::new(TcpStream::connect(self.0).await?) as Box<dyn Stream>) })
    }
}

/// A host on loopback, with a certificate for these names.
pub struct Host {
    pub address: SocketAddr,
    pub roots: Arc<RootCertStore>,
}

impl Host {
    pub async fn start(names: &[&str], tls: bool, handler: Handler) -> Self {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, handler) = (acceptor.clone(), handler.clone());
                tokio::spawn(async move {
                    let stream: Box<dyn Stream> = match tls {
                        false => Box::new(stream),
                        true => match acceptor.accept(stream).await {
                            Ok(stream) => Box::new(stream),
                            Err(_) => return,
                        },
                    };
                    let service = service_fn(move |request| {
                        let answered = handler(request);
                        async move { Ok::<_, Infallible>(answered.await) }
                    });
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, roots: Arc::new(roots) }
    }
}

/// A gateway in front of a host.
pub struct Gate {
    pub gateway: Gateway,
    pub authority: Arc<Authority>,
    pub secrets: Vec<Secret>,
    pub events: Arc<Mutex<Vec<Event>>>,
    pub host: Host,
    pub target: Target,
}

pub fn secret(rule: &str, value: &str) -> Secret {
    let rule: SecretRule = rule.parse().unwrap();
    let placeholder = sloplet_gateway::placeholder(&rule).unwrap();
    Secret { rule, value: SecretValue::new(value), placeholder }
}

impl Gate {
    pub fn new(host: Host, secrets: Vec<Secret>, budget: Budget) -> Self {
        let account = Accounts::new(None).open("sandbox", "", budget);
        Self::with(host, secrets, account, Vec::new())
    }

    pub fn with(host: Host, secrets: Vec<Secret>, account: Account, llm_hosts: Vec<LlmHost>) -> Self {
        let authority = Arc::new(Authority::new().unwrap());
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let told = events.clone();
        let gateway = Gateway::new(Setup {
            authority: authority.clone(),
            secrets: secrets.clone(),
            headers: Vec::new(),
            account,
            prices: Arc::new(Prices::built_in().unwrap()),
            roots: host.roots.clone(),
            llm_hosts,
            events: Arc::new(move |event| told.lock().unwrap().push(event)),
        })
        .unwrap();
        let target = Target { name: HOST.into(), port: 443, tls: true, connection: 7 };
        Self { gateway, authority, secrets, events, host, target }
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// What the gateway said of calls, once there are so many of them: it says so at an answer's end.
    pub async fn calls(&self, count: usize) -> Vec<sloplet_gateway::LlmCall> {
        let start = std::time::Instant::now();
        loop {
            let calls: Vec<_> = self
                .events()
                .into_iter()
                .filter_map(|event| match event {
                    Event::LlmCall(call) => Some(*call),
                    _ => None,
                })
                .collect();
            if calls.len() >= count {
                return calls;
            }
            assert!(start.elapsed().as_secs() < 120, "{} calls were told, not {count}", calls.len());
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }

    /// A connection from inside, before anything is said on it.
    pub fn raw(&self) -> DuplexStream {
        let (client, inside) = tokio::io::duplex(1 << 16);
        let dial = Arc::new(To(self.host.address));
        tokio::spawn(self.gateway.serve(Box::new(inside), self.target.clone(), dial));
        client
    }

    /// A connection with TLS, as this name, trusting the sandbox's authority.
    pub async fn tls(&self, name: &str, alpn: &[&str]) -> io::Result<TlsStream<DuplexStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.certificate_pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, self.raw()).await
    }

    /// Sends one request and reads the answer to its end.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> (hyper::http::response::Parts, String) {
        let (parts, body) = self.begin(request).await.into_parts();
        (parts, String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap())
    }

    /// Sends one request; its answer's body is still to be read.
    pub async fn begin(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let stream: Box<dyn Stream> = match self.target.tls {
            true => Box::new(self.tls(&self.target.name, &["http/1.1"]).await.unwrap()),
            false => Box::new(self.raw()),
        };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }

    /// The same over HTTP/2.
    pub async fn send_http2(&self, request: Request<Full<Bytes>>) -> (hyper::http::response::Parts, String) {
        let stream = TokioIo::new(self.tls(HOST, &["h2"]).await.unwrap());
        let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await;
        let (mut sender, connection) = shaken.unwrap();
        tokio::spawn(connection);
        let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
        (parts, String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap())
    }
}

/// A request to the usual host.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") && path.starts_with('/') {
        request = request.header("host", HOST);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap()
}
