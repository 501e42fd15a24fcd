//! Volumes, host folders and host names that come with a claim.

use serde_json::{Value, json};

use crate::common::machines::first_processes;
use crate::common::{Host, Server, http};
use crate::{claim, filled, metric, pool, says, sh, until};

/// Asks for a machine of the pool with a volume.
fn with_volume(volume: &str, read_only: bool) -> Value {
    json!({"pool": "ci", "volumes": [{"volume": volume, "path": "/mnt/deep/data", "read_only": read_only}]})
}

#[track_caller]
fn remove(served: &Server, sandbox: &Value) {
    served.ask("DELETE", &format!("/sandboxes/{}", sandbox["id"].as_str().unwrap()), None).expect(204);
}

/// What the kernel says of the mount: its options, and that it leads nowhere else.
const LOOK: &str = "grep ' /mnt/deep/data ' /proc/self/mountinfo | cut -d' ' -f6-8; id; ls -lnd /mnt /mnt/deep /mnt/deep/data | cut -c1-30";

#[test]
fn volumes_come_with_a_claim_as_they_do_with_a_new_sandbox() {
    let host = Host::shared();
    let leaks = host.leaks();
    for sloplet in [host.root(), host.user(), host.stranger()] {
        let served = Server::start(&sloplet);
        served.ask("POST", "/volumes", Some(json!({"name": "data"}))).expect(201);
        filled(&served, "ci", json!({"target_ready": 2, "adaptive": false}));
        let one = claim(&served, with_volume("data", false));
        assert_eq!(metric(&served, "ci", "acquires_from_pool"), 1, "{}", pool(&served, "ci"));
        assert_eq!(says(&served, &one, "echo kept > /mnt/deep/data/file && cat /mnt/deep/data/file"), "kept");
        // What is left there must not be privileged for whoever finds it.
        let program = "cp /bin/true /mnt/deep/data/program && chmod 4755 /mnt/deep/data/program";
        assert_ne!(sh(&served, &one, program)["exit_code"], 0);
        // It is taken: whoever is refused for that gives the machine back.
        let before = first_processes(&host);
        served.ask("POST", "/sandboxes", Some(with_volume("data", false))).expect_refusal(409);
        assert!(first_processes(&host).is_superset(&before), "a machine was spent on it");
        let records = served.ask("GET", &format!("/audit?sandbox={}", one["id"].as_str().unwrap()), None).json();
        let made: Vec<&Value> = records["records"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|one| one["event"]["kind"] == "sandbox_created")
            .collect();
        assert!(made.len() == 1 && made[0].to_string().contains(":/mnt/deep/data:rw"), "{records}");
        let seen = says(&served, &one, LOOK);
        // It is in no snapshot; where it was mounted is.
        let path = format!("/sandboxes/{}/snapshot", one["id"].as_str().unwrap());
        let snapshot = served.ask("POST", &path, Some(json!({}))).expect(201).json();
        let later = claim(&served, json!({"image": snapshot["id"]}));
        assert_eq!(says(&served, &later, "ls -A /mnt/deep; ls -A /mnt/deep/data"), "data");
        remove(&served, &later);
        remove(&served, &one);
        // A sandbox that is made has it just so.
        let mut made = with_volume("data", false);
        made["inodes"] = json!(50_000);
        let made = claim(&served, made);
        assert_eq!(metric(&served, "ci", "acquires_cold_start"), 1, "{}", pool(&served, "ci"));
        assert_eq!(says(&served, &made, LOOK), seen);
        assert_eq!(says(&served, &made, "cat /mnt/deep/data/file; test -w /mnt/deep/data/file"), "kept");
        remove(&served, &made);
        // Those who read share it.
        until("it is full", || metric(&served, "ci", "ready") == 2);
        let readers = [claim(&served, with_volume("data", true)), claim(&served, with_volume("data", true))];
        for reader in &readers {
            assert_eq!(says(&served, reader, "cat /mnt/deep/data/file"), "kept");
            let tried = sh(&served, reader, "echo more > /mnt/deep/data/file");
            assert!(tried["stderr"].as_str().unwrap().contains("Read-only"), "{tried}");
            // Nobody else's filter is on those who cannot write.
            assert_eq!(sh(&served, reader, "touch /tmp/x && chmod 4755 /tmp/x")["exit_code"], 0);
        }
        assert_eq!(metric(&served, "ci", "acquires_from_pool"), 3, "{}", pool(&served, "ci"));
        assert_eq!(pool(&served, "ci")["metrics"]["misfits"], json!({"limits": 1}));
        served.end();
    }
    leaks.assert_none_new_after_a_server();
}

#[test]
fn a_bounded_volume_a_host_folder_and_a_host_name_come_with_a_claim() {
    let host = Host::shared();
    let served = Server::start(&host.root());
    served.ask("POST", "/volumes", Some(json!({"name": "small", "size": "16MiB"}))).expect(201);
    let folder = host.dir().join("shown");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("file"), "shown").unwrap();
    filled(&served, "ci", json!({"target_ready": 2, "adaptive": false}));
    let mut asked = with_volume("small", false);
    asked["hostname"] = json!("mine");
    asked["mounts"] = json!([{"from": folder, "to": "/shown"}]);
    let one = claim(&served, asked.clone());
    assert_eq!((one["hostname"].as_str(), says(&served, &one, "hostname").as_str()), (Some("mine"), "mine"));
    assert_eq!(says(&served, &one, "cat /shown/file; touch /shown/more 2>/dev/null || echo no"), "shownno");
    let fill = "head -c 32M /dev/zero > /mnt/deep/data/much";
    let filled_up = sh(&served, &one, fill);
    assert!(filled_up["stderr"].as_str().unwrap().contains("No space"), "{filled_up}");
    says(&served, &one, "rm /mnt/deep/data/much; echo kept > /mnt/deep/data/file; sync");
    remove(&served, &one);
    let other = claim(&served, with_volume("small", true));
    assert_eq!(says(&served, &other, "cat /mnt/deep/data/file; hostname"), "kept\nsloplet");
    assert_eq!(metric(&served, "ci", "acquires_from_pool"), 2, "{}", pool(&served, "ci"));
    // What may not be shown is refused before a machine is spent on it.
    for (name, bad) in [
        ("mounts", json!([{"from": "/etc", "to": "/shown"}])),
        ("volumes", json!([{"volume": "small", "path": "/proc/x"}])),
        ("volumes", json!([{"volume": "none", "path": "/x"}])),
    ] {
        let reply = served.ask("POST", "/sandboxes", Some(json!({"pool": "ci", name: bad})));
        assert!((400..500).contains(&reply.status), "{}", reply.text());
    }
    assert_eq!(pool(&served, "ci")["metrics"]["misfits"], json!({}));
    // Where it cannot be mounted, one is made, which says why.
    served.ask("POST", "/volumes", Some(json!({"name": "more"}))).expect(201);
    let nowhere = json!({"pool": "ci", "volumes": [{"volume": "more", "path": "/usr/not-there"}]});
    let reply = served.ask("POST", "/sandboxes", Some(nowhere));
    assert!(reply.status >= 400 && reply.text().contains("/usr/not-there"), "{}", reply.text());
    assert_eq!(pool(&served, "ci")["metrics"]["misfits"], json!({"volumes": 1}));
    served.end();
}

#[test]
fn a_claimed_volume_stays_when_the_server_is_killed() {
    let host = Host::shared();
    let leaks = host.leaks();
    let served = Server::start_with(&host.root(), &[]);
    for name in ["data", "other"] {
        served.ask("POST", "/volumes", Some(json!({"name": name}))).expect(201);
    }
    filled(&served, "ci", json!({"target_ready": 2, "adaptive": false}));
    let (one, key) = (claim(&served, with_volume("data", false)), served.key.clone());
    says(&served, &one, "echo before > /mnt/deep/data/file");
    served.kill();
    let mut served = Server::start_with(&host.root(), &[]);
    served.key = key;
    assert_eq!(says(&served, &one, "cat /mnt/deep/data/file; echo after > /mnt/deep/data/file"), "before");
    assert_ne!(sh(&served, &one, "touch /tmp/x && chmod 4755 /tmp/x")["exit_code"], 0, "its filter stays, too");
    served.ask("POST", "/sandboxes", Some(with_volume("data", false))).expect_refusal(409);
    // Those that waited can be given one as well.
    served.ask("POST", "/pools/ci/fill", None).expect(200);
    let another = claim(&served, with_volume("other", false));
    assert_eq!(metric(&served, "ci", "acquires_from_pool"), 1, "{}", pool(&served, "ci"));
    remove(&served, &one);
    let reader = claim(&served, with_volume("data", true));
    assert_eq!(says(&served, &reader, "cat /mnt/deep/data/file"), "after");
    served.ask("DELETE", "/pools/ci", None).expect(204);
    [another, reader].iter().for_each(|sandbox| remove(&served, sandbox));
    ["data", "other"].iter().for_each(|name| drop(served.ask("DELETE", &format!("/volumes/{name}"), None).expect(204)));
    served.end_with_its_sandboxes();
    leaks.assert_none_new_after_a_server();
}

/// Builds a template whose sandboxes start with a command.
fn build_with_start(served: &Server, name: &str) {
    let ask = |method: &str, path: &str, body: Value| {
        let (address, key, body) = (&served.address, &served.key, body.to_string());
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nX-API-KEY: {key}\r\nConnection: close\r\n");
        let length = body.len();
        let kind = "Content-Type: application/json";
        let request = format!("{head}{kind}\r\nContent-Length: {length}\r\n\r\n{body}");
        http::exchange(address, request.as_bytes())
    };
    let begun = ask("POST", "/v3/templates", json!({"name": name})).expect(202).json();
    let (template, build) = (begun["templateID"].as_str().unwrap(), begun["buildID"].as_str().unwrap());
    let asked = json!({"fromImage": "host", "startCmd": "sleep 1000", "readyCmd": "true"});
    ask("POST", &format!("/v2/templates/{template}/builds/{build}"), asked).expect(202);
    let status = || ask("GET", &format!("/templates/{template}/builds/{build}/status"), json!({})).json();
    until("the template is built", || {
        let status = status();
        assert_ne!(status["status"], "error", "{status}");
        status["status"] == "ready"
    });
}

#[test]
fn what_runs_before_a_claim_is_shown_nothing_that_it_could_write_to() {
    let host = Host::shared();
    let served = Server::start(&host.root());
    served.ask("POST", "/volumes", Some(json!({"name": "data"}))).expect(201);
    build_with_start(&served, "started");
    filled(&served, "ci", json!({"target_ready": 1, "adaptive": false, "image": "started"}));
    let with_volume = |read_only| {
        let mut asked = with_volume("data", read_only);
        asked["image"] = json!("started");
        claim(&served, asked)
    };
    let one = with_volume(false);
    let told = pool(&served, "ci")["metrics"].clone();
    assert_eq!((&told["misfits"], &told["acquires_cold_start"]), (&json!({"volumes": 1}), &json!(1)), "{told}");
    assert_eq!(says(&served, &one, "echo kept > /mnt/deep/data/file; pgrep -c sleep"), "1");
    remove(&served, &one);
    let reader = with_volume(true);
    assert_eq!(says(&served, &reader, "cat /mnt/deep/data/file; pgrep -c sleep"), "kept\n1");
    assert_eq!(metric(&served, "ci", "acquires_from_pool"), 1, "{}", pool(&served, "ci"));
    served.end();
}
