//! Without a server.

use std::fs;
use std::path::PathBuf;

use sloplet_ledger::event::{Decision, Spend};
use sloplet_ledger::{Event, Ledger, Options, sha256};

use crate::common::{Host, Sloplet};
use crate::{of_kind, records};

/// The file with the first records.
fn segment(sloplet: &Sloplet) -> PathBuf {
    let files = fs::read_dir(sloplet.data.join("ledger")).unwrap().map(|entry| entry.unwrap().path());
    let is_segment = |path: &PathBuf| fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"{\"seq\":1,"));
    files.filter(|path| path.is_file()).find(is_segment).expect("a segment")
}

#[test]
fn a_command_is_recorded_with_its_end_and_only_the_names_of_its_variables() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let ended = sloplet.sh(&["--env", "TOKEN=hunter2-hunter2"], "echo hello; exit 3");
        assert_eq!(ended.code, 3, "{ended}");
        let audit = |words: &[&str]| sloplet.invoke(&[&["audit"], words].concat()).finish().expect_code(0).out();
        let text = audit(&["--json"]);
        assert!(!text.contains("hunter2"), "{text}");
        let all = records(&text);
        let started = of_kind(&all, "exec_started");
        assert_eq!(started[0]["argv"][2], "echo hello; exit 3", "{text}");
        assert!(started[0]["env"].as_array().unwrap().contains(&"TOKEN".into()), "{text}");
        let end = of_kind(&all, "exec_ended");
        let digest = sha256(b"hello\n");
        assert_eq!((&end[0]["exit_code"], &end[0]["output"]["sha256"]), (&3.into(), &digest.clone().into()), "{text}");
        assert_eq!(of_kind(&all, "sandbox_gone").len(), 1, "{text}");
        assert_eq!(audit(&["output", &digest]), "hello\n");
        let id = all[0]["sandbox"].as_str().unwrap();
        let shown = audit(&[id, "--kind", "exec_started,exec_ended"]);
        assert!(
            shown.contains("'echo hello; exit 3'") && shown.contains("exit 3") && shown.contains(&digest),
            "{shown}"
        );
        assert_eq!(shown.lines().count(), 2, "{shown}");
        assert_eq!(audit(&["--since", "1h", "--tail", "1", "--json"]).lines().count(), 1);
        let ended = sloplet.invoke(&["audit", "nobody"]).finish().expect_code(125);
        assert!(ended.stderr.contains("nothing is recorded of a sandbox 'nobody'"), "{ended}");
    }
}

#[test]
fn whoever_changes_the_record_is_found_out() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        sloplet.run(&[], &["true"]).expect_code(0);
        let verify = |words: &[&str]| sloplet.invoke(&[&["audit", "verify"], words].concat()).finish();
        let sound = verify(&[]).expect_code(0);
        assert!(sound.out().starts_with("sound: "), "{sound}");
        let head = sloplet.invoke(&["audit", "head"]).finish().expect_code(0).json();
        let kept = host.dir().join(format!("head-{}", sloplet.name));
        fs::write(&kept, head.to_string()).unwrap();
        let kept = kept.to_str().unwrap();
        verify(&["--head", kept, "--key", head["key"].as_str().unwrap()]).expect_code(0);
        let other = verify(&["--key", &"ab".repeat(32)]).expect_code(1);
        assert!(other.out().contains("NOT SOUND"), "{other}");
        verify(&["--key", "nonsense"]).expect_code(125);

        let path = segment(&sloplet);
        let before = fs::read_to_string(&path).unwrap();
        let second = before.lines().nth(1).unwrap();
        // In place, so that it stays the user's.
        fs::write(&path, before.replacen(second, &second.replacen("true", "tru3", 1), 1)).unwrap();
        let altered = verify(&[]).expect_code(1);
        assert!(altered.out().contains("line 2, record 2: the record was changed after it was written"), "{altered}");
        let report = verify(&["--json"]).expect_code(1).json();
        assert_eq!(report["report"]["problems"][0]["defect"], "altered", "{report}");

        // A shorter ledger, as if the last command had never been.
        let first: String = before.lines().take(1).map(|line| format!("{line}\n")).collect();
        fs::write(&path, first).unwrap();
        let cut = verify(&["--head", kept]).expect_code(1);
        assert!(cut.out().contains("its end was removed"), "{cut}");
        fs::write(&path, &before).unwrap();
        verify(&["--head", kept]).expect_code(0);
    }
}

#[test]
fn records_go_to_other_programs() {
    let host = Host::shared();
    let sloplet = host.root();
    for number in 0..3 {
        sloplet.run(&[], &["echo", &number.to_string()]).expect_code(0);
    }
    let all = sloplet.invoke(&["audit", "--json"]).finish().expect_code(0).out();
    let out = host.dir().join("audit.jsonl");
    let out = out.to_str().unwrap();
    sloplet.invoke(&["audit", "export", "--out", out]).finish().expect_code(0);
    assert_eq!(fs::read_to_string(out).unwrap(), all);
    // Nothing is written over.
    sloplet.invoke(&["audit", "export", "--out", out]).finish().expect_code(125);
    let otel = sloplet.invoke(&["audit", "export", "--format", "otel"]).finish().expect_code(0).out();
    let logs = records(&otel).into_iter().flat_map(|request| {
        let logs = request["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().cloned();
        logs.unwrap_or_else(|| panic!("{request}"))
    });
    assert_eq!(logs.count(), all.lines().count());
    let pruned = sloplet.invoke(&["audit", "prune", "--older-than", "90d", "--json"]).finish().expect_code(0).json();
    assert_eq!(pruned["outputs"]["files"], 0, "{pruned}");
    sloplet.invoke(&["audit", "prune", "--older-than", "1ms"]).finish().expect_code(0);
    sloplet.invoke(&["audit", "output", &sha256(b"1\n")]).finish().expect_code(125);
    sloplet.invoke(&["audit", "verify"]).finish().expect_code(0);
}

#[test]
fn costs_are_summed_up() {
    let host = Host::shared();
    let sloplet = host.root();
    sloplet.run(&["--cpus", "1", "--memory", "1GiB"], &["sleep", "0.3"]).expect_code(0);
    let id = records(&sloplet.invoke(&["audit", "--json"]).finish().expect_code(0).out())[0]["sandbox"].clone();
    let id = id.as_str().unwrap();
    let ledger = Ledger::new(&sloplet.data, Options::default());
    let spend = |usd_micros, decision| {
        Event::Spend(Spend { input_tokens: 1000, output_tokens: 50, usd_micros, decision, ..Spend::default() })
    };
    for event in [spend(250_000, Decision::Allowed), spend(500_000, Decision::Allowed), spend(0, Decision::Denied)] {
        ledger.record(Some(id), "sandbox", event).unwrap();
    }
    drop(ledger);
    let cost = |words: &[&str]| sloplet.invoke(&[&["cost", "--json"], words].concat()).finish().expect_code(0).json();
    let unpriced = cost(&[]);
    let total = &unpriced["total"];
    assert_eq!((&total["tokens_micro_usd"], &total["compute_micro_usd"]), (&750_000.into(), &0.into()), "{unpriced}");
    assert_eq!(
        (&total["calls"], &total["calls_refused"], &total["input_tokens"]),
        (&2.into(), &1.into(), &2000.into())
    );
    fs::write(sloplet.data.join("prices.toml"), "[compute]\ncpu_hour = 3600\nmemory_gib_hour = 3600\n").unwrap();
    let priced = cost(&[id, "--since", "1h"]);
    let (ran, costs) =
        (priced["total"]["running_ms"].as_u64().unwrap(), priced["total"]["compute_micro_usd"].as_u64().unwrap());
    // A dollar for a second of each.
    assert!(ran >= 300 && costs.abs_diff(ran * 2000) <= 1, "{priced}");
    assert_eq!(priced["total"]["total_micro_usd"], costs + 750_000, "{priced}");
    let shown = sloplet.invoke(&["cost"]).finish().expect_code(0);
    assert!(shown.out().contains(id) && shown.out().contains("$0.7500"), "{shown}");
    fs::write(sloplet.data.join("prices.toml"), "[compute]\ncpu_hour = -1\n").unwrap();
    sloplet.invoke(&["cost"]).finish().expect_code(125);
}
