//! E2B's own packages, unmodified, as clients: the tests themselves are in `tests/e2b`, in their languages.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Host, Server, built, fast, tools};

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2b")
}

/// Runs a client's tests against a server with this image; everything they say is shown if one fails.
fn run(image: &str, mut client: Command) {
    let host = Host::shared();
    let sloplet = host.root();
    built::copy_to(&sloplet, image);
    let served = Server::start_with(&sloplet, &[]);
    let (url, key) = (format!("http://{}", served.address), served.key.clone());
    client
        .env("E2B_API_URL", &url)
        .env("E2B_SANDBOX_URL", &url)
        .env("E2B_VOLUME_API_URL", &url)
        .env("E2B_API_KEY", key);
    client.env("PYTHONDONTWRITEBYTECODE", "1").process_group(0);
    let output = client.output().unwrap();
    let said = [String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)].concat();
    println!("{said}");
    served.end_with_its_sandboxes();
    assert!(output.status.success(), "the client's tests failed, see above");
}

pub fn pytest(folder: &str) -> Command {
    let mut command = Command::new(tools::python("e2b-python"));
    command.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", folder]).current_dir(tests());
    command
}

/// Packages are looked for beside the tests' own place, so they are run from where the packages are.
pub fn node_test(folder: &str) -> Command {
    let modules = tools::folder("e2b-node");
    let place = modules.join(folder);
    let _ = fs::remove_dir_all(&place);
    let copied = Command::new("cp").arg("-a").arg(tests().join(folder)).arg(&place).status().unwrap();
    assert!(copied.success());
    let mut command = Command::new("sh");
    command.args(["-c", "exec node --test --test-concurrency=2 \"$0\"/*.test.mjs", folder]).current_dir(modules);
    command
}

#[test]
fn the_python_package_works_unmodified() {
    if fast() {
        return; // needs an image that takes minutes to build
    }
    run("base", pytest("python"));
}

#[test]
fn the_javascript_package_works_unmodified() {
    if fast() {
        return;
    }
    run("base", node_test("js"));
}

#[test]
fn the_code_interpreter_packages_work_unmodified() {
    if fast() {
        return;
    }
    run("code-interpreter", pytest("interpreter-python"));
    run("code-interpreter", node_test("interpreter-js"));
}

#[test]
fn the_typescript_page_works_as_written() {
    if fast() {
        return;
    }
    let page = include_str!("../../../../docs/typescript.md");
    let code = page.split("```ts\n").nth(1).unwrap().split("```").next().unwrap();
    let modules = tools::folder("e2b-node");
    // What is only JavaScript in it runs as it is; any TypeScript would have to be compiled first.
    let file = modules.join("typescript-page.mjs");
    fs::write(&file, code).unwrap();
    let mut command = Command::new("node");
    command.arg(&file).current_dir(&modules);
    run("base", command);
}
