//! `sloplet mcp` with the clients that the protocol's own people make: the tests of the Python package are in `python`, the
//! inspector's are here; also what no good client would do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod granted;
mod hostile;

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use common::{Ended, Host, Server, built, fast, tools};
use rustix::process::Signal;
use serde_json::Value;

/// What requests over HTTP show.
const TOKEN: &str = "a-token-of-the-tests";

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp")
}

#[test]
fn the_python_package_can_use_every_tool() {
    let (host, python) = (Host::shared(), tools::python("mcp-python"));
    let sloplet = host.root();
    if !fast() {
        built::copy_to(&sloplet, "code-interpreter");
    }
    let served = Server::start_with(&sloplet, &[]);
    let scratch = sloplet.folder("scratch");
    let tests = tests().join("python");
    let words = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--durations",
        "5",
        "--basetemp",
        scratch.to_str().unwrap(),
        tests.to_str().unwrap(),
    ];
    let mut invocation = sloplet
        .other_program(&[&[python.to_str().unwrap(), "-m", "pytest"], words.as_slice()].concat())
        .within(Duration::from_secs(300))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SLOPLET_BINARY", host.binary().to_str().unwrap());
    if !fast() {
        invocation = invocation.env("SLOPLET_INTERPRETER", "1");
    }
    let ended = invocation.finish();
    println!("{}", ended.out());
    served.end_with_its_sandboxes();
    ended.expect_code(0);
}

/// The inspector's command line: a client of its own, in another language.
fn inspector() -> PathBuf {
    tools::folder("mcp-inspector").join("node_modules/.bin/mcp-inspector")
}

#[test]
fn the_inspector_can_use_it() {
    let (host, inspector) = (Host::shared(), inspector());
    let sloplet = host.root();
    let served = Server::start_with(&sloplet, &[]);
    let (binary, home) = (host.binary().to_str().unwrap().to_owned(), sloplet.folder("home"));
    let environment: Vec<String> = [("SLOPLET_DATA", &sloplet.data), ("SLOPLET_RUN", &sloplet.run_dir)]
        .iter()
        .map(|(name, path)| format!("{name}={}", path.display()))
        .collect();
    let inspect = |words: &[&str]| -> Ended {
        let start = [inspector.to_str().unwrap(), "--cli", &binary, "mcp"];
        let variables = ["-e", &environment[0], "-e", &environment[1]];
        let all = [start.as_slice(), words, variables.as_slice()].concat();
        sloplet.other_program(&all).env("HOME", home.to_str().unwrap()).finish()
    };
    let listed = inspect(&["--method", "tools/list", "--strict"]).expect_code(0).json();
    assert!(listed["tools"].as_array().unwrap().len() >= 17, "{listed}");
    let call = ["--method", "tools/call", "--tool-name", "exec", "--tool-arg", "command=echo hello; exit 4"];
    let ran: Value = inspect(&call).expect_code(0).json();
    assert_eq!(ran["structuredContent"]["stdout"], "hello\n", "{ran}");
    assert_eq!(ran["structuredContent"]["exit_code"], 4, "{ran}");
    let resources = inspect(&["--method", "resources/templates/list"]).expect_code(0).json();
    assert_eq!(resources["resourceTemplates"][0]["uriTemplate"], "sandbox://files/{+path}", "{resources}");
    // The same over HTTP.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let serving = served.invoke(&["mcp", "--http", &address]).env("SLOPLET_MCP_TOKEN", TOKEN).start();
    let started = Instant::now();
    while TcpStream::connect(&address).is_err() {
        assert!(started.elapsed() < Duration::from_secs(20), "nothing listens on {address}");
        thread::sleep(Duration::from_millis(20));
    }
    let (url, header) = (format!("http://{address}/mcp"), format!("Authorization: Bearer {TOKEN}"));
    let words = [&[inspector.to_str().unwrap(), "--cli", &url, "--header", &header], call.as_slice()].concat();
    let ran = sloplet.other_program(&words).env("HOME", home.to_str().unwrap()).finish().expect_code(0).json();
    assert_eq!(ran["structuredContent"]["stdout"], "hello\n", "{ran}");
    serving.signal(Signal::TERM);
    serving.finish().expect_code(0);
    // Each of these was a conversation, and has ended.
    assert_eq!(served.json(&["ls", "--all"]), serde_json::json!([]));
    served.end();
}

#[test]
fn configurations_start_what_they_were_made_for() {
    let host = Host::shared();
    let sloplet = host.root();
    let printed = sloplet.invoke(&["mcp", "--tools", "exec,files", "--print-config", "claude", "--read-only"]).finish();
    let printed = printed.expect_code(0).expect_said(".mcp.json").json();
    let entry = &printed["mcpServers"]["sloplet"];
    assert_eq!(entry["args"], serde_json::json!(["mcp", "--tools", "exec,files", "--read-only"]));
    assert!(Path::new(entry["command"].as_str().unwrap()).is_absolute());
    for client in ["claude-desktop", "cursor", "vscode", "zed", "gemini", "windsurf"] {
        sloplet.invoke(&["mcp", "--print-config", client]).finish().expect_code(0).json();
    }
    let codex = sloplet.invoke(&["mcp", "--print-config", "codex"]).finish().expect_code(0);
    assert!(codex.out().starts_with("[mcp_servers.sloplet]\n"), "{codex}");
}

#[test]
fn what_cannot_be_offered_is_refused_at_the_start() {
    let host = Host::shared();
    let sloplet = host.root();
    for (words, said) in [
        (&["--tools", "fly"][..], "there is no 'fly'"),
        (&["--tools", "exec", "--read-only"], "leaves no tool"),
        (&["--tools", "share"], "--share"),
        (&["--share", "/absent"], "--share /absent"),
        (&["--share", "/"], "--share /"),
        (&["--share", "/root/.ssh"], "--share"),
        (&["--http", "0.0.0.0:0"], "--public"),
        (&["--http", "here"], "--http"),
        (&["--print-config", "emacs"], "vscode"),
        (&["--sandbox", "a", "--image", "host"], "--image"),
        (&["--memory", "much"], "--memory"),
        (&["--allow", "not a host"], "--allow"),
        (&["--timeout", "never"], "--timeout"),
    ] {
        sloplet.invoke(&[&["mcp"], words].concat()).finish().expect_code(125).expect_said(said);
    }
    let short = sloplet.clone().with("SLOPLET_MCP_TOKEN", "short");
    short.invoke(&["mcp", "--http", "127.0.0.1:0"]).finish().expect_code(125).expect_said("SLOPLET_MCP_TOKEN");
}
