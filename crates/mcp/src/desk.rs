//! What one `sloplet mcp` offers, and what it has to clean up.

use std::collections::{BTreeSet, HashMap};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use sloplet_remote::{Refused, Search, Server, encode};
use tokio_util::task::TaskTracker;

use crate::conversation::Conversation;
use crate::failure::Failure;
use crate::grant::Grant;
use crate::share::Share;

/// Most sandboxes at once.
const SANDBOXES: usize = 32;

/// Most conversations at once; also requests of clients without sessions that are under way.
const CONVERSATIONS: usize = 128;

/// How long tidying up may take at the end.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is offered.
pub struct Options {
    /// Where the server of `/v1` is found.
    pub search: Search,
    /// The tools.
    pub grant: Grant,
    /// The sandbox of a conversation, as `POST /v1/sandboxes` takes it.
    pub request: Value,
    /// Use this sandbox in place of new ones.
    pub attach: Option<String>,
    /// Do not remove sandboxes at the end of their conversation.
    pub keep: bool,
    /// How long sandboxes live.
    pub times: Times,
    /// Folders of the host that files may be copied from and to.
    pub shares: Vec<Share>,
}

/// How long a sandbox lives.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Unless it is used.
    pub idle: Duration,
    /// However much it is used.
    pub longest: Duration,
}

/// What is offered, to whom, and what has to be removed afterwards.
pub struct Desk {
    /// What is offered.
    pub options: Options,
    /// Sandboxes that were made here and are not removed yet.
    live: Mutex<BTreeSet<String>>,
    /// Conversations of clients without sessions, by every name that their sandbox ever had.
    loose: Mutex<HashMap<String, Arc<Conversation>>>,
    conversations: AtomicUsize,
    /// Snapshots of a sandbox that was there before: they stay.
    kept: AtomicUsize,
    swept: AtomicBool,
    /// What has to come to its end even if nobody waits for it.
    pub tasks: TaskTracker,
}

impl Desk {
    /// Nothing is made or started before the first tool needs it.
    pub fn new(options: Options) -> Arc<Self> {
        Arc::new(Self {
            options,
            live: Mutex::default(),
            loose: Mutex::default(),
            conversations: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            swept: AtomicBool::new(false),
            tasks: TaskTracker::new(),
        })
    }

    /// The server, started if there is none; what is asked of it is written down as asked for `whom`.
    pub async fn server(&self, whom: &str) -> Result<Server, Failure> {
        let server = Server::find(&self.options.search).await;
        Ok(server.map_err(|error| Failure::new(format!("no sandbox can be had: {error:#}")))?.via(whom))
    }

    /// Lets one more conversation in.
    pub fn enter(&self) -> Result<(), String> {
        if self.conversations.fetch_add(1, Ordering::Relaxed) >= CONVERSATIONS {
            self.leave();
            return Err(format!("there are {CONVERSATIONS} conversations already"));
        }
        Ok(())
    }

    /// One has ended.
    pub fn leave(&self) {
        self.conversations.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether one more sandbox may be made.
    pub async fn room_for_one(&self, server: &Server) -> Result<(), Failure> {
        let full: Vec<String> = self.live().iter().cloned().collect();
        for sandbox in full.iter().filter(|_| full.len() >= SANDBOXES) {
            // The time of some may be over: nobody tells us.
            if let Err(error) = server.get(&format!("/sandboxes/{}", encode(sandbox))).await
                && error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == 404)
            {
                self.lost(sandbox);
            }
        }
        if self.live().len() < SANDBOXES {
            return Ok(());
        }
        let failure = Failure::new(format!("this server has {SANDBOXES} sandboxes already"));
        Err(failure.hint("Go on in one that you have: pass its name as \"sandbox\"."))
    }

    /// A sandbox was made here.
    pub fn made(&self, sandbox: &str) {
        self.live().insert(sandbox.to_owned());
    }

    /// A sandbox was removed; its name may still be used for the one that took its place.
    pub fn removed(&self, sandbox: &str) {
        self.live().remove(sandbox);
    }

    /// A sandbox is gone without our doing.
    pub fn lost(&self, sandbox: &str) {
        self.live().remove(sandbox);
        lock(&self.loose).remove(sandbox);
    }

    /// The conversation of a client without sessions that has this sandbox.
    pub fn loose(&self, sandbox: &str) -> Option<Arc<Conversation>> {
        lock(&self.loose).get(sandbox).cloned()
    }

    /// A client without sessions will ask for it by this name.
    pub fn remember(&self, sandbox: &str, conversation: Arc<Conversation>) {
        lock(&self.loose).insert(sandbox.to_owned(), conversation);
    }

    /// How many snapshots that stay were asked for before.
    pub fn one_more_kept(&self) -> usize {
        self.kept.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether this is the first time that somebody asks.
    pub fn is_first(&self) -> bool {
        !self.swept.swap(true, Ordering::Relaxed)
    }

    /// Removes a sandbox, and snapshots that only it had a use for.
    pub async fn remove(&self, sandbox: Option<&str>, snapshots: &[String]) {
        let Ok(server) = self.server("mcp end of conversation").await else { return };
        let paths = sandbox.iter().map(|id| format!("/sandboxes/{}", encode(id)));
        for path in paths.chain(snapshots.iter().map(|id| format!("/snapshots/{}", encode(id)))) {
            match server.delete(&path).await {
                Err(error) if error.downcast_ref::<Refused>().is_none_or(|refused| refused.status != 404) => {
                    complain(&format!("cannot remove {path}: {error:#}"));
                }
                _ => {}
            }
        }
        if let Some(sandbox) = sandbox {
            self.lost(sandbox);
        }
    }

    /// The end of all conversations: removes what is left of them.
    pub async fn close(&self) {
        let tidying = async {
            let loose: Vec<Arc<Conversation>> = lock(&self.loose).drain().map(|(_, one)| one).collect();
            drop(loose); // each takes its sandbox along
            self.tasks.close();
            self.tasks.wait().await;
            let left: Vec<String> = self.live().iter().cloned().collect();
            for sandbox in left {
                match self.options.keep {
                    true => complain(&format!("the sandbox {sandbox} is kept")),
                    false => self.remove(Some(&sandbox), &[]).await,
                }
            }
        };
        if tokio::time::timeout(PATIENCE, tidying).await.is_err() {
            complain("not everything could be removed in time: its own time will end it");
        }
    }

    fn live(&self) -> MutexGuard<'_, BTreeSet<String>> {
        lock(&self.live)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Standard output belongs to the protocol.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "sloplet: {text}");
}
