//! Writing down what happens to a sandbox, where nobody inside can reach.

mod command;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sloplet_ledger::{Event, Ledger, LedgerError};

pub(crate) use command::Watched;

/// The pages of one sandbox in the ledger; clones write to the same.
#[derive(Debug, Clone)]
pub struct Journal {
    ledger: Ledger,
    sandbox: Arc<str>,
    actor: Arc<str>,
    commands: Arc<AtomicU64>,
}

impl Journal {
    /// Of this sandbox, which acts on somebody's behalf.
    pub fn new(ledger: &Ledger, sandbox: &str, actor: &str) -> Self {
        Self { ledger: ledger.clone(), sandbox: sandbox.into(), actor: actor.into(), commands: Arc::default() }
    }

    /// Writes something down. What must not happen unrecorded is not done if this fails.
    pub fn write(&self, event: Event) -> Result<(), LedgerError> {
        self.ledger.record_surely(Some(&self.sandbox), &self.actor, event)
    }

    /// Writes down what has happened anyway.
    pub fn note(&self, event: Event) {
        if let Err(error) = self.ledger.record(Some(&self.sandbox), &self.actor, event) {
            tracing::error!(%error, sandbox = &*self.sandbox, "cannot write to the ledger");
        }
    }

    /// The same, done by somebody else than the sandbox's owner.
    pub fn note_by(&self, actor: &str, event: Event) {
        if let Err(error) = self.ledger.record(Some(&self.sandbox), actor, event) {
            tracing::error!(%error, sandbox = &*self.sandbox, "cannot write to the ledger");
        }
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Names the next command.
    pub(crate) fn next_command(&self) -> String {
        format!("{}-{}", self.sandbox, self.commands.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
