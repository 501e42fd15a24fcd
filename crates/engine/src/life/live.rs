//! A sandbox that has a machine.

use std::ops::Deref;
use std::sync::Arc;

use super::activity::InUse;
use super::process::{Processes, Tracked};
use crate::allowance::Allowance;
use crate::sandbox::{Command, Sandbox};
use sloplet_client::{Agent, ClientError};

/// A sandbox that has a machine.
pub struct Live {
    /// Its machine and how commands run there.
    pub sandbox: Sandbox,
    /// What was started in it.
    pub processes: Processes,
}

impl Live {
    /// Of a machine that is up; what its processes write is kept within its owner's allowance.
    pub fn new(sandbox: Sandbox, allowance: Allowance) -> Self {
        let processes = Processes::new(sandbox.agent().clone(), allowance);
        Self { sandbox, processes }
    }

    /// Its agent: files and ports.
    pub fn agent(&self) -> &Agent {
        self.sandbox.agent()
    }

    /// Starts a command that runs on whatever happens to whoever started it.
    pub async fn start(&self, command: Command) -> Result<Arc<Tracked>, ClientError> {
        self.processes.start(&self.sandbox, command).await
    }
}

/// A running sandbox in use: it does not count as idle while this exists.
pub struct Reached {
    pub(super) live: Arc<Live>,
    pub(super) _in_use: InUse,
}

impl Deref for Reached {
    type Target = Live;

    fn deref(&self) -> &Live {
        &self.live
    }
}
