//! Programs that know nothing of any of this.

use std::fs;
use std::process::Command;

use serde_json::json;

use crate::common::{Host, Sloplet, World, tools};
use crate::{both, python};

/// Programs are told whom to trust as they are told on any machine.
const TRUST: [&str; 6] = [
    "--env=SSL_CERT_FILE=/world/ca.pem",
    "--env=CURL_CA_BUNDLE=/world/ca.pem",
    "--env=GIT_SSL_CAINFO=/world/ca.pem",
    "--env=NODE_EXTRA_CA_CERTS=/world/ca.pem",
    "--env=PIP_CERT=/world/ca.pem",
    "--env=PIP_DISABLE_PIP_VERSION_CHECK=1",
];

const ALLOW: [&str; 3] = ["--allow=example.com", "--allow=*.example.com:*", "--allow=example.org:25"];

/// Runs a script that must succeed.
#[track_caller]
fn succeeds(sloplet: &Sloplet, world: &World, script: &str) -> String {
    let mount = world.mount();
    let options = [&ALLOW[..], &TRUST, &[mount.as_str(), "--workdir=/tmp"]].concat();
    sloplet.sh(&options, &format!("set -e\n{script}")).expect_code(0).out()
}

#[test]
fn curl_and_wget_work_and_are_told_why_not() {
    let host = Host::shared();
    let world = World::new(&host);
    for sloplet in both(&host, &world) {
        let out = succeeds(
            &sloplet,
            &world,
            r#"
            for url in http://example.com/a https://example.com/b https://x.example.com:8443/c; do curl -sSf "$url"; echo; done
            curl -sS -L 'http://example.com/redirect?to=https://example.com/d'; echo
            curl -sS -d hello https://example.com/e; echo
            curl -sS --http2 https://example.com/f; echo
            curl -sS -x http://198.18.0.1:3128 http://example.com/g; echo
            curl -sS -x http://198.18.0.1:3128 https://example.com/h; echo
            https_proxy=http://198.18.0.1:3128 curl -sS https://example.com/i; echo
            if command -v wget >/dev/null; then wget -qO- --ca-certificate=/world/ca.pem https://example.com/j; else echo '"/j"'; fi; echo
            "#,
        );
        for path in ["a", "b", "c", "d", "f", "g", "h", "i", "j"] {
            assert!(out.contains(&format!("\"/{path}\"")), "/{path} is missing ({}): {out}", sloplet.name);
        }
        assert!(out.contains("\n5\n"), "{out}");
        let refused = r#"
            curl -s http://example.com:8080/; echo "= $?"
            curl -s http://example.org/; echo "= $?"
            curl -s https://example.org/; echo "= $?"
            curl -s http://45.33.10.1/; echo "= $?"
            curl -s -x http://198.18.0.1:3128 http://example.org/; echo "= $?"
            curl -s -x http://198.18.0.1:3128 https://example.org/; echo "= $?"
            curl -s https://45.33.10.1/; echo "= $?"
        "#;
        let mount = world.mount();
        let out = sloplet.sh(&["--allow=example.com", "--allow=example.org:25", &mount], refused).expect_code(0).out();
        let codes: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("= ")).collect();
        // 56: the proxy said 403 to CONNECT; 35: the handshake was refused.
        assert_eq!(codes, ["0", "0", "35", "0", "0", "56", "35"], "{out}");
        for told in [
            "example.com:8080 may not be reached from this sandbox",
            "--allow example.com:8080",
            "example.org:80 may not be reached from this sandbox",
            "45.33.10.1:80 may not be reached from this sandbox",
        ] {
            assert!(out.contains(told), "nothing about '{told}': {out}");
        }
    }
}

#[test]
fn git_clones_over_http_and_https() {
    let host = Host::shared();
    let world = World::new(&host);
    let made = Command::new("sh")
        .args(["-ec", "git init -q work; cd work; echo hello >file; git add file; git -c user.name=a -c user.email=a@example.com commit -qm a; cd ..; git clone -q --bare work repository.git; cd repository.git; git update-server-info"])
        .current_dir(world.site())
        .env("HOME", world.site())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    for sloplet in both(&host, &world) {
        let script = r#"
            export HOME=/tmp
            git=/usr/bin/git; [ -x $git ] || git=/usr/local/bin/git
            $git clone -q https://git.example.com/site/repository.git one
            $git clone -q http://git.example.com/site/repository.git two
            $git clone -q https://example.org/site/repository.git three 2>error && exit 3
            cat one/file two/file
        "#;
        assert_eq!(succeeds(&sloplet, &world, script), "hello\nhello\n", "{}", sloplet.name);
    }
}

/// The smallest package that can be installed, made without any tools of packaging.
const WHEEL: &str = "
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + '/sloplet_demo-1.0-py3-none-any.whl', 'w') as wheel:
    info = 'sloplet_demo-1.0.dist-info/'
    wheel.writestr('sloplet_demo.py', 'word = \"installed\"\\n')
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: sloplet-demo\\nVersion: 1.0\\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(info + 'RECORD', ''.join(name + ',,\\n' for name in wheel.namelist() + [info + 'RECORD']))
";

#[test]
fn python_and_pip_work() {
    let host = Host::shared();
    let world = World::new(&host);
    let folder = world.site().join("simple/sloplet-demo");
    fs::create_dir_all(&folder).unwrap();
    let made = Command::new("/usr/bin/python3").args(["-c", WHEEL]).arg(&folder).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    for sloplet in both(&host, &world) {
        let script = r#"
            export HOME=/tmp
            python3 -c 'import urllib.request as r; print(r.urlopen("https://example.com/").status)'
            https_proxy=http://198.18.0.1:3128 python3 -c 'import urllib.request as r; print(r.urlopen("https://example.com/").status)'
            python3 -m venv venv
            venv/bin/pip -q install --index-url https://index.example.com/site/simple/ sloplet-demo
            venv/bin/python -c 'import sloplet_demo; print(sloplet_demo.word)'
            venv/bin/pip -q install --retries 0 --index-url https://example.org/site/simple/ nothing 2>&1 | grep -c 'No matching distribution' || true
        "#;
        assert_eq!(succeeds(&sloplet, &world, script), "200\n200\ninstalled\n1\n", "{}", sloplet.name);
    }
}

#[test]
fn apt_gets_its_lists() {
    let host = Host::shared();
    let world = World::new(&host);
    let folder = world.site().join("debian");
    fs::create_dir_all(&folder).unwrap();
    fs::write(
        folder.join("Packages"),
        "Package: sloplet-demo\nVersion: 1.0\nArchitecture: all\nFilename: none.deb\nSize: 0\n",
    )
    .unwrap();
    let script = r#"
        mkdir -p state/lists/partial cache/archives/partial
        echo 'deb [trusted=yes] https://apt.example.com/site/debian ./' >list
        set -- -o Dir::Etc::SourceList=/tmp/list -o Dir::Etc::SourceParts=/none -o Dir::State=/tmp/state -o Dir::Cache=/tmp/cache \
            -o Dir::State::status=/dev/null -o APT::Sandbox::User= -o Acquire::https::CAInfo=/world/ca.pem -o Acquire::Languages=none
        apt-get "$@" -q update >log 2>&1 || { cat log; exit 1; }
        apt-cache "$@" show sloplet-demo | head -1
    "#;
    for sloplet in both(&host, &world) {
        assert_eq!(succeeds(&sloplet, &world, script), "Package: sloplet-demo\n", "{}", sloplet.name);
    }
}

#[test]
fn node_works() {
    let host = Host::shared();
    let world = World::new(&host);
    let script = r#"
        cat >fetch.mjs <<'END'
        import http from "node:http";
        const plain = await fetch("http://example.com/a"), secure = await fetch("https://example.com/b");
        const denied = await fetch("http://example.com:8080/c").then((r) => r.status);
        const unknown = await fetch("https://other.example.net/").then(() => "reached", (error) => error.cause.code);
        const many = await Promise.all(Array.from({ length: 50 }, (_, i) => fetch(`https://example.com/${i}`).then((r) => r.status)));
        console.log(plain.status, secure.status, (await secure.json()).path, denied, unknown, many.every((s) => s === 200));
END
        node fetch.mjs
    "#;
    let script = script.replace("        import", "import");
    for sloplet in both(&host, &world) {
        let mount = world.mount();
        let options = [&TRUST[..], &["--allow=example.com", &mount, "--workdir=/tmp"]].concat();
        let out = sloplet.sh(&options, &script).expect_code(0).out();
        assert_eq!(out, "200 200 /b 403 ENOTFOUND true\n", "{}", sloplet.name);
    }
}

/// Fetches its arguments.
const JAVA: &str = r#"
import java.net.URI;
import java.net.http.*;

public class Fetch {
    public static void main(String[] urls) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (String url : urls) {
            try {
                HttpResponse<String> answer = client.send(HttpRequest.newBuilder(URI.create(url)).build(), HttpResponse.BodyHandlers.ofString());
                System.out.println(answer.statusCode());
            } catch (java.io.IOException error) {
                System.out.println(error.getClass().getSimpleName());
            }
        }
    }
}
"#;

#[test]
fn java_works() {
    assert!(
        std::path::Path::new("/usr/bin/javac").exists(),
        "there is no Java here: ./test installs default-jdk-headless"
    );
    let host = Host::shared();
    let world = World::new(&host);
    fs::write(world.dir.join("share/Fetch.java"), JAVA).unwrap();
    let mount = world.mount();
    for sloplet in both(&host, &world) {
        let urls = ["http://example.com/", "http://example.com:8080/", "http://example.org/"];
        let command = [&["java", "-Xint", "-XX:TieredStopAtLevel=1", "/world/Fetch.java"][..], &urls].concat();
        let out = sloplet.run(&["--allow=example.com", &mount], &command).expect_code(0).out();
        assert_eq!(out, "200\n403\nConnectException\n", "{}", sloplet.name);
        // With a secret, the gateway answers, and Java trusts it by the store that it is given.
        let secret = sloplet.clone().with("API_KEY", "real-value-of-the-key");
        let options = ["--secret=API_KEY@example.com", &mount];
        let out =
            secret.run(&options, &["java", "-Xint", "/world/Fetch.java", "https://example.com/"]).expect_code(0).out();
        assert_eq!(out, "200\n", "{}", sloplet.name);
    }
}

#[test]
fn go_works() {
    let program = tools::folder("go-fetch").join("fetch");
    let host = Host::shared();
    let world = World::new(&host);
    fs::copy(program, world.dir.join("share/fetch")).unwrap();
    let mount = world.mount();
    for sloplet in both(&host, &world) {
        let urls = [
            "http://example.com:8080/",
            "https://example.com:8443/",
            "https://example.net/",
            "http://example.com/",
            "https://example.com/",
        ];
        let command = [&["/world/fetch"][..], &urls].concat();
        let ended = sloplet.run(&["--allow=example.com", TRUST[0], &mount], &command).expect_code(0);
        assert_eq!(ended.out(), "403\nfailed\nno name\n200\n200\ntrue\n", "{ended}");
        // With a secret, the gateway answers, and Go trusts it by the store that it is given; the host gets the real key.
        world.forget();
        let secret = sloplet.clone().with("API_KEY", "real-value-of-the-key");
        let command = ["/world/fetch", "https://example.org/", "https://example.com/"];
        let ended = secret.run(&["--secret=API_KEY@example.com", &mount], &command).expect_code(0);
        assert_eq!(ended.out(), "no name\n200\ntrue\n", "{ended}");
        let seen = world.seen_of("http");
        assert_eq!(seen.len(), 51);
        // Over HTTP/2, which Go prefers, headers come in lower case.
        assert!(seen.iter().all(|one| one["headers"].to_string().contains("Bearer real-value-of-the-key")), "{seen:?}");
    }
}

#[test]
fn servers_inside_keep_their_ports_and_servers_outside_may_speak_first() {
    let host = Host::shared();
    let world = World::new(&host);
    let program = "
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('0.0.0.0', 443))
server.listen()
before = reach('example.com', 443)
client = socket.create_connection(('127.0.0.1', 443))
inside = server.accept()[0]
inside.sendall(b'inside')
after = reach('example.com', 443)
mail = connect('example.org', 25)
banner = mail.recv(100).decode()
mail.sendall(b'EHLO')
show([before, client.recv(100).decode(), after, banner, mail.recv(100).decode()])
";
    for sloplet in both(&host, &world) {
        let shown = python(&sloplet, &world, &ALLOW, program);
        assert_eq!(shown, json!(["ok", "inside", "ok", "220 hello\r\n", "EHLO"]), "{}", sloplet.name);
    }
}

#[test]
fn many_connections_at_once_work() {
    let host = Host::shared();
    let world = World::new(&host);
    // Within the usual bounds: 256 at once, 200 in the first moment.
    let program = "
streams = [connect('example.org', 7) for _ in range(200)]
for number, stream in enumerate(streams):
    stream.sendall(b'%d' % number)
show(all(stream.recv(100) == b'%d' % number for number, stream in enumerate(streams)))
";
    for sloplet in both(&host, &world) {
        let shown = python(&sloplet, &world, &["--allow=example.org:7"], program);
        assert_eq!(shown, json!(true), "{}", sloplet.name);
    }
}
