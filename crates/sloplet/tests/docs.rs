//! The commands of the documentation, as they are written.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::Host;

/// What stands between ```` ```sh ```` and ```` ``` ````, all of it.
fn commands(text: &str) -> Vec<&str> {
    text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn the_nine_steps_work_as_written() {
    let host = Host::shared();
    let root = host.root();
    let blocks = commands(include_str!("../../../docs/containment.md"));
    assert!(blocks.len() >= 12, "the steps have become fewer");
    let folder = root.folder("steps");
    // A command that is to fail, after '!', must: the shell does not see to that by itself.
    let mut script = format!("set -eu; cd {}; PATH={}:$PATH\n", folder.display(), host.dir().display());
    for line in blocks.iter().flat_map(|block| block.lines()).filter(|line| !line.trim().is_empty()) {
        let shown = line.replace('\'', "'\\''");
        script.push_str(&format!("printf '%s\\n' '$ {shown}' >&2\n"));
        match line.strip_prefix("! ") {
            Some(refused) => script.push_str(&format!("if {refused}; then echo 'that must fail' >&2; exit 99; fi\n")),
            None => script.push_str(&format!("{line}\n")),
        }
    }
    let invocation = root.other_program(&["bash", "-c", &script]).within(Duration::from_secs(300));
    invocation.env("HOME", folder.to_str().unwrap()).finish().expect_code(0);
    assert!(folder.join("report.html").exists() && folder.join("report.xml").exists());
}
