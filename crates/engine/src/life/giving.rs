//! Secrets for a sandbox that is there already.

use std::time::Duration;

use sloplet_client::ClientError;
use sloplet_policy::SecretRule;
use sloplet_policy::secret::Place;
use sloplet_wire::{ErrorCode, Target};

use super::error::LifeError;
use super::private::Values;
use super::record::{Record, State};
use super::sandboxes::Sandboxes;
use crate::engine::EngineError;
use crate::outward::private::{BUNDLE, Private};
use crate::sandbox::Sandbox;

/// Most secrets of one sandbox.
const SECRETS: usize = 64;

/// The largest bundle of certificates that is looked at. Distributions' have a quarter of a megabyte.
const LARGEST_BUNDLE: u64 = 4 << 20;

/// How long the agent may take for each step: everything inside may be hostile.
const PATIENCE: Duration = Duration::from_secs(20);

/// A sandbox that was given secrets.
#[derive(Debug)]
pub struct Given {
    /// What is known of it now.
    pub record: Record,
    /// The bundle inside that programs must use for the secrets' hosts, where not all of them do by themselves.
    pub certificates: Option<&'static str>,
}

impl Sandboxes {
    /// Gives a sandbox that runs more secrets; one of the same name is replaced. Only such as no program inside needs to know
    /// of: variables of processes cannot be changed from outside.
    pub async fn give_secrets(
        &self,
        owner: &str,
        id: &str,
        rules: Vec<SecretRule>,
        values: Values,
    ) -> Result<Given, LifeError> {
        if let Some(rule) = rules.iter().find(|rule| !matches!(rule.place, Place::Basic { .. })) {
            let message = format!(
                "secret {}: a sandbox that runs can only be given secrets for basic authentication; programs inside would have \
                 to know the placeholders of others: make it anew with them",
                rule.name
            );
            return Err(LifeError::Invalid(message));
        }
        let slot = self.slot(owner, id)?;
        let _changing = slot.changing.lock().await;
        let record = slot.record();
        let (State::Running, Some(live)) = (record.state, slot.live()) else {
            return Err(LifeError::Conflict(format!("sandbox '{}' is not running", record.id)));
        };
        let Some(outward) = live.sandbox.outward() else {
            let message = "this sandbox was made without a way out: see 'sloplet doctor', and make it anew";
            return Err(LifeError::Conflict(message.into()));
        };
        let before = self.secrets_of(&record)?;
        let mut spec = record.request.spec.clone();
        let private = before.with(&rules, &values).map_err(|error| LifeError::Invalid(error.to_string()))?;
        spec.secrets = private.secrets().iter().map(|secret| secret.rule.clone()).collect();
        spec.check().map_err(|error| LifeError::Invalid(error.to_string()))?;
        if spec.secrets.len() > SECRETS {
            return Err(LifeError::Invalid(format!("a sandbox can have {SECRETS} secrets at most")));
        }
        self.0.engine.radius().check_spec(&spec).map_err(EngineError::from)?;
        if before.is_empty() {
            trust(&live.sandbox, &private).await?;
        }
        for secret in private.secrets() {
            self.0.engine.ledger().redactor().add(&String::from_utf8_lossy(secret.value.expose()));
        }
        let prices = self.0.engine.common_prices()?;
        // What is remembered first is of no use to anybody until the rule is, too.
        self.keep_private(&record.id, &record.owner, &private)?;
        let given = slot.update(&self.0.records, |record| record.request.spec.secrets = spec.secrets.clone())?;
        outward.set_secrets(&private, prices).map_err(EngineError::Outward)?;
        self.note_policy(&given, "secrets", &record.request.spec.secrets, &spec.secrets);
        Ok(Given { record: given, certificates: private.is_late().then_some(BUNDLE) })
    }
}

/// Adds the authority to the bundle of certificates inside, on behalf of somebody there.
async fn add(sandbox: &Sandbox, private: &Private, user: Option<&str>) -> Result<(), ClientError> {
    let agent = sandbox.agent();
    let target = || Target {
        path: BUNDLE.as_bytes().to_vec().into(),
        user: user.map(str::to_owned),
        privileged: user.is_none(),
    };
    let mut there = Vec::new();
    match agent.read(target(), 0, Some(LARGEST_BUNDLE)).await {
        Ok((_, mut bundle)) => {
            while let Some(bytes) = bundle.chunk().await? {
                there.extend_from_slice(&bytes);
                if there.len() as u64 > LARGEST_BUNDLE {
                    break;
                }
            }
        }
        Err(error) if error.failure().is_some_and(|failure| failure.code == ErrorCode::NotFound) => {}
        Err(error) => return Err(error),
    }
    let mut upload = agent.write(target(), 0o644, true).await?;
    upload.write(private.bundle(&there)).await?;
    upload.finish().await.map(drop)
}

/// Makes programs inside trust the authority: adds it to the bundle of certificates there.
async fn trust(sandbox: &Sandbox, private: &Private) -> Result<(), LifeError> {
    let done = async {
        match add(sandbox, private, Some("root")).await {
            // One that an ordinary user made has nobody else: all that is in it is that one's.
            Err(error) if error.failure().is_some_and(|failure| failure.code == ErrorCode::NoUser) => {
                add(sandbox, private, None).await
            }
            done => done,
        }
    };
    let told = |reason: String| {
        let advice = "make it anew with the secret";
        LifeError::Conflict(format!("programs inside cannot be made to trust the gateway: {reason}: {advice}"))
    };
    match tokio::time::timeout(PATIENCE, done).await {
        Ok(done) => done.map_err(|error| told(error.to_string())),
        Err(_) => Err(told("it does not answer".into())),
    }
}
