//! The gateway of one sandbox: what egress hands connections to.

use std::convert::Infallible;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::RootCertStore;
use sloplet_egress::intercept::{Dial, Intercept, Pending, Stream, Target};
use sloplet_policy::HeaderRule;
use sloplet_policy::secret::HostPattern;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::account::Account;
use crate::authority::Authority;
use crate::event::{Event, Events};
use crate::exchange::{Exchange, HELD};
use crate::llm::{KNOWN_HOSTS, Shape};
use crate::prices::Prices;
use crate::upstream::{Tls, Upstream};
use crate::vault::Secret;

/// How long a client may take for its handshake, and for the headers of its next request.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(30);
const HEADERS_WITHIN: Duration = Duration::from_secs(120);

/// Bytes of headers.
const HEADER_BYTES: usize = 128 * 1024;

/// Requests at once on one connection.
const STREAMS: u32 = 64;

/// A host that serves an LLM API, beside those that are known.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LlmHost {
    /// Which.
    pub host: HostPattern,
    /// Whose form its API has.
    pub shape: Shape,
}

/// What a gateway is made of.
pub struct Setup {
    /// Whose certificates it shows.
    pub authority: Arc<Authority>,
    /// The sandbox's secrets.
    pub secrets: Vec<Secret>,
    /// Headers that are set on its requests.
    pub headers: Vec<HeaderRule>,
    /// What calls are paid from.
    pub account: Account,
    /// What they cost.
    pub prices: Arc<Prices>,
    /// Whom it trusts; [`system_roots`] outside of tests.
    pub roots: Arc<RootCertStore>,
    /// Hosts with LLM APIs, beside those that are known.
    pub llm_hosts: Vec<LlmHost>,
    /// Who is told what happens.
    pub events: Events,
}

/// The gateway of one sandbox.
#[derive(Clone)]
pub struct Gateway(Arc<Shared>);

pub(crate) struct Shared {
    authority: Arc<Authority>,
    tls: Tls,
    config: RwLock<Arc<Config>>,
    /// KiB of bodies that may be held at once.
    pub room: Arc<Semaphore>,
    pub events: Events,
}

/// What can change while connections stand. A request sees one state of it.
#[derive(Clone)]
pub(crate) struct Config {
    pub secrets: Arc<Vec<Secret>>,
    pub headers: Arc<Vec<HeaderRule>>,
    pub account: Account,
    pub prices: Arc<Prices>,
    llm_hosts: Arc<Vec<LlmHost>>,
}

impl Config {
    /// Whose form the API of a host has, if it is one. Ports that others use for other things are left alone.
    pub fn shape(&self, name: &str, port: u16) -> Option<Shape> {
        let own = self.llm_hosts.iter().find(|known| known.host.matches(name, port, &[80, 443]));
        let known = || {
            let known = KNOWN_HOSTS.iter().find(|(pattern, _)| {
                pattern.parse::<HostPattern>().is_ok_and(|pattern| pattern.matches(name, port, &[80, 443]))
            });
            known.map(|&(_, shape)| shape)
        };
        own.map(|own| own.shape).or_else(known)
    }
}

impl Shared {
    pub fn config(&self) -> Arc<Config> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn serve(self: Arc<Self>, client: Box<dyn Stream>, target: Target, dial: Arc<dyn Dial>) {
        if !target.tls {
            return self.talk(client, target, dial, false).await;
        }
        let config = match self.authority.server_config(&target.name) {
            Ok(config) => config,
            Err(error) => return self.refuse(&target, &error.to_string()),
        };
        match tokio::time::timeout(HANDSHAKE_WITHIN, TlsAcceptor::from(config).accept(client)).await {
            Ok(Ok(stream)) => {
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                self.talk(Box::new(stream), target, dial, http2).await;
            }
            Ok(Err(error)) => self.refuse(&target, &format!("TLS from inside: {error}")),
            Err(_) => self.refuse(&target, "TLS from inside: the handshake took too long"),
        }
    }

    fn refuse(&self, target: &Target, reason: &str) {
        let (connection, host, reason) = (target.connection, target.name.clone(), reason.to_owned());
        (self.events)(Event::Refused { connection, host, reason });
    }

    async fn talk(self: Arc<Self>, client: Box<dyn Stream>, target: Target, dial: Arc<dyn Dial>, http2: bool) {
        let upstream = Upstream::new(dial, target.clone(), self.tls.clone(), http2);
        let exchange = Arc::new(Exchange { shared: self, target, upstream });
        let service = service_fn(move |request| {
            let exchange = exchange.clone();
            async move { Ok::<_, Infallible>(exchange.serve(request).await) }
        });
        let io = TokioIo::new(client);
        let ended = match http2 {
            true => {
                http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(STREAMS)
                    .max_header_list_size(HEADER_BYTES as u32)
                    .keep_alive_interval(HEADERS_WITHIN)
                    .serve_connection(io, service)
                    .await
            }
            false => {
                http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADERS_WITHIN)
                    .max_buf_size(HEADER_BYTES)
                    .serve_connection(io, service)
                    .with_upgrades()
                    .await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection to the gateway ended early");
        }
    }
}

impl Gateway {
    /// Sets up the gateway of a sandbox.
    pub fn new(setup: Setup) -> Result<Self, rustls::Error> {
        let config = Config {
            secrets: Arc::new(setup.secrets),
            headers: Arc::new(setup.headers),
            account: setup.account,
            prices: setup.prices,
            llm_hosts: Arc::new(setup.llm_hosts),
        };
        Ok(Self(Arc::new(Shared {
            authority: setup.authority,
            tls: Tls::new(setup.roots)?,
            config: RwLock::new(Arc::new(config)),
            room: Arc::new(Semaphore::new(2 * HELD / 1024)),
            events: setup.events,
        })))
    }

    /// Changes the secrets. Requests under way end as they began.
    pub fn set_secrets(&self, secrets: Vec<Secret>) {
        self.change(|config| config.secrets = Arc::new(secrets));
    }

    /// Changes the headers that are set. Requests under way end as they began.
    pub fn set_headers(&self, headers: Vec<HeaderRule>) {
        self.change(|config| config.headers = Arc::new(headers));
    }

    /// Changes the prices.
    pub fn set_prices(&self, prices: Arc<Prices>) {
        self.change(|config| config.prices = prices);
    }

    /// Changes the hosts with LLM APIs.
    pub fn set_llm_hosts(&self, hosts: Vec<LlmHost>) {
        self.change(|config| config.llm_hosts = Arc::new(hosts));
    }

    /// What calls are paid from; its budget can be changed.
    pub fn account(&self) -> Account {
        self.0.config().account.clone()
    }

    /// What the variables inside hold: name and placeholder.
    pub fn placeholders(&self) -> Vec<(String, String)> {
        let secrets = self.0.config().secrets.clone();
        secrets.iter().map(|secret| (secret.rule.name.clone(), secret.placeholder.clone())).collect()
    }

    fn change(&self, change: impl FnOnce(&mut Config)) {
        let mut config = self.0.config.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut config));
    }
}

impl Intercept for Gateway {
    fn wants(&self, name: &str, port: u16) -> bool {
        let config = self.0.config();
        config.secrets.iter().any(|secret| secret.rule.is_for(name, port))
            || config.headers.iter().any(|rule| rule.is_for(name, port))
            || (config.account.budget().counts_calls() && config.shape(name, port).is_some())
    }

    fn serve(&self, client: Box<dyn Stream>, target: Target, dial: Arc<dyn Dial>) -> Pending<'static, ()> {
        Box::pin(self.0.clone().serve(client, target, dial))
    }
}

/// The certificates that the host itself trusts.
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}
