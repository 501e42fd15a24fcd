//! `serve --verify-every`: verifies the walls whenever the last result is too old.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use sloplet_engine::Places;
use sloplet_monitor::{Done, Task, perform};
use sloplet_verify::Records;

use crate::setup;

/// What is verified: said when the server starts, so that nobody who takes it over can have another file read.
static SUBJECT: OnceLock<(Places, Option<PathBuf>)> = OnceLock::new();

/// Runs `sloplet verify`, which forks and attacks the host, too: a confined server can do neither.
pub static VERIFY: Task = Task {
    name: "verify",
    run: |_, _| {
        let (places, config) = SUBJECT.get().ok_or(rustix::io::Errno::INVAL)?;
        let mut command = Command::new(setup::PROGRAM);
        command.args(["verify", "--json"]).env("SLOPLET_DATA", &places.data).env("SLOPLET_RUN", &places.run);
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match config {
            Some(config) => command.arg("--config").arg(config),
            None => command.arg("--no-config"),
        };
        Done::with(&command.status()?.success())
    },
};

/// Says what will be verified. Before the server is confined.
pub fn prepare(places: &Places, config: Option<&PathBuf>) {
    let config = config.and_then(|path| std::path::absolute(path).ok());
    let _ = SUBJECT.set((places.clone(), config));
}

/// Verifies, again and again.
pub async fn repeat(places: Places, every: Duration) {
    loop {
        let age = Records::of(&places.data).latest().map(|latest| Duration::from_secs(latest.age_seconds));
        if let Some(left) = age.and_then(|age| every.checked_sub(age)).filter(|left| !left.is_zero()) {
            tokio::time::sleep(left).await;
        }
        match tokio::task::spawn_blocking(|| perform::<bool>(&VERIFY, &(), Vec::new())).await {
            Ok(Ok((true, _))) => tracing::info!("verified: nothing got out"),
            Ok(Ok((false, _))) => tracing::error!("verification failed: run 'sloplet verify'"),
            Ok(Err(error)) => tracing::error!(%error, "verification could not be started"),
            Err(error) => tracing::error!(%error, "verification could not be started"),
        }
        // At least: whatever goes wrong must not go wrong without a pause.
        tokio::time::sleep(every.clamp(Duration::from_secs(1), Duration::from_secs(60))).await;
    }
}
