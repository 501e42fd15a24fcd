//! The commands that use a server: each of them, as root and as an ordinary user.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::thread;
use std::time::{Duration, Instant};

use common::{Host, Server};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Ends what a command started in the background.
fn end_background(server: &Value) {
    let pid = Pid::from_raw(server["pid"].as_i64().unwrap() as i32).unwrap();
    let _ = kill_process(pid, Signal::TERM);
    let started = Instant::now();
    while rustix::process::test_kill_process(pid).is_ok() {
        assert!(started.elapsed() < Duration::from_secs(20), "the server does not end");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_newcomer_never_has_to_start_a_server() {
    let host = Host::alone();
    for sloplet in [host.root(), host.user()] {
        let leaks = host.leaks();
        sloplet.invoke(&["--no-autostart", "ls"]).finish().expect_code(125).expect_said("sloplet serve");
        let made = sloplet.invoke(&["create", "--name", "my"]).finish().expect_code(0);
        assert_eq!(made.out(), "my\n");
        assert_eq!(made.stderr.lines().count(), 1, "{made}");
        assert!(made.stderr.contains("started a server in the background"), "{made}");
        // The next one finds it, and has nothing to say about it.
        let ran = sloplet.invoke(&["exec", "my", "--", "echo", "hi"]).finish().expect_code(0);
        assert_eq!((ran.out().as_str(), ran.stderr.as_str()), ("hi\n", ""));
        let log = sloplet.data.join("server.log");
        assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!fs::read_to_string(&log).unwrap().contains("e2b_"), "a key in the log");
        sloplet.invoke(&["rm", "--all"]).finish().expect_code(0);
        end_background(&sloplet.invoke(&["--no-autostart", "info", "--json"]).finish().expect_code(0).json());
        leaks.assert_none_new_after_a_server();
    }
}

#[test]
fn a_server_in_the_background_can_be_stopped_and_habits_of_other_tools_are_understood() {
    let host = Host::alone();
    let sloplet = host.root();
    let run = |words: &[&str]| sloplet.invoke(words).finish().expect_code(0);
    run(&["server", "stop"]).expect_said("no server runs");
    run(&["create", "--name", "my", "--network", "none"]);
    assert_eq!(run(&["exec", "my", "echo hi; echo there"]).out(), "hi\nthere\n");
    assert!(run(&["list"]).out().contains("my"));
    let listed = run(&["ls", "--json"]);
    assert!(!listed.out().contains("\"token\""), "{listed}");
    run(&["stop", "my"]).expect_said("'sloplet ls --all' shows it");
    let ended = sloplet.invoke(&["create", "--user", "70000"]).finish().expect_code(125);
    assert_eq!(ended.stderr, "sloplet: --user 70000: ids inside are 0 to 65535\n", "{ended}");
    sloplet
        .invoke(&["create", "--memory", "10TiB"])
        .finish()
        .expect_code(125)
        .expect_said("more than this machine has");
    // What README saves, README exports.
    let file = sloplet.folder("exports").join("clean.sloplet");
    let file = file.to_str().unwrap();
    run(&["resume", "my"]);
    run(&["snapshot", "my", "clean"]);
    let whole = sloplet.invoke(&["snapshot", "export", "clean", file]).finish().expect_code(125);
    assert!(whole.stderr.contains("export it 'thin'"), "{whole}");
    run(&["snapshot", "export", "--thin", "clean", file]);
    run(&["snapshot", "import", file, "--name", "again"]);
    run(&["create", "--image", "again", "--name", "other"]);
    run(&["rm", "other"]);
    run(&["snapshot", "rm", "clean", "again"]);
    run(&["stop", "my"]);
    run(&["server", "stop"]);
    sloplet.invoke(&["--no-autostart", "ls"]).finish().expect_code(125).expect_said("no server answers");
    // The next one has what the last one had.
    assert!(run(&["ls", "--all"]).out().contains("stopped"));
    run(&["delete", "my"]);
    run(&["server", "stop"]);
}

#[test]
fn two_newcomers_at_once_get_one_server() {
    let host = Host::alone();
    let sloplet = host.root();
    let both: Vec<_> = (0..4).map(|_| sloplet.invoke(&["create"]).start()).collect();
    for one in both {
        one.finish().expect_code(0);
    }
    let listed = sloplet.invoke(&["--no-autostart", "ls", "--json"]).finish().expect_code(0).json();
    assert_eq!(listed.as_array().unwrap().len(), 4);
    sloplet.invoke(&["rm", "--all"]).finish().expect_code(0);
    end_background(&sloplet.invoke(&["--no-autostart", "info", "--json"]).finish().expect_code(0).json());
}

#[test]
fn a_command_inside_behaves_as_if_it_ran_here() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let server = Server::start(&sloplet);
        server
            .command(&["create", "--name", "my", "--env", "A=1", "--workdir", "/tmp", "--memory", "256MiB"])
            .expect_code(0);
        let run = |words: &[&str]| server.command(&[&["exec", "my", "--"], words].concat());
        let ran = run(&["sh", "-c", "echo out; echo err >&2; echo $A; pwd; exit 9"]).expect_code(9);
        assert_eq!((ran.out().as_str(), ran.stderr.as_str()), ("out\n1\n/tmp\n", "err\n"));
        run(&["sh", "-c", "kill -TERM $$"]).expect_code(143);
        run(&["nonsense"]).expect_code(127).expect_said("nonsense");
        run(&["/etc/passwd"]).expect_code(126);
        server.command(&["exec", "nobody", "--", "true"]).expect_code(125).expect_said("not found");
        server.command(&["exec", "--timeout", "300ms", "my", "--", "sleep", "60"]).expect_code(124).expect_said("time");
        let options = ["exec", "-e", "B=2", "-w", "/", "-u", "user", "my", "--", "sh", "-c", "echo $B; pwd; id -un"];
        assert_eq!(server.command(&options).expect_code(0).out(), "2\n/\nuser\n");
        // All that goes in comes out again, and the end of the input arrives.
        let bytes: Vec<u8> = (0..4_000_000u32).map(|number| (number % 253) as u8).collect();
        let echoed = server.invoke(&["exec", "my", "--", "cat"]).input(bytes.clone()).finish().expect_code(0);
        assert!(echoed.stdout == bytes, "{} bytes", echoed.stdout.len());
        // A command that does not read its input, and one whose output nobody reads, end all the same.
        server.invoke(&["exec", "my", "--", "true"]).input(bytes).finish().expect_code(0);
        let mut unread = server.invoke(&["exec", "my", "--", "yes"]).unread_stdout().start();
        let mut start = [0; 4];
        unread.stdout.as_mut().unwrap().read_exact(&mut start).unwrap();
        drop(unread.stdout.take());
        assert_eq!(unread.finish().code, 141);
        server.end();
    }
}

#[test]
fn much_input_arrives_whole_and_at_once_whether_or_not_anything_is_printed() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    server.command(&["create", "--name", "my"]).expect_code(0);
    let bytes: Vec<u8> = (0..32u32 << 20).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let run = |script: &str, input: &[u8]| {
        server.invoke(&["exec", "my", "--", "sh", "-c", script]).input(input).finish().expect_code(0)
    };
    // It went at 192 KiB in 20 seconds.
    run("cat >/dev/null", &bytes);
    assert_eq!(run("wc -c", &bytes).word(), "33554432");
    // What came while the command was slow to read was lost.
    let slow = run("sleep 0.5; sha256sum", &bytes);
    assert_eq!(slow.out(), run("sha256sum", &bytes).out());
    let local = host.dir().join("sent");
    fs::write(&local, &bytes).unwrap();
    let sum = std::process::Command::new("sha256sum").stdin(fs::File::open(&local).unwrap()).output().unwrap();
    assert_eq!(slow.stdout, sum.stdout);
    // A command that never reads is heard to its end.
    assert_eq!(
        run("i=0; while [ $i -lt 20 ]; do echo $i; i=$((i+1)); done; seq 200000 | tail -1", &bytes)
            .out()
            .lines()
            .last(),
        Some("200000")
    );
    server.end();
}

#[test]
fn an_interrupt_is_for_the_command_and_nothing_stays_when_its_client_is_killed() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    server.command(&["create", "--name", "my"]).expect_code(0);
    let script = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done";
    let running = server.invoke(&["exec", "my", "--", "sh", "-c", script]).start();
    let wait_for = |wanted: bool| {
        let started = Instant::now();
        loop {
            let all = server.command(&["ps", "my", "--json"]).expect_code(0).json();
            let runs = |one: &Value| one["running"] == true && one["command"][0] == "sh";
            if all.as_array().unwrap().iter().any(runs) == wanted {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(20), "{all}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    wait_for(true);
    // The trap is set once it says so; its log is where that can be read.
    thread::sleep(Duration::from_millis(300));
    running.signal(Signal::INT);
    let ended = running.finish();
    assert_eq!((ended.code, ended.out().as_str()), (5, "ready\ncaught\n"), "{ended}");
    let running = server.invoke(&["exec", "my", "--", "sh", "-c", "while :; do sleep 0.05; done"]).start();
    wait_for(true);
    running.signal(Signal::KILL);
    wait_for(false);
    server.end();
}

#[test]
fn a_terminal_is_a_terminal() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let server = Server::start(&sloplet);
        server.command(&["create", "--name", "my"]).expect_code(0);
        let driver = host.dir().join("terminal.py");
        fs::write(&driver, include_str!("probes/terminal.py")).unwrap();
        let play = |words: &[&str], steps: Value| {
            let (driver, binary, steps) =
                (driver.to_str().unwrap(), host.binary().to_str().unwrap(), steps.to_string());
            let words = [&["python3", "-B", driver, &steps, binary], words].concat();
            let result = sloplet.other_program(&words).finish().expect_code(0).json();
            assert_eq!(result["problem"], Value::Null, "{result}");
            assert_eq!(result["restored"], true, "{result}");
            result["code"].as_i64().unwrap()
        };
        let steps = json!([
            ["expect", "$ "],
            ["type", "PS1='[prompt] '\r"],
            ["expect", "h[prompt] "],
            ["type", "test -t 0 && test -t 1 && echo both-$((1+1))\r"],
            ["expect", "both-2"],
            ["expect", "[prompt] "],
            ["type", "exit 42\r"],
            ["end"],
        ]);
        assert_eq!(play(&["shell", "my"], steps), 42);
        let steps = json!([["expect", "ready"], ["type", "\u{3}"], ["expect", "caught"], ["end"]]);
        let script = "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done";
        assert_eq!(play(&["exec", "-it", "my", "--", "bash", "-c", script], steps), 3);
        server.end();
    }
}

#[test]
fn files_and_folders_are_copied_both_ways() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let server = Server::start(&sloplet);
        server.command(&["create", "--name", "my"]).expect_code(0);
        let folder = sloplet.folder("files");
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let sh = |script: &str| server.command(&["exec", "my", "--", "sh", "-c", script]).expect_code(0).out();
        let content: Vec<u8> = (0..2_000_000u32).map(|number| (number % 249) as u8).collect();
        fs::write(path("x"), &content).unwrap();
        fs::set_permissions(path("x"), fs::Permissions::from_mode(0o755)).unwrap();
        for to in ["my:/home/user/", "my:/home/user/y", "my:/home/user", "my:"] {
            server.command(&["cp", &path("x"), to]).expect_code(0);
        }
        assert_eq!(sh("cd; ls; stat -c %a x; cmp x y && echo same"), "x\ny\n755\nsame\n");
        server.command(&["cp", "my:y", &path("back")]).expect_code(0);
        assert!(fs::read(path("back")).unwrap() == content);
        // A folder, with a link in it; into one that is there, and as a new one.
        fs::create_dir_all(path("d/deep")).unwrap();
        fs::write(path("d/deep/one"), "1").unwrap();
        symlink("deep/one", path("d/link")).unwrap();
        server.command(&["cp", &path("d"), "my:/tmp"]).expect_code(0);
        server.command(&["cp", &path("d"), "my:/tmp/new"]).expect_code(0);
        assert_eq!(sh("cat /tmp/d/link /tmp/new/link; readlink /tmp/d/link"), "11deep/one\n");
        server.command(&["cp", "my:/tmp/new", &path("got")]).expect_code(0);
        assert_eq!(fs::read_to_string(path("got/link")).unwrap(), "1");
        assert_eq!(fs::read_link(path("got/link")).unwrap().to_str(), Some("deep/one"));
        server.command(&["cp", "my:/tmp/new", &path("")]).expect_code(0);
        assert!(fs::exists(path("new/deep/one")).unwrap());
        // Standard input and output.
        server.invoke(&["cp", "-", "my:/tmp/from-pipe"]).input("piped").finish().expect_code(0);
        assert_eq!(server.command(&["cp", "my:/tmp/from-pipe", "-"]).expect_code(0).out(), "piped");
        for (from, to) in [("my:/nowhere", "."), ("/nowhere", "my:"), ("nobody:/x", "-"), ("a", "b"), ("my:a", "my:b")]
        {
            let ended = server.command(&["cp", from, to]).expect_code(125);
            assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
        }
        server.end();
    }
}

#[test]
fn a_folder_copied_out_of_a_hostile_sandbox_stays_in_its_place() {
    let host = Host::shared();
    let sloplet = host.root();
    let server = Server::start(&sloplet);
    server.command(&["create", "--name", "my"]).expect_code(0);
    let folder = sloplet.folder("trap");
    let outside = folder.join("outside");
    fs::create_dir(&outside).unwrap();
    let script = format!(
        "mkdir -p /tmp/evil; cd /tmp/evil; ln -s {} out; touch ok; cp /bin/true set; chmod 6755 set; mkfifo pipe; ln -s /etc/passwd p",
        outside.display()
    );
    server.command(&["exec", "my", "--", "sh", "-c", &script]).expect_code(0);
    let to = folder.join("copy");
    server.command(&["cp", "my:/tmp/evil", to.to_str().unwrap()]).expect_code(0);
    assert!(fs::read_dir(&outside).unwrap().next().is_none());
    assert_eq!(fs::metadata(to.join("set")).unwrap().permissions().mode() & 0o7000, 0);
    assert!(!fs::exists(to.join("pipe")).unwrap());
    // The same again, now that a link leads out of the copy.
    server
        .command(&["exec", "my", "--", "sh", "-c", "cd /tmp/evil; rm out; mkdir out; echo x > out/planted"])
        .expect_code(0);
    let again = server.command(&["cp", "my:/tmp/evil/.", to.to_str().unwrap()]);
    assert!(fs::read_dir(&outside).unwrap().next().is_none(), "{again}");
    server.end();
}

/// Swaps a folder of a mounted target for a symlink, and back, as fast as it can.
const SWAPPER: &str = "
import ctypes
libc = ctypes.CDLL(None)
here, sub, evil = -100, b'/p/tree/sub', b'/p/evil'
open('/p/swapping', 'w').close()
while True:
    libc.renameat2(here, sub, here, evil, 2)
";

#[test]
fn a_folder_that_is_swapped_for_a_link_while_it_is_copied_to_leads_nowhere_else() {
    let host = Host::shared();
    let sloplet = host.root();
    let server = Server::start(&sloplet);
    let (folder, vault) = (sloplet.folder("copied-to"), sloplet.folder("copy-vault"));
    fs::create_dir_all(folder.join("tree/sub")).unwrap();
    fs::write(vault.join("file1"), "precious").unwrap();
    symlink(&vault, folder.join("evil")).unwrap();
    server.command(&["create", "--name", "my", "--mount", &format!("{}:/p:rw", folder.display())]).expect_code(0);
    let fill = "mkdir -p /tmp/tree/sub/deep && cd /tmp/tree/sub && for i in $(seq 100); do echo evil > file$i; done && cp file* deep";
    server.command(&["exec", "my", "--", "sh", "-c", fill]).expect_code(0);
    let swapper =
        server.invoke(&["exec", "my", "--", "python3", "-c", SWAPPER]).within(Duration::from_secs(600)).start();
    let started = Instant::now();
    while !folder.join("swapping").exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "the swapper does not start");
        thread::sleep(Duration::from_millis(20));
    }
    let untouched = || {
        let names: Vec<_> = fs::read_dir(&vault).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names == ["file1"] && fs::read_to_string(vault.join("file1")).unwrap() == "precious"
    };
    let mut whole = 0;
    for _ in 0..common::rounds(40, 15) {
        let ended = server.command(&["cp", "my:/tmp/tree", folder.to_str().unwrap()]);
        assert!(untouched(), "the copy went through the link: {ended}");
        assert!(ended.code == 0 || (ended.code == 125 && ended.stderr.lines().count() == 1), "{ended}");
        whole += usize::from(ended.code == 0);
    }
    println!("{whole} copies were whole, the others were refused");
    drop(swapper);
    // A link in place of the target itself.
    let planted = folder.join("planted");
    fs::create_dir(&planted).unwrap();
    symlink(&vault, planted.join("tree")).unwrap();
    let ended = server.command(&["cp", "my:/tmp/tree", planted.to_str().unwrap()]).expect_code(125);
    assert!(ended.stderr.contains("symbolic link") && untouched(), "{ended}");
    server.command(&["cp", "my:/tmp/tree", &folder.join("fresh").display().to_string()]).expect_code(0);
    assert_eq!(fs::read_to_string(folder.join("fresh/sub/deep/file100")).unwrap(), "evil\n");
    server.end_with_its_sandboxes();
}

#[test]
fn a_copy_is_not_written_through_a_planted_link() {
    let host = Host::shared();
    let sloplet = host.root();
    let server = Server::start(&sloplet);
    server.command(&["create", "--name", "my"]).expect_code(0);
    server.command(&["exec", "my", "--", "sh", "-c", "echo result > /tmp/result"]).expect_code(0);
    server.command(&["snapshot", "my", "kept"]).expect_code(0);
    let folder = sloplet.folder("planted");
    let precious = folder.join("precious");
    for name in ["result.txt", "kept.sloplet"] {
        for planted in [format!("{name}.part"), name.to_owned()] {
            let _ = fs::remove_file(folder.join(name));
            fs::write(&precious, "precious").unwrap();
            std::os::unix::fs::symlink(&precious, folder.join(&planted)).unwrap();
            let to = folder.join(name).display().to_string();
            match name {
                "result.txt" => server.command(&["cp", "my:/tmp/result", &to]).expect_code(0),
                _ => server.command(&["snapshot", "export", "kept", &to, "--thin"]).expect_code(0),
            };
            assert_eq!(fs::read_to_string(&precious).unwrap(), "precious", "{planted}");
            assert!(fs::symlink_metadata(&to).unwrap().is_file(), "{planted}");
        }
    }
    assert_eq!(fs::read_to_string(folder.join("result.txt")).unwrap(), "result\n");
    // Nothing is left beside them.
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 5);
    server.end();
}

#[test]
fn background_processes_are_listed_and_their_logs_followed() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let server = Server::start(&sloplet);
        server.command(&["create", "--name", "my"]).expect_code(0);
        let script = "echo one; echo two; printf '\\033[31mred\\n'; read end < /tmp/fifo; echo three";
        server.command(&["exec", "my", "--", "mkfifo", "/tmp/fifo"]).expect_code(0);
        let pid = server.command(&["exec", "-d", "--tag", "web", "my", "--", "sh", "-c", script]).expect_code(0).word();
        let follow = server.invoke(&["logs", "-f", "my", &pid]).start();
        let listed = server.command(&["ps", "my"]).expect_code(0).out();
        assert!(listed.lines().any(|line| line.starts_with(&pid) && line.contains("web")), "{listed}");
        let started = Instant::now();
        while !server.command(&["logs", "my", &pid]).expect_code(0).out().contains("red") {
            assert!(started.elapsed() < Duration::from_secs(20));
        }
        assert_eq!(server.command(&["logs", "--tail", "2", "my", &pid]).out(), "two\n\u{1b}[31mred\n");
        let all = server.command(&["logs", "my"]).expect_code(0).out();
        assert!(all.contains(&format!("{pid} web | one\n")), "{all}");
        assert!(!all.contains('\u{1b}'), "{all:?}");
        server.command(&["exec", "my", "--", "sh", "-c", "echo x > /tmp/fifo"]).expect_code(0);
        let followed = follow.finish().expect_code(0);
        assert_eq!(followed.out(), "one\ntwo\n\u{1b}[31mred\nthree\n");
        server.command(&["logs", "my", "99999"]).expect_code(125);
        server.end();
    }
}

#[test]
fn a_port_is_listed_linked_and_forwarded() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    server.command(&["create", "--name", "my"]).expect_code(0);
    let serve = "import socket\ns=socket.create_server(('127.0.0.1',3000))\nprint('up',flush=True)\nwhile True:\n c,_=s.accept()\n d=c.recv(100)\n c.sendall(d.upper())\n c.close()";
    server.command(&["exec", "-d", "my", "--", "python3", "-c", serve]).expect_code(0);
    let started = Instant::now();
    while server.command(&["port", "my", "--json"]).expect_code(0).json() == json!([]) {
        assert!(started.elapsed() < Duration::from_secs(20));
    }
    let url = server.command(&["port", "my", "3000"]).expect_code(0).word();
    assert!(url.starts_with(&format!("http://{}/preview/", server.address)), "{url}");
    let forward = server.invoke(&["port", "my", "3000", "--forward", "0"]).start();
    // Told on standard error; found among its sockets, since that is collected at the end only.
    let local = loop {
        if let Some(port) = listening_port(forward.pid()) {
            break port;
        }
        assert!(started.elapsed() < Duration::from_secs(20));
        thread::sleep(Duration::from_millis(20));
    };
    for word in ["hello", "again"] {
        let mut stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(word.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, word.to_uppercase());
    }
    forward.signal(Signal::INT);
    forward.finish().expect_code(0).expect_said("leads to port 3000");
    server.command(&["port", "my", "0"]).expect_code(125);
    server.end();
}

/// The port that a process listens on.
fn listening_port(pid: Pid) -> Option<u16> {
    let pid = pid.as_raw_nonzero();
    let sockets: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok()?.to_str()?.strip_prefix("socket:[").map(str::to_owned))
        .map(|inode| inode.trim_end_matches(']').to_owned())
        .collect();
    fs::read_to_string(format!("/proc/{pid}/net/tcp")).ok()?.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let own = words[3] == "0A" && sockets.iter().any(|inode| inode == words[9]);
        own.then(|| u16::from_str_radix(words[1].rsplit_once(':')?.1, 16).ok()).flatten()
    })
}

#[test]
fn sandboxes_are_paused_saved_forked_prolonged_and_removed() {
    let host = Host::shared();
    for sloplet in [host.root(), host.user()] {
        let server = Server::start(&sloplet);
        let run = |words: &[&str]| server.command(words).expect_code(0).out();
        let options = ["create", "--name", "my", "--timeout", "never", "--metadata", "team=a", "--json"];
        let made: Value = serde_json::from_str(&run(&options)).unwrap();
        assert_eq!((&made["metadata"], &made["ends_ms"]), (&json!({"team": "a"}), &Value::Null));
        run(&["timeout", "my", "2h"]);
        let listed = run(&["ls"]);
        assert!(listed.starts_with("NAME") && listed.contains("my") && listed.contains("in 2 hours"), "{listed}");
        run(&["exec", "my", "--", "sh", "-c", "echo saved > /tmp/file"]);
        run(&["pause", "my"]);
        assert!(run(&["ls"]).contains("paused"));
        server.command(&["exec", "my", "--", "true"]).expect_code(125).expect_said("resume");
        run(&["resume", "my"]);
        assert_eq!(run(&["snapshot", "my", "base1"]), "base1\n");
        assert!(run(&["snapshot", "ls"]).contains("base1"));
        run(&["create", "--name", "second", "--image", "base1"]);
        assert_eq!(run(&["exec", "second", "--", "cat", "/tmp/file"]), "saved\n");
        assert_eq!(run(&["fork", "my", "-n", "2", "--name", "f"]), "f-1\nf-2\n");
        assert_eq!(run(&["exec", "f-2", "--", "cat", "/tmp/file"]), "saved\n");
        run(&["snapshot", "rm", "base1"]);
        assert_eq!(run(&["volume", "create", "data"]), "data\n");
        let sized = server.command(&["volume", "create", "sized", "--size", "16MiB"]);
        match sloplet.account {
            None => {
                assert!(run(&["volume", "ls"]).contains("16MiB"), "{sized}");
                run(&["volume", "rm", "sized"]);
            }
            Some(_) => drop(sized.expect_code(125).expect_said("only root")),
        }
        run(&["create", "--name", "third", "--volume", "data:/data:ro"]);
        assert!(run(&["volume", "ls"]).contains("data"));
        server.command(&["volume", "rm", "data"]).expect_code(125);
        server.command(&["rm", "third", "nobody", "second"]).expect_code(125).expect_said("nobody");
        run(&["volume", "rm", "data"]);
        let left: Value = serde_json::from_str(&run(&["ls", "--json", "--metadata", "team=a"])).unwrap();
        let names: Vec<&str> = left.as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        run(&["rm", "--all"]);
        assert_eq!(run(&["ls", "--all", "--json"]), "[]\n");
        server.end();
    }
}

#[test]
fn a_server_elsewhere_is_used_with_a_key() {
    let host = Host::shared();
    let server = Server::start(&host.root());
    let url = format!("http://{}", server.address);
    let key = server.new_key(&["remote"]);
    let remote = |key: &str, words: &[&str]| {
        host.user().invoke(words).env("SLOPLET_URL", &url).env("SLOPLET_API_KEY", key).finish()
    };
    remote(&key, &["create", "--name", "far"]).expect_code(0);
    let echoed = remote(&key, &["exec", "far", "--", "echo", "hi"]).expect_code(0);
    assert_eq!(echoed.out(), "hi\n");
    // Not the local user's, nor the other way round.
    server.command(&["exec", "far", "--", "true"]).expect_code(125);
    remote("nonsense", &["ls"]).expect_code(125).expect_said("SLOPLET_API_KEY");
    let listed = server.command(&["key", "ls"]).expect_code(0).out();
    assert!(listed.contains("remote") && !listed.contains(&key), "{listed}");
    let keys = server.command(&["key", "ls", "--json"]).expect_code(0).json();
    let id = keys.as_array().unwrap().iter().find(|one| one["label"] == "remote").unwrap()["id"].clone();
    server.command(&["key", "rm", id.as_str().unwrap()]).expect_code(0);
    remote(&key, &["ls"]).expect_code(125);
    let nowhere = host.user().invoke(&["ls"]).env("SLOPLET_URL", "http://127.0.0.1:1").finish();
    nowhere.expect_code(125).expect_said("no server answers");
    for wrong in ["127.0.0.1", "ftp://x", "http://", "http://x:99999"] {
        host.user().invoke(&["ls"]).env("SLOPLET_URL", wrong).finish().expect_code(125).expect_said("SLOPLET_URL");
    }
    server.end();
}

#[test]
fn help_and_completion_know_every_command() {
    let host = Host::shared();
    let sloplet = host.root();
    // The script knows nothing by itself: it asks the program.
    let script = sloplet.invoke(&["completion", "bash"]).finish().expect_code(0).out();
    assert!(script.contains("__complete"), "{script}");
    let completion = sloplet.invoke(&["__complete", ""]).finish().expect_code(0).out();
    for command in [
        "create", "exec", "shell", "cp", "ls", "ps", "logs", "port", "pause", "resume", "snapshot", "fork", "rm",
        "timeout", "volume", "key", "info",
    ] {
        let help = sloplet.invoke(&[command, "--help"]).finish().expect_code(0).out();
        assert!(help.contains("Usage"), "{help}");
        assert!(completion.lines().any(|line| line.split('\t').next() == Some(command)), "{command}: {completion}");
    }
}
