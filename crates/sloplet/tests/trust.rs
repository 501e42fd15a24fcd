//! Whose word a `sloplet.toml` is: what is found here tightens and nothing else, until its owner trusts it as it is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;

use common::{Ended, Host, Invocation, Sloplet};

/// `sloplet <words>` in a folder.
fn sloplet_in(host: &Host, sloplet: &Sloplet, folder: &Path, words: &[&str]) -> Invocation {
    let script = format!("cd {} && exec \"$@\"", folder.display());
    sloplet.other_program(&[&["sh", "-c", &script, "sh", host.binary().to_str().unwrap()], words].concat())
}

fn refused(ended: &Ended, setting: &str) {
    assert_eq!(ended.code, 125, "{ended}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    assert!(ended.stderr.contains(setting) && ended.stderr.contains("sloplet trust"), "{ended}");
}

#[test]
fn a_file_that_code_inside_wrote_runs_nothing_on_the_host() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let repo = sloplet.folder("repo");
        let proof = repo.join("ran-on-the-host");
        // The attack: what an agent writes during its first run.
        let planted = format!(
            "[secrets.K]\nhosts = [\"example.com\"]\nfrom = \"command\"\ncommand = [\"sh\", \"-c\", \"id > {}; echo xxxxxxxxxx\"]\n",
            proof.display()
        );
        let script = format!("cat > /workspace/sloplet.toml <<'END'\n{planted}END\n");
        fs::write(repo.join("build.sh"), script).unwrap();
        let run = ["run", "--mount", ".:/workspace:rw", "--workdir", "/workspace", "--", "sh", "./build.sh"];
        sloplet_in(&host, &sloplet, &repo, &run).finish().expect_code(0);
        assert_eq!(fs::read_to_string(repo.join("sloplet.toml")).unwrap(), planted);
        // The same command again, others in the same folder, and the file by its name.
        for words in [
            &run[..],
            &["run", "--", "true"],
            &["verify", "--probe", "keyrings"],
            &["mcp"],
            &["run", "--config", "sloplet.toml", "--", "true"],
            &["serve", "--config", "sloplet.toml", "--listen", "127.0.0.1:0"],
        ] {
            refused(&sloplet_in(&host, &sloplet, &repo, words).finish(), "secrets");
            assert!(!proof.exists(), "{}: {words:?}", sloplet.name);
        }
        sloplet_in(&host, &sloplet, &repo, &["run", "--no-config", "--", "true"]).finish().expect_code(0);
        assert!(!proof.exists(), "{}", sloplet.name);
    }
}

#[test]
fn create_refuses_an_untrusted_file_too() {
    let host = Host::shared();
    let root = host.root();
    let repo = root.folder("cloned");
    fs::write(repo.join("sloplet.toml"), "[sandbox]\nmounts = [\"/srv:/srv\"]\n").unwrap();
    let server = common::Server::start_with(&root, &[]);
    refused(&sloplet_in(&host, &root, &repo, &["create"]).finish(), "sandbox.mounts");
    sloplet_in(&host, &root, &repo, &["create", "--no-config"]).finish().expect_code(0);
    server.end_with_its_sandboxes();
}

#[test]
fn a_file_that_is_found_tightens_and_does_the_rest_once_it_is_trusted_as_it_is() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let project = sloplet.folder("project");
        let file = project.join("sloplet.toml");
        let sloplet_here = |words: &[&str]| sloplet_in(&host, &sloplet, &project, words).finish();
        fs::write(&file, "[sandbox]\npids = 60\n[protect]\nenv = [\"PAY_KEY\"]\n").unwrap();
        let ended = sloplet_here(&["run", "--env", "PAY_KEY=1", "--", "true"]).expect_code(125);
        assert!(ended.stderr.contains("PAY_KEY"), "{ended}");
        fs::write(&file, "[sandbox]\nhostname = \"filed\"\n").unwrap();
        refused(&sloplet_here(&["run", "--", "hostname"]), "sandbox.hostname");
        assert!(sloplet_here(&["trust"]).expect_code(0).out().contains("sandbox.hostname"));
        assert_eq!(sloplet_here(&["run", "--", "hostname"]).expect_code(0).out(), "filed\n");
        assert!(sloplet_here(&["trust", "--list"]).expect_code(0).out().contains(file.to_str().unwrap()));
        // One more byte, and it is another file.
        fs::write(&file, "[sandbox]\nhostname = \"filed2\"\n").unwrap();
        let ended = sloplet_here(&["run", "--", "hostname"]);
        refused(&ended, "sandbox.hostname");
        assert!(ended.stderr.contains("changed since"), "{ended}");
        sloplet_here(&["trust", "."]).expect_code(0);
        sloplet_here(&["run", "--", "true"]).expect_code(0);
        sloplet_here(&["trust", "--revoke"]).expect_code(0);
        refused(&sloplet_here(&["run", "--", "true"]), "sandbox.hostname");
        sloplet_here(&["trust", "--revoke"]).expect_code(125).expect_said("was not trusted");
        sloplet_here(&["trust", "nowhere.toml"]).expect_code(125).expect_said("nowhere.toml");
    }
}

/// What code inside tries; prints what worked.
const CHANGES: &str = r#"
    cd /workspace
    try() { if sh -c "$1" 2>/dev/null; then echo "did: $1"; fi; }
    try 'echo x >> sloplet.toml'
    try 'rm sloplet.toml'
    try 'mv sloplet.toml other.toml'
    try 'echo x >> .git/config'
    try 'git config core.hooksPath /workspace/evil'
    try 'echo x > .git/hooks/post-commit'
    try 'rmdir .git/hooks || mv .git/hooks .git/other'
    try 'mv .git .other'
    try 'echo x > .envrc'
    echo inside > made
    git add made && git -c user.name=a -c user.email=a@example.com commit -qm inside && echo committed
"#;

#[test]
fn what_configures_the_host_cannot_be_changed_in_a_writable_mount_unless_that_is_asked_for() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let repo = sloplet.folder("guarded");
        let on_host = |script: &str| {
            let script = format!("cd {} && {script}", repo.display());
            sloplet.other_program(&["sh", "-c", &script]).finish().expect_code(0).out()
        };
        on_host("git init -q . && mkdir -p .git/hooks && echo '[sandbox]' > sloplet.toml && echo export A=1 > .envrc");
        let files = "cat sloplet.toml .git/config .envrc && find .git/hooks -name post-commit";
        let before = on_host(files);
        let mount = format!("{}:/workspace:rw", repo.display());
        let ended = sloplet.sh(&["--mount", &mount], CHANGES).expect_code(0);
        assert_eq!(ended.out(), "committed\n", "{}: {ended}", sloplet.name);
        assert_eq!(on_host(files), before, "{}", sloplet.name);
        assert!(on_host("git log --oneline").contains("inside"));
        let script = "echo '# inside' >> /workspace/sloplet.toml";
        sloplet.sh(&["--mount", &format!("{mount},unguarded")], script).expect_code(0);
        assert!(on_host("cat sloplet.toml").ends_with("# inside\n"));
        // A wall that cannot keep them says so.
        let path = repo.display();
        let same = format!("{path}:{path}:rw");
        sloplet.run(&["--isolation", "process", "--mount", &same], &["true"]).expect_code(125).expect_said("unguarded");
    }
}
