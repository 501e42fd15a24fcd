//! Two sandboxes of one host.

use serde_json::Value;
use sloplet_client::ProcessEvent;
use sloplet_policy::Feature;

use crate::drill::{Drill, DrillError, settle};
use crate::part::contains;
use crate::probe::{Finding, Kind, Pending, Probe};
use crate::served::Served;

pub const PROBE: Probe = Probe {
    name: "neighbours",
    ids: &[62],
    tries: "reach a port and a file of another sandbox, from inside and at a server's door with the wrong token or key",
    why: "agents of different owners share the host and nothing else",
    needs: &[Feature::OwnRoot],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let inside = from_inside(drill).await?;
    if inside.verdict != crate::Verdict::Contained {
        return Ok(inside);
    }
    let server = Served::start(drill).await?;
    let door = at_the_door(drill, &server).await;
    server.end().await?;
    let door = door?;
    let control = format!("{}; {}", inside.control, door.control);
    Ok(Finding { verdict: door.verdict, control, detail: format!("{}; {}", inside.detail, door.detail) })
}

async fn from_inside(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let (one, two) = (drill.sandbox(|_| {}).await?, drill.sandbox(|_| {}).await?);
    drill.act(&one, &["put", "/tmp/mine", "of the first"]).await?;
    let mut listening = one.exec(drill.words(&["listen"])).await?;
    let port = match listening.next().await {
        Some(Ok(ProcessEvent::Stdout(bytes))) => String::from_utf8_lossy(&bytes).trim().to_owned(),
        _ => String::new(),
    };
    // The control: from the same sandbox it can be reached.
    let own = drill.act(&one, &["connect", &port]).await?.out == "connected";
    let file = drill.act(&one, &["cat", "/tmp/mine"]).await?.out == "of the first";
    let other = drill.act(&two, &["connect", &port]).await?.out == "connected";
    let seen = drill.read(&two, b"/tmp/mine").await.is_ok_and(|text| contains(&text, b"of the first"));
    drop(listening);
    one.destroy().await?;
    two.destroy().await?;
    if !own || !file {
        return Ok(Finding::inconclusive("", "not even the sandbox itself reaches its port and file"));
    }
    let detail = format!(
        "from inside: port {}, file {}",
        if other { "reached" } else { "not reached" },
        if seen { "seen" } else { "not seen" }
    );
    Ok(Finding::judge(!other && !seen, "the sandbox itself reaches both", detail))
}

/// What a server says to whoever shows another sandbox's token, a stranger's key, or nothing.
async fn at_the_door(drill: &Drill<'_>, server: &Served) -> Result<Finding, DrillError> {
    const MARK: &str = "of the second";
    let (one, two) = (server.create(drill, 64).await?, server.create(drill, 64).await?);
    let word = |of: &Value, name: &str| of[name].as_str().unwrap_or_default().to_owned();
    let (id, token, others) = (word(&two, "id"), word(&two, "token"), word(&one, "token"));
    server.act(drill, &id, &["put", "/tmp/mine", MARK]).await?;
    let stranger = server.stranger().await?;
    let made_up = "x".repeat(token.len());
    let file = "/files?path=/tmp/mine";
    let of = ("E2b-Sandbox-Id", id.as_str());
    let port = ("E2b-Sandbox-Port", "7");
    // Whom it lets in: the file comes, and nobody listens on the port.
    let right = ("X-Access-Token", token.as_str());
    let read = server.ask(&[of, right], "GET", file, None).await?;
    let dialed = server.ask(&[of, port, right], "GET", "/", None).await?;
    if read.text != MARK || dialed.status == 401 || token.is_empty() || token == others || stranger.is_empty() {
        return Ok(Finding::inconclusive("", format!("the right token gets {} and {}", read.status, dialed.status)));
    }
    let mut refused = Vec::new();
    let mut let_in = Vec::new();
    for (name, shown) in [
        ("another sandbox's token", Some(("X-Access-Token", others.as_str()))),
        ("another sandbox's token for traffic", Some(("E2b-Traffic-Access-Token", others.as_str()))),
        ("a token that was made up", Some(("X-Access-Token", made_up.as_str()))),
        ("a stranger's key", Some(("X-API-KEY", stranger.as_str()))),
        ("nothing", None),
    ] {
        let with: Vec<(&str, &str)> = [Some(of), shown].into_iter().flatten().collect();
        let and_port: Vec<(&str, &str)> = with.iter().copied().chain([port]).collect();
        let alone: Vec<(&str, &str)> = shown.into_iter().collect();
        let asked = [
            ("its files", server.ask(&with, "GET", file, None).await?, [401, 401]),
            ("its port", server.ask(&and_port, "GET", "/", None).await?, [401, 401]),
            // Whoever has a key of their own is told that there is no such sandbox.
            ("itself", server.ask(&alone, "GET", &format!("/v1/sandboxes/{id}"), None).await?, [401, 404]),
        ];
        for (what, answer, wanted) in asked {
            let place = if wanted.contains(&answer.status) { &mut refused } else { &mut let_in };
            place.push(format!("{what} with {name}: {}", answer.status));
        }
    }
    let control = "the right token reads a file and reaches a port";
    Ok(match let_in.is_empty() {
        true => {
            Finding::contained(control, format!("at a server's door: {} requests refused, 401 or 404", refused.len()))
        }
        false => Finding::breach(control, format!("at a server's door: {}", let_in.join(", "))),
    })
}
