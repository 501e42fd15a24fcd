//! A command as the ledger has it: what was asked, and what came of it.

use std::time::Instant;

use sloplet_client::{Observer, ProcessEvent};
use sloplet_ledger::event::{ExecEnded, ExecStarted};
use sloplet_ledger::{Event, LedgerError, OutputTap};
use sloplet_wire::{Exec, Exit};

use super::Journal;

/// Follows a command to its end.
pub(crate) struct Watched {
    journal: Journal,
    exec: String,
    started: Instant,
    output: Option<(OutputTap, OutputTap)>,
    /// Whether there was any.
    printed: bool,
}

impl Watched {
    /// Writes down that this command is about to start. Of its variables only the names.
    pub(crate) fn begin(journal: &Journal, exec: &Exec) -> Result<Self, LedgerError> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let name = |variable: &[u8]| text(variable.split(|byte| *byte == b'=').next().unwrap_or_default());
        let id = journal.next_command();
        journal.write(Event::ExecStarted(ExecStarted {
            exec: id.as_str().into(),
            argv: exec.argv.iter().map(|word| text(word)).collect(),
            cwd: exec.cwd.as_ref().map_or_else(String::new, |cwd| text(cwd)).into(),
            env: exec.env.iter().map(|variable| name(variable)).collect(),
            user: exec.user.clone().unwrap_or_default().into(),
            tty: exec.terminal.is_some(),
        }))?;
        Ok(Self {
            journal: journal.clone(),
            exec: id,
            started: Instant::now(),
            output: Some(Default::default()),
            printed: false,
        })
    }

    fn end(&mut self, exit: Option<&Exit>) {
        let Some((stdout, stderr)) = self.output.take() else { return };
        let ended = ExecEnded {
            exec: self.exec.as_str().into(),
            exit_code: exit.and_then(|exit| exit.code),
            signal: exit.and_then(|exit| exit.signal),
            duration_ms: self.started.elapsed().as_millis() as u64,
            timed_out: exit.is_some_and(|exit| exit.timed_out),
            ..ExecEnded::default()
        };
        let journal = self.journal.clone();
        let finish = move || {
            let save = |tap: OutputTap| {
                let output = tap.finish();
                let stored = output.bytes > 0 && journal.ledger.outputs().save(&output).is_ok();
                output.summary(stored)
            };
            let (output, stderr) = (Some(save(stdout)), Some(save(stderr)));
            journal.note(Event::ExecEnded(ExecEnded { output, stderr, ..ended }));
        };
        // Hashing, packing and writing the output is nothing that whoever waits for the command should wait for.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if self.printed => drop(runtime.spawn_blocking(finish)),
            _ => finish(),
        }
    }
}

impl Observer for Watched {
    fn saw(&mut self, event: &ProcessEvent) {
        self.printed |= !matches!(event, ProcessEvent::Exited(_));
        match (event, &mut self.output) {
            (ProcessEvent::Stdout(bytes), Some((stdout, _))) => stdout.push(bytes.clone()),
            (ProcessEvent::Stderr(bytes), Some((_, stderr))) => stderr.push(bytes.clone()),
            (ProcessEvent::Exited(exit), _) => self.end(Some(exit)),
            _ => {}
        }
    }
}

impl Drop for Watched {
    /// Nobody saw its end: it was killed with its sandbox, or goes on without us.
    fn drop(&mut self) {
        self.end(None);
    }
}
