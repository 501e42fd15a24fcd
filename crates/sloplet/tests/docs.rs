//! The commands of the documentation, as they are written.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use common::{Ended, Host, Server};
use serde_json::Value;

/// What stands between ```` ```sh ```` and ```` ``` ````, all of it.
fn commands(text: &str) -> Vec<&str> {
    text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Runs all commands of a page, of which there are at least so many blocks, one after the other, as root, in a folder of their
/// own.
fn follow(host: &Host, page: &str, least: usize) -> (PathBuf, Ended) {
    let (root, blocks) = (host.root(), commands(page));
    assert!(blocks.len() >= least, "the commands have become fewer");
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
    let ended = invocation.env("HOME", folder.to_str().unwrap()).finish().expect_code(0);
    (folder, ended)
}

#[test]
fn the_nine_steps_work_as_written() {
    let host = Host::shared();
    let (folder, _) = follow(&host, include_str!("../../../docs/containment.md"), 12);
    assert!(folder.join("report.html").exists() && folder.join("report.xml").exists());
}

#[test]
fn the_page_about_mcp_works_as_written() {
    let page = include_str!("../../../docs/mcp.md");
    let host = Host::shared();
    let (folder, _) = follow(&host, page, 3);
    let made: Value = serde_json::from_slice(&fs::read(folder.join(".mcp.json")).unwrap()).unwrap();
    let written = page.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    let written: Value = serde_json::from_str(written).unwrap();
    for config in [made, written] {
        assert_eq!(config["mcpServers"]["sloplet"]["args"][0], "mcp", "{config}");
    }
}

#[test]
fn the_page_about_pools_works_as_written() {
    let host = Host::shared();
    let served = Server::start(&host.root());
    follow(&host, include_str!("../../../docs/pools.md"), 2);
    served.end();
}

#[test]
fn work_is_brought_out_as_written() {
    let host = Host::shared();
    let served = Server::start(&host.root());
    let (_, ended) = follow(&host, include_str!("../../../docs/git.md"), 3);
    for shown in ["A /home/user/site/index.html", "\nhello\n", "\n-5\n+five\n"] {
        assert!(ended.out().contains(shown), "{shown}: {ended}");
    }
    served.end();
}
