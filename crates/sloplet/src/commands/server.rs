//! `sloplet server`: the server that commands start in the background.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::api::Server;
use crate::setup;

/// How long it may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks this user's own server to end and waits for that. Its sandboxes stay, and the next server has them.
pub async fn stop(data: Option<PathBuf>) -> anyhow::Result<u8> {
    if std::env::var_os("SLOPLET_URL").is_some_and(|url| !url.is_empty()) {
        bail!("SLOPLET_URL names the server of another machine: stop it there");
    }
    let Ok(server) = Server::find(&setup::search(data, false)?).await else {
        complain!("sloplet: no server runs");
        return Ok(0);
    };
    let info = server.get("/info").await?;
    let pid = info["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let pid = pid.context("the server does not say which process it is")?;
    kill_process(pid, Signal::TERM).context("the server cannot be ended")?;
    let ended = async {
        while test_kill_process(pid).is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, ended).await.is_err() {
        bail!("the server (process {}) did not end within {} seconds", pid.as_raw_nonzero(), PATIENCE.as_secs());
    }
    Ok(0)
}
