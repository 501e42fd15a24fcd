//! A conversation and its sandbox.
//!
//! Over standard input and output the process is the conversation; over HTTP a session is. Clients of protocol revisions
//! without sessions name the sandbox in each call: what such a client makes is a conversation of its own (`loose`).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as Quick, PoisonError};
use std::time::Instant;

use hyper::Method;
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::{Value, json};
use sloplet_policy::Span;
use sloplet_remote::{Refused, Server, encode};
use tokio::sync::{Mutex, MutexGuard};

use crate::desk::Desk;
use crate::failure::Failure;

/// Most snapshots of one conversation.
const SNAPSHOTS: usize = 20;

/// A conversation.
pub struct Conversation {
    desk: Arc<Desk>,
    /// By chance; ties sandboxes and snapshots together.
    id: String,
    /// Its client has no session.
    loose: bool,
    state: Mutex<State>,
    /// Every sandbox it ever had, the present one last.
    names: Quick<Vec<String>>,
    stateful: AtomicBool,
    cells: AtomicU64,
}

#[derive(Default)]
struct State {
    room: Option<Room>,
    snapshots: Vec<Saved>,
}

/// A snapshot that goes with its conversation.
struct Saved {
    id: String,
    name: Option<String>,
}

/// A sandbox.
struct Room {
    id: String,
    /// Not one that was there before.
    own: bool,
    made: Instant,
    /// When its time was last extended.
    extended: Instant,
}

/// Who asks.
#[derive(Clone)]
pub struct Asker {
    /// The server, which is told who asks.
    pub server: Server,
    /// The client, as it calls itself.
    pub client: String,
}

impl Conversation {
    /// With no sandbox yet.
    pub fn new(desk: &Arc<Desk>, loose: bool) -> Arc<Self> {
        let mut bytes = [0u8; 8];
        // Fails only before the pool is ready, long before a user can start a program.
        let _ = getrandom(&mut bytes, GetRandomFlags::empty());
        Arc::new(Self {
            desk: desk.clone(),
            id: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            loose,
            state: Mutex::default(),
            names: Quick::default(),
            stateful: AtomicBool::new(false),
            cells: AtomicU64::new(0),
        })
    }

    /// The name of its sandbox, if it has one.
    pub fn current(&self) -> Option<String> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.last().cloned()
    }

    /// Every sandbox it had, the present one last.
    pub fn names(&self) -> Vec<String> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether its sandbox is or was called so.
    pub fn is_called(&self, name: &str) -> bool {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|one| one == name)
    }

    /// Whether the sandbox has a code interpreter that remembers.
    pub fn is_stateful(&self) -> bool {
        self.stateful.load(Ordering::Relaxed)
    }

    /// A number for the next piece of code or output.
    pub fn number(&self) -> u64 {
        self.cells.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The sandbox, made if there is none, its time extended if that is due.
    pub async fn sandbox(self: &Arc<Self>, asker: &Asker) -> Result<String, Failure> {
        let (this, asker) = (self.clone(), asker.clone());
        // Whoever asks may leave at any moment; what is made then must not be lost.
        let making = self.desk.tasks.spawn(async move {
            let mut state = this.state.lock().await;
            if let Some(room) = &mut state.room {
                this.extend(room, &asker.server).await;
                return Ok(room.id.clone());
            }
            let room = this.open(&asker, None).await?;
            let id = room.id.clone();
            state.room = Some(room);
            Ok(id)
        });
        making.await.map_err(|error| Failure::new(error.to_string()))?
    }

    /// Extends the time of the sandbox, if it has one and that is due.
    pub async fn extend_time(&self, server: &Server) {
        if let Some(room) = &mut self.state.lock().await.room {
            self.extend(room, server).await;
        }
    }

    async fn extend(&self, room: &mut Room, server: &Server) {
        let times = self.desk.options.times;
        let left = times.longest.saturating_sub(room.made.elapsed());
        if !room.own || room.extended.elapsed() < times.idle / 4 || left.is_zero() {
            return;
        }
        let body = json!({"timeout": Span(times.idle.min(left)).to_string()});
        // If it cannot be extended it will end, and that will be told.
        let _ = server.ask(Method::PATCH, &format!("/sandboxes/{}", encode(&room.id)), Some(&body)).await;
        room.extended = Instant::now();
    }

    /// Finds the sandbox to attach to, or makes one, from a snapshot if there is one.
    async fn open(self: &Arc<Self>, asker: &Asker, snapshot: Option<&str>) -> Result<Room, Failure> {
        let (options, now) = (&self.desk.options, Instant::now());
        let server = &asker.server;
        let (sandbox, own) = match &options.attach {
            Some(name) => (server.get(&format!("/sandboxes/{}", encode(name))).await?, false),
            None => {
                self.desk.room_for_one(server).await?;
                let mut body = options.request.clone();
                body["metadata"]["mcp"] = self.id.as_str().into();
                body["metadata"]["mcp_client"] = asker.client.as_str().into();
                if let Some(snapshot) = snapshot {
                    body["image"] = snapshot.into();
                    // The one that it takes the place of still has it.
                    body.as_object_mut().map(|fields| fields.remove("name"));
                }
                (server.post("/sandboxes", &body).await?, true)
            }
        };
        let id = sandbox["id"].as_str().unwrap_or_default().to_owned();
        if snapshot.is_none() {
            let image = sandbox["image"].as_str().unwrap_or_default();
            self.stateful.store(image.starts_with("code-interpreter"), Ordering::Relaxed);
        }
        if own {
            self.desk.made(&id);
            if self.desk.is_first() {
                self.desk.tasks.spawn(sweep(server.clone()));
            }
        }
        self.names.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
        if self.loose {
            self.desk.remember(&id, self.clone());
        }
        Ok(Room { id, own, made: now, extended: now })
    }

    /// After something failed: whether the sandbox is still there, and if not, why.
    pub async fn mourn(&self, server: &Server) -> Option<Failure> {
        let mut state = self.state.lock().await;
        let id = state.room.as_ref()?.id.clone();
        let reason = match server.get(&format!("/sandboxes/{}", encode(&id))).await {
            Ok(sandbox) if sandbox["state"] == "failed" => {
                let failure = sandbox["failure"].as_str().unwrap_or("nobody knows why");
                format!("the sandbox {id} has ended: {failure}")
            }
            Err(error) if error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == 404) => {
                format!("the sandbox {id} is gone: its time was over, or somebody removed it")
            }
            _ => return None,
        };
        state.room = None;
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.desk.lost(&id);
        let hint = "Its files and processes are lost. The next call starts a new one.";
        Some(Failure::new(reason).hint(hint))
    }

    /// Saves the sandbox's files.
    pub async fn snapshot(self: &Arc<Self>, asker: &Asker, name: Option<&str>) -> Result<Value, Failure> {
        let sandbox = self.sandbox(asker).await?;
        let mut state = self.state.lock().await;
        let attached = self.desk.options.attach.is_some();
        if state.snapshots.len() >= SNAPSHOTS || (attached && self.desk.one_more_kept() >= SNAPSHOTS) {
            return Err(Failure::new(format!("{SNAPSHOTS} snapshots were made already: there can be no more")));
        }
        let mut body = json!({});
        if let Some(name) = name {
            body["name"] = name.into();
        }
        if !attached {
            body["metadata"] = json!({"mcp": self.id});
        }
        let made = asker.server.post(&format!("/sandboxes/{}/snapshot", encode(&sandbox)), &body).await?;
        if let (Some(id), false) = (made["id"].as_str(), attached) {
            let name = made["name"].as_str().map(str::to_owned);
            state.snapshots.push(Saved { id: id.to_owned(), name });
        }
        Ok(made)
    }

    /// Puts a new sandbox with a snapshot's files in the place of the present one.
    pub async fn restore(self: &Arc<Self>, asker: &Asker, snapshot: &str) -> Result<String, Failure> {
        if let Some(name) = &self.desk.options.attach {
            let failure = Failure::new(format!("this server works in the sandbox '{name}', which is not replaced"));
            return Err(failure.hint("The user can make a new one: sloplet create --image SNAPSHOT."));
        }
        let is_meant = |one: &Saved| one.id == snapshot || one.name.as_deref() == Some(snapshot);
        if !self.state.lock().await.snapshots.iter().any(is_meant) {
            let failure = Failure::new(format!("this conversation made no snapshot '{}'", snapshot.escape_default()));
            return Err(failure.hint("Use an id or a name that the tool snapshot gave."));
        }
        let (this, asker, snapshot) = (self.clone(), asker.clone(), snapshot.to_owned());
        let replacing = self.desk.tasks.spawn(async move {
            let mut state = this.state.lock().await;
            let room = this.open(&asker, Some(&snapshot)).await?;
            let id = room.id.clone();
            if let Some(old) = state.room.replace(room) {
                // Its name goes on to mean this conversation. What cannot be removed now is tried again at the end.
                if asker.server.delete(&format!("/sandboxes/{}", encode(&old.id))).await.is_ok() {
                    this.desk.removed(&old.id);
                }
            }
            Ok(id)
        });
        replacing.await.map_err(|error| Failure::new(error.to_string()))?
    }

    /// For those who only look: the sandbox, if there is one.
    pub async fn present(&self) -> Option<String> {
        let state: MutexGuard<'_, State> = self.state.lock().await;
        state.room.as_ref().map(|room| room.id.clone())
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let State { room, snapshots } = std::mem::take(self.state.get_mut());
        let snapshots: Vec<String> = snapshots.into_iter().map(|one| one.id).collect();
        let sandbox = room.filter(|room| room.own).map(|room| room.id);
        if self.desk.options.keep || (sandbox.is_none() && snapshots.is_empty()) {
            return;
        }
        if tokio::runtime::Handle::try_current().is_ok() {
            let desk = self.desk.clone();
            self.desk.tasks.spawn(async move { desk.remove(sandbox.as_deref(), &snapshots).await });
        }
    }
}

/// Removes snapshots of conversations that were killed: those of whom no sandbox is left.
async fn sweep(server: Server) {
    let of = |one: &Value| one["metadata"]["mcp"].as_str().map(str::to_owned);
    // Snapshots first: one that is in this list had its sandbox before the other list is made.
    let Ok(snapshots) = server.get("/snapshots").await else { return };
    let snapshots: Vec<Value> =
        snapshots.as_array().into_iter().flatten().filter(|one| of(one).is_some()).cloned().collect();
    if snapshots.is_empty() {
        return;
    }
    let (mut alive, mut cursor) = (BTreeSet::new(), String::new());
    loop {
        let Ok(page) = server.get(&format!("/sandboxes?limit=1000{cursor}")).await else { return };
        alive.extend(page["sandboxes"].as_array().into_iter().flatten().filter_map(of));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={}", encode(next)),
            None => break,
        }
    }
    for snapshot in snapshots.iter().filter(|one| of(one).is_some_and(|id| !alive.contains(&id))) {
        let _ = server.delete(&format!("/snapshots/{}", encode(snapshot["id"].as_str().unwrap_or_default()))).await;
    }
}
