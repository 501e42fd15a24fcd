//! Who has spent how much, and whether a call still fits.
//!
//! All accounts are behind one lock: a call is admitted against the sandbox's or the group's total and everything that is
//! under way in one step, so calls at the same time cannot overshoot together.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sloplet_policy::budget::{AtCap, Budget, Usd};

/// What `…_per_minute` is counted over.
const MINUTE: Duration = Duration::from_secs(60);

/// Whose account it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// One sandbox, by its id.
    Sandbox(String),
    /// All sandboxes of a budget group: `TENANT/NAME`, or the name alone for the group of nobody in particular.
    Group(String),
}

impl Owner {
    /// The group of a tenant. Names of groups hold no `/`, so tenants never meet.
    pub fn group(tenant: &str, name: &str) -> Self {
        Self::Group(if tenant.is_empty() { name.to_owned() } else { format!("{tenant}/{name}") })
    }
}

/// What an account has come to. To be stored, so that a server that starts again goes on from there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Whose.
    pub owner: Owner,
    /// Calls that were admitted.
    pub calls: u64,
    /// Spent.
    pub spent: Amount,
    /// Kept back for calls under way.
    pub reserved: Amount,
}

/// Money and tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amount {
    /// Millionths of a dollar.
    pub micro_usd: u64,
    /// Tokens.
    pub tokens: u64,
}

impl Amount {
    fn plus(self, other: Self) -> Self {
        Self {
            micro_usd: self.micro_usd.saturating_add(other.micro_usd),
            tokens: self.tokens.saturating_add(other.tokens),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            micro_usd: self.micro_usd.saturating_sub(other.micro_usd),
            tokens: self.tokens.saturating_sub(other.tokens),
        }
    }
}

/// A cap of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cap {
    /// Money.
    Usd,
    /// Tokens.
    Tokens,
    /// LLM calls in a minute.
    RequestsPerMinute,
    /// Commands in a minute.
    ExecPerMinute,
}

/// Why something was not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Which cap it would go beyond.
    pub which: Cap,
    /// In words, with the amounts.
    pub message: String,
    /// When it may fit again, for rates.
    pub retry_after: Option<Duration>,
    /// Set the first time that what is spent leaves no room: the sandbox is at its cap.
    pub reached: Option<Reached>,
}

/// A budget is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    /// Which cap.
    pub which: Cap,
    /// What was asked to happen.
    pub at_cap: AtCap,
    /// In words.
    pub message: String,
}

/// Is given the records that changed, in the order of the changes, before a call goes out and after it is paid. It is called
/// under the lock of all accounts, so it must be quick and must not call back.
pub type Persist = Arc<dyn Fn(&[Record]) + Send + Sync>;

/// All accounts.
pub struct Accounts {
    entries: Mutex<HashMap<Owner, Entry>>,
    persist: Option<Persist>,
}

#[derive(Default)]
struct Entry {
    calls: u64,
    spent: Amount,
    reserved: Amount,
    /// When calls of the last minute were admitted.
    recent_calls: VecDeque<Instant>,
    recent_commands: VecDeque<Instant>,
}

impl Accounts {
    /// Empty ones.
    pub fn new(persist: Option<Persist>) -> Arc<Self> {
        Self::restore([], persist)
    }

    /// As they were stored. What was kept back for calls then under way counts as spent: nobody saw how they ended.
    pub fn restore(records: impl IntoIterator<Item = Record>, persist: Option<Persist>) -> Arc<Self> {
        let entry = |record: Record| {
            let spent = record.spent.plus(record.reserved);
            (record.owner, Entry { calls: record.calls, spent, ..Entry::default() })
        };
        Arc::new(Self { entries: Mutex::new(records.into_iter().map(entry).collect()), persist })
    }

    /// The account of a sandbox, with its budget. Groups are its tenant's: those of others are other groups, whatever
    /// their names.
    pub fn open(self: &Arc<Self>, sandbox: impl Into<String>, tenant: impl Into<String>, budget: Budget) -> Account {
        Account(Arc::new(Inner {
            accounts: self.clone(),
            sandbox: Owner::Sandbox(sandbox.into()),
            tenant: tenant.into(),
            budget: Mutex::new(budget),
            told: AtomicBool::new(false),
        }))
    }

    /// All that were ever charged.
    pub fn records(&self) -> Vec<Record> {
        self.lock().iter().map(|(owner, entry)| entry.record(owner)).collect()
    }

    /// One of them; empty if nothing was charged.
    pub fn record(&self, owner: &Owner) -> Record {
        self.lock().get(owner).unwrap_or(&Entry::default()).record(owner)
    }

    /// Forgets a sandbox's account, when the sandbox is gone and its record is kept elsewhere. Groups stay.
    pub fn forget(&self, owner: &Owner) {
        self.lock().remove(owner);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, entries: &mut HashMap<Owner, Entry>, owners: &[Owner], change: impl Fn(&mut Entry)) {
        for owner in owners {
            change(entries.entry(owner.clone()).or_default());
        }
        if let Some(persist) = &self.persist {
            let records: Vec<Record> =
                owners.iter().filter_map(|owner| Some(entries.get(owner)?.record(owner))).collect();
            persist(&records);
        }
    }
}

impl Entry {
    fn record(&self, owner: &Owner) -> Record {
        Record { owner: owner.clone(), calls: self.calls, spent: self.spent, reserved: self.reserved }
    }
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.records()).finish()
    }
}

/// A sandbox's account.
#[derive(Debug, Clone)]
pub struct Account(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    accounts: Arc<Accounts>,
    sandbox: Owner,
    tenant: String,
    budget: Mutex<Budget>,
    /// Whether it was told that the cap is reached.
    told: AtomicBool,
}

impl Account {
    /// Its budget.
    pub fn budget(&self) -> Budget {
        self.0.budget.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes its budget. What is spent stays spent.
    pub fn set_budget(&self, budget: Budget) {
        *self.0.budget.lock().unwrap_or_else(PoisonError::into_inner) = budget;
        self.0.told.store(false, Ordering::Relaxed);
    }

    /// What the sandbox itself has spent.
    pub fn spent(&self) -> Record {
        self.0.accounts.record(&self.0.sandbox)
    }

    /// Keeps back what a call may come to at most, if it fits.
    pub fn reserve(&self, need: Amount) -> Result<Reservation, Refusal> {
        self.reserve_at(need, Instant::now())
    }

    fn reserve_at(&self, need: Amount, now: Instant) -> Result<Reservation, Refusal> {
        let budget = self.budget();
        let owners = self.owners(&budget);
        let mut entries = self.0.accounts.lock();
        // The caps hold for the pot that is spent from, which is the last of the owners.
        let pot = owners.last().map(|owner| entries.entry(owner.clone()).or_default());
        if let Some(pot) = pot {
            if let Some(refusal) = self.beyond(&budget, pot.spent, pot.reserved, need) {
                return Err(refusal);
            }
            if let Some(limit) = budget.requests_per_minute {
                admit(&mut pot.recent_calls, limit, now, Cap::RequestsPerMinute)?;
            }
        }
        self.0.accounts.change(&mut entries, &owners, |entry| {
            entry.calls += 1;
            entry.reserved = entry.reserved.plus(need);
        });
        drop(entries);
        Ok(Reservation { account: self.clone(), owners, amount: need, sent: false, open: true })
    }

    /// Counts a command that is about to start.
    pub fn command(&self) -> Result<(), Refusal> {
        let Some(limit) = self.budget().exec_per_minute else { return Ok(()) };
        let mut entries = self.0.accounts.lock();
        let entry = entries.entry(self.0.sandbox.clone()).or_default();
        admit(&mut entry.recent_commands, limit, Instant::now(), Cap::ExecPerMinute)
    }

    fn owners(&self, budget: &Budget) -> Vec<Owner> {
        let group = budget.group.as_ref().map(|name| Owner::group(&self.0.tenant, name));
        std::iter::once(self.0.sandbox.clone()).chain(group).collect()
    }

    fn beyond(&self, budget: &Budget, spent: Amount, reserved: Amount, need: Amount) -> Option<Refusal> {
        let money = |micros: u64| Usd::from_micros(micros).to_string();
        let count = |tokens: u64| format!("{tokens} tokens");
        type Show<'a> = &'a dyn Fn(u64) -> String;
        let caps: [(Cap, Option<u64>, [u64; 3], Show<'_>); 2] = [
            (Cap::Usd, budget.usd.map(|usd| usd.micros), [spent.micro_usd, reserved.micro_usd, need.micro_usd], &money),
            (Cap::Tokens, budget.tokens.map(|tokens| tokens.0), [spent.tokens, reserved.tokens, need.tokens], &count),
        ];
        for (which, cap, [spent, reserved, need], show) in caps {
            let Some(cap) = cap else { continue };
            if spent.saturating_add(reserved).saturating_add(need) <= cap {
                continue;
            }
            let whose = budget.group.as_ref().map(|group| format!(" of group '{group}'")).unwrap_or_default();
            let message = format!(
                "sloplet: the budget{whose} of {} does not cover this call: spent {}, reserved {} for calls under way, \
                 this call needs up to {}. Ask for fewer output tokens, or have the budget raised.",
                show(cap),
                show(spent),
                show(reserved),
                show(need)
            );
            // Room that others hold comes back; room that is spent does not.
            let reached = (spent.saturating_add(need) > cap).then(|| self.reached(which, budget.at_cap, &message));
            return Some(Refusal { which, message, retry_after: None, reached: reached.flatten() });
        }
        None
    }

    /// Tells it once.
    fn reached(&self, which: Cap, at_cap: AtCap, message: &str) -> Option<Reached> {
        let first = !self.0.told.swap(true, Ordering::Relaxed);
        first.then(|| Reached { which, at_cap, message: message.to_owned() })
    }

    fn settle(&self, owners: &[Owner], reserved: Amount, real: Amount) -> Option<Reached> {
        let mut entries = self.0.accounts.lock();
        self.0.accounts.change(&mut entries, owners, |entry| {
            entry.reserved = entry.reserved.minus(reserved);
            entry.spent = entry.spent.plus(real);
        });
        let spent = owners.last().and_then(|owner| entries.get(owner)).map(|pot| pot.spent)?;
        drop(entries);
        let budget = self.budget();
        let full = |cap: Option<u64>, spent: u64| cap.is_some_and(|cap| spent >= cap);
        let which = match () {
            () if full(budget.usd.map(|usd| usd.micros), spent.micro_usd) => Cap::Usd,
            () if full(budget.tokens.map(|tokens| tokens.0), spent.tokens) => Cap::Tokens,
            () => return None,
        };
        let amount = Usd::from_micros(spent.micro_usd);
        self.reached(
            which,
            budget.at_cap,
            &format!("sloplet: the budget is used up: {amount}, {} tokens", spent.tokens),
        )
    }
}

/// A sliding window: as many as the limit in any minute. What is refused does not count.
fn admit(recent: &mut VecDeque<Instant>, limit: u32, now: Instant, which: Cap) -> Result<(), Refusal> {
    while recent.front().is_some_and(|&then| now.saturating_duration_since(then) >= MINUTE) {
        recent.pop_front();
    }
    if recent.len() < limit as usize {
        recent.push_back(now);
        return Ok(());
    }
    let oldest = recent.len().saturating_sub(limit as usize);
    let wait = recent.get(oldest).map_or(MINUTE, |&then| MINUTE.saturating_sub(now.saturating_duration_since(then)));
    let what = if which == Cap::ExecPerMinute { "commands" } else { "LLM calls" };
    let message =
        format!("sloplet: the budget of {limit} {what} per minute is used up; try again in {} s", wait.as_secs() + 1);
    Err(Refusal { which, message, retry_after: Some(wait), reached: None })
}

/// What is kept back for a call under way.
///
/// Dropped before the call was sent it costs nothing; dropped afterwards it costs all that was kept back, as nobody knows
/// what the call came to.
#[derive(Debug)]
pub struct Reservation {
    account: Account,
    owners: Vec<Owner>,
    amount: Amount,
    sent: bool,
    open: bool,
}

impl Reservation {
    /// How much.
    pub fn amount(&self) -> Amount {
        self.amount
    }

    /// The call is about to be sent.
    pub fn sent(&mut self) {
        self.sent = true;
    }

    /// The call has come to this much.
    pub fn settle(mut self, real: Amount) -> Option<Reached> {
        self.open = false;
        self.account.settle(&self.owners, self.amount, real)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.open {
            let real = if self.sent { self.amount } else { Amount::default() };
            self.account.settle(&self.owners, self.amount, real);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sloplet_policy::budget::Tokens;

    fn dollars(micros: u64) -> Budget {
        Budget { usd: Some(Usd::from_micros(micros)), ..Budget::default() }
    }

    fn usd(micro_usd: u64) -> Amount {
        Amount { micro_usd, tokens: 1 }
    }

    #[test]
    fn a_call_is_paid_with_what_it_came_to() {
        let account = Accounts::new(None).open("a", "", dollars(100));
        let call = account.reserve(usd(80)).unwrap();
        let refusal = account.reserve(usd(30)).unwrap_err();
        assert_eq!(refusal.which, Cap::Usd);
        assert!(refusal.reached.is_none(), "what others hold comes back");
        assert!(refusal.message.contains("spent $0.00, reserved $0.00008"), "{refusal}");
        assert!(call.settle(usd(10)).is_none());
        let call = account.reserve(usd(90)).unwrap();
        assert!(call.settle(usd(90)).is_some_and(|reached| reached.which == Cap::Usd));
        assert!(account.reserve(usd(1)).unwrap_err().reached.is_none(), "it is told once");
        account.set_budget(dollars(101));
        assert!(account.reserve(usd(1)).is_ok());
    }

    #[test]
    fn what_nobody_saw_end_costs_the_worst_case() {
        let account = Accounts::new(None).open("a", "", dollars(100));
        drop(account.reserve(usd(60)).unwrap());
        assert_eq!(account.spent().spent, Amount::default());
        let mut call = account.reserve(usd(60)).unwrap();
        call.sent();
        drop(call);
        assert_eq!(account.spent().spent, usd(60));
        assert_eq!(account.spent().reserved, Amount::default());
    }

    #[test]
    fn a_group_spends_from_one_pot() {
        let accounts = Accounts::new(None);
        let budget = Budget { group: Some("team".into()), tokens: Some(Tokens(100)), ..Budget::default() };
        let (one, two) = (accounts.open("one", "", budget.clone()), accounts.open("two", "", budget));
        let tokens = |tokens| Amount { micro_usd: 0, tokens };
        one.reserve(tokens(70)).unwrap().settle(tokens(70));
        let refusal = two.reserve(tokens(40)).unwrap_err();
        assert!(refusal.which == Cap::Tokens && refusal.message.contains("group 'team'"), "{refusal}");
        two.reserve(tokens(30)).unwrap().settle(tokens(5));
        assert_eq!(accounts.record(&Owner::Group("team".into())).spent.tokens, 75);
        assert_eq!((one.spent().spent.tokens, two.spent().spent.tokens), (70, 5));
    }

    #[test]
    fn groups_of_the_same_name_are_not_shared_between_tenants() {
        let accounts = Accounts::new(None);
        let budget = Budget { group: Some("team".into()), tokens: Some(Tokens(100)), ..Budget::default() };
        let open = |sandbox: &str, tenant: &str| accounts.open(sandbox, tenant, budget.clone());
        let tokens = |tokens| Amount { micro_usd: 0, tokens };
        let (mine, also_mine, theirs) = (open("a", "key:me"), open("b", "key:me"), open("c", "key:them"));
        mine.reserve(tokens(100)).unwrap().settle(tokens(100));
        assert!(also_mine.reserve(tokens(1)).is_err());
        theirs.reserve(tokens(100)).unwrap().settle(tokens(40));
        assert_eq!(accounts.record(&Owner::group("key:me", "team")).spent.tokens, 100);
        assert_eq!(accounts.record(&Owner::group("key:them", "team")).spent.tokens, 40);
        assert_eq!(accounts.record(&Owner::group("", "team")).spent.tokens, 0);
    }

    #[test]
    fn calls_at_the_same_time_do_not_overshoot() {
        let account = Accounts::new(None).open("a", "", dollars(1000));
        let admitted: usize = std::thread::scope(|scope| {
            let call = |_| {
                let account = account.clone();
                scope.spawn(move || {
                    let kept: Vec<_> = (0..50).filter_map(|_| account.reserve(usd(7)).ok()).collect();
                    let count = kept.len();
                    kept.into_iter().for_each(|call| drop(call.settle(usd(7))));
                    count
                })
            };
            let threads: Vec<_> = (0..8).map(call).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 1000 / 7);
        assert_eq!(account.spent().spent.micro_usd, 1000 / 7 * 7);
    }

    #[test]
    fn totals_outlive_the_server() {
        let stored: Arc<Mutex<HashMap<Owner, Record>>> = Arc::default();
        let store = stored.clone();
        let persist: Persist = Arc::new(move |records| {
            store.lock().unwrap().extend(records.iter().map(|record| (record.owner.clone(), record.clone())));
        });
        let account = Accounts::new(Some(persist)).open("a", "", dollars(100));
        account.reserve(usd(50)).unwrap().settle(usd(20));
        let _under_way = account.reserve(usd(40)).unwrap();
        let json = serde_json::to_string(&stored.lock().unwrap().values().collect::<Vec<_>>()).unwrap();
        let records: Vec<Record> = serde_json::from_str(&json).unwrap();
        let again = Accounts::restore(records, None).open("a", "", dollars(100));
        assert_eq!(again.spent().spent.micro_usd, 60);
        assert!(again.reserve(usd(41)).is_err() && again.reserve(usd(40)).is_ok());
    }

    #[test]
    fn rates_slide() {
        let budget = Budget { requests_per_minute: Some(2), exec_per_minute: Some(1), ..Budget::default() };
        let account = Accounts::new(None).open("a", "", budget);
        let start = Instant::now();
        let at = |seconds| account.reserve_at(usd(0), start + Duration::from_secs(seconds));
        assert!(at(0).is_ok() && at(30).is_ok());
        let refusal = at(40).unwrap_err();
        assert_eq!((refusal.which, refusal.retry_after), (Cap::RequestsPerMinute, Some(Duration::from_secs(20))));
        assert!(at(60).is_ok() && at(61).is_err() && at(90).is_ok());
        assert!(account.command().is_ok());
        assert_eq!(account.command().unwrap_err().which, Cap::ExecPerMinute);
    }
}
