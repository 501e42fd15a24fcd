//! What makes a machine that waited for somebody what that one asks for.

use sloplet_policy::{Bind, Spec};

use super::{Engine, EngineError};
use crate::sandbox::Sandbox;

impl Engine {
    /// Gives a machine that waited its claimer's mounts and host name, after the same checks as for one that is made with them.
    /// `volumes` are mounts out of the engine's own folders. If it fails, nothing of the machine is left.
    pub(crate) async fn claim(
        &self,
        waiting: Sandbox,
        mut spec: Spec,
        volumes: Vec<Bind>,
    ) -> Result<Sandbox, EngineError> {
        match self.furnish(&waiting, &mut spec, volumes).await {
            Ok(()) => Ok(waiting.claimed_as(spec)),
            Err(error) => {
                let _ = waiting.machine().destroy().await;
                Err(error)
            }
        }
    }

    async fn furnish(&self, waiting: &Sandbox, spec: &mut Spec, volumes: Vec<Bind>) -> Result<(), EngineError> {
        self.check_mounts(spec)?;
        // Not before the check: those folders are protected from everybody else.
        spec.mounts.extend(volumes);
        let hostname = (waiting.spec().hostname != spec.hostname).then_some(spec.hostname.as_str());
        if spec.mounts.is_empty() && hostname.is_none() {
            return Ok(());
        }
        if spec.mounts.iter().any(|mount| mount.writable) {
            waiting.agent().filter_commands().await?;
        }
        let shown: Vec<Bind> = spec.shown().cloned().collect();
        Ok(waiting.machine().attach(&shown, hostname).await?)
    }
}
