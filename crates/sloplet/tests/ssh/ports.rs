//! Forwarded ports and sockets, as VS Code uses them and the other way round.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;

use crate::client::{Background, Served, complained, fed, said, until};
use crate::common::{Host, World};

/// Answers what it hears, in capitals, on a port and on a socket; until it is killed.
const ECHO: &str = "\
cat > echo.py <<'END'
import socket, threading
def serve(s):
    s.listen(9)
    while True:
        c, _ = s.accept()
        data = b''
        while True:
            piece = c.recv(65536)
            if not piece: break
            data += piece
        c.sendall(data.upper()); c.close()
u = socket.socket(socket.AF_UNIX); u.bind('/tmp/echo.sock')
threading.Thread(target=serve, args=(u,), daemon=True).start()
t = socket.socket(); t.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); t.bind(('127.0.0.1', 8765))
open('ready', 'w').close()
serve(t)
END
nohup python3 echo.py > log 2>&1 &
while ! test -e ready; do sleep 0.05; done
echo port 8765
";

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn connected(port: u16) -> TcpStream {
    until("a forwarded port", || TcpStream::connect(("127.0.0.1", port)).ok())
}

#[test]
fn a_server_that_was_brought_by_a_script_is_reached_through_the_connection() {
    let host = Host::shared();
    let served = Served::start(&host.root(), &[]);
    served.sandbox("my");
    assert_eq!(fed(served.ssh("my", &["bash"]), ECHO.as_bytes(), 0), "port 8765\n");

    // One connection with a port, a socket, and a proxy that asks for any, as VS Code has it.
    let (port, proxy, socket) = (free_port(), free_port(), served.path("local.sock"));
    let to_port = format!("{port}:127.0.0.1:8765");
    let to_socket = format!("{}:/tmp/echo.sock", socket.display());
    let words = ["-N", "-o", "ServerAliveInterval=1", "-L", &to_port, "-L", &to_socket, "-D", &proxy.to_string()];
    let forwarding = Background::start(served.ssh("my", &words));
    let large = "abc ".repeat(200_000);
    let mut stream = connected(port);
    let answer = thread::scope(|scope| {
        let mut writer = stream.try_clone().unwrap();
        let text = large.as_bytes();
        scope.spawn(move || {
            writer.write_all(text).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    assert!(answer == large.to_uppercase(), "{} bytes came back", answer.len());
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"by socket").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "BY SOCKET");
    // SOCKS5, by name: what localhost is, is decided inside.
    let mut stream = connected(proxy);
    stream.write_all(b"\x05\x01\x00").unwrap();
    stream.read_exact(&mut [0; 2]).unwrap();
    stream.write_all(b"\x05\x01\x00\x03\x09localhost\x22\x3d").unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[1], 0, "{reply:?}");
    stream.write_all(b"by name").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "BY NAME");
    forwarding.kill();

    // Nothing listens; the sandbox may not; there is no such socket: the reason is told.
    assert!(complained(served.ssh("my", &["-W", "127.0.0.1:9"]), 255).contains("refused"));
    let outside = complained(served.ssh("my", &["-W", "example.com:443"]), 255);
    assert!(outside.contains("may not reach example.com:443") && outside.contains("--allow"), "{outside}");
    let audit = served.server.command(&["audit", "my"]).expect_code(0).out();
    assert!(audit.contains("forward to port 8765") && audit.contains("forward to /tmp/echo.sock"), "{audit}");

    // The other way is closed unless the server opens it.
    let back = format!("0:127.0.0.1:{port}");
    said(served.ssh("my", &["-o", "ExitOnForwardFailure=yes", "-R", &back, "true"]), 255);
    served.server.end();
}

#[test]
fn ports_inside_lead_to_the_client_where_the_server_lets_them() {
    let host = Host::shared();
    let served = Served::start(&host.root(), &["--ssh-remote-forward"]);
    served.sandbox("my");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answering = thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heard = [0; 4];
            stream.read_exact(&mut heard).unwrap();
            stream.write_all(b"heard ").unwrap();
            stream.write_all(&heard).unwrap();
        }
    });
    let back = format!("18432:127.0.0.1:{port}");
    let ask = "exec 3<>/dev/tcp/127.0.0.1/18432; printf ping >&3; cat <&3";
    let script = format!("bash -c '{ask}'; echo; bash -c '{ask}'");
    let said_both = said(served.ssh("my", &["-o", "ExitOnForwardFailure=yes", "-R", &back, &script]), 0);
    assert_eq!(said_both, "heard ping\nheard ping");
    answering.join().unwrap();
    // It is closed with the connection. Ports for root inside are not to be had.
    until("its end", || {
        (!said(served.ssh("my", &["cat /proc/net/tcp"]), 0).contains(":4800 00000000:0000 0A")).then_some(())
    });
    said(served.ssh("my", &["-o", "ExitOnForwardFailure=yes", "-R", &format!("80:127.0.0.1:{port}"), "true"]), 255);
    served.server.end();
}

#[test]
fn a_proxy_of_the_client_asks_for_ports_inside_and_for_hosts_outside() {
    let host = Host::shared();
    let world = World::new(&host);
    let served = Served::start(&world.around(host.root()), &[]);
    let words = ["create", "--name", "my", "--allow", "example.com:80", "--allow", "private.example.net:80"];
    served.server.command(&words).expect_code(0);
    served.say("my", "mkdir site; echo inside > site/page; cd site; nohup python3 -m http.server 8123 -b 127.0.0.1 >/dev/null 2>&1 &");
    let proxy = free_port();
    let local = free_port();
    let (proxied, forward) = (proxy.to_string(), format!("{local}:example.com:80"));
    let client = Background::start(served.ssh("my", &["-N", "-D", &proxied, "-L", &forward]));
    connected(proxy);
    let curl = |url: &str| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "20", "--socks5-hostname", &format!("127.0.0.1:{proxy}"), url]);
        command.env_clear().env("PATH", "/usr/bin:/bin").output().unwrap()
    };
    let body = |url: &str| String::from_utf8(curl(url).stdout).unwrap();
    until("a server inside", || (body("http://localhost:8123/page") == "inside\n").then_some(()));
    assert_eq!(body("http://127.0.0.1:8123/page"), "inside\n");

    // What the rules allow is reached, by the gateway; what they do not is not even looked up.
    world.forget();
    assert!(curl("http://example.com/by-proxy").status.success());
    let mut stream = connected(local);
    stream.write_all(b"GET /by-port HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for refused in ["http://example.org/", "http://example.com:8080/", "http://45.33.10.1/", "http://169.254.169.254/"]
    {
        assert!(!curl(refused).status.success(), "{refused}");
    }
    // A name that is allowed opens no private address.
    assert!(!curl("http://private.example.net/").status.success());
    // Another host of the same server is refused by the gateway, though the connection was to an allowed one.
    let mut stream = connected(local);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    client.kill();
    let told = complained(served.ssh("my", &["-W", "example.org:80"]), 255);
    assert!(told.contains("may not reach example.org:80") && told.contains("--allow"), "{told}");
    let names = world.asked_names();
    assert!(!names.iter().any(|name| name.contains("example.org")), "{names:?}");
    let seen: Vec<String> = world.seen_of("http").iter().map(|one| one["path"].to_string()).collect();
    assert_eq!(seen, ["\"/by-proxy\"", "\"/by-port\""]);
    let audit = served.server.command(&["audit", "my"]).expect_code(0).out();
    for written in
        ["forward to example.com:80", "allowed example.com:80", "denied example.org:80", "forward to port 8123"]
    {
        assert!(audit.contains(written), "{written}: {audit}");
    }
    served.server.end();
}
