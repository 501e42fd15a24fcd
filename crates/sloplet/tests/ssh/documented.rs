//! The commands of the documentation, as they are written.

use std::time::Duration;

use crate::client::Served;
use crate::common::Host;

#[test]
fn the_page_on_ssh_works_as_written() {
    let host = Host::shared();
    let root = host.root();
    let served = Served::bare(&root, &[]);
    let folder = root.folder("documented");
    let page = include_str!("../../../../docs/ssh.md");
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let script = format!("set -eux; cd {}; PATH={}:$PATH\n", folder.display(), host.dir().display());
    let script = blocks.fold(script, |script, block| script + block);
    assert!(script.contains("sloplet ssh my --config"), "{script}");
    let invocation = root.other_program(&["bash", "-c", &script]).within(Duration::from_secs(120));
    invocation.env("HOME", folder.to_str().unwrap()).finish().expect_code(0);
    assert_eq!(std::fs::read(folder.join("greeting")).unwrap(), b"hello\n");
    // What the page says of the options of `serve` is about options that there are.
    let help = served.server.command(&["serve", "--help"]).expect_code(0).out();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `--")?.split(['`', ' ']).next());
    let rows: Vec<&str> = rows.collect();
    assert!(rows.len() >= 5);
    for option in rows {
        assert!(help.contains(&format!("--{option}")), "--{option}");
    }
    served.server.end();
}
