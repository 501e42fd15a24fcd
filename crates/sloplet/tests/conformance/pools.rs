//! Machines made ahead: whoever claims one gets it, and what a wall cannot give it later is made.

use serde_json::json;

use super::Wall;
use super::common::Server;

/// On a server that has nothing; it has nothing afterwards.
pub fn test(wall: Wall, server: &Server, volume: &str) {
    let (url, key) = (format!("http://{}", server.address), server.key.clone());
    let invoke = |words: &[&str]| server.invoke(words).env("SLOPLET_URL", &url).env("SLOPLET_API_KEY", &key).finish();
    let ok = |words: &[&str]| invoke(words).expect_code(0).out();
    let figures = || server.ask("GET", "/pools/ahead", None).expect(200).json()["metrics"].clone();
    ok(&[&["pool", "set", "ahead", "--target", "1", "--fixed"][..], &wall.words()].concat());
    ok(&["pool", "fill", "ahead"]);
    let claim = |words: &[&str]| invoke(&wall.creation(&[&["--pool", "ahead"], words].concat()));
    claim(&["--name", "one", "--env", "WHO=me"]).expect_code(0);
    assert_eq!(ok(&["exec", "one", "--", "sh", "-c", "echo $WHO"]), "me\n");
    assert_eq!(figures()["acquires_from_pool"], 1, "{}", figures());
    ok(&["rm", "one"]);
    let mounted = claim(&["--name", "two", "--volume", &format!("{volume}:/late:ro")]);
    // Of a machine behind this wall everything can be had later, of others nothing is claimed to be.
    let misfits = if wall.name == "namespaces" { json!({}) } else { json!({"volumes": 1}) };
    assert_eq!(figures()["misfits"], misfits, "{}", figures());
    match wall.volumes() {
        Ok(()) => assert_eq!(ok(&["exec", "two", "--", "cat", "/late/f"]), "kept\n"),
        Err(refusal) => drop(mounted.expect_code(125).expect_said(refusal)),
    }
    ok(&["pool", "rm", "ahead"]);
    ok(&["rm", "--all"]);
}
