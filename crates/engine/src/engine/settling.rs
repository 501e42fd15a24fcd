//! What makes a machine somebody's sandbox: its standing with its patron, its way out, and the record of it.

use std::sync::Arc;

use sloplet_gateway::{Accounts, Prices};
use sloplet_ledger::event::SandboxCreated;
use sloplet_ledger::{Event, Ledger};
use sloplet_policy::{Bind, Spec};

use super::{Engine, EngineError};
use crate::journal::Journal;
use crate::outward::{Outward, Patron};
use crate::sandbox::{Sandbox, Standing};

impl Engine {
    /// The record of everything that happens in sandboxes.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What things cost, as the operator's file says now.
    pub fn prices(&self) -> Result<Prices, EngineError> {
        Prices::load(&self.places.prices()).map_err(|error| EngineError::Prices(error.to_string()))
    }

    /// What all sandboxes' calls cost, read once.
    pub(crate) fn common_prices(&self) -> Result<Arc<Prices>, EngineError> {
        self.common.prices(&self.places.prices()).map_err(EngineError::Prices)
    }

    /// Who has spent how much.
    pub fn accounts(&self) -> &Arc<Accounts> {
        self.common.accounts()
    }

    /// Uses accounts that somebody remembers; before the first sandbox is made.
    pub fn set_accounts(&self, accounts: Arc<Accounts>) {
        self.common.set_accounts(accounts);
    }

    /// Whether a machine like this has a way out, even if it may reach nothing yet.
    pub fn has_spare_way_out(&self, spec: &Spec) -> bool {
        self.driver(spec).is_ok_and(|driver| driver.spares_outlets()) && self.can_reach_out(spec)
    }

    /// Whether a sandbox like this can have a way out on this host.
    pub fn can_reach_out(&self, spec: &Spec) -> bool {
        let driver = self.driver(spec);
        driver.is_ok_and(|driver| driver.egress().enforcement != sloplet_policy::Enforcement::Missing)
    }

    /// Makes a sandbox its patron's: opens its way out, and writes down that it exists.
    pub async fn settle(&self, mut sandbox: Sandbox, patron: &Patron) -> Result<Sandbox, EngineError> {
        match self.open_way_out(&mut sandbox, patron).and_then(|()| self.announce(&sandbox, patron)) {
            Ok(()) => Ok(sandbox),
            Err(error) => {
                let _ = sandbox.machine().destroy().await;
                Err(error)
            }
        }
    }

    fn announce(&self, sandbox: &Sandbox, patron: &Patron) -> Result<(), EngineError> {
        let spec = sandbox.spec();
        let mount = |bind: &Bind| {
            let mode = if bind.writable { "rw" } else { "ro" };
            format!("{}:{}:{mode}", bind.from.display(), bind.to.display())
        };
        let driver = self.driver(spec)?.name();
        sandbox.journal().write(Event::SandboxCreated(SandboxCreated {
            name: patron.name.as_deref().map(Into::into),
            image: spec.image.as_str().into(),
            isolation: spec.isolation.name().into(),
            driver: driver.into(),
            limits: serde_json::to_value(&spec.limits).unwrap_or_default(),
            mounts: spec.mounts.iter().map(mount).collect(),
            network: serde_json::to_string(&spec.reach()).unwrap_or_default().into(),
        }))?;
        for masked in sandbox.masked() {
            sandbox.journal().write(Event::DataMasked(masked.clone()))?;
        }
        Ok(())
    }

    /// Lets a sandbox act for its patron, and opens its way out.
    pub fn open_way_out(&self, sandbox: &mut Sandbox, patron: &Patron) -> Result<(), EngineError> {
        let standing = self.standing(sandbox.id(), sandbox.spec(), patron);
        if let Some(outlets) = sandbox.machine().take_outlets() {
            // Reading the price list takes as long as opening the way: only for those whose calls are counted.
            let prices = match patron.private.is_empty() {
                true => None,
                false => Some(self.common_prices()?),
            };
            let (account, journal) = (&standing.account, &standing.journal);
            let denied = self.radius.denials();
            let outward = Outward::open(outlets, sandbox.spec(), patron, account, prices, journal, denied);
            sandbox.set_outward(outward.map_err(EngineError::Outward)?);
        }
        sandbox.set_standing(standing);
        Ok(())
    }

    pub(super) fn standing(&self, id: &str, spec: &Spec, patron: &Patron) -> Standing {
        for secret in patron.private.secrets().iter().filter(|_| !spec.lacks("redaction")) {
            self.ledger.redactor().add(&String::from_utf8_lossy(secret.value.expose()));
        }
        Standing {
            journal: Journal::new(&self.ledger, id, &patron.actor),
            account: self.accounts().open(id, patron.tenant(), spec.budget.clone()),
            environment: patron.private.environment(spec.lacks("placeholders")),
        }
    }
}
