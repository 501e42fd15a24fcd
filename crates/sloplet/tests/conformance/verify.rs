//! Attacks on the wall itself, with every probe there is.

use std::time::Duration;

use serde_json::Value;

use super::Wall;
use super::common::{Ended, Sloplet};

/// Machines that are emulated take their time.
const PATIENCE: Duration = Duration::from_secs(1500);

/// What the host sees, and so is seen behind every wall.
const OUTSIDE: [&str; 4] = ["outer-walls", "host-secrets", "read-only-files", "network-direct"];

/// What an engine is asked for, and who notices that it was not.
const WEAKNESSES_OF_ENGINE: [(&str, &str); 8] = [
    ("masked-paths", "masked-files"),
    ("sysfs", "masked-files"),
    ("read-only-mounts", "mount-flags"),
    ("set-id-filter", "set-id-files"),
    ("network-namespace", "outer-walls"),
    ("ipc-namespace", "outer-walls"),
    ("cgroup-namespace", "outer-walls"),
    ("pids", "fork-bomb"),
];

/// Nothing gets out, the result speaks for this wall alone, and a hole in the wall is noticed.
pub fn test(wall: Wall) {
    let ground = wall.shared();
    let root = ground.root();
    if wall.isolation == "vm" {
        // All of them would take an emulated machine half an hour.
        let few: Vec<&str> = OUTSIDE.iter().flat_map(|probe| ["--probe", probe]).collect();
        let report = &verify(&root, wall, &[&["--json"], &few[..]].concat(), None).expect_code(0).json()[0];
        return assert_eq!(results(report, "contained").len(), OUTSIDE.len() + 1, "{report:#}");
    }
    let ended = verify(&root, wall, &["--json"], None).expect_code(0);
    let report = &ended.json()[0];
    assert_eq!((report["driver"].as_str(), report["isolation"].as_str()), (Some(wall.name), Some(wall.isolation)));
    assert!(results(report, "breach").is_empty(), "{report:#}");
    // A busy machine may leave no processor to be taken away.
    let unclear: Vec<_> =
        results(report, "inconclusive").into_iter().filter(|it| it["probe"] != "processor-share").collect();
    assert!(unclear.is_empty(), "{unclear:#?}");
    assert!(results(report, "contained").len() > 55, "{report:#}");
    for result in results(report, "not-applicable") {
        let detail = result["detail"].as_str().unwrap();
        let reasons = ["there is nothing of that kind", "of its own kernel are not the host's", "cannot", "not claim"];
        assert!(reasons.iter().any(|reason| detail.contains(reason)), "{result:#}");
    }
    for probe in OUTSIDE.iter().chain(&["canaries"]) {
        assert!(results(report, "contained").iter().any(|result| result["probe"] == *probe), "{probe}: {report:#}");
    }

    let other = if wall.name == "namespaces" { "gvisor" } else { "namespaces" };
    let insist = |driver: &str, image: &str| {
        root.run(&["--verified", "--driver", driver, "--image", image], &["sh", "-c", "echo ran"])
    };
    assert_eq!(insist(wall.name, wall.image).expect_code(0).out(), "ran\n");
    let known = if wall.engine { "host" } else { wall.image };
    let ended = insist(other, known).expect_code(125);
    assert!(ended.stderr.contains("never verified"), "{ended}");
    let ended = verify(&root, wall, &["--changed"], None).expect_code(0);
    assert!(ended.stderr.contains("nothing has changed"), "{ended}");

    let of_engine = if wall.engine { &WEAKNESSES_OF_ENGINE[..] } else { &[] };
    for (weakness, probe) in
        [("environment", "host-secrets"), ("protected-paths", "protected-things")].iter().chain(of_engine).copied()
    {
        let ended = verify(&root, wall, &["--json", "--probe", probe], Some(weakness)).expect_code(1);
        assert!(results(&ended.json()[0], "breach").iter().any(|result| result["probe"] == probe), "{ended}");
    }
}

fn verify(sloplet: &Sloplet, wall: Wall, more: &[&str], weakness: Option<&str>) -> Ended {
    let mut words = [&["verify"], &wall.words()[..], more].concat();
    words.extend(weakness.iter().flat_map(|weakness| ["--weaken", weakness]));
    let invocation = sloplet.invoke(&words).env("A_CANARY", "of-the-host").within(PATIENCE);
    match weakness {
        Some(weakness) => invocation.env("SLOPLET_TEST_WEAKEN", weakness).finish(),
        None => invocation.finish(),
    }
}

fn results<'r>(report: &'r Value, verdict: &str) -> Vec<&'r Value> {
    report["results"].as_array().unwrap().iter().filter(|result| result["verdict"] == verdict).collect()
}
