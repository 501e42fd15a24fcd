//! Changes in folders, asked for again and again.
//!
//! What happens between two questions waits in the connection to the agent, which keeps a bounded number of changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::{Extension, Json};
use futures_util::FutureExt;
use serde::Deserialize;
use serde_json::{Value, json};
use sloplet_engine::engine::new_id;

use super::call::Single;
use super::connect::{Code, RpcError};
use super::watch::{Watched, Wish};

/// Watchers of one sandbox.
const MAX_WATCHERS: usize = 64;

/// One that nobody asked for so long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// All that are asked again and again, of all sandboxes.
#[derive(Default)]
pub struct Watchers(Mutex<HashMap<String, Arc<Polled>>>);

struct Polled {
    sandbox: String,
    watched: tokio::sync::Mutex<Watched>,
    asked: Mutex<Instant>,
}

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Polled>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, sandbox: &str, id: &str) -> Result<Arc<Polled>, RpcError> {
        let found = self.lock().get(id).filter(|polled| polled.sandbox == sandbox).cloned();
        found.ok_or_else(|| missing(id))
    }

    /// Forgets it once nobody has asked for long.
    async fn forget_in_time(self: Arc<Self>, id: String) {
        loop {
            let idle = match self.lock().get(&id) {
                Some(polled) => polled.idle(),
                None => return,
            };
            if idle >= FORGOTTEN_AFTER {
                self.lock().remove(&id);
                return;
            }
            tokio::time::sleep(FORGOTTEN_AFTER - idle).await;
        }
    }
}

impl Polled {
    fn idle(&self) -> Duration {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

fn missing(id: &str) -> RpcError {
    RpcError::new(Code::NotFound, format!("watcher with id {id} not found"))
}

/// `CreateWatcher`.
pub async fn create(
    Extension(watchers): Extension<Arc<Watchers>>,
    Single(call, wish): Single<Wish>,
) -> Result<Json<Value>, RpcError> {
    let full = || watchers.lock().values().filter(|polled| polled.sandbox == call.id).count() >= MAX_WATCHERS;
    let refused = || {
        let message = format!("this sandbox has {MAX_WATCHERS} watchers already: remove one");
        RpcError::new(Code::ResourceExhausted, message)
    };
    if full() {
        return Err(refused());
    }
    let watched = tokio::sync::Mutex::new(Watched::new(&call, &wish).await?);
    let id = format!("w{}", new_id());
    let polled = Polled { sandbox: call.id.clone(), watched, asked: Mutex::new(Instant::now()) };
    if full() {
        return Err(refused());
    }
    watchers.lock().insert(id.clone(), Arc::new(polled));
    tokio::spawn(watchers.clone().forget_in_time(id.clone()));
    Ok(Json(json!({"watcherId": id})))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OfWatcher {
    #[serde(alias = "watcher_id")]
    watcher_id: String,
}

/// `GetWatcherEvents`.
pub async fn events(
    Extension(watchers): Extension<Arc<Watchers>>,
    Single(call, request): Single<OfWatcher>,
) -> Result<Json<Value>, RpcError> {
    let polled = watchers.find(&call.id, &request.watcher_id)?;
    *polled.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    let mut watched = polled.watched.lock().await;
    let agent = call.sandbox.agent();
    // What happened before the question is to be in the answer: with the second answer the agent has told all that
    // it had found when it gave the first.
    for _ in 0..2 {
        agent.ping().await?;
    }
    let mut changes = Vec::new();
    while let Some(change) = watched.recv().now_or_never() {
        changes.push(change?);
    }
    let mut events = Vec::with_capacity(changes.len());
    for change in changes {
        events.push(watched.describe(agent, change).await?);
    }
    Ok(Json(json!({"events": events})))
}

/// `RemoveWatcher`.
pub async fn remove(
    Extension(watchers): Extension<Arc<Watchers>>,
    Single(call, request): Single<OfWatcher>,
) -> Result<Json<Value>, RpcError> {
    watchers.find(&call.id, &request.watcher_id)?;
    watchers.lock().remove(&request.watcher_id);
    Ok(Json(json!({})))
}
