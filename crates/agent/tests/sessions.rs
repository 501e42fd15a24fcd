//! Background processes, terminals, ports, watches, and the connection itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;

use common::*;
use sloplet_wire::*;

fn agent() -> (tempfile::TempDir, Agent) {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::fixed(folder.path());
    (folder, agent)
}

/// Output until `wanted` has been seen.
fn until(client: &mut Client, stream: u32, wanted: &str) -> String {
    let mut text = String::new();
    while !text.contains(wanted) {
        match client.next(stream) {
            Seen::Data(1, bytes) => text += &String::from_utf8_lossy(&bytes),
            // A terminal has no error channel of its own.
            Seen::Window(..) | Seen::End(2) => {}
            other => panic!("{other:?} after {text:?}"),
        }
    }
    text
}

#[test]
fn a_background_process_outlives_its_connection_and_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut agent = Agent::listening(folder.path(), &folder.path().join("socket"));
    let script = "echo first; read line; echo \"got $line\"; read line; echo \"then $line\" >&2; exit 3";
    let request = Exec { background: true, stdin: true, tag: Some("job".into()), ..shell(script) };
    let stream = agent.client.open(&Request::Exec(request));
    let pid = agent.client.started(stream);
    let foreground = agent.client.open(&Request::Exec(exec(&["sleep", "1000"])));
    let other = agent.client.started(foreground);
    until(&mut agent.client, stream, "first\n");
    agent.client.close();
    eventually("the foreground died", || !alive(other));
    assert!(alive(pid));

    let mut second = agent.connect();
    let Event::Processes(all) = second.ask(&Request::Processes) else { panic!() };
    let found = all.iter().find(|process| process.pid == pid).unwrap();
    assert!(found.managed && found.tag.as_deref() == Some("job"));
    let input = |data: &[u8]| Request::SendInput { pid, data: data.to_vec().into(), end: false };
    assert_eq!(second.ask(&input(b"hello\n")), Event::Done);
    let stream = second.open(&Request::Attach { pid });
    assert_eq!(second.started(stream), pid);
    let text = until(&mut second, stream, "got hello\n");
    assert!(text.starts_with("first\n"), "{text:?}");

    // A third takes it over, with input on its own stream.
    let mut third = agent.connect();
    let taken = third.open(&Request::Attach { pid });
    assert_eq!(code(&second.event(stream)), ErrorCode::Io);
    third.send(taken, b"end\n");
    let done = third.finish(taken);
    assert_eq!(done.output, b"first\ngot hello\n");
    assert_eq!((done.error.as_slice(), done.exit.code), (&b"then end\n"[..], Some(3)));

    // Late, its end is still known.
    let late = second.open(&Request::Attach { pid });
    let done = second.finish(late);
    assert_eq!((done.error.as_slice(), done.exit.code), (&b"then end\n"[..], Some(3)));
    assert_eq!(code(&second.ask(&Request::Signal { pid, signal: 15, group: false })), ErrorCode::NotFound);
}

#[test]
fn a_detached_flood_is_not_held_up_and_its_last_words_are_kept() {
    let (folder, mut agent) = agent();
    let request = Exec { background: true, ..shell("seq 1000000; touch finished; sleep 1000") };
    let stream = agent.client.open(&Request::Exec(request));
    let pid = agent.client.started(stream);
    agent.client.reset(stream);
    eventually("it got through", || folder.path().join("finished").exists());
    let stream = agent.client.open(&Request::Attach { pid });
    agent.client.started(stream);
    let text = until(&mut agent.client, stream, "1000000\n");
    // What is held, and what was still in the pipe; never all of the 6.9 MB.
    assert!((32 << 10..=(128 << 10) + (1 << 20)).contains(&text.len()), "{}", text.len());
    assert_eq!(agent.client.ask(&Request::Signal { pid, signal: 9, group: true }), Event::Done);
}

#[test]
fn signals_reach_a_process_or_its_group() {
    let (_folder, mut agent) = agent();
    let script = "trap 'echo usr1' USR1; sleep 1000 & echo $!; while :; do wait; done";
    let stream = agent.client.open(&Request::Exec(shell(script)));
    let pid = agent.client.started(stream);
    let child: u32 = until(&mut agent.client, stream, "\n").trim().parse().unwrap();
    assert_eq!(agent.client.ask(&Request::Signal { pid, signal: 10, group: false }), Event::Done);
    until(&mut agent.client, stream, "usr1");
    for signal in [-1, 65] {
        let answer = agent.client.ask(&Request::Signal { pid, signal, group: false });
        assert_eq!(code(&answer), ErrorCode::Invalid);
    }
    for foreign in [1, 0, std::process::id(), u32::MAX] {
        let answer = agent.client.ask(&Request::Signal { pid: foreign, signal: 0, group: false });
        assert_eq!(code(&answer), ErrorCode::NotFound, "{foreign}");
    }
    assert_eq!(agent.client.ask(&Request::Signal { pid, signal: 9, group: true }), Event::Done);
    eventually("the child died too", || !alive(child));
    let mut done = Finished::default();
    agent.client.finish_started(stream, &mut done);
    assert_eq!(done.exit.signal, Some(9));
}

#[test]
fn a_terminal_has_a_size_job_control_and_ctrl_c() {
    let (_folder, mut agent) = agent();
    let size = TerminalSize { columns: 100, rows: 30 };
    let mut request = Exec { terminal: Some(size), ..exec(&["bash", "--norc", "-i"]) };
    request.env.push(b"PS1=PROMPT>".to_vec().into());
    let stream = agent.client.open(&Request::Exec(request));
    let pid = agent.client.started(stream);
    agent.client.send(stream, b"stty size; test -t 0 && test -t 2 && echo is-a-$((40+2))-tty\n");
    let text = until(&mut agent.client, stream, "is-a-42-tty");
    assert!(text.contains("30 100"), "{text:?}");
    assert!(!text.contains("no job control"), "{text:?}");
    let size = TerminalSize { columns: 33, rows: 44 };
    assert_eq!(agent.client.ask(&Request::Resize { pid, size }), Event::Done);
    agent.client.send(stream, b"stty size\n");
    until(&mut agent.client, stream, "44 33");
    agent.client.send(stream, b"sleep 1000; echo went-$?\n");
    // The shell must be in the foreground command before it can be interrupted.
    eventually("sleep runs", || {
        let Event::Processes(all) = agent.client.ask(&Request::Processes) else { panic!() };
        all.iter().any(|process| process.parent == pid && process.command.as_slice() == b"sleep\x001000")
    });
    agent.client.send(stream, b"\x03echo code-$?\n");
    // Only at its prompt does the shell take an end of input for one.
    until(&mut agent.client, stream, "code-130\r\nPROMPT>");
    agent.client.end(stream);
    let mut done = Finished { ends: vec![2], ..Finished::default() };
    agent.client.finish_started(stream, &mut done);
    assert_eq!((done.exit.code, done.error.as_slice()), (Some(0), &b""[..]));
    let answer = agent.client.ask(&Request::Resize { pid, size });
    assert_eq!(code(&answer), ErrorCode::NotFound);
}

#[test]
fn ports_inside_are_dialed() {
    let (_folder, mut agent) = agent();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = TcpListener::bind(address) else {
            continue;
        };
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut all = Vec::new();
            // Reads to the end, then answers: half-closing must work.
            socket.read_to_end(&mut all).unwrap();
            all.reverse();
            socket.write_all(&all).unwrap();
        });
        let stream = agent.client.open(&Request::Dial { port });
        assert_eq!(agent.client.event(stream), Event::Done);
        let data: Vec<u8> = (0..600_000u32).map(|n| (n % 253) as u8).collect();
        agent.client.send(stream, &data);
        agent.client.end(stream);
        let mut answer = Vec::new();
        loop {
            match agent.client.next(stream) {
                Seen::Data(1, bytes) => answer.extend(bytes),
                Seen::End(1) => break,
                Seen::Window(..) => {}
                other => panic!("{other:?}"),
            }
        }
        answer.reverse();
        assert!(answer == data);
        server.join().unwrap();
    }
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    assert_eq!(code(&agent.client.ask(&Request::Dial { port: unused })), ErrorCode::Refused);
}

#[test]
fn changes_are_told_also_in_folders_made_later() {
    let (folder, mut agent) = agent();
    let base = folder.path().join("watched");
    fs::create_dir_all(base.join("old/deep")).unwrap();
    let stream = agent.client.open(&Request::Watch { target: target("watched"), recursive: true });
    assert_eq!(agent.client.event(stream), Event::Done);
    let mut wait_for = |kind: ChangeKind, path: &str| loop {
        match agent.client.event(stream) {
            Event::Change(change) if change.kind == kind && change.path.as_slice() == path.as_bytes() => return,
            Event::Change(_) => {}
            other => panic!("{other:?}"),
        }
    };
    fs::write(base.join("old/deep/file"), "x").unwrap();
    wait_for(ChangeKind::Create, "old/deep/file");
    wait_for(ChangeKind::Write, "old/deep/file");
    fs::create_dir_all(base.join("new/a/b")).unwrap();
    fs::write(base.join("new/a/b/file"), "x").unwrap();
    wait_for(ChangeKind::Create, "new/a/b/file");
    fs::rename(base.join("new/a"), base.join("moved")).unwrap();
    wait_for(ChangeKind::Rename, "new/a");
    wait_for(ChangeKind::Create, "moved");
    // The folder is known by its new name.
    wait_for(ChangeKind::Create, "moved/b/file");
    fs::remove_file(base.join("moved/b/file")).unwrap();
    wait_for(ChangeKind::Remove, "moved/b/file");
    fs::set_permissions(base.join("moved"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    wait_for(ChangeKind::Attributes, "moved");
    let answer = agent.client.ask(&Request::Watch { target: target("watched/old/deep/file"), recursive: false });
    assert_eq!(code(&answer), ErrorCode::WrongType);
}

#[test]
fn an_upload_into_a_watched_folder_is_seen_under_its_own_name_only() {
    let (folder, mut agent) = agent();
    let watch = agent.client.open(&Request::Watch { target: target(folder.path()), recursive: false });
    assert_eq!(agent.client.event(watch), Event::Done);
    let write = Request::Write { target: target("file"), mode: 0o600, parents: false, attributes: Vec::new() };
    let upload = agent.client.open(&write);
    agent.client.send(upload, b"content");
    agent.client.end(upload);
    assert!(matches!(agent.client.event(upload), Event::Entry(_)));
    let change = |kind| Event::Change(Change { kind, path: b"file".to_vec().into() });
    for kind in [ChangeKind::Create, ChangeKind::Attributes, ChangeKind::Write] {
        assert_eq!(agent.client.event(watch), change(kind));
    }
    // What is merely called like an upload in part is told as ever.
    std::fs::write(folder.path().join(".sloplet-mine"), "").unwrap();
    let Event::Change(next) = agent.client.event(watch) else { panic!() };
    assert_eq!((next.kind, next.path.as_slice()), (ChangeKind::Create, &b".sloplet-mine"[..]));
}

#[test]
fn the_process_list_bears_hostile_names() {
    let (_folder, mut agent) = agent();
    let script = "import os,ctypes,sys\nctypes.CDLL(None).prctl(15, b'x) R 1 (', 0,0,0)\nprint('ok', flush=True)\nsys.stdin.read()";
    let mut request = exec(&["python3", "-c", script, &"a".repeat(100_000)]);
    request.stdin = true;
    let streams: Vec<u32> = (0..5).map(|_| agent.client.open(&Request::Exec(request.clone()))).collect();
    let mut pids = Vec::new();
    for stream in &streams {
        pids.push(agent.client.started(*stream));
        until(&mut agent.client, *stream, "ok");
    }
    let agent_pid = agent.pid();
    let Event::Processes(all) = agent.client.ask(&Request::Processes) else { panic!() };
    for pid in pids {
        let found = all.iter().find(|process| process.pid == pid).unwrap();
        assert!(found.managed && found.command.len() <= 4096 && found.command.starts_with(b"python3\0"));
        assert_eq!(found.parent, agent_pid);
        assert!(found.rss_kib > 0);
    }
}

#[test]
fn the_connection_is_held_to_its_protocol() {
    // A ping is answered.
    let (_folder, mut agent) = agent();
    agent.client.frame(Kind::Ping, 0, 0, b"12345678");
    agent.client.next_frame();
    assert_eq!(agent.client.pongs, [b"12345678"]);
    // A request of the future is refused, not fatal.
    let unknown = [0x82, 0x18, 0xc8, 0x80];
    agent.client.frame(Kind::Request, 77, 0, &unknown);
    assert_eq!(code(&agent.client.event(77)), ErrorCode::Unsupported);
    // Frames for streams that are over are no error.
    agent.client.frame(Kind::Data, 77, 0, b"x");
    agent.client.frame(Kind::Reset, 78, 0, b"");
    assert_eq!(agent.client.run(exec(&["true"])).exit.code, Some(0));

    type Break = fn(&mut Client);
    let breaks: [Break; 6] = [
        |client| client.raw(&[0xff; 64]),
        |client| client.frame(Kind::Request, 5, 0, b"\xff\xff"),
        |client| client.frame(Kind::Event, 5, 0, b""),
        |client| client.frame(Kind::Request, 0, 0, &to_bytes(&Request::Processes)),
        |client| {
            let sleep = client.open(&Request::Exec(Exec { stdin: true, ..exec(&["sleep", "1000"]) }));
            client.started(sleep);
            client.send(sleep, &vec![0; flow::INITIAL_WINDOW as usize + 200_000]);
        },
        |client| {
            let sleep = client.open(&Request::Exec(exec(&["sleep", "1000"])));
            client.started(sleep);
            client.grant(sleep, 1, u32::MAX);
        },
    ];
    for violation in breaks {
        let (_folder, mut agent) = self::agent();
        violation(&mut agent.client);
        while agent.client.next_frame().is_some() {}
        assert!(agent.finish(), "the agent ended cleanly");
    }
}

#[test]
fn an_idle_agent_is_small() {
    let (folder, mut agent) = agent();
    fs::write(folder.path().join("file"), vec![0; 3 << 20]).unwrap();
    agent.client.run(exec(&["seq", "1000000"]));
    let stream = agent.client.open(&Request::Read { target: target("file"), offset: 0, length: None });
    agent.client.download(stream);
    let private = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let line = text.lines().find(|line| line.starts_with("Private_Dirty")).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    eventually("buffers are given back", || private(agent.pid()) < 1024);
}
