//! The way out of one sandbox: its egress, the gateway where its keys are put in and its money is counted, and the record of
//! both.
//!
//! - [`approvals`]: connections that wait for a person.
//! - [`private`]: what of this is a secret, and what programs inside need to know of it.
//! - `record`: what is written down. `unrouted`: what can only be counted.

pub mod approvals;
pub mod private;
mod record;
pub(crate) mod unrouted;

use std::sync::{Arc, OnceLock};

use sloplet_egress::{
    Ask, Connect, Counters, Dial, Egress, Intercept, Nobody, Options, Pending, Resolve, Sockets, Stream, System, Target,
};
use sloplet_gateway::account::{Account, Reached};
use sloplet_gateway::{Accounts, Gateway, Prices, Setup};
use sloplet_policy::budget::Budget;
use sloplet_policy::network::{Host, NetworkLimits};
use sloplet_policy::{HeaderRule, Isolation, Network, Rule, Spec};

use crate::driver::{Extras, Outlets, PutFile};
use crate::journal::Journal;
use private::{Private, PrivateError};

/// Who is told that a budget is used up.
pub type AtCapDo = Arc<dyn Fn(&Reached) + Send + Sync>;

/// Hears of what a sandbox was not let reach.
pub type DeniedDo = Arc<dyn Fn(Denied) + Send + Sync>;

/// What a sandbox was not let reach.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Denied {
    /// A name or an address.
    pub place: String,
    /// Which port; none where only the name was asked for.
    pub port: Option<u16>,
    /// Whether a rule says so, and not the absence of one.
    pub by_rule: bool,
}

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
    /// Whether it is recorded which names it asks for, also where it may reach nothing and has no outlets.
    pub ear: bool,
    /// Whether it waits for somebody, who may want mounts and a host name of its own.
    pub claimable: bool,
    /// Files put into its root, besides those that its secrets need.
    pub files: Vec<PutFile>,
    /// Who answers for rules that say `ask`.
    pub ask: Arc<dyn Ask>,
    /// What happens when its budget is used up.
    pub at_cap: AtCapDo,
    /// Who hears of what it was not let reach.
    pub denied: DeniedDo,
    /// What there is outside: names and connections of the host, unless somebody verifies its way out.
    pub outside: Outside,
}

/// What a way out leads to.
#[derive(Clone)]
pub struct Outside {
    /// Where names lead.
    pub resolver: Arc<dyn Resolve>,
    /// Connects to addresses that were vetted.
    pub connector: Arc<dyn Connect>,
}

impl Default for Outside {
    /// The host's.
    fn default() -> Self {
        Self { resolver: Arc::new(System), connector: Arc::new(System) }
    }
}

/// Who acts for the server's own user, over its socket or with the first key.
const OWN_USER: &str = "key:local";

impl Patron {
    /// Whose budget groups its sandbox spends from: every owner has their own. Those of the server's own user have plain
    /// names.
    pub fn tenant(&self) -> &str {
        if self.actor == OWN_USER { "" } else { &self.actor }
    }

    /// One who has no secrets, and nobody to ask.
    pub fn plain(actor: &str) -> Self {
        Self {
            actor: actor.to_owned(),
            name: None,
            private: Private::default(),
            outlets: false,
            ear: false,
            claimable: false,
            files: Vec::new(),
            ask: Arc::new(Nobody),
            at_cap: Arc::new(|_| {}),
            denied: Arc::new(|_| {}),
            outside: Outside::default(),
        }
    }
}

impl Patron {
    /// What a sandbox of this one gets besides what its description says.
    pub(crate) fn extras(&self, id: &str, spec: &Spec) -> Result<Extras, PrivateError> {
        let mut files = self.private.files()?;
        files.extend_from_slice(&self.files);
        // The root of a mere process is the host's, with the host's id in it.
        if spec.isolation != Isolation::Process {
            files.push(PutFile::machine_id(id));
        }
        Ok(Extras { egress: self.outlets || spec.reaches_out(), files, claimable: self.claimable, ear: self.ear })
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
    /// Whether nothing can arrive but questions for names.
    only_hears: bool,
    door: Arc<Door>,
    /// Whether its programs trust the gateway from the start.
    trusted: bool,
    account: Account,
    events: sloplet_gateway::Events,
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
        let only_hears = outlets.listeners.is_empty();
        let sockets = Sockets::new(outlets.listeners, outlets.resolvers)?;
        let events = record::of_gateway(journal.clone(), spec.budget.group.clone(), patron.at_cap.clone());
        let door = Arc::new(Door::default());
        if let Some(prices) = prices {
            door.open(&patron.private, spec, account, prices, &events)?;
        }
        let ask: Arc<dyn Ask> = Arc::new(record::Recorded::new(patron.ask.clone(), journal.clone()));
        let options = Options {
            events: record::of_egress(journal.clone(), patron.denied.clone()),
            intercept: Some(door.clone()),
            ask,
            resolver: patron.outside.resolver.clone(),
            connector: patron.outside.connector.clone(),
            protected: denied.iter().filter_map(named).collect(),
            weaken: spec.weaken,
            ..Options::default()
        };
        let mut network = without(spec.reach(), &denied);
        network.internet |= spec.lacks("egress-rules");
        if spec.lacks("egress-limits") {
            let most = u32::MAX;
            network.limits =
                NetworkLimits { connections: most, new_per_second: most, dns_per_second: most, ..network.limits };
        }
        let egress = Egress::start(Arc::new(sockets), network, options);
        let trusted = !patron.private.is_empty() && !patron.private.is_late();
        let (account, spec) = (account.clone(), std::sync::Mutex::new(spec.clone()));
        Ok(Self { egress, only_hears, door, trusted, account, events, spec, denied })
    }

    /// Whether nothing can arrive but questions for names, which are answered with no.
    pub fn only_hears(&self) -> bool {
        self.only_hears
    }

    /// Replaces the network rules; the hosts of its secrets stay reachable.
    pub fn set_network(&self, network: Network) {
        let mut spec = self.spec.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        spec.network = network;
        self.egress.set_network(without(spec.reach(), &self.denied));
    }

    /// Gives it other secrets than it had, from its next request on. Their hosts can be reached.
    pub(crate) fn set_secrets(&self, private: &Private, prices: Arc<Prices>) -> std::io::Result<()> {
        let mut spec = self.spec.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match self.door.0.get() {
            Some(gateway) => gateway.set_secrets(private.secrets().to_vec()),
            None => self.door.open(private, &spec, &self.account, prices, &self.events)?,
        }
        spec.secrets = private.secrets().iter().map(|secret| secret.rule.clone()).collect();
        self.egress.set_network(without(spec.reach(), &self.denied));
        Ok(())
    }

    /// Whether its programs trust the gateway for whatever host: only where they do from the start.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// Replaces the headers that are set on its requests.
    pub fn set_headers(&self, headers: Vec<HeaderRule>) {
        if let Some(gateway) = self.door.0.get() {
            gateway.set_headers(headers);
        }
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

/// Where requests of a sandbox are read and changed, once some are.
#[derive(Default)]
struct Door(OnceLock<Gateway>);

impl Door {
    fn open(
        &self,
        private: &Private,
        spec: &Spec,
        account: &Account,
        prices: Arc<Prices>,
        events: &sloplet_gateway::Events,
    ) -> std::io::Result<()> {
        let Some(authority) = private.authority() else { return Ok(()) };
        let setup = Setup {
            authority: authority.clone(),
            secrets: private.secrets().to_vec(),
            headers: spec.headers.clone(),
            account: account.clone(),
            prices,
            roots: roots(),
            llm_hosts: Vec::new(),
            events: events.clone(),
        };
        let _ = self.0.set(Gateway::new(setup).map_err(std::io::Error::other)?);
        Ok(())
    }
}

impl Intercept for Door {
    fn wants(&self, name: &str, port: u16) -> bool {
        self.0.get().is_some_and(|gateway| gateway.wants(name, port))
    }

    fn serve(&self, client: Box<dyn Stream>, target: Target, dial: Arc<dyn Dial>) -> Pending<'static, ()> {
        match self.0.get() {
            Some(gateway) => gateway.serve(client, target, dial),
            None => Box::pin(async {}),
        }
    }
}

/// The name of a host that a rule names. Those below a name nobody can list: the blast radius refuses what would need that.
fn named(rule: &Rule) -> Option<String> {
    match &rule.host {
        Host::Name(name) => Some(name.clone()),
        Host::Below(_) | Host::Net(_) => None,
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
