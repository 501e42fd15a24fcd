//! `sloplet verify`: nothing gets out of a whole sandbox, and whatever protection is taken away is noticed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;
use std::time::Duration;

use common::{Ended, Host, Sloplet};
use rustix::pty::{OpenptFlags, openpt};
use serde_json::Value;

/// A protection, and the probe that must notice that it is missing.
const WEAKNESSES: [(&str, &str); 58] = [
    ("seccomp", "other-doors"),
    ("seccomp", "privileges"),
    ("seccomp-namespaces", "namespaces"),
    ("seccomp-mounts", "mounts"),
    ("seccomp-keyrings", "keyrings"),
    ("seccomp-io-uring", "kernel-interfaces"),
    ("seccomp-userfaultfd", "kernel-interfaces"),
    ("seccomp-sockets", "sockets"),
    ("seccomp-terminals", "terminals"),
    ("seccomp-personality", "personalities"),
    ("seccomp-handles", "file-handles"),
    ("seccomp-clocks", "clocks"),
    ("set-id-filter", "set-id-files"),
    ("capabilities", "privileges"),
    ("closed-agent", "agent-binary"),
    ("closed-agent", "other-processes"),
    ("landlock", "agent-script"),
    ("masked-paths", "masked-files"),
    ("read-only-proc", "kernel-settings"),
    ("devices", "devices"),
    ("nosuid", "mount-flags"),
    ("nodev", "mount-flags"),
    ("read-only-mounts", "read-only-files"),
    ("ipc-namespace", "shared-memory"),
    ("uts-namespace", "privileges"),
    ("network-namespace", "network-direct"),
    ("cgroup-namespace", "cgroups"),
    ("own-ids", "privileges"),
    ("pids", "fork-bomb"),
    ("memory", "memory-bomb"),
    ("disk", "disk-fill"),
    ("files", "disk-fill"),
    ("core-dumps", "privileges"),
    ("deadline", "deadline"),
    ("environment", "host-secrets"),
    ("protected-paths", "protected-things"),
    ("sysfs", "masked-files"),
    ("host-root", "climb-out"),
    ("host-run", "host-sockets"),
    ("host-shm", "shared-memory"),
    ("egress-rules", "egress-redirect"),
    ("egress-rules", "egress-proxy"),
    ("egress-rules", "egress-ports"),
    ("egress-rules", "egress-names"),
    ("egress-vetting", "egress-rebinding"),
    ("egress-vetting", "egress-addresses"),
    ("egress-checks", "egress-names"),
    ("egress-checks", "egress-requests"),
    ("egress-questions", "egress-questions"),
    ("egress-limits", "egress-floods"),
    ("placeholders", "egress-secrets"),
    ("placeholders", "secret-traces"),
    ("redaction", "secret-traces"),
    ("sandbox-tokens", "neighbours"),
    ("forked-limits", "twins"),
    ("copy-out", "copy-out"),
    ("run-folder", "run-folder"),
    ("server-limits", "server-limits"),
];

/// The same behind gVisor, as far as its own kernel is not what protects.
const WEAKNESSES_OF_GVISOR: [(&str, &str); 24] = [
    ("network-namespace", "outer-walls"),
    ("ipc-namespace", "outer-walls"),
    ("uts-namespace", "outer-walls"),
    ("cgroup-namespace", "outer-walls"),
    ("own-ids", "outer-walls"),
    ("read-only-mounts", "read-only-files"),
    ("set-id-filter", "set-id-files"),
    ("environment", "host-secrets"),
    ("protected-paths", "protected-things"),
    ("host-root", "climb-out"),
    ("host-run", "host-sockets"),
    ("host-shm", "shared-memory"),
    ("pids", "fork-bomb"),
    ("memory", "memory-bomb"),
    ("disk", "disk-fill"),
    ("files", "disk-fill"),
    ("deadline", "deadline"),
    ("egress-rules", "egress-ports"),
    ("egress-rules", "egress-names"),
    ("egress-vetting", "egress-addresses"),
    ("egress-checks", "egress-requests"),
    ("egress-questions", "egress-questions"),
    ("egress-limits", "egress-floods"),
    ("placeholders", "egress-secrets"),
];

/// Results that the ledger has.
fn recorded(sloplet: &Sloplet) -> Vec<Value> {
    let ended = sloplet.invoke(&["audit", "--kind", "verification", "--json"]).finish().expect_code(0);
    ended.out().lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].clone()).collect()
}

/// `sloplet verify` in a folder without a configuration.
fn verify(sloplet: &Sloplet, words: &[&str]) -> Ended {
    let all = [&["verify"], words].concat();
    sloplet.invoke(&all).env("A_CANARY", "of-the-host").within(Duration::from_secs(180)).finish()
}

fn reports(ended: &Ended) -> Vec<Value> {
    serde_json::from_str(&ended.out()).unwrap_or_else(|error| panic!("{error}: {ended}"))
}

fn of_verdict<'r>(report: &'r Value, verdict: &str) -> Vec<&'r Value> {
    report["results"].as_array().unwrap().iter().filter(|result| result["verdict"] == verdict).collect()
}

#[test]
fn nothing_gets_out_of_a_whole_sandbox_of_root() {
    let host = Host::shared();
    let folder = host.dir();
    let (junit, html) = (folder.join("report.xml"), folder.join("report.html"));
    let files = ["--json", "--junit", junit.to_str().unwrap(), "--html", html.to_str().unwrap()];
    let ended = verify(&host.root(), &files).expect_code(0);
    let report = &reports(&ended)[0];
    assert!(of_verdict(report, "breach").is_empty(), "{ended}");
    // A busy machine may leave no processor to be taken away.
    let unclear: Vec<_> =
        of_verdict(report, "inconclusive").into_iter().filter(|result| result["probe"] != "processor-share").collect();
    assert!(unclear.is_empty(), "{unclear:#?}");
    assert!(of_verdict(report, "contained").len() > 55, "{ended}");
    for result in report["results"].as_array().unwrap() {
        assert!(
            !result["tries"].as_str().unwrap().is_empty() && !result["why"].as_str().unwrap().is_empty(),
            "{result}"
        );
    }
    check_xml(&junit);
    let page = fs::read_to_string(&html).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("fork-bomb") && page.contains("Digest"), "{page}");
    assert!(!page.contains("<script") && !page.contains("http://") && !page.contains("https://"), "it loads something");
}

#[test]
fn nothing_gets_out_of_a_whole_sandbox_of_an_ordinary_user() {
    let host = Host::shared();
    let ended = verify(&host.user(), &["--json"]).expect_code(0);
    let report = &reports(&ended)[0];
    assert!(of_verdict(report, "contained").len() > 35, "{ended}");
}

/// One after the other: they share the machine.
#[test]
fn each_missing_protection_is_noticed() {
    let host = Host::shared();
    let mut silent = Vec::new();
    for (weakness, probe) in WEAKNESSES {
        let ended = weakened(&host.root(), "namespaces", weakness, probe);
        if ended.code != 1 || !breach_of(&ended, probe) {
            silent.push(format!("{weakness} is not noticed by {probe}: {ended}"));
        }
    }
    // What root's sandboxes do not have: there is nobody else to become in an ordinary user's.
    let ended = weakened(&host.user(), "namespaces", "no-new-privs", "privileges");
    if !breach_of(&ended, "privileges") {
        silent.push(format!("no-new-privs: {ended}"));
    }
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}

#[test]
fn each_missing_protection_is_noticed_behind_gvisor() {
    let host = Host::shared();
    let mut silent = Vec::new();
    for (weakness, probe) in WEAKNESSES_OF_GVISOR {
        let ended = weakened(&host.root(), "gvisor", weakness, probe);
        if ended.code != 1 || !breach_of(&ended, probe) {
            silent.push(format!("{weakness} is not noticed by {probe}: {ended}"));
        }
    }
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}

/// A process tree shares the host's root and process ids, and says so; what it does claim is attacked.
#[test]
fn a_process_tree_is_judged_by_what_it_claims() {
    let host = Host::shared();
    let ended = verify(&host.root(), &["--driver", "process", "--json"]).expect_code(0);
    let report = &reports(&ended)[0];
    let verdict = |probe: &str| report["results"].as_array().unwrap().iter().find(|it| it["probe"] == probe).unwrap();
    for probe in ["agent-binary", "kernel-settings", "host-processes", "privileges", "devices", "archives", "zombies"] {
        assert_eq!(verdict(probe)["verdict"], "contained", "{:#}", verdict(probe));
    }
    // Whether there is a process of that number is nothing that it hides.
    let seen = verdict("host-processes")["detail"].as_str().unwrap();
    assert!(seen.contains("this wall does not claim: own root file system"), "{seen}");
    for probe in ["climb-out", "outer-walls", "egress-names"] {
        assert_eq!(verdict(probe)["verdict"], "not-applicable", "{:#}", verdict(probe));
        assert!(verdict(probe)["detail"].as_str().unwrap().contains("does not claim"), "{:#}", verdict(probe));
    }
}

/// One report for each wall that works here; why another does not is said.
#[test]
fn all_walls_are_verified_in_turn() {
    let host = Host::shared();
    let root = host.root();
    let walls = root.invoke(&["doctor", "--json"]).finish().expect_code(0).json();
    let (junit, html) = (root.folder("reports").join("all.xml"), root.folder("reports").join("all.html"));
    let words = ["--driver", "all", "--json", "--probe", "keyrings", "--probe", "outer-walls"];
    let files = ["--junit", junit.to_str().unwrap(), "--html", html.to_str().unwrap()];
    let all = [&["verify"], &words[..], &files].concat();
    let ended = root.invoke(&all).within(Duration::from_secs(600)).finish().expect_code(0);
    let names: Vec<String> = reports(&ended).iter().map(|it| it["driver"].as_str().unwrap().to_owned()).collect();
    assert!(["namespaces", "process", "gvisor"].iter().all(|name| names.contains(&(*name).to_owned())), "{names:?}");
    for wall in walls.as_array().unwrap() {
        let name = wall["driver"].as_str().unwrap();
        let works = wall["unavailable"].is_null();
        assert_eq!(names.iter().any(|known| known == name), works, "{wall:#}");
        assert!(works || ended.stderr.contains(&format!("{name} is left out: ")), "{ended}");
    }
    let page = fs::read_to_string(&html).unwrap();
    let suites = fs::read_to_string(&junit).unwrap();
    assert!(names.iter().all(|name| page.contains(name) && suites.contains(name)), "{names:?}");
    // The same probe, judged by what each wall claims.
    for report in reports(&ended) {
        let expected = if report["driver"] == "process" { "not-applicable" } else { "contained" };
        let verdict = |probe: &str| {
            report["results"].as_array().unwrap().iter().find(|it| it["probe"] == probe).unwrap()["verdict"].clone()
        };
        assert_eq!((verdict("outer-walls"), verdict("keyrings")), (expected.into(), "contained".into()), "{report:#}");
    }
}

/// A probe that could say nothing, as on a machine that is too busy, is asked once more.
fn weakened(sloplet: &Sloplet, driver: &str, weakness: &str, probe: &str) -> Ended {
    let words = ["verify", "--driver", driver, "--weaken", weakness, "--probe", probe, "--json"];
    let ask = || {
        let invocation = sloplet.invoke(&words).env("SLOPLET_TEST_WEAKEN", weakness).env("A_CANARY", "of-the-host");
        invocation.within(Duration::from_secs(90)).finish()
    };
    let first = ask();
    if has(&first, "inconclusive", probe) { ask() } else { first }
}

fn breach_of(ended: &Ended, probe: &str) -> bool {
    has(ended, "breach", probe)
}

fn has(ended: &Ended, verdict: &str, probe: &str) -> bool {
    let reports: Vec<Value> = serde_json::from_str(&ended.out()).unwrap_or_default();
    reports.iter().flat_map(|report| of_verdict(report, verdict)).any(|result| result["probe"] == probe)
}

#[test]
fn no_protection_can_be_taken_away_by_accident() {
    let host = Host::shared();
    let root = host.root();
    let refused = "no protection can be taken away";
    let ended = verify(&root, &["--weaken", "seccomp", "--probe", "keyrings"]).expect_code(125);
    assert!(ended.stderr.contains(refused), "{ended}");
    let words = ["verify", "--weaken", "seccomp", "--probe", "keyrings"];
    let ended = root.invoke(&words).env("SLOPLET_TEST_WEAKEN", "landlock").finish().expect_code(125);
    assert!(ended.stderr.contains(refused), "{ended}");
    // The variable alone does nothing, and no file can ask for it.
    let words = ["verify", "--probe", "keyrings"];
    root.invoke(&words).env("SLOPLET_TEST_WEAKEN", "seccomp").finish().expect_code(0);
    let file = host.dir().join("weak.toml");
    fs::write(&file, "[sandbox]\nweaken = \"seccomp\"\n").unwrap();
    let ended = root.run(&["--config", file.to_str().unwrap()], &["true"]).expect_code(125);
    assert!(ended.stderr.contains("unknown field"), "{ended}");
}

#[test]
fn a_run_can_insist_on_a_verification_of_its_very_configuration() {
    let host = Host::shared();
    let root = host.root();
    let file = host.dir().join("sloplet.toml");
    fs::write(&file, "[sandbox]\nmemory = \"256MiB\"\npids = 64\ndisk = \"64MiB\"\n").unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let run = |more: &[&str]| root.run(&[&config[..], &["--verified"], more].concat(), &["echo", "ran"]);
    let ended = run(&[]).expect_code(125);
    assert!(ended.stderr.contains("never verified") && ended.stderr.contains("sloplet verify"), "{ended}");
    // A part of the probes is no verification.
    verify(&root, &[&config[..], &["--probe", "keyrings"]].concat()).expect_code(0);
    run(&[]).expect_code(125);
    verify(&root, &config).expect_code(0);
    assert_eq!(run(&[]).expect_code(0).out(), "ran\n");
    // Another configuration is another matter.
    run(&["--memory", "300MiB"]).expect_code(125);
    run(&["--mount", "/usr/share:/x"]).expect_code(125);
    // Written down and signed: the digest is that of the report as it is kept.
    let records = recorded(&root);
    assert_eq!(records.len(), 2, "{records:?}");
    assert_eq!((&records[0]["complete"], &records[1]["complete"]), (&false.into(), &true.into()), "{records:?}");
    let path = fs::read_dir(root.data.join("verified")).unwrap().flatten().next().unwrap().path();
    assert_eq!(records[1]["sha256"].as_str().unwrap(), digest_of(&path), "{records:?}");
    assert_eq!(records[1]["digest"].as_str().unwrap(), path.file_stem().unwrap().to_str().unwrap());
    assert_eq!((records[1]["escaped"].as_u64(), records[1]["driver"].as_str()), (Some(0), Some("namespaces")));
    let ended = root.invoke(&["audit"]).finish().expect_code(0);
    assert!(ended.out().contains("contained, 0 escaped"), "{ended}");
    root.invoke(&["audit", "verify"]).finish().expect_code(0);
    // Nothing has changed; now something has.
    let ended = verify(&root, &[&config[..], &["--changed"]].concat()).expect_code(0);
    assert!(ended.stderr.contains("nothing has changed"), "{ended}");
    // Too old, and failed.
    let folder = root.data.join("verified");
    let path = fs::read_dir(&folder).unwrap().flatten().next().unwrap().path();
    let kept: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let mut old = kept.clone();
    old["started_ms"] = (kept["started_ms"].as_u64().unwrap() - 8 * 86_400_000).into();
    fs::write(&path, old.to_string()).unwrap();
    let ended = run(&[]).expect_code(125);
    assert!(ended.stderr.contains("hours old"), "{ended}");
    let mut failed = kept.clone();
    failed["results"][0]["verdict"] = "breach".into();
    fs::write(&path, failed.to_string()).unwrap();
    let ended = run(&[]).expect_code(125);
    assert!(ended.stderr.contains("found a breach"), "{ended}");
}

#[test]
fn a_probe_that_does_not_exist_is_named_with_those_that_do() {
    let host = Host::shared();
    let ended = verify(&host.root(), &["--probe", "nonsense"]).expect_code(125);
    assert!(ended.stderr.contains("'nonsense'") && ended.stderr.contains("fork-bomb"), "{ended}");
    let ended = verify(&host.root(), &["--driver", "nonsense"]).expect_code(125);
    assert!(ended.stderr.contains("namespaces"), "{ended}");
}

/// Whoever is interrupted, or killed and followed by another, leaves nothing.
#[test]
fn canaries_are_removed_whatever_ends_a_verification() {
    let host = Host::shared();
    let root = host.root();
    let temporary = root.folder("temporary");
    let count = || fs::read_dir(&temporary).unwrap().count();
    let start = || {
        let running = root.invoke(&["verify"]).env("TMPDIR", temporary.to_str().unwrap()).start();
        // It says whose canaries they are before it plants any.
        let names = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().collect::<Vec<_>>();
        let marked = || {
            let inside = names(&temporary).into_iter().flat_map(|entry| names(&entry.path()));
            inside.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("pid-"))
        };
        let started = std::time::Instant::now();
        while !marked() && started.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(count(), 1);
        running
    };
    let running = start();
    running.signal(rustix::process::Signal::TERM);
    running.finish();
    assert_eq!(count(), 0, "after SIGTERM");
    let running = start();
    running.signal(rustix::process::Signal::KILL);
    running.finish();
    assert_eq!(count(), 1, "nobody could");
    let words = ["verify", "--probe", "keyrings"];
    root.invoke(&words).env("TMPDIR", temporary.to_str().unwrap()).finish().expect_code(0);
    assert_eq!(count(), 0, "after the next one");
}

#[test]
fn terminals_of_the_host_are_no_breach_by_their_names() {
    let host = Host::shared();
    // More than the first few names, which those inside have, too.
    let held: Vec<_> = (0..12).map(|_| openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap()).collect();
    for sloplet in [host.root(), host.user()] {
        for driver in ["process", "namespaces"] {
            let ended = verify(&sloplet, &["--driver", driver, "--probe", "terminals", "--json"]).expect_code(0);
            let report = ended.json()[0].clone();
            assert_eq!(report["results"][0]["verdict"], "contained", "{} {driver}: {report:#}", sloplet.name);
        }
    }
    drop(held);
}

#[test]
fn a_servers_drills_find_the_kernel_that_was_set_up() {
    let ours = (sloplet_verify::KERNEL_VARIABLE, sloplet_verify::KERNEL_FOLDER);
    assert_eq!(ours, (sloplet_driver_vm::kernel::VARIABLE, sloplet_driver_vm::kernel::FOLDER));
}

#[test]
fn a_wall_that_makes_no_such_sandbox_takes_nothing_from_the_others() {
    let host = Host::shared();
    let root = host.root();
    common::small_image(&host, &["sh", "cat", "ls"]);
    let image = host.dir().join("small");
    let words = ["--driver", "all", "--image", image.to_str().unwrap(), "--probe", "keyrings", "--json"];
    let ended = verify(&root, &words).expect_code(0).expect_said("process makes no such sandbox");
    let reports = ended.json();
    let walls: Vec<&str> = reports.as_array().unwrap().iter().filter_map(|report| report["driver"].as_str()).collect();
    assert!(walls.contains(&"namespaces") && !walls.contains(&"process"), "{ended}");
    // Alone, that is the answer.
    verify(&root, &["--driver", "process", "--image", image.to_str().unwrap(), "--probe", "keyrings"]).expect_code(125);
}

#[test]
fn a_server_verifies_on_a_schedule_and_shows_the_result() {
    let host = Host::shared();
    let root = host.root();
    let server = common::Server::start_with(&root, &["--verify-every", "1h"]);
    let started = std::time::Instant::now();
    let latest = loop {
        let latest = server.ask("GET", "/info", None).json()["verification"].clone();
        if !latest.is_null() {
            break latest;
        }
        assert!(started.elapsed() < Duration::from_secs(180), "no verification in time");
        std::thread::sleep(Duration::from_millis(200));
    };
    assert_eq!((latest["passed"].as_bool(), latest["breaches"].as_u64()), (Some(true), Some(0)), "{latest}");
    assert!(latest["contained"].as_u64().unwrap() > 45, "{latest}");
    let ended = server.command(&["ls"]).expect_code(0);
    assert!(ended.stderr.contains("namespaces verified") && ended.stderr.contains("nothing got out"), "{ended}");
    let ended = server.command(&["info"]).expect_code(0);
    assert!(ended.out().contains("verified"), "{ended}");
    let request = format!(
        "GET /metrics HTTP/1.1\r\nHost: {}\r\nX-API-KEY: {}\r\nConnection: close\r\n\r\n",
        server.address, server.key
    );
    let page = common::http::exchange(&server.address, request.as_bytes());
    assert!(page.text().contains("sloplet_verification_passed{driver=\"namespaces\"} 1"), "{}", page.text());
    let ended = server.command(&["audit", "--kind", "verification"]).expect_code(0);
    assert!(ended.out().contains("contained, 0 escaped"), "{ended}");
    server.end();
}

/// SHA-256, by a program that nobody here wrote.
fn digest_of(path: &Path) -> String {
    let done = std::process::Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8_lossy(&done.stdout).split(' ').next().unwrap().to_owned()
}

/// Well-formed, by a parser that nobody here wrote.
fn check_xml(path: &Path) {
    let program = "import sys, xml.etree.ElementTree as tree; root = tree.parse(sys.argv[1]).getroot(); \
                   suite = root[0]; cases = suite.findall('testcase'); \
                   assert root.tag == 'testsuites' and int(suite.get('tests')) == len(cases) > 50, suite.attrib";
    let done = std::process::Command::new("python3").args(["-c", program]).arg(path).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
