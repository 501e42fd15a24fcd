//! A script whose interpreter is whoever executes it.

use sloplet_engine::Command;
use sloplet_policy::Feature;

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "agent-script",
    ids: &[1],
    tries: "have the agent execute scripts with the interpreters /proc/self/exe and /proc/1/exe",
    why: "CVE-2019-5736: the kernel looks the interpreter up while the process still is a fork of the host's binary",
    needs: &[Feature::OwnRoot, Feature::SecondWall],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    if drill.own_kernel() {
        // Whoever runs the program runs a process of that kernel; that its file cannot be changed, `agent-binary` shows.
        return Ok(Finding::of_own_kernel("processes"));
    }
    let folder = drill.canaries.folder().join("shown");
    let mut ran = Vec::new();
    for interpreter in ["/proc/self/exe", "/proc/thread-self/exe", "/proc/1/exe"] {
        let path = folder.join(interpreter.replace('/', "-"));
        std::fs::write(&path, format!("#!{interpreter}\n"))?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    // Unconfined, the script runs whoever executes it: this very program, which then complains about its argument.
    let script = folder.join("-proc-self-exe");
    let control = tokio::task::spawn_blocking(move || std::process::Command::new(script).output()).await;
    let control = control.map_err(std::io::Error::other)??;
    let works = !control.stderr.is_empty() || !control.stdout.is_empty();
    let shown = drill.inside("shown");
    let sandbox = drill.sandbox(|_| {}).await?;
    for interpreter in ["/proc/self/exe", "/proc/thread-self/exe", "/proc/1/exe"] {
        let path = format!("{shown}/{}", interpreter.replace('/', "-"));
        match drill.run(&sandbox, Command::new([path.into_bytes()])).await {
            Ok(said) => ran.push(format!("{interpreter} ran and ended with {}", said.code)),
            Err(DrillError::Client(error)) if error.failure().is_some() => {}
            Err(error) => return Err(error),
        }
    }
    sandbox.destroy().await?;
    let said = "the script runs the program that executes it";
    if !works {
        return Ok(Finding::inconclusive("", "the script does not work on the host either"));
    }
    Ok(match ran.is_empty() {
        true => Finding::contained(said, "the agent could not execute any of them"),
        false => Finding::breach(said, ran.join("; ")),
    })
}
