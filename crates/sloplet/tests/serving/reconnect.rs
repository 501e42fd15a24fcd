//! E2B's package, unmodified, when the server is killed under a command that it follows.

use std::process::Command;

use serde_json::Value;

use crate::common::{Host, Server, fast, tools};

/// Starts a command that writes more than is kept, and then counts; tells its place and what was read of it, and leaves.
const BEFORE: &str = "
import json, os, sys
from e2b import Sandbox
sandbox = Sandbox.create(timeout=600)
script = 'seq -f \"before %.0f\" 60000; i=0; while [ ! -e stop ]; do i=$((i+1)); echo tick $i; sleep 0.01; done; echo end $i'
command = sandbox.commands.run(script, background=True, timeout=0)
lines = ''
for out, _, _ in command:
    lines += out or ''
    if 'tick 30\\n' in lines:
        break
seen = lines.splitlines()
print(json.dumps([sandbox.sandbox_id, command.pid, len(seen)]), flush=True)
os._exit(0)";

/// Follows it again for a while; tells the numbers that came. The last time it is stopped and followed to its end.
const AGAIN: &str = "
import json, os, sys
from e2b import Sandbox
sandbox = Sandbox.connect(sys.argv[1])
command, last = sandbox.commands.connect(int(sys.argv[2]), timeout=0), sys.argv[3] == 'last'
lines = ''
for out, _, _ in command:
    lines += out or ''
    if lines.count('\\n') == 30 and last:
        sandbox.files.write('stop', '')
    if lines.count('\\n') >= 30 and not last:
        break
print(json.dumps(lines.splitlines()), flush=True)
os._exit(0)";

fn python(server: &Server, program: &str, arguments: &[&str]) -> Value {
    let url = format!("http://{}", server.address);
    let mut command = Command::new(tools::python("e2b-python"));
    command.args(["-c", program]).args(arguments).env("E2B_API_KEY", &server.key);
    let ran = command.env("E2B_API_URL", &url).env("E2B_SANDBOX_URL", &url).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{said}\n{}", String::from_utf8_lossy(&ran.stdout)))
}

/// The numbers of lines that begin with a word.
fn numbers(lines: &Value, word: &str) -> Vec<u64> {
    let lines = lines.as_array().unwrap().iter().map(|line| line.as_str().unwrap());
    lines.filter_map(|line| line.strip_prefix(word)?.trim().parse().ok()).collect()
}

#[test]
fn a_stream_that_is_taken_up_after_a_restart_repeats_nothing_and_leaves_nothing_out() {
    if fast() {
        return; // needs E2B's package
    }
    let host = Host::shared();
    let sloplet = host.root();
    let mut server = Server::start_with(&sloplet, &[]);
    let key = server.key.clone();
    let begun = python(&server, BEFORE, &[]);
    let (id, pid) = (begun[0].as_str().unwrap(), begun[1].to_string());
    // Everything that was there before, once.
    assert_eq!(begun[2].as_u64(), Some(60_000 + 30), "{begun}");
    let mut newest = 30;
    for round in ["", "", "last"] {
        server.kill();
        server = Server::start_with(&sloplet, &[]);
        server.key.clone_from(&key);
        let lines = python(&server, AGAIN, &[id, &pid, round]);
        assert!(numbers(&lines, "before").is_empty(), "what was for others came again: {lines}");
        let ticks = numbers(&lines, "tick");
        assert!(ticks[0] > newest, "{} came again after {newest}", ticks[0]);
        assert!(ticks.windows(2).all(|two| two[1] == two[0] + 1), "some are missing or twice: {ticks:?}");
        newest = *ticks.last().unwrap();
        if round == "last" {
            assert_eq!(numbers(&lines, "end"), [newest], "the end is missing: {lines}");
        }
    }
    server.end_with_its_sandboxes();
}
