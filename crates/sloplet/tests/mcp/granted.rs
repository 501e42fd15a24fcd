//! What a conversation was granted, and its end: money, and links to ports.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Host, Server, World};
use crate::hostile::Raw;

fn call(raw: &mut Raw, id: u64, tool: &str, arguments: Value) -> Value {
    raw.ask(id, "tools/call", json!({"name": tool, "arguments": arguments}))["result"].clone()
}

fn text(result: &Value) -> String {
    let blocks = result["content"].as_array().unwrap();
    blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}

fn end(mut raw: Raw) {
    drop(raw.running.stdin.take());
    raw.running.finish().expect_code(0);
}

/// Calls a model until it is refused, and prints how often it was not, and what it was told.
const SPEND: &str = "
import json, os, urllib.error, urllib.request
asked = {'model': 'claude-haiku-4-5', 'max_tokens': 200, 'messages': [{'role': 'user', 'content': 'hello'}]}
for answers in range(50):
    request = urllib.request.Request('https://api.anthropic.com/v1/messages', json.dumps(asked).encode(),
        {'Authorization': 'Bearer ' + os.environ['ANTHROPIC_API_KEY'], 'Content-Type': 'application/json'})
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        print(answers, error.code, error.read().decode())
        break
";

#[test]
fn money_that_is_used_up_is_told_inside_and_to_the_model() {
    let host = Host::shared();
    let world = World::new(&host);
    let sloplet = world.around(host.root()).with("ANTHROPIC_API_KEY", "sk-ant-real-key-0123456789abcdef");
    let served = Server::start(&sloplet);
    fs::write(world.dir.join("share/spend.py"), SPEND).unwrap();
    let mount = world.mount();
    let secret = "--secret=ANTHROPIC_API_KEY@api.anthropic.com;prefix=sk-ant-";
    let mut raw = Raw::start(&served, &["--budget-usd=0.003", secret, &mount]);
    raw.greet();
    let ran = raw.exec(1, "python3 -B /world/spend.py");
    let said = ran["structuredContent"]["stdout"].as_str().unwrap().to_owned();
    let mut words = said.split(' ');
    let answers: usize = words.next().unwrap().parse().unwrap_or_else(|_| panic!("{ran}"));
    assert!(answers > 0 && answers == world.seen_of("call").len(), "{said}");
    assert_eq!(words.next(), Some("402"), "{said}");
    assert!(said.contains("budget"), "{said}");
    // What the model is told of it: what was spent, that it was too little, and who can change that.
    let status = call(&mut raw, 2, "network_status", json!({}));
    assert_eq!(status["structuredContent"]["exhausted"], true, "{status}");
    assert_eq!(status["structuredContent"]["budget_usd"], 0.003, "{status}");
    let told = text(&status);
    assert!(told.contains("used up") && told.contains("--budget-usd"), "{told}");
    end(raw);
    served.end();
}

#[test]
fn a_link_to_a_port_opens_it_for_whoever_has_it_while_the_conversation_lasts() {
    let host = Host::shared();
    let sloplet = host.root();
    // For everybody: but a link is to an address that a browser can open.
    let served = Server::start_at(&sloplet, "0.0.0.0:0", &["--public", "--destroy-on-exit"]);
    let mut raw = Raw::start(&served, &[]);
    raw.greet();
    let early = call(&mut raw, 1, "exec", json!({"command": "mkdir site; echo a page > site/index.html"}));
    assert_eq!(early["structuredContent"]["exit_code"], 0, "{early}");
    let unused = call(&mut raw, 2, "expose_port", json!({"port": 8000}));
    assert!(text(&unused).contains("Nothing listens there yet"), "{unused}");
    let started = json!({"command": "exec python3 -m http.server 8000", "cwd": "/home/user/site"});
    let server = call(&mut raw, 3, "start_process", started);
    assert_eq!(server["isError"], false, "{server}");
    let wait = "import socket, time; a = ('127.0.0.1', 8000); \
                any(not socket.socket().connect_ex(a) or time.sleep(.05) for _ in range(200))";
    raw.exec(4, &format!("python3 -c \"{wait}\""));
    let link = call(&mut raw, 5, "expose_port", json!({"port": 8000, "minutes": 1}));
    assert_eq!(link["structuredContent"]["listening"], true, "{link}");
    let url = link["structuredContent"]["url"].as_str().unwrap().to_owned();
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    assert!(text(&link).contains("1 minutes") && text(&link).contains("own machine"), "{link}");
    let jar = sloplet.folder("browser").join("jar");
    let open = |url: &str, jar: &Path| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-L", "--max-time", "20", "-w", " %{http_code}", "-b"]).arg(jar).arg("-c").arg(jar).arg(url);
        let output = curl.env_clear().env("PATH", "/usr/bin:/bin").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    // A browser without the link, or with one for another port, has nothing of it.
    let bare = url.split('?').next().unwrap();
    for other in [bare.to_owned(), url.replace("/8000/", "/22/"), format!("{url}0")] {
        let refused = open(&other, &sloplet.folder("nobody").join("jar"));
        assert!(!refused.contains("a page") && refused.ends_with(" 401"), "{other}: {refused}");
    }
    assert_eq!(open(&url, &jar), "a page\n 200");
    end(raw);
    let over = open(&url, &jar);
    assert!(!over.contains("a page"), "{over}");
    served.end();
}
