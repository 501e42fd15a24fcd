//! `kill -9 -1`.

use std::process::{Command as HostCommand, Stdio};

use crate::canaries::told;
use crate::drill::{Drill, DrillError, Said, settle};
use crate::probe::{Finding, Kind, Pending, Probe};
use crate::program::SUBCOMMAND;

pub const PROBE: Probe = Probe {
    name: "kill-all",
    ids: &[16],
    tries: "kill every process within reach",
    why: "the host's processes, and the agent that reports, must survive it",
    needs: &[],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let user = drill.settings().throwaway;
    let mut control = String::new();
    if drill.settings().root {
        // On the host as a user that has one other process.
        let mut victim = HostCommand::new(drill.host_program);
        let id = user.to_string();
        let mut victim = std::os::unix::process::CommandExt::uid(&mut victim, user)
            .args([SUBCOMMAND, "wait", "victim"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        drill.control(&["kill-all", &id]).await?;
        let ended = tokio::task::spawn_blocking(move || {
            let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
            while std::time::Instant::now() < until {
                if let Ok(Some(status)) = victim.try_wait() {
                    return std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let _ = victim.kill();
            let _ = victim.wait();
            false
        });
        if !ended.await.map_err(std::io::Error::other)? {
            return Ok(Finding::inconclusive("", "it does not kill on the host either"));
        }
        control = "as a user of the host, it killed that user's other process".to_owned();
    }
    let sandbox = drill.sandbox(|_| {}).await?;
    // Behind a wall without pids of its own the agent dies of it, and the sandbox ends: so be it.
    let own_pids = drill.spec.isolation != sloplet_policy::Isolation::Process;
    // On the host only root can be somebody else for it. Inside, whoever it is has another process to lose.
    let mut other = sandbox.exec(drill.words(&["listen"])).await?;
    other.next().await;
    let said = match drill.act(&sandbox, &["kill-all", "0"]).await {
        Err(DrillError::Client(_)) if !own_pids => Said { code: 137, out: "the sandbox ended".into() },
        said => said?,
    };
    if own_pids && other.output(1024).await.is_ok_and(|output| output.exit.shell_code() == 137) {
        let killed = "inside, it killed the other process";
        control = if control.is_empty() { killed.to_owned() } else { format!("{control}; {killed}") };
    }
    let serves = drill.serves(&sandbox).await;
    let harm = drill.canaries.harm();
    sandbox.destroy().await?;
    let detail = format!(
        "it said '{}'; the agent {}; the host: {}",
        said.out,
        if serves { "serves" } else { "is gone" },
        if harm.is_empty() { "unharmed".into() } else { told(&harm) }
    );
    Ok(match ((serves || !own_pids) && harm.is_empty(), control.is_empty()) {
        (true, false) => Finding::contained(control, detail),
        (true, true) => Finding::inconclusive("not shown: only root can be somebody else for it", detail),
        (false, _) => Finding::breach(control, detail),
    })
}
