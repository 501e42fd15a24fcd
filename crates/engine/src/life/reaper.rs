//! Ends or pauses sandboxes whose time is over, or that nobody uses or holds.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::clock::{now_ms, until_ms};
use super::record::{OnTimeout, Record, State};
use super::sandboxes::{Inner, Sandboxes, Slot};

/// How often idle sandboxes are looked for, where there can be some.
const IDLE_CHECK: Duration = Duration::from_secs(1);

/// How often everything is looked at anyway.
const LOOK: Duration = Duration::from_secs(30);

/// How soon it is looked again at what cannot be ended yet.
const SOON: Duration = Duration::from_millis(100);

/// How long the reason of a failure is kept.
const FAILED_FOR: u64 = 3_600_000;

/// Runs as long as the registry exists.
pub(super) async fn run(registry: Weak<Inner>) {
    loop {
        let Some(inner) = registry.upgrade() else { return };
        let wait = look(&Sandboxes(inner.clone()));
        let rescheduled = inner.rescheduled.notified();
        // The registry goes when its last user does, even if this one still waits: so do not hold it.
        tokio::pin!(rescheduled);
        let _ = tokio::time::timeout(wait, rescheduled).await;
    }
}

/// Deals with everything that is due, and says when to look again.
fn look(sandboxes: &Sandboxes) -> Duration {
    let slots: Vec<Arc<Slot>> = sandboxes.slots().values().cloned().collect();
    let mut wait = LOOK;
    for slot in slots {
        match slot.with_record(|record| due(record, &slot)) {
            Due::Now(action) => {
                let (sandboxes, slot) = (sandboxes.clone(), slot.clone());
                tokio::spawn(async move { carry_out(&sandboxes, &slot, action).await });
            }
            Due::In(rest) => wait = wait.min(rest),
            Due::Never => {}
        }
    }
    wait
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Destroy,
    Pause,
    Stop,
    Forget,
}

enum Due {
    Now(Action),
    In(Duration),
    Never,
}

fn due(record: &Record, slot: &Slot) -> Due {
    if record.state == State::Failed {
        let over = now_ms() > record.started_ms.saturating_add(FAILED_FOR);
        return if over { Due::Now(Action::Forget) } else { Due::Never };
    }
    let lease = slot.lease.rest();
    if lease == Some(Duration::ZERO) && record.state != State::Creating {
        return Due::Now(Action::Destroy);
    }
    if record.state != State::Running {
        return lease.map_or(Due::Never, |rest| Due::In(rest.max(SOON)));
    }
    let mut rest = record.ends_ms.map(until_ms);
    if rest == Some(Duration::ZERO) {
        let action = match record.request.on_timeout {
            OnTimeout::Destroy => Action::Destroy,
            OnTimeout::Pause => Action::Pause,
            OnTimeout::Stop => Action::Stop,
        };
        return Due::Now(action);
    }
    if let Some(idle) = record.request.idle_timeout {
        if slot.activity.idle() >= idle {
            return Due::Now(Action::Pause);
        }
        rest = Some(rest.map_or(IDLE_CHECK, |rest| rest.min(IDLE_CHECK)));
    }
    rest.into_iter().chain(lease).min().map_or(Due::Never, Due::In)
}

async fn carry_out(sandboxes: &Sandboxes, slot: &Arc<Slot>, action: Action) {
    if action == Action::Stop {
        let record = slot.record();
        return match sandboxes.stop(&record.owner, &record.id).await {
            Ok(_) => tracing::info!(sandbox = record.id, "time is over: stopped"),
            Err(error) => tracing::error!(%error, sandbox = record.id, "cannot stop a sandbox whose time is over"),
        };
    }
    let _changing = slot.changing.lock().await;
    // Its time may have been extended meanwhile.
    let record = slot.record();
    if !matches!(due(&record, slot), Due::Now(still) if still == action) {
        return;
    }
    let result = match action {
        Action::Destroy | Action::Forget => sandboxes.end(slot).await,
        Action::Pause => sandboxes.freeze(slot).await.map(|_| ()),
        Action::Stop => Ok(()),
    };
    match result {
        Ok(()) if action == Action::Forget => {}
        Ok(()) => tracing::info!(sandbox = record.id, paused = action == Action::Pause, "time is over"),
        Err(error) => {
            tracing::error!(%error, sandbox = record.id, "cannot end a sandbox whose time is over");
            // Not again at once, and again.
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    }
}
