//! What the registry keeps of its sandboxes that no listing shows: secrets, and what was spent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sloplet_gateway::account::{self, Owner};
use sloplet_gateway::{Accounts, SecretValue};
use sloplet_policy::budget::AtCap;
use sloplet_store::{Collection, Document, StoreError};

use super::error::LifeError;
use super::record::{Record, State};
use super::sandboxes::{Sandboxes, Slot};
use crate::outward::Patron;
use crate::outward::private::{Kept, Private};

/// Values of secrets, by name, for those who do not want them taken from the server's own environment.
pub type Values = BTreeMap<String, SecretValue>;

/// The secrets of one sandbox, as they are remembered.
#[derive(Serialize, Deserialize)]
pub(super) struct Secrets {
    id: String,
    owner: String,
    kept: Kept,
}

impl Document for Secrets {
    const KIND: &'static str = "secrets";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    fn created_ms(&self) -> u64 {
        0
    }
}

/// What an account has come to.
#[derive(Serialize, Deserialize)]
pub(super) struct Spent {
    id: String,
    record: account::Record,
}

impl Spent {
    /// The sandbox that spent it, if it was one alone.
    pub(super) fn sandbox(&self) -> Option<&str> {
        match &self.record.owner {
            Owner::Sandbox(id) => Some(id),
            Owner::Group(_) => None,
        }
    }
}

impl Document for Spent {
    const KIND: &'static str = "account";

    fn id(&self) -> &str {
        &self.id
    }

    fn owner(&self) -> &str {
        ""
    }

    fn created_ms(&self) -> u64 {
        0
    }
}

fn id_of(owner: &Owner) -> String {
    match owner {
        Owner::Sandbox(id) => format!("sandbox:{id}"),
        Owner::Group(name) => format!("group:{name}"),
    }
}

/// The accounts as they were when the last server ended, remembered from now on with every change.
pub(super) fn accounts(spent: Collection<Spent>) -> Result<Arc<Accounts>, LifeError> {
    let records: Vec<account::Record> = spent.all()?.into_iter().map(|spent| spent.record).collect();
    let persist = move |records: &[account::Record]| {
        for record in records {
            let document = Spent { id: id_of(&record.owner), record: record.clone() };
            if let Err(error) = spent.put(&document) {
                tracing::error!(%error, "cannot remember what was spent");
            }
        }
    };
    Ok(Accounts::restore(records, Some(Arc::new(persist))))
}

impl Sandboxes {
    /// Finds the values of a new sandbox's secrets and remembers them. A machine that was made ahead may be `trusting` an
    /// authority already, and can be given secrets later if it has none now.
    pub(super) fn keep_secrets(&self, record: &Record, given: &Values, trusting: bool) -> Result<Private, LifeError> {
        let spec = &record.request.spec;
        let known = if trusting { self.0.secrets.get(&record.id)? } else { None };
        let kept = known.map(|document| document.kept).unwrap_or_default();
        let private = match spec.is_read_along() {
            true => Private::prepare_on(spec, given, &kept),
            false => Private::restore(spec, &kept),
        };
        let private = private.map_err(|error| LifeError::Invalid(error.to_string()))?;
        self.keep_private(&record.id, &record.owner, &private)?;
        Ok(private)
    }

    /// Remembers what is a secret of a machine.
    pub(super) fn keep_private(&self, id: &str, owner: &str, private: &Private) -> Result<(), LifeError> {
        if !private.is_empty() {
            let document = Secrets { id: id.to_owned(), owner: owner.to_owned(), kept: private.kept() };
            self.0.secrets.put(&document)?;
        }
        Ok(())
    }

    /// The secrets of a sandbox that was made before.
    pub(super) fn secrets_of(&self, record: &Record) -> Result<Private, LifeError> {
        let kept = self.0.secrets.get(&record.id)?.map(|document| document.kept).unwrap_or_default();
        Private::restore(&record.request.spec, &kept).map_err(|error| LifeError::Invalid(error.to_string()))
    }

    /// Whether programs of a sandbox trust its gateway for whatever host, or will when it has a machine again.
    pub(super) fn trusts_gateway(&self, slot: &Slot) -> Result<bool, LifeError> {
        match slot.live().as_ref().and_then(|live| live.sandbox.outward()) {
            Some(outward) => Ok(outward.is_trusted()),
            None => Ok(!self.secrets_of(&slot.record())?.is_empty()),
        }
    }

    /// The values of a sandbox's secrets, for its forks.
    pub(super) fn values_of(&self, record: &Record) -> Result<Values, LifeError> {
        let private = self.secrets_of(record)?;
        Ok(private.secrets().iter().map(|secret| (secret.rule.name.clone(), secret.value.clone())).collect())
    }

    /// Forgets what a sandbox that is gone had.
    pub(super) fn forget_secrets(&self, id: &str) -> Result<(), LifeError> {
        let owner = Owner::Sandbox(id.to_owned());
        self.0.engine.accounts().forget(&owner);
        self.0.spent.remove(&id_of(&owner))?;
        match self.0.secrets.erase(id) {
            Ok(_) => Ok(()),
            Err(error @ StoreError::LogInUse) => {
                tracing::warn!(%error, sandbox = id, "a secret is not gone yet");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Does what is to be done when a budget is used up. A busy machine may not manage it at once, and the sandbox may be
    /// changing right now: whoever asked for a circuit breaker gets one, however long it takes.
    async fn act_at_cap(&self, action: AtCap, owner: &str, id: &str) {
        for wait in [0, 1, 2, 5].into_iter().chain(std::iter::repeat(10)) {
            tokio::time::sleep(Duration::from_secs(wait)).await;
            let done = match action {
                AtCap::Deny => Ok(()),
                AtCap::Pause => self.pause(owner, id).await.map(|_| ()),
                AtCap::Kill => self.destroy(owner, id).await,
            };
            let error = match done {
                Ok(()) | Err(LifeError::NotFound { .. }) => return,
                Err(error) => error,
            };
            // Somebody else did it, and decides when it goes on.
            let stands = |record: Record| matches!(record.state, State::Paused | State::Stopped | State::Failed);
            if action == AtCap::Pause && self.get(owner, id).is_ok_and(stands) {
                return;
            }
            tracing::warn!(%error, sandbox = id, "cannot do what was asked for at the cap; trying again");
        }
    }

    /// Who a sandbox belongs to, as the engine wants to know it.
    pub(super) fn patron(&self, record: &Record, private: Private) -> Patron {
        let (registry, owner, id) = (Arc::downgrade(&self.0), record.owner.clone(), record.id.clone());
        let at_cap = move |reached: &account::Reached| {
            let (Some(inner), action) = (registry.upgrade(), reached.at_cap) else { return };
            let (this, owner, id) = (Self(inner), owner.clone(), id.clone());
            tracing::info!(sandbox = id, reason = reached.message, "a budget is used up");
            // Not here: the connection that brought this about waits.
            tokio::spawn(async move { this.act_at_cap(action, &owner, &id).await });
        };
        Patron {
            name: record.request.name.clone(),
            private,
            outlets: self.0.engine.can_reach_out(&record.request.spec),
            ask: self.0.approvals.for_sandbox(&record.owner, &record.id),
            at_cap: Arc::new(at_cap),
            ..Patron::plain(&format!("key:{}", record.owner))
        }
    }
}
