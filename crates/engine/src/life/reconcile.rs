//! What a server that starts makes of what an earlier one left.
//!
//! An earlier server may have been killed between any two steps, so what is remembered of a sandbox and what is there of its
//! machine need not agree. What is there is the truth about processes; what is remembered is the truth about what was promised.

use super::record::State;

/// What is remembered of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Remembered {
    pub(super) state: State,
    /// Its files were saved when it was paused or stopped.
    pub(super) saved: bool,
    /// It runs, and its time is over.
    pub(super) overdue: bool,
}

/// What is there of its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Its processes run.
    Running,
    /// They stand still.
    Frozen,
    /// It is gone; perhaps because its time was over.
    Gone { timed_out: bool },
}

/// What is done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// The machine is its sandbox's again, which is in this state from now on.
    TakeOver {
        state: State,
        /// Its processes are frozen first.
        freeze: bool,
        /// What was saved may be older than what is in the machine, and is dropped.
        stale: bool,
    },
    /// The sandbox is in this state, without a machine: one that is there is destroyed.
    Rest(State),
    /// Neither the sandbox nor its machine stays.
    Forget,
}

/// What to do about a sandbox, or about a machine that nobody remembers.
pub(super) fn reconcile(remembered: Option<Remembered>, found: Found) -> Action {
    // Its record is removed before its machine is, and written before one is made.
    let Some(Remembered { state, saved, overdue }) = remembered else { return Action::Forget };
    match (state, found) {
        // Whoever asked for it has no answer, and asks again.
        (State::Creating, _) => Action::Forget,
        (State::Running, Found::Running) => Action::TakeOver { state: State::Running, freeze: false, stale: saved },
        // Frozen, but not written down yet; or its time was over while there was no server.
        (State::Running, Found::Frozen) => Action::TakeOver { state: State::Paused, freeze: false, stale: saved },
        (State::Running, Found::Gone { timed_out }) if timed_out || overdue => Action::Forget,
        // Its files were in the machine.
        (State::Running, Found::Gone { .. }) => Action::Rest(State::Failed),
        // Thawed, but not written down yet: it may have written since.
        (State::Paused, Found::Running) => Action::TakeOver { state: State::Paused, freeze: true, stale: saved },
        (State::Paused, Found::Frozen) => Action::TakeOver { state: State::Paused, freeze: false, stale: false },
        (State::Paused, Found::Gone { .. }) if saved => Action::Rest(State::Stopped),
        (State::Paused, Found::Gone { timed_out: true }) => Action::Forget,
        (State::Paused, Found::Gone { .. }) => Action::Rest(State::Failed),
        // A machine that was to be destroyed, or was made for it and not written down yet. Its files are those that were saved.
        (State::Stopped, _) => Action::Rest(State::Stopped),
        (State::Failed, _) => Action::Rest(State::Failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 5] = [State::Creating, State::Running, State::Paused, State::Stopped, State::Failed];
    const FOUND: [Found; 4] =
        [Found::Running, Found::Frozen, Found::Gone { timed_out: false }, Found::Gone { timed_out: true }];

    /// Every combination of what is remembered and what is there.
    fn all() -> impl Iterator<Item = (Option<Remembered>, Found)> {
        let flags = [(false, false), (false, true), (true, false), (true, true)];
        let remembered = STATES.into_iter().flat_map(move |state| {
            flags.map(move |(saved, overdue)| {
                let overdue = overdue && state == State::Running;
                Some(Remembered { state, saved, overdue })
            })
        });
        remembered.chain([None]).flat_map(|remembered| FOUND.map(|found| (remembered, found)))
    }

    #[test]
    fn what_is_told_afterwards_is_what_is_there_for_every_state_and_every_machine() {
        for (remembered, found) in all() {
            let action = reconcile(remembered, found);
            let lives = !matches!(found, Found::Gone { .. });
            match action {
                Action::TakeOver { state, freeze, .. } => {
                    assert!(lives, "there is no machine: {remembered:?} {found:?}");
                    let frozen = freeze || found == Found::Frozen;
                    let told = if frozen { State::Paused } else { State::Running };
                    assert_eq!(state, told, "{remembered:?} {found:?}");
                }
                Action::Rest(state) => {
                    assert!(
                        matches!(state, State::Stopped | State::Failed),
                        "it has no machine: {remembered:?} {found:?}"
                    );
                }
                Action::Forget => {}
            }
        }
    }

    #[test]
    fn nothing_that_was_promised_is_lost() {
        for (remembered, found) in all() {
            let action = reconcile(remembered, found);
            let Some(Remembered { state, saved, overdue }) = remembered else {
                assert_eq!(action, Action::Forget);
                continue;
            };
            let lives = !matches!(found, Found::Gone { .. });
            let what = format!("{remembered:?} {found:?}: {action:?}");
            match state {
                State::Creating => assert_eq!(action, Action::Forget, "{what}"),
                State::Running | State::Paused if lives => assert!(matches!(action, Action::TakeOver { .. }), "{what}"),
                State::Paused if saved => assert_eq!(action, Action::Rest(State::Stopped), "{what}"),
                State::Running if overdue => assert_eq!(action, Action::Forget, "{what}"),
                State::Stopped | State::Failed => assert_eq!(action, Action::Rest(state), "{what}"),
                _ => assert!(matches!(action, Action::Rest(State::Failed) | Action::Forget), "{what}"),
            }
        }
    }

    #[test]
    fn what_was_saved_is_dropped_wherever_processes_may_have_written_since() {
        for (remembered, found) in all() {
            let Action::TakeOver { stale, .. } = reconcile(remembered, found) else { continue };
            let Remembered { state, saved, .. } = remembered.unwrap();
            let stood_still = state == State::Paused && found == Found::Frozen;
            assert_eq!(stale, saved && !stood_still, "{remembered:?} {found:?}");
        }
    }
}
