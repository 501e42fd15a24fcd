//! Mounts and variables that the engine must refuse, whoever asks.

use sloplet_engine::EngineError;
use sloplet_policy::Bind;

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "protected-things",
    ids: &[65],
    tries: "mount /etc, /proc, /run, sloplet's own data and every protected path; pass protected variables",
    why: "a front end, or a hurried person, may ask for what must never be shown: the engine says no",
    needs: &[],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let settings = drill.settings();
    let data = drill.engine.places().data.clone();
    let built_in = ["/etc".into(), "/proc".into(), "/run".into(), data];
    let (mut asked, mut given) = (0, Vec::new());
    for path in settings.protected_paths.iter().chain(&built_in).filter(|path| path.exists()) {
        asked += 1;
        let bind = Bind { from: path.clone(), to: "/protected".into(), ..Bind::default() };
        match drill.sandbox(|spec| spec.mounts.push(bind)).await {
            Err(DrillError::Engine(EngineError::Protected(_))) => {}
            // With another path inside, a process tree refuses every mount, after the engine's word.
            Err(error) => given.push(format!("{}: not refused by a rule: {error}", path.display())),
            Ok(sandbox) => {
                given.push(format!("{} was mounted", path.display()));
                sandbox.destroy().await?;
            }
        }
    }
    for name in &settings.protected_env {
        asked += 1;
        match drill.sandbox(|spec| spec.env.push(format!("{name}=x"))).await {
            Err(DrillError::Engine(EngineError::Secret(_))) => {}
            Err(error) => given.push(format!("{name}: not refused by a rule: {error}")),
            Ok(sandbox) => {
                given.push(format!("the variable {name} was passed"));
                sandbox.destroy().await?;
            }
        }
    }
    // The control: what is not protected can be mounted, and is, for every probe.
    let control = "an unprotected folder can be mounted";
    Ok(Finding::judge(
        given.is_empty(),
        control,
        if given.is_empty() { format!("{asked} wishes, all refused by name of the rule") } else { given.join("; ") },
    ))
}
