//! The way out of a sandbox: what reaches the host's sockets, what does not, and what stays as it was inside. The engine
//! answers every connection with the address that it wanted (`answer` in the example).

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Host, Sloplet};
use crate::engine::{Engine, find, until};

/// Helpers for the programs that run inside.
const INSIDE: &str = r#"
import errno, socket, sys, threading, time

def family(address):
    return socket.AF_INET6 if ':' in address else socket.AF_INET

def ask(address, port, source=None):
    """What whoever is reached by TCP says first."""
    stream = socket.socket(family(address))
    stream.settimeout(10)
    if source: stream.bind((source, 0))
    stream.connect((address, port))
    said = b''
    while not said.endswith(b'\n'):
        more = stream.recv(100)
        if not more: break
        said += more
    stream.close()
    return said.decode().strip()

def question(address, port, what=b'x'):
    """What comes back by UDP, or the name of the error."""
    sock = socket.socket(family(address), socket.SOCK_DGRAM)
    sock.settimeout(10)
    sock.connect((address, port))
    try:
        sock.send(what)
        return sock.recv(1500).decode()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))

def serve(address, port, reuse=True):
    """A server inside that says so."""
    server = socket.socket(family(address))
    if reuse: server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, port))
    server.listen(16)
    def loop():
        while True:
            stream, _ = server.accept()
            stream.sendall(b'inside\n')
            stream.close()
    threading.Thread(target=loop, daemon=True).start()
    return server
"#;

fn both(host: &Host) -> [Sloplet; 2] {
    [host.root(), host.user()]
}

/// Makes a sandbox with a way out, answered by the engine; whether there is IPv6.
fn create(engine: &mut Engine, id: &str, image: &str) -> bool {
    engine.ask(json!({ "do": "create", "id": id, "image": image, "egress": true }));
    answer(engine, id)
}

fn answer(engine: &mut Engine, id: &str) -> bool {
    let sockets = engine.ask(json!({ "do": "answer", "id": id }));
    assert_eq!(sockets["listeners"], 1, "one hears all families: {sockets}");
    sockets["resolvers"] == 2
}

/// Runs a program inside; its output.
#[track_caller]
fn python(engine: &mut Engine, id: &str, program: &str) -> String {
    let script = format!("python3 - <<'END_OF_PROGRAM'\n{INSIDE}\n{program}\nEND_OF_PROGRAM\n");
    engine.sh(id, &script)
}

#[test]
fn every_connection_reaches_the_host_under_the_address_it_wanted() {
    let host = Host::alone();
    for sloplet in both(&host) {
        let leaks = host.leaks();
        let mut engine = Engine::start(&host, &sloplet);
        let ipv6 = create(&mut engine, "one", "host");
        let targets = [
            ("203.0.113.7", 443),
            ("198.19.0.5", 80),
            ("8.8.8.8", 53),
            ("169.254.169.254", 80),
            ("198.18.0.1", 3128),
            ("198.18.0.1", 1),
            ("198.18.0.2", 22),
            ("10.0.0.1", 65535),
        ];
        for (address, port) in targets {
            let said = python(&mut engine, "one", &format!("print(ask('{address}', {port}))"));
            assert_eq!(said, format!("host {address}:{port} from 198.18.0.2"), "{}", sloplet.name);
        }
        if ipv6 {
            for (address, port) in [("2001:db8::7", 80), ("fd53:6c6f:706c:1::5", 443), ("fd53:6c6f:706c::1", 3128)] {
                let said = python(&mut engine, "one", &format!("print(ask('{address}', {port}))"));
                assert_eq!(said, format!("host [{address}]:{port} from fd53:6c6f:706c::2"), "{}", sloplet.name);
            }
        }
        // Whatever the program takes for its own address.
        let said = python(&mut engine, "one", "print(ask('203.0.113.7', 443, '127.0.0.1'))");
        assert_eq!(said, "host 203.0.113.7:443 from 127.0.0.1");
        // Many at once.
        let many = "streams = [socket.create_connection(('203.0.113.9', 80), 10) for _ in range(300)]\n\
                    print(sum(stream.recv(4) == b'host' for stream in streams))";
        assert_eq!(python(&mut engine, "one", many), "300");
        engine.destroy("one");
        engine.end();
        until("nothing is left", || leaks.new_ones().is_empty());
    }
}

#[test]
fn programs_inside_keep_their_ports_and_their_loopback() {
    let host = Host::shared();
    for sloplet in both(&host) {
        let mut engine = Engine::start(&host, &sloplet);
        let ipv6 = create(&mut engine, "one", "host");
        let said = python(
            &mut engine,
            "one",
            "serve('0.0.0.0', 443)\nprint(ask('127.0.0.1', 443), ask('127.0.0.9', 443))\nprint(ask('203.0.113.7', 443))\nprint(ask('198.18.0.2', 443))",
        );
        assert_eq!(
            said, "inside inside\nhost 203.0.113.7:443 from 198.18.0.2\nhost 198.18.0.2:443 from 198.18.0.2",
            "{}",
            sloplet.name
        );
        // Also one that is bound to the very address that another wants.
        let said = python(&mut engine, "one", "serve('203.0.113.7', 444)\nprint(ask('203.0.113.7', 444))");
        assert_eq!(said, "host 203.0.113.7:444 from 198.18.0.2");
        // The host's own port is nobody's on loopback: what is meant for the sandbox itself never reaches the host.
        let said = python(
            &mut engine,
            "one",
            "for address in ('127.0.0.1', '127.0.0.9', '::1'):\n\
             \x20   try: print(ask(address, 1))\n\
             \x20   except OSError as error: print(errno.errorcode[error.errno])",
        );
        let refused = said.lines().all(|line| ["ECONNREFUSED", "EADDRNOTAVAIL"].contains(&line));
        assert!(refused && said.lines().count() == 3, "{}: {said}", sloplet.name);
        // And while somebody is connected to that port outside.
        let held = "held = socket.create_connection(('203.0.113.7', 8443)); held.recv(4)\n\
                    serve('0.0.0.0', 8443); serve('127.0.0.1', 8444, False)\n\
                    print(ask('127.0.0.1', 8443), ask('127.0.0.1', 8444))";
        assert_eq!(python(&mut engine, "one", held), "inside inside");
        if ipv6 {
            let said = python(
                &mut engine,
                "one",
                "serve('::', 443)\nprint(ask('::1', 443), ask('127.0.0.1', 443))\nprint(ask('2001:db8::7', 443))\nprint(ask('203.0.113.7', 443))",
            );
            assert_eq!(
                said,
                "inside inside\nhost [2001:db8::7]:443 from fd53:6c6f:706c::2\nhost 203.0.113.7:443 from 198.18.0.2"
            );
        }
        engine.destroy("one");
        engine.end();
    }
}

#[test]
fn datagrams_reach_the_resolver_and_nobody_else() {
    let host = Host::shared();
    for sloplet in both(&host) {
        let mut engine = Engine::start(&host, &sloplet);
        let ipv6 = create(&mut engine, "one", "host");
        let mut resolvers = vec!["198.18.0.1"];
        let mut foreign =
            vec![("203.0.113.7", 443), ("8.8.8.8", 53), ("198.18.0.1", 54), ("198.18.0.1", 1), ("198.18.0.2", 53)];
        if ipv6 {
            resolvers.push("fd53:6c6f:706c::1");
            foreign.extend([("2001:db8::7", 443), ("fd53:6c6f:706c::1", 54)]);
        }
        for address in resolvers {
            let said = python(&mut engine, "one", &format!("print(question('{address}', 53, b'what'))"));
            assert_eq!(said, "answer to what", "{} {address}", sloplet.name);
        }
        // Those who wait on all addresses hear nothing of what was meant for others.
        let list: Vec<String> = foreign.iter().map(|(address, port)| format!("('{address}', {port})")).collect();
        let program = format!(
            "ports = {{}}\n\
             for port in (443, 53, 54):\n\
             \x20   ports[port] = socket.socket(socket.AF_INET6 if {v6} else socket.AF_INET, socket.SOCK_DGRAM)\n\
             \x20   ports[port].bind(('::' if {v6} else '0.0.0.0', port))\n\
             started = time.monotonic()\n\
             print([question(*target) for target in [{list}]])\n\
             assert time.monotonic() - started < 8\n\
             print(question('198.18.0.1', 53, b'still'))\n\
             for port in ports.values():\n\
             \x20   port.setblocking(False)\n\
             \x20   try: print('heard', port.recv(10))\n\
             \x20   except BlockingIOError: pass\n\
             socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'near', ('127.0.0.1', 443))\n\
             ports[443].settimeout(10); print(ports[443].recv(10).decode())",
            v6 = if ipv6 { "True" } else { "False" },
            list = list.join(", "),
        );
        let refused = vec!["'ECONNREFUSED'"; foreign.len()].join(", ");
        let said = python(&mut engine, "one", &program);
        assert_eq!(said, format!("[{refused}]\nanswer to still\nnear"), "{}", sloplet.name);
        // Nobody inside can answer in the resolver's place.
        let program = "liar = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); liar.bind(('198.18.0.1', 53))\n\
                       asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); asker.bind(('198.18.0.2', 5353))\n\
                       asker.connect(('198.18.0.1', 53)); liar.sendto(b'lie', ('198.18.0.2', 5353))\n\
                       asker.settimeout(10); asker.send(b'truth'); print(asker.recv(100).decode())";
        assert_eq!(python(&mut engine, "one", program), "answer to truth");
        engine.destroy("one");
        engine.end();
    }
}

#[test]
fn nobody_inside_has_power_over_the_way_out() {
    let host = Host::shared();
    for sloplet in both(&host) {
        let mut engine = Engine::start(&host, &sloplet);
        create(&mut engine, "one", "host");
        let program = "\
def attempt(name, what):
    try: what(); print(name, 'WORKED')
    except OSError as error: print(name, errno.errorcode[error.errno])
attempt('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt('ping', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1))
attempt('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt('transparent', lambda: socket.socket().setsockopt(socket.SOL_IP, 19, 1))
attempt('listener', lambda: serve('198.18.0.1', 1))
attempt('resolver', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(('198.18.0.1', 1)))
attempt('netfilter', lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12))
";
        let user = if sloplet.account.is_none() { "root" } else { "user" };
        let script = format!("python3 - <<'END_OF_PROGRAM'\n{INSIDE}\n{program}\nEND_OF_PROGRAM\n");
        let said = engine.ask(json!({ "do": "exec", "id": "one", "user": user, "script": script }));
        let said = said["out"].as_str().unwrap();
        assert_eq!(said.lines().count(), 7, "{said}");
        assert!(!said.contains("WORKED"), "{}: {said}", sloplet.name);
        engine.destroy("one");
        engine.end();
    }
}

#[test]
fn a_sandbox_without_a_way_out_has_none() {
    let host = Host::shared();
    let mut engine = Engine::start(&host, &host.root());
    engine.create("one", "host");
    let none = engine.try_ask(json!({ "do": "answer", "id": "one" }));
    assert!(none["error"].as_str().unwrap().contains("no way out"), "{none}");
    let program = "try: ask('203.0.113.7', 443)\nexcept OSError as error: print(errno.errorcode[error.errno])";
    assert_eq!(python(&mut engine, "one", program), "ENETUNREACH");
    assert_eq!(engine.sh("one", "cat /etc/resolv.conf"), "");
    engine.destroy("one");
    engine.end();
}

#[test]
fn a_way_out_made_ahead_is_used_or_given_up() {
    let host = Host::alone();
    for sloplet in both(&host) {
        let leaks = host.leaks();
        for egress in [true, false] {
            let mut engine = Engine::for_one_with_outlet(&host, &sloplet);
            let made = engine.ask(json!({ "do": "create_tied", "egress": egress }));
            let id = made["id"].as_str().unwrap();
            if egress {
                answer(&mut engine, id);
            }
            let program =
                "try: print(ask('203.0.113.7', 443))\nexcept OSError as error: print(errno.errorcode[error.errno])";
            let expected = if egress { "host 203.0.113.7:443 from 198.18.0.2" } else { "ENETUNREACH" };
            assert_eq!(python(&mut engine, id, program), expected, "{}", sloplet.name);
            engine.destroy(id);
            engine.end();
        }
        // A spawner that makes several makes ways out ahead when it has nothing to do; some sandboxes want none.
        let mut engine = Engine::start(&host, &sloplet);
        for (number, egress) in [true, true, true, false, true, false, false, true].into_iter().enumerate() {
            let id = format!("s{number}");
            engine.ask(json!({ "do": "create", "id": id, "image": "host", "egress": egress }));
            let program =
                "try: print(ask('203.0.113.7', 443))\nexcept OSError as error: print(errno.errorcode[error.errno])";
            if egress {
                answer(&mut engine, &id);
                assert_eq!(python(&mut engine, &id, program), "host 203.0.113.7:443 from 198.18.0.2", "{number}");
            } else {
                assert_eq!(python(&mut engine, &id, program), "ENETUNREACH", "{number}");
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        (0..8).for_each(|number| engine.destroy(&format!("s{number}")));
        engine.end();
        until("nothing is left", || leaks.new_ones().is_empty());
    }
}

#[test]
fn the_way_out_survives_the_engine_and_is_closed_meanwhile() {
    let host = Host::alone();
    for sloplet in both(&host) {
        let leaks = host.leaks();
        let mut engine = Engine::start(&host, &sloplet);
        create(&mut engine, "one", "host");
        engine.create("two", "host");
        assert!(python(&mut engine, "one", "print(ask('203.0.113.7', 443))").starts_with("host"));
        engine.kill();
        let mut engine = Engine::start(&host, &sloplet);
        let adoption = engine.adopt();
        assert!(find(&adoption, "living", "one").is_some(), "{adoption}");
        // Nobody has taken the sockets yet: nothing is said, and nobody inside can say it.
        let program = "serve('0.0.0.0', 443)\n\
                       stream = socket.create_connection(('203.0.113.7', 443), 10); stream.settimeout(0.3)\n\
                       try: print('heard', stream.recv(10))\nexcept TimeoutError: print('nothing')";
        assert_eq!(python(&mut engine, "one", program), "nothing", "{}", sloplet.name);
        answer(&mut engine, "one");
        let said = python(&mut engine, "one", "print(ask('203.0.113.7', 443)); print(question('198.18.0.1', 53))");
        assert_eq!(said, "host 203.0.113.7:443 from 198.18.0.2\nanswer to x");
        let again = engine.try_ask(json!({ "do": "answer", "id": "one" }));
        assert!(again["error"].as_str().unwrap().contains("no way out"), "they are taken once: {again}");
        let none = engine.try_ask(json!({ "do": "answer", "id": "two" }));
        assert!(none["error"].as_str().unwrap().contains("no way out"), "{none}");
        ["one", "two"].iter().for_each(|id| engine.destroy(id));
        engine.end();
        until("nothing is left", || leaks.new_ones().is_empty());
    }
}

/// An image with the host's Python-free basics: a static shell, and whatever the script adds.
fn image(host: &Host, name: &str, script: &str) -> PathBuf {
    let tar = host.dir().join(format!("{name}.tar"));
    let prepare = "set -eu; mkdir -p \"$1\"; cd \"$1\"; mkdir -p etc home/user tmp proc dev sys bin root usr/bin\n\
        chmod 1777 tmp; cp \"$(command -v busybox)\" bin/busybox\n\
        for name in sh cat ls stat rm mv echo touch grep wc head readlink mount umount; do ln -s busybox bin/$name; done\n\
        printf 'root:x:0:0:root:/root:/bin/sh\\nuser:x:1000:1000::/home/user:/bin/sh\\n' >etc/passwd\n";
    let script = format!("{prepare}{script}\ntar -cf \"$2\" .");
    let made = Command::new("sh").args(["-c", &script, "sh"]).arg(host.dir().join(name)).arg(&tar).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    tar
}

/// Imports it and makes a sandbox of it with certificates; what the engine says.
fn with_certificates(host: &Host, sloplet: &Sloplet, engine: &mut Engine, name: &str, script: &str) -> Value {
    let tar = image(host, &format!("{name}-{}", sloplet.name), script);
    sloplet.invoke(&["image", "import", tar.to_str().unwrap(), "--name", name]).finish().expect_code(0);
    engine.try_ask(json!({
        "do": "create", "id": name, "image": name, "egress": true, "certificates": "ADDED CERTIFICATE\n",
    }))
}

const RESOLVER: &str = "nameserver 198.18.0.1\noptions timeout:2 attempts:2";

#[test]
fn files_of_the_host_are_seen_cannot_be_changed_and_are_not_saved() {
    let host = Host::shared();
    for sloplet in both(&host) {
        let mut engine = Engine::start(&host, &sloplet);
        engine.ask(json!({
            "do": "create", "id": "one", "image": "host", "egress": true, "certificates": "ADDED CERTIFICATE\n",
        }));
        assert_eq!(engine.sh("one", "cat /etc/resolv.conf"), RESOLVER, "{}", sloplet.name);
        let bundle = "/etc/ssl/certs/ca-certificates.crt";
        let hosts_own = fs::read_to_string(bundle).unwrap_or_default();
        let seen = engine.sh("one", &format!("cat {bundle}"));
        assert_eq!(seen, format!("{hosts_own}ADDED CERTIFICATE"), "{}", sloplet.name);
        assert_eq!(engine.sh("one", "tail -n 1 /etc/ssl/cert.pem"), "ADDED CERTIFICATE");
        let user = if sloplet.account.is_none() { "root" } else { "user" };
        for path in ["/etc/resolv.conf", bundle] {
            let script = format!(
                "for attempt in 'echo x >{path}' 'rm -f {path}' 'mv {path} /tmp/x' 'chmod 777 {path}' 'umount {path}' \
                 'mount -o remount,rw,bind {path}' 'ln -f /etc/hostname {path}' 'truncate -s 0 {path}'; \
                 do sh -c \"$attempt\" 2>/dev/null && echo \"worked: $attempt\"; done; true"
            );
            let tried = engine.ask(json!({ "do": "exec", "id": "one", "user": user, "script": script }));
            assert_eq!(tried["out"], "", "{}: {tried}", sloplet.name);
        }
        assert_eq!(engine.sh("one", "echo kept >/tmp/kept; cat /etc/resolv.conf"), RESOLVER);
        let saved = engine.ask(json!({ "do": "snapshot", "id": "one", "name": "saved" }));
        let layer = PathBuf::from(saved["layers"][0].as_str().unwrap());
        for path in ["etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt", "etc/ssl/cert.pem", "put/0"] {
            let content = fs::read_to_string(layer.join(path)).unwrap_or_default();
            assert_eq!(content, "", "{path} is in the snapshot");
        }
        // Without a way out there is nothing of it, with one it is there again.
        engine.create("two", "saved");
        assert_eq!(
            engine.sh("two", &format!("cat /tmp/kept /etc/resolv.conf; grep -c ADDED {bundle} || true")),
            "kept\n0"
        );
        engine.ask(json!({ "do": "create", "id": "three", "image": "saved", "egress": true }));
        assert_eq!(engine.sh("three", "cat /etc/resolv.conf"), RESOLVER);
        ["one", "two", "three"].iter().for_each(|id| engine.destroy(id));
        engine.end();
    }
}

#[test]
fn images_cannot_lead_the_hosts_files_elsewhere() {
    let host = Host::shared();
    let outside = host.dir().join("outside");
    fs::write(&outside, "outside").unwrap();
    for sloplet in [host.root(), host.user(), host.stranger()] {
        let mut engine = Engine::start(&host, &sloplet);
        let seen = |engine: &mut Engine, id: &str| {
            let script = "cat /etc/resolv.conf; cat /etc/ssl/certs/ca-certificates.crt";
            let seen = engine.sh(id, script);
            engine.destroy(id);
            seen
        };
        let plain = format!("{RESOLVER}\nADDED CERTIFICATE");
        let escape = outside.display();
        let tricks = [
            ("absent", String::new(), plain.clone()),
            (
                "dangling",
                "mkdir -p etc/ssl/certs; ln -s ../run/systemd/resolve/stub-resolv.conf etc/resolv.conf".into(),
                plain.clone(),
            ),
            (
                "escaping",
                format!(
                    "mkdir -p etc/ssl/certs; ln -s ../../../../../..{escape} etc/resolv.conf; \
                     ln -s {escape} etc/ssl/certs/ca-certificates.crt"
                ),
                plain.clone(),
            ),
            (
                "magic",
                "mkdir -p etc/ssl/certs; ln -s /proc/self/maps etc/resolv.conf; \
                 ln -s /proc/self/maps etc/ssl/certs/ca-certificates.crt"
                    .into(),
                plain.clone(),
            ),
            (
                "fifo",
                "mkdir -p etc/ssl/certs; mkfifo etc/resolv.conf etc/ssl/certs/ca-certificates.crt".into(),
                plain.clone(),
            ),
            (
                "device",
                "mkdir -p etc/ssl/certs; ln -s /dev/zero etc/ssl/certs/ca-certificates.crt; ln -s /dev/null etc/resolv.conf"
                    .into(),
                plain.clone(),
            ),
            (
                "huge",
                "mkdir -p etc/ssl/certs; head -c 5000000 /dev/zero >etc/ssl/certs/ca-certificates.crt".into(),
                plain.clone(),
            ),
            (
                "linked",
                "mkdir -p etc/ssl usr/certs etc/real; ln -s ../../usr/certs etc/ssl/certs; echo own >etc/real/bundle; \
                 ln -s ../../etc/real/bundle usr/certs/ca-certificates.crt; echo old >etc/real/resolv; \
                 ln -s real/resolv etc/resolv.conf"
                    .into(),
                format!("{RESOLVER}\nown\nADDED CERTIFICATE"),
            ),
        ];
        for (name, script, expected) in tricks {
            let made = with_certificates(&host, &sloplet, &mut engine, name, &script);
            assert!(made["error"].is_null(), "{} {name}: {made}", sloplet.name);
            assert_eq!(seen(&mut engine, name), expected, "{} {name}", sloplet.name);
        }
        // Where no file can be, that is said.
        let made = with_certificates(&host, &sloplet, &mut engine, "folder", "mkdir -p etc/resolv.conf");
        assert!(made["error"].as_str().unwrap().contains("a folder there"), "{made}");
        // Names of the loopback are known, and an image's own file stays.
        let made = with_certificates(&host, &sloplet, &mut engine, "names", "echo '127.0.0.1 mine' >etc/hosts");
        assert!(made["error"].is_null(), "{made}");
        let hosts = engine.sh("names", "cat /etc/hosts");
        assert!(hosts.starts_with("127.0.0.1 mine\n127.0.0.1 localhost\n"), "{hosts}");
        engine.destroy("names");
        let made = with_certificates(&host, &sloplet, &mut engine, "nameless", "");
        assert!(made["error"].is_null(), "{made}");
        let hosts = engine.sh("nameless", "cat /etc/hosts");
        assert!(hosts.contains("127.0.0.1 localhost"), "{hosts}");
        let user = if sloplet.name == "stranger" { "user" } else { "root" };
        let changed = json!({ "do": "exec", "id": "nameless", "user": user, "script": "echo 1.2.3.4 x >>/etc/hosts" });
        assert_eq!(engine.ask(changed)["code"], 0, "it is the sandbox's own");
        engine.destroy("nameless");
        engine.end();
        assert_eq!(fs::read_to_string(&outside).unwrap(), "outside");
    }
}
