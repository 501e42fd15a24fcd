//! Who asks, and what they may.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sloplet_engine::engine::{new_id, new_secret};
use sloplet_engine::life::Quota;
use sloplet_engine::life::clock::now_ms;
use sloplet_store::{Collection, Document, Store, StoreError};
use subtle::ConstantTimeEq;

use crate::account;
use crate::app::App;
use crate::error::ApiError;
use crate::refusals::Refused;

/// The owner of what is made without a key: by the same user, over the Unix socket; and of the first key.
pub const LOCAL: &str = "local";

/// What a key allows; each includes the ones before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// To look.
    Read,
    /// To make and use sandboxes.
    Use,
    /// To make keys.
    Admin,
}

/// An API key. The secret itself is not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Names the key; letters and digits.
    pub id: String,
    /// Owns the sandboxes that the key makes.
    pub owner: String,
    /// For people.
    pub label: String,
    /// What it allows.
    pub scope: Scope,
    /// What it may have at once.
    pub quota: Quota,
    /// SHA-256 of the secret, in hexadecimal digits. Forty random digits need no salt.
    pub hash: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

impl Document for Key {
    const KIND: &'static str = "key";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn created_ms(&self) -> u64 {
        self.created_ms
    }
}

/// Why keys could not be read or made.
pub type AuthError = StoreError;

/// All keys.
pub struct Keys {
    records: Collection<Key>,
    by_hash: Mutex<HashMap<String, Arc<Known>>>,
}

struct Known {
    key: Key,
    allowance: Mutex<Allowance>,
}

/// A bucket of requests that refills over a minute.
struct Allowance {
    left: f64,
    since: Instant,
}

impl Keys {
    /// Reads them.
    pub fn open(store: &Store) -> Result<Self, AuthError> {
        let records: Collection<Key> = store.collection();
        let by_hash = records.all()?.into_iter().map(|key| (key.hash.clone(), Arc::new(Known::new(key)))).collect();
        Ok(Self { records, by_hash: Mutex::new(by_hash) })
    }

    /// Makes a key and tells its secret, this once. An owner of its own, unless one is given.
    pub fn create(
        &self,
        label: &str,
        scope: Scope,
        quota: Quota,
        owner: Option<&str>,
    ) -> Result<(Key, String), AuthError> {
        let secret = format!("e2b_{}", new_secret());
        let id = new_id();
        let owner = owner.map_or_else(|| id.clone(), str::to_owned);
        let key = Key { id, owner, label: label.to_owned(), scope, quota, hash: hash(&secret), created_ms: now_ms() };
        self.records.insert(&key)?;
        self.lock().insert(key.hash.clone(), Arc::new(Known::new(key.clone())));
        Ok((key, secret))
    }

    /// All keys, newest first.
    pub fn list(&self) -> Result<Vec<Key>, AuthError> {
        self.records.all()
    }

    /// Forgets a key; false if there was none.
    pub fn remove(&self, id: &str) -> Result<bool, AuthError> {
        self.lock().retain(|_, known| known.key.id != id);
        self.records.remove(id)
    }

    /// Who shows this secret.
    fn access(&self, secret: &str) -> Result<Access, ApiError> {
        // Looked up by its hash: how long that takes says nothing of the secret.
        let known = self.lock().get(&hash(secret)).cloned();
        let known = known.ok_or_else(|| ApiError::unauthorized("unknown API key: check X-API-KEY"))?;
        known.spend()?;
        Ok(known.access())
    }

    /// What the key with this id allows, if there is one. If that is used, and not just looked at, it counts as a request
    /// of the key, and there is nothing if it made too many.
    pub fn access_of(&self, id: &str, used: bool) -> Option<Access> {
        let known = self.lock().values().find(|known| known.key.id == id).cloned()?;
        if used {
            known.spend().ok()?;
        }
        Some(known.access())
    }

    /// Which key this is the secret of.
    fn id_of(&self, secret: &str) -> Option<String> {
        self.lock().get(&hash(secret)).map(|known| known.key.id.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Known>>> {
        self.by_hash.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn new(key: Key) -> Self {
        let left = f64::from(key.quota.requests_per_minute.unwrap_or(0));
        Self { key, allowance: Mutex::new(Allowance { left, since: Instant::now() }) }
    }

    fn access(&self) -> Access {
        let Key { id, owner, scope, quota, .. } = &self.key;
        Access { owner: owner.clone(), key: Some(id.clone()), scope: *scope, quota: *quota }
    }

    fn spend(&self) -> Result<(), ApiError> {
        let Some(most) = self.key.quota.requests_per_minute.map(f64::from) else { return Ok(()) };
        let mut allowance = self.allowance.lock().unwrap_or_else(PoisonError::into_inner);
        let gained = allowance.since.elapsed().as_secs_f64() * most / 60.0;
        allowance.left = (allowance.left + gained).min(most);
        allowance.since = Instant::now();
        if allowance.left < 1.0 {
            let message = format!("this key may make {most} requests a minute: wait a little");
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, message));
        }
        allowance.left -= 1.0;
        Ok(())
    }
}

fn hash(secret: &str) -> String {
    Sha256::digest(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares secrets in a time that tells nothing of where they differ.
pub fn same_secret(given: &str, right: &str) -> bool {
    given.as_bytes().ct_eq(right.as_bytes()).into()
}

/// What only those can make who know the secret: an HMAC in hexadecimal digits.
pub fn signature(secret: &str, text: &str) -> String {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
    ring::hmac::sign(&key, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Marks requests that came over the Unix socket from this server's own user.
#[derive(Debug, Clone, Copy)]
pub struct OwnUser;

/// Who asks, and what they may. Handlers take it as an argument.
#[derive(Debug, Clone)]
pub struct Access {
    /// Whose sandboxes they see.
    pub owner: String,
    /// The key they showed; none over the Unix socket.
    pub key: Option<String>,
    /// What they may do.
    pub scope: Scope,
    /// What they may have.
    pub quota: Quota,
}

impl Access {
    /// The server's own user.
    pub fn local() -> Self {
        Self { owner: LOCAL.into(), key: None, scope: Scope::Admin, quota: Quota::default() }
    }

    /// Who they are, in the record.
    pub fn actor(&self) -> String {
        self.key.as_ref().map_or_else(|| LOCAL.to_owned(), |key| format!("key:{key}"))
    }

    /// What opens a thing of theirs, for those who may use it: whoever may only look gets no token in any answer.
    pub fn token(&self, token: &str) -> Option<String> {
        (self.scope >= Scope::Use).then(|| token.to_owned())
    }

    /// Refuses those who may less.
    pub fn require(&self, scope: Scope) -> Result<(), ApiError> {
        if self.scope >= scope {
            return Ok(());
        }
        let name = |scope| match scope {
            Scope::Read => "read",
            Scope::Use => "use",
            Scope::Admin => "admin",
        };
        let message = format!("this key has the scope '{}', '{}' is needed", name(self.scope), name(scope));
        Err(ApiError::new(StatusCode::FORBIDDEN, message))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Access {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| ApiError::unauthorized("an API key is needed"))
    }
}

/// The secret that a request shows: `X-API-KEY`, or a bearer token.
fn shown(headers: &HeaderMap) -> Option<&str> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    header("x-api-key").or_else(|| header("authorization").and_then(|value| value.strip_prefix("Bearer ")))
}

/// Who asks; `None` if nothing was shown.
pub fn identify(app: &App, headers: &HeaderMap, own_user: bool) -> Result<Option<Access>, ApiError> {
    match shown(headers) {
        Some(secret) => app.keys().access(secret).map(Some),
        None if own_user => Ok(Some(Access::local())),
        None => Ok(None),
    }
}

/// Lets only those through who show a key, and lets those who may only look do only that.
pub async fn require_key(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let own_user = request.extensions().get::<OwnUser>().is_some();
    let looks = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let access = identify(&app, request.headers(), own_user).and_then(|access| {
        let access = access.ok_or_else(|| ApiError::unauthorized("an API key is needed: send it as X-API-KEY"))?;
        access.require(if looks { Scope::Read } else { Scope::Use })?;
        Ok(access)
    });
    match access {
        Ok(access) => {
            let owner = access.owner.clone();
            request.extensions_mut().insert(access);
            account::within(&app, &owner, request, |request| next.run(request)).await
        }
        Err(error) => {
            let key = shown(request.headers()).and_then(|secret| app.keys().id_of(secret));
            let mut response = error.into_response();
            response.extensions_mut().insert(Refused { key });
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::open(&Store::in_memory().unwrap()).unwrap()
    }

    #[test]
    fn the_secret_is_not_kept_and_opens_only_what_it_may() {
        let keys = keys();
        let (key, secret) = keys.create("ci", Scope::Use, Quota::default(), None).unwrap();
        assert!(!serde_json::to_string(&keys.list().unwrap()).unwrap().contains(&secret));
        let access = keys.access(&secret).unwrap();
        assert_eq!((access.owner.as_str(), access.scope), (key.id.as_str(), Scope::Use));
        assert!(access.require(Scope::Read).is_ok() && access.require(Scope::Admin).is_err());
        assert!(keys.access(&format!("{secret}0")).is_err());
        assert!(keys.remove(&key.id).unwrap());
        assert!(keys.access(&secret).is_err());
    }

    #[test]
    fn whoever_may_only_look_gets_no_token() {
        let access = |scope| Access { scope, ..Access::local() };
        assert_eq!(access(Scope::Read).token("secret"), None);
        assert_eq!(access(Scope::Use).token("secret").as_deref(), Some("secret"));
    }

    #[test]
    fn a_key_may_ask_only_so_often() {
        let keys = keys();
        let quota = Quota { requests_per_minute: Some(3), ..Quota::default() };
        let (_, secret) = keys.create("slow", Scope::Use, quota, None).unwrap();
        let granted = (0..10).filter(|_| keys.access(&secret).is_ok()).count();
        assert_eq!(granted, 3);
    }
}
