//! Connections that wait for a person.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use sloplet_egress::{Answer, Ask, Pending, Request};
use tokio::sync::oneshot;

/// Everything that waits for a person, of all sandboxes; clones share it.
#[derive(Clone, Default)]
pub struct Approvals(Arc<Inner>);

#[derive(Default)]
struct Inner {
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Entry>>,
}

struct Entry {
    shown: Waiting,
    answer: oneshot::Sender<Answer>,
}

/// A connection that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// Names it in the answer.
    pub id: u64,
    /// Whose sandbox it is.
    #[serde(skip)]
    pub owner: String,
    /// The sandbox.
    pub sandbox: String,
    /// Since when, in milliseconds since 1970.
    pub asked_ms: u64,
    /// What it wants.
    #[serde(flatten)]
    pub request: Request,
}

impl Approvals {
    /// Asks on behalf of one sandbox.
    pub fn for_sandbox(&self, owner: &str, sandbox: &str) -> Arc<dyn Ask> {
        Arc::new(Asker { approvals: self.clone(), owner: owner.to_owned(), sandbox: sandbox.to_owned() })
    }

    /// What waits of an owner's sandboxes, oldest first.
    pub fn list(&self, owner: &str) -> Vec<Waiting> {
        self.lock().values().map(|entry| &entry.shown).filter(|shown| shown.owner == owner).cloned().collect()
    }

    /// Answers one. Returns whether it was still waiting.
    pub fn answer(&self, owner: &str, id: u64, answer: Answer) -> bool {
        let mut waiting = self.lock();
        if waiting.get(&id).is_none_or(|entry| entry.shown.owner != owner) {
            return false;
        }
        waiting.remove(&id).is_some_and(|entry| entry.answer.send(answer).is_ok())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Asker {
    approvals: Approvals,
    owner: String,
    sandbox: String,
}

/// Takes the question back when nobody waits for the answer any more.
struct Withdraw(Approvals, u64);

impl Drop for Withdraw {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl Ask for Asker {
    fn ask(&self, request: Request) -> Pending<'static, Answer> {
        let id = self.approvals.0.next.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, answered) = oneshot::channel();
        let shown = Waiting {
            id,
            owner: self.owner.clone(),
            sandbox: self.sandbox.clone(),
            asked_ms: crate::life::now_ms(),
            request,
        };
        self.approvals.lock().insert(id, Entry { shown, answer });
        let withdraw = Withdraw(self.approvals.clone(), id);
        Box::pin(async move {
            let _withdraw = withdraw;
            answered.await.unwrap_or(Answer::Deny)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            connection: 1,
            name: Some("example.com".into()),
            address: None,
            port: 443,
            rule: "example.com".into(),
        }
    }

    #[tokio::test]
    async fn only_the_owner_answers_and_only_once() {
        let approvals = Approvals::default();
        let waiting = approvals.for_sandbox("me", "box").ask(request());
        assert!(approvals.list("you").is_empty());
        let id = approvals.list("me")[0].id;
        assert!(!approvals.answer("you", id, Answer::Always));
        assert!(approvals.answer("me", id, Answer::Once));
        assert_eq!(waiting.await, Answer::Once);
        assert!(!approvals.answer("me", id, Answer::Deny));
    }

    #[tokio::test]
    async fn a_question_that_nobody_waits_for_is_gone() {
        let approvals = Approvals::default();
        drop(approvals.for_sandbox("me", "box").ask(request()));
        assert!(approvals.list("me").is_empty());
    }
}
