//! A client of one repository of a registry: manifests, blobs, and the tokens that registries ask for.
//!
//! Registries lead elsewhere: to whoever gives out tokens, and to where blobs are. Each of these places is asked about
//! before it is connected to. What a place says when it refuses is not passed on: its body may be anybody's.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use serde::Deserialize;

use crate::pull::{Credentials, Vetting};
use crate::reference::Reference;

/// Kinds of documents that are understood; the answer is judged by its content nevertheless.
const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Without a single byte.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// For what is a few kilobytes.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(60);

const MAX_REDIRECTS: usize = 5;
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// One repository of a registry.
pub(crate) struct Registry {
    client: Client,
    base: Url,
    repository: String,
    credentials: Option<Credentials>,
    vetting: Option<Vetting>,
    /// What is shown with every request, once it was asked for.
    shown: Mutex<Option<HeaderValue>>,
}

impl Registry {
    pub(crate) fn new(
        reference: &Reference,
        credentials: Option<Credentials>,
        vetting: Option<Vetting>,
    ) -> Result<Self, String> {
        let scheme = if reference.is_loopback() { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{}/v2/{}/", reference.registry, reference.repository));
        // Fails only when the program has chosen a provider already, which then serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .user_agent(concat!("sloplet/", env!("CARGO_PKG_VERSION")));
        let asked = vetting.clone();
        builder = builder.redirect(redirect::Policy::custom(move |attempt| {
            if attempt.previous().len() > MAX_REDIRECTS {
                return attempt.error("too many redirects");
            }
            match admit(asked.as_ref(), attempt.url()) {
                Ok(()) => attempt.follow(),
                Err(refusal) => attempt.error(refusal),
            }
        }));
        if let Some(vetting) = &vetting {
            // A proxy would connect to what only it has looked up.
            builder = builder.no_proxy().dns_resolver(Arc::new(Vetted(vetting.clone())));
        }
        Ok(Self {
            client: builder.build().map_err(|error| explain(&error))?,
            base: base.map_err(|_| "it is no address of a registry".to_owned())?,
            repository: reference.repository.clone(),
            credentials,
            vetting,
            shown: Mutex::default(),
        })
    }

    /// The bytes of a manifest or index, by tag or digest.
    pub(crate) async fn manifest(&self, version: &str, most: u64) -> Result<Vec<u8>, String> {
        let url = self.base.join(&format!("manifests/{version}")).map_err(|error| error.to_string())?;
        let document = async { bounded(self.get(url).await?, most).await };
        tokio::time::timeout(DOCUMENT_TIMEOUT, document).await.map_err(|_| "it took too long".to_owned())?
    }

    /// A blob on its way.
    pub(crate) async fn blob(&self, digest: &str) -> Result<Response, String> {
        self.get(self.base.join(&format!("blobs/{digest}")).map_err(|error| error.to_string())?).await
    }

    /// Asks, and asks again with what the registry wants to see.
    async fn get(&self, url: Url) -> Result<Response, String> {
        let response = self.send(url.clone(), self.shown()).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return successful(response);
        }
        let challenge = response.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        let challenge =
            challenge.and_then(Challenge::parse).ok_or("the registry refuses, and does not say what to show")?;
        drop(response);
        let shown = self.answer(&challenge).await?;
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown.clone());
        successful(self.send(url, Some(shown)).await?)
    }

    fn shown(&self) -> Option<HeaderValue> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn send(&self, url: Url, shown: Option<HeaderValue>) -> Result<Response, String> {
        admit(self.vetting.as_ref(), &url)?;
        let mut request = self.client.get(url).header(ACCEPT, ACCEPTED);
        if let Some(shown) = shown {
            request = request.header(AUTHORIZATION, shown);
        }
        request.send().await.map_err(|error| explain(&error))
    }

    /// What the registry wants to see.
    async fn answer(&self, challenge: &Challenge) -> Result<HeaderValue, String> {
        let shown = match challenge {
            Challenge::Basic => {
                let Some(credentials) = &self.credentials else { return Err("the registry wants an account".into()) };
                credentials.basic()
            }
            Challenge::Bearer { realm, service } => format!("Bearer {}", self.token(realm, service.as_deref()).await?),
        };
        let mut shown = HeaderValue::from_str(&shown).map_err(|_| "the registry's token is malformed".to_owned())?;
        shown.set_sensitive(true);
        Ok(shown)
    }

    async fn token(&self, realm: &str, service: Option<&str>) -> Result<String, String> {
        #[derive(Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
        }
        let mut url = Url::parse(realm).map_err(|_| "the registry's place for tokens is no address".to_owned())?;
        url.query_pairs_mut().append_pair("scope", &format!("repository:{}:pull", self.repository));
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", service);
        }
        let shown = self.credentials.as_ref().and_then(|credentials| HeaderValue::from_str(&credentials.basic()).ok());
        let request = async { bounded(successful(self.send(url, shown).await?)?, MAX_TOKEN_BYTES).await };
        let bytes = tokio::time::timeout(DOCUMENT_TIMEOUT, request).await;
        let bytes = bytes.map_err(|_| "the registry's token took too long".to_owned())??;
        let answer: Option<Answer> = serde_json::from_slice(&bytes).ok();
        let token = answer.and_then(|answer| answer.token.or(answer.access_token));
        token.ok_or_else(|| "the registry's place for tokens gave none".into())
    }
}

/// What a registry wants to see.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String> },
}

impl Challenge {
    /// Reads `Bearer realm="…",service="…"`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (scheme, mut rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        let (mut realm, mut service) = (None, None);
        while let Some((name, after)) = rest.split_once('=') {
            let value;
            (value, rest) = match after.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => after.split_once(',').unwrap_or((after, "")),
            };
            match name.trim_matches([' ', ',']).to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value.to_owned()),
                "service" => service = Some(value.to_owned()),
                _ => {}
            }
        }
        scheme.eq_ignore_ascii_case("bearer").then_some(Self::Bearer { realm: realm?, service })
    }
}

/// Whether an address may be asked. Names are vetted again once they are looked up.
fn admit(vetting: Option<&Vetting>, url: &Url) -> Result<(), String> {
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
        return Err("the registry leads to what is no address".into());
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = host.parse::<IpAddr>().ok();
    let near = host == "localhost" || address.is_some_and(|address| address.is_loopback());
    match url.scheme() {
        "https" => {}
        "http" if near => {}
        _ => return Err(format!("{host} would be asked without TLS")),
    }
    match vetting {
        Some(vetting) => vetting.admit(host, port, address),
        None => Ok(()),
    }
}

/// Looks names up, and leaves out what may not be connected to.
struct Vetted(Vetting);

impl reqwest::dns::Resolve for Vetted {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let vetting = self.0.clone();
        Box::pin(async move {
            let name = name.as_str().to_ascii_lowercase();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let mut refusal = None;
            let mut kept = Vec::new();
            for address in found {
                match vetting.dial(&name, address.ip()) {
                    Ok(()) => kept.push(address),
                    Err(why) => refusal = Some(why),
                }
            }
            match refusal {
                Some(refusal) if kept.is_empty() => Err(refusal.into()),
                _ => Ok(Box::new(kept.into_iter()) as reqwest::dns::Addrs),
            }
        })
    }
}

fn successful(response: Response) -> Result<Response, String> {
    match response.status() {
        status if status.is_success() => Ok(response),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err("the registry refuses: check the account".into()),
        StatusCode::NOT_FOUND => Err("the registry has no such image".into()),
        status => Err(format!("the registry answered {}", status.as_u16())),
    }
}

async fn bounded(mut response: Response, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| explain(&error))? {
        if (bytes.len() + chunk.len()) as u64 > most {
            return Err(format!("the registry's answer is longer than {most} bytes"));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The last cause is what a person can do something about; what is before it repeats the address.
pub(crate) fn explain(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    match error {
        error if error.is_timeout() => "the registry did not answer in time".into(),
        error if error.is_connect() => format!("the registry cannot be reached: {cause}"),
        _ => cause.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer { realm: realm.into(), service: service.map(Into::into) })
        };
        let text = r#"Bearer realm="https://auth.example/token",service="registry, of mine",scope="x""#;
        assert_eq!(Challenge::parse(text), bearer("https://auth.example/token", Some("registry, of mine")));
        assert_eq!(Challenge::parse("bearer realm=x, service=y"), bearer("x", Some("y")));
        assert_eq!(Challenge::parse("Basic realm=\"r\""), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("Basic"), Some(Challenge::Basic));
        for bad in ["", "Bearer", "Bearer service=\"x\"", "Negotiate realm=\"x\"", "Bearer realm=\"x"] {
            assert_eq!(Challenge::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn nothing_but_this_machine_is_asked_without_tls() {
        let may = |url: &str| admit(None, &Url::parse(url).unwrap()).is_ok();
        assert!(may("https://example.com/x") && may("http://127.0.0.1:5000/x") && may("http://[::1]/x"));
        assert!(!may("http://example.com/x") && !may("ftp://localhost/x") && !may("file:///etc/passwd"));
    }
}
