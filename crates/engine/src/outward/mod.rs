//! The way out of one sandbox: its egress, the gateway where its keys are put in and its money is counted, and the record of
//! both.
//!
//! - [`approvals`]: connections that wait for a person.
//! - [`private`]: what of this is a secret, and what programs inside need to know of it.
//! - `record`: what is written down.

pub mod approvals;
pub mod private;
mod record;

use std::sync::{Arc, OnceLock};

use sloplet_egress::{Ask, Counters, Egress, Nobody, Options, Sockets};
use sloplet_gateway::account::{Account, Reached};
use sloplet_gateway::{Accounts, Gateway, Prices, Setup};
use sloplet_policy::budget::Budget;
use sloplet_policy::{Network, Rule, Spec};

use crate::driver::{Extras, Outlets, PutFile};
use crate::journal::Journal;
use private::{Private, PrivateError};

/// Who is told that a budget is used up.
pub type AtCapDo = Arc<dyn Fn(&Reached) + Send + Sync>;

/// What a sandbox is given by whoever makes it, besides its description.
#[derive(Clone)]
pub struct Patron {
    /// On whose behalf it acts, for the record.
    pub actor: String,
    /// What they call it, for the record.
    pub name: Option<String>,
    /// Its secrets.
    pub private: Private,
    /// Whether it gets outlets even if there is nothing it may reach yet, because that may change.
    pub outlets: bool,
    /// Files put into its root, besides those that its secrets need.
    pub files: Vec<PutFile>,
    /// Who answers for rules that say `ask`.
    pub ask: Arc<dyn Ask>,
    /// What happens when its budget is used up.
    pub at_cap: AtCapDo,
}

impl Patron {
    /// One who has no secrets, and nobody to ask.
    pub fn plain(actor: &str) -> Self {
        Self {
            actor: actor.to_owned(),
            name: None,
            private: Private::default(),
            outlets: false,
            files: Vec::new(),
            ask: Arc::new(Nobody),
            at_cap: Arc::new(|_| {}),
        }
    }
}

impl Patron {
    /// What a sandbox of this one gets besides what its description says.
    pub(crate) fn extras(&self, spec: &Spec) -> Result<Extras, PrivateError> {
        let files = self.private.files()?.into_iter().chain(self.files.iter().cloned()).collect();
        Ok(Extras { egress: self.outlets || spec.reaches_out(), files })
    }
}

/// What the ways out of all sandboxes share.
#[derive(Default)]
pub(crate) struct Common {
    accounts: OnceLock<Arc<Accounts>>,
    prices: OnceLock<Result<Arc<Prices>, String>>,
}

impl Common {
    /// Uses these accounts; before the first sandbox is made.
    pub(crate) fn set_accounts(&self, accounts: Arc<Accounts>) {
        let _ = self.accounts.set(accounts);
    }

    pub(crate) fn accounts(&self) -> &Arc<Accounts> {
        self.accounts.get_or_init(|| Accounts::new(None))
    }

    /// Prices as the file of this data folder has them, or as they were when this was built.
    pub(crate) fn prices(&self, file: &std::path::Path) -> Result<Arc<Prices>, String> {
        let read = || Prices::load(file).map(Arc::new).map_err(|error| error.to_string());
        self.prices.get_or_init(read).clone()
    }
}

/// The way out of one sandbox. Dropping it closes it.
pub struct Outward {
    egress: Egress,
    /// What its rules say beyond the network's: the hosts of its secrets.
    spec: std::sync::Mutex<Spec>,
    /// What it may not reach whatever its rules say.
    denied: Vec<Rule>,
}

impl Outward {
    /// Opens the way that a machine's outlets are the inner end of. Within a runtime.
    pub(crate) fn open(
        outlets: Outlets,
        spec: &Spec,
        patron: &Patron,
        account: &Account,
        prices: Option<Arc<Prices>>,
        journal: &Journal,
        denied: Vec<Rule>,
    ) -> std::io::Result<Self> {
        let sockets = Sockets::new(outlets.listeners, outlets.resolvers)?;
        let gateway = match (patron.private.authority(), prices) {
            (Some(authority), Some(prices)) => {
                let setup = Setup {
                    authority: authority.clone(),
                    secrets: patron.private.secrets().to_vec(),
                    account: account.clone(),
                    prices,
                    roots: roots(),
                    llm_hosts: Vec::new(),
                    events: record::of_gateway(journal.clone(), spec.budget.group.clone(), patron.at_cap.clone()),
                };
                let gateway = Gateway::new(setup).map_err(std::io::Error::other)?;
                Some(Arc::new(gateway) as Arc<dyn sloplet_egress::Intercept>)
            }
            _ => None,
        };
        let ask: Arc<dyn Ask> = Arc::new(record::Recorded::new(patron.ask.clone(), journal.clone()));
        let options =
            Options { events: record::of_egress(journal.clone()), intercept: gateway, ask, ..Options::default() };
        let egress = Egress::start(Arc::new(sockets), without(spec.reach(), &denied), options);
        Ok(Self { egress, spec: std::sync::Mutex::new(spec.clone()), denied })
    }

    /// Replaces the network rules; the hosts of its secrets stay reachable.
    pub fn set_network(&self, network: Network) {
        let mut spec = self.spec.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        spec.network = network;
        self.egress.set_network(without(spec.reach(), &self.denied));
    }

    /// Replaces the budget's bounds on bytes; money is the account's.
    pub fn set_budget(&self, budget: Budget) {
        let mut spec = self.spec.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        spec.budget = budget;
        self.egress.set_network(without(spec.reach(), &self.denied));
    }

    /// What went through it.
    pub fn counters(&self) -> Counters {
        self.egress.counters()
    }
}

/// The same rules, with more that deny.
fn without(mut network: Network, denied: &[Rule]) -> Network {
    network.deny.extend_from_slice(denied);
    network
}

/// Whom the host trusts. Read once: there are some hundred and forty of them.
fn roots() -> Arc<rustls::RootCertStore> {
    static ROOTS: OnceLock<Arc<rustls::RootCertStore>> = OnceLock::new();
    ROOTS.get_or_init(|| Arc::new(sloplet_gateway::gateway::system_roots())).clone()
}
