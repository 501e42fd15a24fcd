//! The sandbox that a connection is for.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sloplet_engine::life::{LifeError, Reached, Record, State};
use sloplet_ledger::Event;
use sloplet_ledger::event::ApiCall;
use sloplet_server::App;
use sloplet_server::auth::{Access, Scope};
use sloplet_server::refusals::Refusal;

use crate::server::Options;

/// What stands for GET and POST in the record.
pub(crate) const METHOD: &str = "SSH";

/// Somebody who was let in, and the sandbox they named.
pub(crate) struct Guest {
    pub(crate) app: App,
    pub(crate) options: Arc<Options>,
    pub(crate) access: Access,
    pub(crate) name: String,
    pub(crate) from: Option<IpAddr>,
    noted: AtomicBool,
}

impl Guest {
    pub(crate) fn new(app: App, options: Arc<Options>, access: Access, name: String, from: Option<IpAddr>) -> Self {
        Self { app, options, access, name, from, noted: AtomicBool::new(false) }
    }

    /// The sandbox, running: one that sleeps is woken, and where that is allowed an unknown one is made. The error is for
    /// whoever logs in. That a sandbox is somebody else's is nobody's business: it is not there.
    pub(crate) async fn reach(&self) -> Result<Reached, String> {
        let record = match self.find().await {
            Ok(record) => record,
            Err(reason) => {
                self.refused(404);
                return Err(reason);
            }
        };
        let sandboxes = self.app.sandboxes();
        let told = |error: LifeError| error.to_string();
        if matches!(record.state, State::Paused | State::Stopped) {
            sandboxes.connect(&self.access.owner, &record.id, record.request.timeout).await.map_err(told)?;
        }
        let reached = sandboxes.reach(&record.id).await.map_err(|error| match record.state {
            State::Failed => format!("'{}' has failed: {}", self.name, record.failure.unwrap_or_default()),
            _ => told(error),
        })?;
        if !self.noted.swap(true, Ordering::Relaxed) {
            let from = self.from.map_or_else(String::new, |from| format!(" from {from}"));
            self.note(&reached, &format!("login{from}"), 200);
        }
        Ok(reached)
    }

    async fn find(&self) -> Result<Record, String> {
        let Self { app, access, name, .. } = self;
        access.require(Scope::Use).map_err(|error| error.message)?;
        let missing = match app.sandboxes().get(&access.owner, name) {
            Ok(record) => return Ok(record),
            Err(error @ LifeError::NotFound { .. }) => error,
            Err(error) => return Err(error.to_string()),
        };
        if !self.options.create {
            return Err(format!("{missing}: 'sloplet create --name {}' makes one", name.escape_default()));
        }
        match app.make_for_login(access, name, self.options.image.clone()).await {
            Ok(record) => Ok(record),
            // Another login was faster.
            Err(error) => app.sandboxes().get(&access.owner, name).map_err(|_| error.message),
        }
    }

    /// Writes down what was asked of it.
    pub(crate) fn note(&self, reached: &Reached, what: &str, status: u16) {
        let call = ApiCall {
            method: METHOD.into(),
            path: what.into(),
            status,
            key: self.access.key.as_deref().map(Into::into),
            ..ApiCall::default()
        };
        reached.sandbox.journal().note_by(&self.access.actor(), Event::ApiCall(call));
    }

    fn refused(&self, status: u16) {
        let refusal = Refusal {
            from: self.from,
            key: self.access.key.clone(),
            sandbox: None,
            method: METHOD.into(),
            path: "login".into(),
            status,
        };
        self.app.refusals().note(self.app.ledger(), refusal);
    }
}
