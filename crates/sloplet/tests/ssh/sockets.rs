//! Unix sockets inside that lead to the client (`ssh -R`), as users of gpg-agent have them.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use crate::client::{Background, Served, complained, said, until};
use crate::common::Host;

/// Says something to a socket inside and prints the answer.
fn ask(socket: &str, word: &str) -> String {
    let script = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(sys.argv[2].encode()); \
                  s.shutdown(1); print(s.makefile().read())";
    format!("python3 -c '{script}' {socket} {word}")
}

/// Answers each connection with what it heard, until the path is removed and it is woken once more.
fn answering(path: &Path) -> thread::JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    let path = path.to_owned();
    thread::spawn(move || {
        while path.exists() {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            let _ = stream.write_all(&[b"heard ", &heard[..]].concat());
        }
    })
}

fn stop(path: &Path, answering: thread::JoinHandle<()>) {
    let wake = UnixStream::connect(path).unwrap();
    fs::remove_file(path).unwrap();
    drop(wake);
    answering.join().unwrap();
}

const STRICT: [&str; 2] = ["-o", "ExitOnForwardFailure=yes"];

#[test]
fn a_socket_inside_leads_to_the_client_while_it_is_connected() {
    let host = Host::shared();
    let leaks = host.leaks();
    let served = Served::start(&host.root(), &["--ssh-remote-forward"]);
    served.sandbox("my");
    let local = served.path("agent.sock");
    let answers = answering(&local);
    let forward = |inside: &str| format!("{inside}:{}", local.display());
    let with = |inside: &str, script: &str| {
        let forward = forward(inside);
        served.ssh("my", &[&STRICT[..], &["-R", &forward, script]].concat())
    };

    // It belongs to the user, who alone can connect; several can at once.
    let script =
        format!("stat -c '%U %a %F' /tmp/a.sock; for word in one two; do {} & done; wait", ask("/tmp/a.sock", "$word"));
    let mut lines: Vec<String> = said(with("/tmp/a.sock", &script), 0).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["heard one", "heard two", "user 600 socket"]);
    until("its removal", || served.ssh("my", &["test ! -e /tmp/a.sock"]).status().unwrap().success().then_some(()));

    // The client is killed: it is removed all the same. One that was left behind by somebody else is replaced.
    served.say(
        "my",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/a.sock\")'; test -S /tmp/a.sock",
    );
    let client = Background::start(with("/tmp/a.sock", "touch started; exec sleep 1000"));
    until("a start", || served.ssh("my", &["rm started"]).output().unwrap().status.success().then_some(()));
    assert_eq!(served.say("my", &ask("/tmp/a.sock", "again")), "heard again\n");
    client.kill();
    until("its removal", || served.ssh("my", &["test ! -e /tmp/a.sock"]).status().unwrap().success().then_some(()));

    // What is there, or may not be made by the user, stays as it is; the reason is told to whoever listens for it.
    served.say("my", "echo mine > /tmp/file");
    for taken in ["/tmp/file", "/etc/a.sock", "/no/where.sock", "/proc/a.sock"] {
        let forward = forward(taken);
        let told = complained(served.ssh("my", &[&["-v"], &STRICT[..], &["-R", &forward, "true"]].concat()), 255);
        assert!(told.contains(&format!("listening on {taken}")) || told.contains("where"), "{told}");
    }
    assert_eq!(served.say("my", "cat /tmp/file"), "mine\n");
    // There is an end to how many.
    let many: Vec<String> =
        (0..17).flat_map(|number| ["-R".to_owned(), forward(&format!("/tmp/{number}.sock"))]).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    said(served.ssh("my", &[&STRICT[..], &many, &["true"]].concat()), 255);
    said(served.ssh("my", &[&STRICT[..], &many[..32], &["true"]].concat()), 0);

    let audit = served.server.command(&["audit", "my"]).expect_code(0).out();
    assert!(audit.contains("forward from /tmp/a.sock"), "{audit}");
    stop(&local, answers);
    served.server.end();
    leaks.assert_none_new_after_a_server();
}

#[test]
fn a_master_forwards_sockets_and_takes_them_back() {
    let host = Host::shared();
    let served = Served::start(&host.root(), &["--ssh-remote-forward"]);
    served.sandbox("my");
    let (local, control) = (served.path("agent.sock"), served.path("control"));
    let (answers, control) = (answering(&local), control.to_str().unwrap());
    // Asked each second whether it is still there, and let go after one silence.
    let alive = ["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=1"];
    let master = Background::start(served.ssh("my", &[&alive[..], &["-M", "-S", control, "-N"]].concat()));
    until("a master", || Path::new(control).exists().then_some(()));
    let tell = |words: &[&str]| said(served.ssh("my", &[&["-S", control], words].concat()), 0);
    let forward = format!("/tmp/m.sock:{}", local.display());
    tell(&["-O", "forward", "-R", &forward]);
    assert_eq!(tell(&[&ask("/tmp/m.sock", "one")]), "heard one\n");
    // A port that leads to a socket of the client, at the same time.
    tell(&["-O", "forward", "-R", &format!("18433:{}", local.display())]);
    let by_port = "bash -c 'exec 3<>/dev/tcp/127.0.0.1/18433; python3 -c \"import socket; socket.socket(fileno=3).shutdown(1)\"; cat <&3'";
    assert_eq!(tell(&[by_port]), "heard ");
    tell(&["-O", "cancel", "-R", &forward]);
    until("its removal", || {
        served.ssh("my", &["-S", control, "test ! -e /tmp/m.sock"]).status().unwrap().success().then_some(())
    });
    assert_eq!(tell(&["sleep 2.5; echo still the same connection"]), "still the same connection\n");
    tell(&["-O", "exit"]);
    until("the master's end", || (!Path::new(control).exists()).then_some(()));
    master.kill();
    stop(&local, answers);
    served.server.end();
}

#[test]
fn sockets_are_not_forwarded_where_ports_are_not() {
    let host = Host::shared();
    let served = Served::start(&host.root(), &[]);
    served.sandbox("my");
    let words = [&["-v"], &STRICT[..], &["-R", "/tmp/a.sock:/tmp/none", "true"]].concat();
    let told = complained(served.ssh("my", &words), 255);
    assert!(told.contains("--ssh-remote-forward"), "{told}");
    assert_eq!(served.say("my", "ls /tmp/a.sock 2>&1 || true").matches("No such file").count(), 1);
    served.server.end();
}
