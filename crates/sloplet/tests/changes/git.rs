//! Repositories whose keys stay outside: cloned for a new sandbox, for one command, and in a sandbox that is there.

use std::fs;
use std::path::Path;

use crate::common::{Host, Server, Sloplet, World, tools};
use crate::{REPOSITORY, both, command, end, inside, outside};

/// The key of the repositories, in halves: what looks for it inside must not find itself.
const TOKEN: [&str; 2] = ["ghp_0123456789", "abcdefghijklmnop"];

/// Repositories behind a key: one with a submodule that is behind it, too.
fn repositories(world: &World) {
    let site = world.site();
    fs::create_dir_all(site.join("git")).unwrap();
    let key = base64(&format!("x-access-token:{}", TOKEN.concat()));
    fs::write(site.join("git-auth"), format!("Basic {key}")).unwrap();
    outside(
        &site,
        &format!(
            "{REPOSITORY}cd ..; git clone -q --bare repo git/part.git; cd repo; git -c protocol.file.allow=always submodule --quiet add ../git/part.git part; git config -f .gitmodules submodule.part.url ../part.git; git add -A; git commit -qm second; git branch side; cd ..; git clone -q --bare repo git/repo.git; git -C git/repo.git config http.receivepack true; rm -rf repo"
        ),
    );
}

fn base64(text: &str) -> String {
    let done = outside(Path::new("/"), &format!("printf %s '{text}' | base64 -w0"));
    String::from_utf8(done.stdout).unwrap()
}

/// Looks for the key everywhere inside: files, variables, processes; as it is, and as it is sent.
fn search() -> String {
    let sent = base64(&format!("x-access-token:{}", TOKEN.concat()));
    format!(
        r#"
        set +e
        look() {{
            for key in '{}''{}' '{}''{}'; do
                grep -rlaF -e "$key" / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude-dir=lib
                grep -laF -e "$key" /proc/[0-9]*/environ
                env | grep -F -e "$key"
            done 2>/dev/null
            true
        }}
        "#,
        TOKEN[0],
        TOKEN[1],
        &sent[..20],
        &sent[20..],
    )
}

#[test]
fn a_repository_is_cloned_fetched_and_pushed_without_its_key_inside() {
    let host = Host::shared();
    let world = World::new(&host);
    repositories(&world);
    let url = "--git=https://git.example.com/git/repo.git";
    for sloplet in both(&host) {
        let sloplet = world.around(sloplet).with("GITHUB_TOKEN", &TOKEN.concat()).with("WRONG", "ghp_other");
        let served = Server::start(&sloplet);
        // Without the key, or with a wrong one, there is no sandbox at all.
        for options in [&[url][..], &[url, "--git-token=WRONG"]] {
            let refused = command(&served, &[&["create", "--name=my"], options].concat()).expect_code(125);
            assert!(refused.to_string().contains("cannot clone https://git.example.com/git/repo.git"), "{refused}");
        }
        served.ask("GET", "/sandboxes/my", None).expect_refusal(404);
        let branch = format!("{url}#side");
        let made = ["create", "--name=my", &branch, "--git-token=GITHUB_TOKEN", "--git-depth=1"];
        let made = command(&served, &made).expect_code(0);
        assert_eq!((made.out().as_str(), made.stderr.as_str()), ("my\n", ""));
        let cloned =
            inside(&served, "my", "cd repo; git branch --show-current; git rev-list --count HEAD; cat part/removed");
        assert_eq!(cloned, "side\n1\nx\n", "{}", sloplet.name);
        // Fetching and pushing need nothing either.
        let branch = sloplet.name.replace(' ', "-");
        let pushed = format!(
            "cd repo; git fetch -q --unshallow; git rev-list --count HEAD; echo work >work; git add work; \
             git -c user.name=a -c user.email=a@example.com commit -qm work; git push -q origin HEAD:refs/heads/{branch}"
        );
        assert_eq!(inside(&served, "my", &pushed), "2\n");
        let there = outside(&world.site(), &format!("git -C git/repo.git show {branch}:work"));
        assert_eq!(String::from_utf8_lossy(&there.stdout), "work\n");
        // Nowhere inside; what is there would be found.
        let sent = base64(&format!("x-access-token:{}", TOKEN.concat()));
        let search = format!(
            r#"
            {}
            look
            git -C repo config --list --show-origin | grep -iE 'credential|extraheader|insteadof|@'
            git -C repo remote get-url origin
            echo '{}''{}' >/tmp/canary; look; rm /tmp/canary
            "#,
            search(),
            TOKEN[0],
            TOKEN[1]
        );
        let found = inside(&served, "my", &search);
        assert_eq!(found, "https://git.example.com/git/repo.git\n/tmp/canary\n", "{}", sloplet.name);
        // Others do not get it, and a host that shows what it was sent shows what stands for it.
        let asked = inside(
            &served,
            "my",
            "curl -sS https://git.example.com/headers; curl -sS https://example.com/headers || echo; echo refused",
        );
        assert!(!asked.contains(TOKEN[0]) && !asked.contains(&sent) && asked.contains("refused"), "{asked}");
        let patch = command(&served, &["patch", "my", "repo"]).expect_code(0).out();
        assert_eq!(patch, "", "all is committed");
        end(served);
    }
    let refused = |words: &[&str], hint: &str| {
        let said = host.root().invoke(&[&["create"], words].concat()).finish();
        assert!(said.code != 0 && said.to_string().contains(hint), "{said}");
    };
    refused(&["--git=https://me:ghp_x@example.com/r"], "--git-token");
    refused(&["--git=git@example.com:team/r.git"], "https://example.com/team/r.git");
    refused(&[url, "--git-token=ghp_secret"], "never given here");
    refused(&["--git-token=GITHUB_TOKEN"], "--git");
}

#[test]
fn a_command_runs_in_a_clone_without_the_key_inside() {
    let host = Host::shared();
    let world = World::new(&host);
    repositories(&world);
    let url = "--git=https://git.example.com/git/repo.git#side";
    for sloplet in both(&host) {
        let sloplet = world.around(sloplet).with("GITHUB_TOKEN", &TOKEN.concat());
        let branch = format!("run-{}", sloplet.name.replace(' ', "-"));
        let script = format!(
            "{}basename \"$PWD\"; git branch --show-current; cat part/removed; echo work >work; git add work; \
             git -c user.name=a -c user.email=a@example.com commit -qm work; git push -q origin HEAD:refs/heads/{branch}; look; \
             curl -sS https://example.com/ || echo refused",
            search()
        );
        let ran = sloplet.sh(&[url, "--git-token=GITHUB_TOKEN", "--git-depth=1"], &script).expect_code(0);
        assert_eq!(ran.out(), "repo\nside\nx\nrefused\n", "{}: {ran}", sloplet.name);
        let there = outside(&world.site(), &format!("git -C git/repo.git show {branch}:work"));
        assert_eq!(String::from_utf8_lossy(&there.stdout), "work\n");
    }
    // No clone, no command.
    let sloplet = world.around(host.root()).with("WRONG", "ghp_other");
    let refused = sloplet.sh(&[url, "--git-token=WRONG"], "echo started").expect_code(125);
    assert_eq!(refused.out(), "");
    refused.expect_said("cannot clone https://git.example.com/git/repo.git");
    let refused = host.root().sh(&["--git-token=GITHUB_TOKEN"], "true");
    assert!(refused.code != 0 && refused.to_string().contains("--git"), "{refused}");
}

/// What the SDK's own call does, in sandboxes that know of nothing when they are made.
const SDK: &str = r#"
import asyncio, os, sys
from sloplet import AsyncSandbox, GitCredentials, InvalidRequestError, Sandbox, SandboxError

URL, TOKEN = "https://git.example.com/git/repo.git", os.environ["GITHUB_TOKEN"]
AS = "git -c user.name=a -c user.email=a@example.com"

def refused(what, **credentials):
    try:
        what(**credentials)
    except SandboxError as error:
        assert TOKEN not in str(error), error
        return str(error)
    raise SystemExit(f"{credentials} were good enough")

sandbox = Sandbox.create(image="host", name="sdk", ttl="10m")
check = lambda **more: sandbox.git_checkout(URL, "/home/user/repo", branch="side", **more)
said = refused(check); assert "resolve host" in said, said
said = refused(check, credentials="ghp_other"); assert "could not read Username" in said, said
said = refused(lambda **more: sandbox.git_checkout("http://git.example.com/git/repo.git", "/x", **more), credentials=TOKEN); assert "HTTPS" in said, said
said = refused(lambda **more: sandbox.git_checkout("https://a:b@git.example.com/r", "/x", **more), credentials=TOKEN); assert "address" in said, said
said = refused(check, credentials=GitCredentials(ssh_key="k")); assert "SSH" in said, said
check(credentials=GitCredentials(token=TOKEN))
assert sandbox.exec("cd repo && git branch --show-current && git rev-list --count HEAD", check=True).stdout == "side\n1\n"
assert sandbox.exec("curl -sS https://example.com/").exit_code == 6, "others are not reached"
assert len(sandbox.refresh().raw["secrets"]) == 1 and TOKEN not in str(sandbox.info.raw)
(fork,) = sandbox.fork(name="fork", ttl="10m")

async def main():
    async with await AsyncSandbox.create(image="host", ttl="10m") as other:
        await other.git_checkout(URL, "/home/user/repo", credentials=TOKEN)
        assert (await other.exec("cat repo/removed", check=True)).stdout == "x\n"

asyncio.run(main())
"#;

#[test]
fn a_sandbox_that_is_there_is_given_a_key_that_stays_outside() {
    let host = Host::shared();
    let world = World::new(&host);
    repositories(&world);
    for sloplet in both(&host) {
        let sloplet = world.around(sloplet).with("GITHUB_TOKEN", &TOKEN.concat());
        let served = Server::start(&sloplet);
        let branch = format!("sdk-{}", sloplet.name.replace(' ', "-"));
        assert_eq!(sdk(&host, &served, &sloplet), "");
        let fetch = format!("{}cd repo; git fetch -q --unshallow && git rev-list --count HEAD; look", search());
        assert_eq!(inside(&served, "fork", &fetch), "2\n", "a fork has an authority of its own");
        // What follows does not depend on who the server is.
        if sloplet.name != host.root().name {
            end(served);
            continue;
        }
        // Another server goes on with it, and so does another machine.
        let key = served.key.clone();
        served.kill();
        let mut served = Server::start(&sloplet);
        served.key = key;
        assert_eq!(inside(&served, "sdk", &fetch), "2\n");
        let env = inside(&served, "sdk", "env");
        assert!(!env.contains("java-trust") && env.contains("GIT_TOKEN_"), "{env}");
        command(&served, &["stop", "sdk"]).expect_code(0);
        command(&served, &["resume", "sdk"]).expect_code(0);
        let push = format!("{}cd repo; git push -q origin HEAD:refs/heads/{branch}; look", search());
        assert_eq!(inside(&served, "sdk", &push), "");
        outside(&world.site(), &format!("git -C git/repo.git rev-parse {branch}"));
        // Only such as nobody inside has to know of, and only for what the key may reach.
        let give = |key: &str, secret: serde_json::Value| {
            let body = serde_json::json!({"secrets": [secret]});
            served.ask_as(key, "PUT", "/sandboxes/sdk/secrets", Some(body))
        };
        let plain = serde_json::json!({"name": "A", "value": "x", "hosts": ["example.com"]});
        assert!(give(&served.key, plain).expect_refusal(400).contains("basic authentication"));
        let reader = served.new_key(&["reader", "--scope", "read"]);
        let basic = serde_json::json!({"name": "A", "value": "x", "hosts": ["example.com"], "basic": "u"});
        give(&reader, basic).expect_refusal(403);
        let near = serde_json::json!({"name": "A", "value": "x", "hosts": ["127.0.0.1:22"], "basic": "u"});
        let mate = served.new_key(&["mate", "--scope", "use"]);
        let body = serde_json::json!({"secrets": [near]});
        served.ask_as(&mate, "POST", "/sandboxes", Some(body.clone())).expect_refusal(403);
        served.ask_as(&mate, "POST", "/sandboxes", Some(serde_json::json!({"name": "theirs"}))).expect(201);
        served.ask_as(&mate, "PUT", "/sandboxes/theirs/secrets", Some(body)).expect_refusal(403);
        served.ask_as(&mate, "DELETE", "/sandboxes/theirs", None);
        end(served);
    }
}

/// Runs the script with the SDK.
fn sdk(host: &Host, served: &Server, sloplet: &Sloplet) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/python").canonicalize().unwrap();
    let python = tools::python("python-sdk");
    let copy = host.dir().join(format!("sdk-{}", sloplet.name.replace(' ', "-")));
    let (python, source, copied) = (python.to_str().unwrap(), source.to_str().unwrap(), copy.to_str().unwrap());
    outside(
        host.dir(),
        &format!("cp -r {source} {copied}; {python} {copied}/unasync.py >/dev/null; chmod -R a+rX {copied}"),
    );
    let url = format!("http://{}", served.address);
    let ran = sloplet.other_program(&[python, "-c", SDK]).env("PYTHONPATH", copy.join("src").to_str().unwrap());
    ran.env("SLOPLET_URL", &url).env("SLOPLET_API_KEY", &served.key).finish().expect_code(0).out()
}
