//! What a sandbox changed, brought out: lists and patches.
//!
//! - [`git`]: repositories whose keys stay outside.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod git;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use common::{Ended, Host, Invocation, Server, Sloplet};
use serde_json::Value;

/// A command with the server's key.
fn invoke(served: &Server, words: &[&str]) -> Invocation {
    let url = format!("http://{}", served.address);
    served.invoke(words).env("SLOPLET_URL", &url).env("SLOPLET_API_KEY", &served.key)
}

fn command(served: &Server, words: &[&str]) -> Ended {
    invoke(served, words).finish()
}

/// What a script shows inside.
#[track_caller]
fn inside(served: &Server, name: &str, script: &str) -> String {
    command(served, &["exec", name, "--", "sh", "-ec", script]).expect_code(0).out()
}

#[track_caller]
fn outside(folder: &Path, script: &str) -> Output {
    let done = Command::new("sh")
        .args(["-ec", script])
        .current_dir(folder)
        .envs([("HOME", folder.to_str().unwrap()), ("GIT_CONFIG_NOSYSTEM", "1")])
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{script}: {}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    done
}

#[track_caller]
fn end(served: Server) {
    command(&served, &["rm", "--all"]).expect_code(0);
    served.end_with_its_sandboxes();
}

fn both(host: &Host) -> Vec<Sloplet> {
    vec![host.root(), host.user()]
}

const BEFORE: &str = r#"
mkdir -p project/sub project/gone
cd project
seq 1 30 >lines
printf 'no end' >open
printf 'a\0b' >binary
echo x >script
echo x >gone/one
echo x >removed
echo x >touched
echo x >"sp ace"
echo x >turned
"#;

const AFTER: &str = r#"
cd project
sed -i 's/^15$/fifteen/' lines
printf 'no end now\n' >open
printf 'a\0c' >binary
chmod +x script
rm -r gone removed turned
touch touched
echo y >>"sp ace"
ln -s lines turned
mkdir sub/deep
printf 'new' >sub/deep/new
: >empty
printf 'x' >"$(printf 'h\303\274\n\033[2J\"\\q')"
mkfifo pipe
"#;

#[test]
fn what_changed_is_listed_and_a_patch_of_it_makes_the_same_changes_elsewhere() {
    let host = Host::shared();
    for sloplet in both(&host) {
        let served = Server::start(&sloplet);
        command(&served, &["create", "--name=first"]).expect_code(0);
        assert_eq!(command(&served, &["diff", "first"]).expect_code(0).out(), "", "nothing happened yet");
        inside(&served, "first", BEFORE);
        // The baseline is the snapshot that another one is made from.
        command(&served, &["snapshot", "first", "start"]).expect_code(0);
        command(&served, &["create", "--name=my", "--image=start"]).expect_code(0);
        inside(&served, "my", AFTER);
        let ended = command(&served, &["diff", "my"]).expect_code(0);
        let listed: Vec<String> = ended.out().lines().map(|line| line.replace("/home/user/project/", "")).collect();
        let expected = [
            "M binary  (3 B → 3 B)",
            "A empty  (0 B)",
            "D gone/",
            "D gone/one",
            "A hü\\n\\u{1b}[2J\\\\\\\"\\\\q  (1 B)",
            "M lines  (81 B → 86 B)",
            "M open  (6 B → 11 B)",
            "A pipe",
            "D removed",
            "m script  (0644 → 0755)",
            "M sp ace  (2 B → 4 B)",
            "A sub/deep/",
            "A sub/deep/new  (3 B)",
            "M turned  (file → symlink)",
        ];
        assert_eq!(listed, expected, "{}", sloplet.name);
        let shown: Value =
            command(&served, &["diff", "my", "/home/user/project/sub", "/etc", "--json"]).expect_code(0).json();
        let paths: Vec<&str> =
            shown["changes"].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["/home/user/project/sub/deep", "/home/user/project/sub/deep/new"]);
        assert_eq!((shown["image"].as_str(), shown["truncated"].as_bool()), (Some("start"), Some(false)));
        command(&served, &["diff", "my", "project"]).expect_code(125).expect_said("absolute");
        served.ask("GET", "/sandboxes/my/changes?path=/a/../b", None).expect_refusal(400);

        // The same changes on the host, made by git and by patch.
        let folder = host.dir().join(format!("patched-{}", sloplet.name.replace(' ', "-")));
        fs::create_dir_all(&folder).unwrap();
        let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let archive =
            |name: &str| served.ask("GET", &format!("/sandboxes/{name}/archive?path=project"), None).expect(200).body;
        for (name, sandbox) in [("before", "first"), ("after", "my")] {
            fs::create_dir_all(at(name)).unwrap();
            fs::write(at("a.tar"), archive(sandbox)).unwrap();
            outside(&folder, &format!("tar -xf a.tar -C {name} --no-same-owner --exclude=pipe"));
        }
        let patch = command(&served, &["patch", "my", "project"]).expect_code(0);
        fs::write(at("x.patch"), &patch.stdout).unwrap();
        assert!(patch.out().starts_with("# left out: home/user/project/pipe: it is neither"), "{patch}");
        assert!(!patch.stdout.contains(&0x1b), "a name steers the terminal");
        outside(
            &folder,
            "cp -a before git; cp -a before patch; cd git; git apply --check ../x.patch; git apply ../x.patch",
        );
        outside(&folder, "diff -r --no-dereference after git; test -x git/script; test ! -e git/gone");
        // GNU patch knows neither binary patches nor quoted names with escapes it has not seen; the rest it does.
        outside(
            &folder,
            "cd patch; grep -v 'left out' ../x.patch >y; patch -sp1 <y || true; rm y; cmp lines ../after/lines; cmp open ../after/open; cmp 'sp ace' '../after/sp ace'; test ! -e removed; cmp sub/deep/new ../after/sub/deep/new",
        );
        // One file, and something that is none.
        assert!(command(&served, &["patch", "my", "project/lines"]).expect_code(0).out().contains("+fifteen"));
        command(&served, &["patch", "my", "nowhere/at/all"]).expect_code(125);
        command(&served, &["patch", "my", "project", "--baseline=head"])
            .expect_code(125)
            .expect_said("no work tree of git");

        // Stopped, and resumed, it is still compared with what it was made from; paused, too.
        command(&served, &["stop", "my"]).expect_code(0);
        assert_eq!(command(&served, &["diff", "my"]).expect_code(0).out(), ended.out());
        command(&served, &["resume", "my"]).expect_code(0);
        inside(&served, "my", "echo late >late");
        let more = command(&served, &["diff", "my"]).expect_code(0).out();
        assert!(more.contains("A /home/user/late") && more.contains("D /home/user/project/removed"), "{more}");
        command(&served, &["pause", "my"]).expect_code(0);
        assert_eq!(command(&served, &["diff", "my"]).expect_code(0).out(), more);
        command(&served, &["diff", "nobody"]).expect_code(125).expect_said("not found");
        fs::remove_dir_all(folder).unwrap();
        end(served);
    }
}

const REPOSITORY: &str = r#"
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com
git init -q repo
cd repo
seq 1 30 >lines
echo x >removed
printf '*.log\n' >.gitignore
git add -A
GIT_AUTHOR_DATE=2001-01-01T00:00:00Z GIT_COMMITTER_DATE=2001-01-01T00:00:00Z git commit -qm first
"#;

#[test]
fn a_patch_of_a_work_tree_is_what_differs_from_its_last_commit() {
    let host = Host::shared();
    let served = Server::start(&host.root());
    command(&served, &["create", "--name=my"]).expect_code(0);
    inside(&served, "my", REPOSITORY);
    assert_eq!(command(&served, &["patch", "my", "repo"]).expect_code(0).out(), "");
    let state = "cd repo; export GIT_OPTIONAL_LOCKS=0; git status --short; git ls-files -s; cat .git/index | sha256sum; find .git/objects | sort | sha256sum";
    // Whatever its configuration says: programs that show differences, colours, other prefixes.
    let script = r#"
        cd repo
        git config diff.external /bin/false; git config diff.noprefix true; git config color.ui always
        git config core.fsmonitor /bin/false; git config diff.x.textconv /bin/false; echo '* diff=x' >.gitattributes
        sed -i 's/^15$/fifteen/' lines; rm removed; echo n >new; echo n >x.log; printf 'a\0' >bin; git add new
        git status >/dev/null
    "#;
    inside(&served, "my", script);
    let before = inside(&served, "my", state);
    let patch = command(&served, &["patch", "my", "repo"]).expect_code(0);
    assert_eq!(inside(&served, "my", state), before, "the work tree is not what it was");
    assert_eq!(inside(&served, "my", "ls -A /tmp"), "", "something is left");
    let folder = host.dir().join("worktree");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("x.patch"), &patch.stdout).unwrap();
    outside(&folder, REPOSITORY);
    let applied = outside(&folder, "cd repo; git apply --index ../x.patch; git diff --cached --name-status");
    let expected = "A\t.gitattributes\nA\tbin\nM\tlines\nA\tnew\nD\tremoved\n";
    assert_eq!(String::from_utf8_lossy(&applied.stdout), expected, "{patch}");
    // Below the top, with the top's names; and against the image if that is wanted.
    inside(&served, "my", "cd repo; mkdir sub; echo s >sub/s");
    let below = command(&served, &["patch", "my", "repo/sub"]).expect_code(0).out();
    assert!(below.starts_with("diff --git a/sub/s b/sub/s\n") && !below.contains("fifteen"), "{below}");
    let image = command(&served, &["patch", "my", "repo", "--baseline=image"]).expect_code(0).out();
    assert!(image.contains("+++ b/x.log") && !image.contains(".git/config"), "{image}");
    // Before the first commit everything is new.
    inside(&served, "my", "git init -q fresh; echo 1 >fresh/file");
    assert!(command(&served, &["patch", "my", "fresh"]).expect_code(0).out().contains("new file mode 100644"));
    fs::remove_dir_all(folder).unwrap();
    end(served);
}
