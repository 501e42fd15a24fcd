//! The way out: nothing, or what was allowed.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::common::World;
use super::{VM, Wall};

/// A key, as the host has it.
const KEY: &str = "sk-ant-real-key-0123456789abcdef";

/// A server on loopback that greets everybody.
pub fn greeter() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut asked = [0; 1024];
            let _ = stream.read(&mut asked);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 8\r\n\r\nreached\n");
        }
    });
    port
}

/// What is allowed is reached, all else is not; within the sandbox everything is.
pub fn test(wall: Wall) {
    let ground = wall.shared();
    let sloplet = ground.root();
    let (open, shut) = (greeter(), greeter());
    let program = format!(
        "import socket,threading,urllib.request\n\
         def ask(name,port):\n  try: return urllib.request.urlopen(f'http://{{name}}:{{port}}/',timeout=10).read().decode().strip()\n  \
         except Exception as e: return 'no'\n\
         print(ask('host.sloplet.internal',{open}), ask('host.sloplet.internal',{shut}), ask('127.0.0.1',{open}), ask('example.com',80))\n\
         s=socket.socket(); s.bind(('127.0.0.1',0)); s.listen(); t=threading.Thread(target=lambda: s.accept()[0].send(b'inside')); t.start()\n\
         c=socket.create_connection(s.getsockname()); print(c.recv(99).decode())"
    );
    let ended = wall.python(&sloplet, &["--allow-host-port", &open.to_string()], &program).expect_code(0);
    assert_eq!(ended.out(), "reached no no no\ninside\n", "{ended}");
    let ended = wall.python(&sloplet, &[], &program).expect_code(0);
    assert_eq!(ended.out(), "no no no no\ninside\n", "{ended}");
}

/// The host's gateway is outside of a machine, too: keys never enter it, and money is counted.
#[test]
fn a_machine_has_keys_that_it_does_not_know_and_a_budget() {
    let ground = VM.shared();
    let world = World::new(&ground.host);
    let sloplet = world.around(ground.root()).with("ANTHROPIC_API_KEY", KEY);
    std::fs::write(world.dir.join("share/agent.py"), include_str!("../egress/agent.py")).unwrap();
    let mount = world.mount();
    let secret = "--secret=ANTHROPIC_API_KEY@api.anthropic.com;prefix=sk-ant-";
    let program = "import json,os,sys\nsys.path.insert(0,'/world')\nimport agent\n\
                   print(json.dumps([[agent.call() for _ in range(16)], os.environ['ANTHROPIC_API_KEY']]))";
    let ended = VM.python(&sloplet, &[&mount, secret, "--budget-usd=0.005"], program).expect_code(0);
    let (statuses, key): (Vec<u64>, String) = serde_json::from_str(ended.out().trim()).unwrap();
    let answered = statuses.iter().filter(|status| **status == 200).count();
    assert!(answered > 0 && statuses.ends_with(&[402]), "{statuses:?}");
    assert!(key.starts_with("sk-ant-") && key != KEY, "{key}");
    let calls = world.seen_of("call");
    assert_eq!(calls.len(), answered, "{calls:?}");
    assert!(calls.iter().all(|call| call.to_string().contains(KEY)), "{calls:?}");
}
