//! Two sandboxes from one origin.

use serde_json::{Value, json};
use sloplet_policy::Isolation;

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};
use crate::served::{NOT_IMPLEMENTED, Served};

pub const PROBE: Probe = Probe {
    name: "twins",
    ids: &[63],
    tries: "find the same random numbers, ids or tokens in two sandboxes of one snapshot, or one that lost its limits and rules",
    why: "keys made from the same randomness are the same keys; a fork must not be freer than its original",
    needs: &[],
    kind: Kind::Drill(run),
};

/// Processes that the original may have: few, so that more than that would show.
const PIDS: u32 = 40;

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let drawn = (drill.control(&["random"]).await?.out, drill.control(&["random"]).await?.out);
    if drawn.0 == drawn.1 {
        return Ok(Finding::inconclusive("", "two draws on the host are the same"));
    }
    if drill.spec.isolation == Isolation::Process {
        return of_one_image(drill).await;
    }
    let server = Served::start(drill).await?;
    let found = of_one_snapshot(drill, &server).await;
    server.end().await?;
    found
}

/// For a wall without snapshots.
async fn of_one_image(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let (one, two) = (drill.sandbox(|_| {}).await?, drill.sandbox(|_| {}).await?);
    let (first, second) = (drill.act(&one, &["random"]).await?.out, drill.act(&two, &["random"]).await?.out);
    let differ = first != second && first.len() == 64 && one.id() != two.id();
    one.destroy().await?;
    two.destroy().await?;
    let detail = "random numbers and ids differ; this wall has no snapshots";
    Ok(Finding::judge(differ, "two draws on the host differ", detail))
}

async fn of_one_snapshot(drill: &Drill<'_>, server: &Served) -> Result<Finding, DrillError> {
    let original = server.create(drill, PIDS).await?;
    let id = original["id"].as_str().unwrap_or_default();
    server.act(drill, id, &["put", "/tmp/mine", "of the original"]).await?;
    let made = server.own("POST", &format!("/v1/sandboxes/{id}/fork"), Some(json!({"count": 2}))).await?;
    if made.status == NOT_IMPLEMENTED {
        return of_one_image(drill).await;
    }
    let made = made.json();
    let [Some(one), Some(two)] = [made["sandboxes"].get(0), made["sandboxes"].get(1)] else {
        return Ok(Finding::inconclusive("", format!("no two forks: {made}")));
    };
    let (mut drawn, mut wrong) = (Vec::new(), Vec::new());
    for fork in [one, two] {
        let id = fork["id"].as_str().unwrap_or_default();
        if server.act(drill, id, &["cat", "/tmp/mine"]).await? != "of the original" {
            return Ok(Finding::inconclusive("", "a fork does not have its original's files"));
        }
        drawn.push(server.act(drill, id, &["random"]).await?);
        // The rules as they are told, and a limit and a way out as they are.
        for name in ["memory", "cpus", "pids", "disk", "network", "isolation", "user"] {
            if fork[name] != original[name] {
                wrong.push(format!("{name} was {} and is {}", original[name], fork[name]));
            }
        }
        let forked = server.act(drill, id, &["fork", "200"]).await?;
        let count: u32 = forked.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
        if count == 0 {
            return Ok(Finding::inconclusive("", format!("no process can be made in a fork: {forked}")));
        }
        if count >= PIDS {
            wrong.push(format!("{count} processes where {PIDS} are allowed"));
        }
    }
    let same = |name: &str| one[name] == two[name] || one[name] == original[name] || two[name] == original[name];
    wrong.extend(["id", "token"].iter().filter(|name| same(name)).map(|name| format!("the same {name} twice")));
    if drawn[0] == drawn[1] || drawn.iter().any(|drawn| drawn.len() != 64) {
        wrong.push("the same random numbers twice".to_owned());
    }
    if [one, two].iter().any(|fork| fork["token"] == Value::Null) {
        return Ok(Finding::inconclusive("", "forks have no tokens"));
    }
    let control = "two draws on the host differ; both forks have the original's files";
    Ok(match wrong.is_empty() {
        true => {
            Finding::contained(control, "random numbers, ids and tokens differ; limits and rules are the original's")
        }
        false => Finding::breach(control, wrong.join("; ")),
    })
}
