//! What the agent starts without a program of the image, and ports and sockets that it listens on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};

use common::*;
use sloplet_wire::*;

fn agent() -> (tempfile::TempDir, Agent) {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::fixed(folder.path());
    (folder, agent)
}

fn builtin(builtin: Builtin, argv: &[&str]) -> Request {
    Request::Exec(Exec { stdin: true, builtin: Some(builtin), ..exec(argv) })
}

/// A message of SFTP.
fn message(parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    [&(body.len() as u32).to_be_bytes(), &body[..]].concat()
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// Says hello, opens a new file for writing (as request 1), and writes to the first handle (as request 2).
fn half_an_upload(name: &str) -> Vec<u8> {
    let open = [&[3][..], &[0, 0, 0, 1], &text(name.as_bytes()), &[0, 0, 0, 0x1a], &[0; 4]];
    let write = [&[6][..], &[0, 0, 0, 2], &text(&[0; 4]), &[0; 8], &text(b"content")];
    [message(&[&[1, 0, 0, 0, 3]]), message(&open), message(&write)].concat()
}

#[test]
fn an_upload_that_is_not_closed_leaves_nothing_and_one_that_is_stays() {
    let (folder, mut agent) = agent();
    for closed in [false, true] {
        let stream = agent.client.open(&builtin(Builtin::Sftp, &["sftp-server"]));
        let pid = agent.client.started(stream);
        let path = folder.path().join("file");
        agent.client.send(stream, &half_an_upload("file"));
        eventually("it is written", || fs::read(&path).is_ok_and(|content| content == b"content"));
        // Nothing of the agent's is open in it.
        let open: Vec<_> = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|fd| fd.unwrap().file_name()).collect();
        assert_eq!(open.len(), 4, "its streams and the file: {open:?}");
        if closed {
            agent.client.send(stream, &message(&[&[4, 0, 0, 0, 3], &text(&[0; 4])]));
        }
        agent.client.end(stream);
        let mut all = Finished { pid, ..Finished::default() };
        agent.client.finish_started(stream, &mut all);
        assert_eq!((all.exit.code, path.exists()), (Some(0), closed));
        assert_eq!(all.error, b"");
    }
    // One that was there is written in place, and stays.
    let stream = agent.client.open(&builtin(Builtin::Sftp, &["sftp-server"]));
    agent.client.send(stream, &half_an_upload("file"));
    agent.client.end(stream);
    assert_eq!(agent.client.finish(stream).exit.code, Some(0));
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"content");
}

#[test]
fn sftp_sets_no_set_id_bits() {
    let (folder, mut agent) = agent();
    fs::write(folder.path().join("program"), "x").unwrap();
    let mode = |bits: u32| [&4u32.to_be_bytes()[..], &bits.to_be_bytes()].concat();
    let open = [&[3][..], &[0, 0, 0, 1], &text(b"new"), &[0, 0, 0, 0x1a], &mode(0o106755)];
    let set_open = [&[10][..], &[0, 0, 0, 2], &text(&[0; 4]), &mode(0o106755)];
    let close = [&[4][..], &[0, 0, 0, 3], &text(&[0; 4])];
    let set = [&[9][..], &[0, 0, 0, 4], &text(b"program"), &mode(0o104711)];
    let make = [&[14][..], &[0, 0, 0, 5], &text(b"folder"), &mode(0o042755)];
    let all = [&open[..], &set_open, &close, &set, &make].map(message).concat();
    let stream = agent.client.open(&builtin(Builtin::Sftp, &["sftp-server"]));
    agent.client.send(stream, &[message(&[&[1, 0, 0, 0, 3]]), all].concat());
    agent.client.end(stream);
    assert_eq!(agent.client.finish(stream).exit.code, Some(0));
    for (name, bits) in [("new", 0o755), ("program", 0o711), ("folder", 0o755)] {
        assert_eq!(fs::metadata(folder.path().join(name)).unwrap().mode() & 0o6777, bits, "{name}");
    }
}

#[test]
fn nonsense_ends_it_or_is_answered_and_the_agent_goes_on() {
    let (folder, mut agent) = agent();
    let hello = message(&[&[1, 0, 0, 0, 3]]);
    let mut state = 1u32;
    let mut noise = |count: usize| -> Vec<u8> {
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect()
    };
    for kind in (0..=21).chain([101, 200, 255]) {
        for length in [0, 3, 9, 40] {
            // Twice a request of this kind with nonsense in it, then one that is understood.
            let bad = message(&[&[kind, 0, 0, 0, 1], &noise(length)]);
            let good = message(&[&[16, 0, 0, 0, 2], &text(b".")]);
            let stream = agent.client.open(&builtin(Builtin::Sftp, &["sftp-server"]));
            agent.client.send(stream, &[&hello[..], &bad, &bad, &good].concat());
            agent.client.end(stream);
            let done = agent.client.finish(stream);
            assert_eq!(done.exit.code, Some(0), "kind {kind}: {}", String::from_utf8_lossy(&done.error));
            let home = folder.path().to_str().unwrap().as_bytes();
            assert!(done.output.windows(home.len()).any(|bytes| bytes == home), "kind {kind} is the last it heard");
        }
    }
    for garbage in [&b"\0\0\0\0"[..], b"\xff\xff\xff\xff", b"\0\x10\0\0", b"SSH-2.0-x\r\n"] {
        let stream = agent.client.open(&builtin(Builtin::Sftp, &["sftp-server"]));
        agent.client.send(stream, garbage);
        agent.client.end(stream);
        assert_eq!(agent.client.finish(stream).exit.code, Some(1));
    }
    assert_eq!(agent.client.run(shell("echo well")).output, b"well\n");
}

#[test]
fn a_socket_is_joined_or_the_reason_is_told() {
    let (folder, mut agent) = agent();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        socket.write_all(&all.to_ascii_uppercase()).unwrap();
    });
    let stream = agent.client.open(&builtin(Builtin::Connect, &["connect", path.to_str().unwrap()]));
    agent.client.send(stream, &b"abc".repeat(100_000));
    agent.client.end(stream);
    let done = agent.client.finish(stream);
    assert!(done.output == b"ABC".repeat(100_000) && done.error == b"+" && done.exit.code == Some(0));
    server.join().unwrap();
    for (wanted, reason) in
        [("/no/where", "No such file"), ("127.0.0.1:1", "refused"), ("nonsense", "neither"), ("", "neither")]
    {
        let done = agent.client.run(Exec { builtin: Some(Builtin::Connect), ..exec(&["connect", wanted]) });
        let said = String::from_utf8_lossy(&done.error).into_owned();
        assert!(done.exit.code == Some(1) && said.contains(reason), "{wanted}: {said}");
    }
}

#[test]
fn a_shell_is_the_users_own() {
    let (_folder, mut agent) = agent();
    let shell = |argv: &[&str]| Exec { builtin: Some(Builtin::Shell), stdin: true, ..exec(argv) };
    let done = agent.client.run(shell(&["sh", "-c", "echo $0 $SHELL"]));
    assert_eq!(done.output, b"bash /bin/bash\n");
    let stream = agent.client.open(&Request::Exec(shell(&["sh"])));
    agent.client.send(stream, b"echo $0\n");
    agent.client.end(stream);
    assert_eq!(agent.client.finish(stream).output, b"-bash\n");
}

#[test]
fn connections_to_a_port_that_is_listened_on_are_taken_one_by_one() {
    let (_folder, mut agent) = agent();
    let listening = agent.client.open(&Request::Listen { port: 0 });
    let Event::Listening { port } = agent.client.event(listening) else { panic!("it does not listen") };
    for round in 0..3u8 {
        let stream = agent.client.open(&Request::Accept { port });
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert_eq!(agent.client.event(stream), Event::Done);
        agent.client.send(stream, &[round]);
        let mut heard = [0];
        socket.read_exact(&mut heard).unwrap();
        assert_eq!(heard, [round]);
        socket.write_all(b"back").unwrap();
        drop(socket);
        assert_eq!(agent.client.next(stream), Seen::Data(1, b"back".to_vec()));
    }
    assert_eq!(code(&agent.client.ask(&Request::Listen { port: 80 })), ErrorCode::Denied);
    assert_eq!(code(&agent.client.ask(&Request::Accept { port: 1 })), ErrorCode::NotFound);
    assert!(matches!(agent.client.ask(&Request::Listen { port }), Event::Failed(_)), "it is taken");
    agent.client.reset(listening);
    eventually("it is closed", || TcpStream::connect(("127.0.0.1", port)).is_err());
    assert_eq!(code(&agent.client.ask(&Request::Accept { port })), ErrorCode::NotFound);
}

#[test]
fn a_socket_is_made_for_its_user_and_removed_with_the_request() {
    let (folder, mut agent) = agent();
    let at = |name: &str| target(folder.path().join(name));
    let path = folder.path().join("socket");
    let mode = || fs::symlink_metadata(&path).unwrap().mode();
    let accepted = |agent: &mut Agent| {
        let stream = agent.client.open(&Request::AcceptAt(at("socket")));
        let mut socket = UnixStream::connect(&path).unwrap();
        assert_eq!(agent.client.event(stream), Event::Done);
        agent.client.send(stream, b"ping");
        socket.read_exact(&mut [0; 4]).unwrap();
        socket.write_all(b"back").unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(agent.client.next(stream), Seen::Data(1, b"back".to_vec()));
        assert_eq!(agent.client.next(stream), Seen::End(1));
        agent.client.send(stream, b"more");
        agent.client.end(stream);
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"more", "each half closes by itself");
    };
    let listening = agent.client.open(&Request::ListenAt(at("socket")));
    assert_eq!(agent.client.event(listening), Event::Done);
    assert_eq!(mode(), 0o140_600, "a socket, for its owner only");
    accepted(&mut agent);
    accepted(&mut agent);
    assert_eq!(code(&agent.client.ask(&Request::ListenAt(at("socket")))), ErrorCode::Exists);
    agent.client.reset(listening);
    eventually("it is removed", || !path.exists());
    assert_eq!(code(&agent.client.ask(&Request::AcceptAt(at("socket")))), ErrorCode::NotFound);

    // One that was left behind is replaced; what is in use, or is no socket, is not touched.
    drop(UnixListener::bind(&path).unwrap());
    let listening = agent.client.open(&Request::ListenAt(at("socket")));
    assert_eq!(agent.client.event(listening), Event::Done);
    accepted(&mut agent);
    // What has taken its place stays.
    fs::remove_file(&path).unwrap();
    fs::write(&path, "a file").unwrap();
    agent.client.reset(listening);
    eventually("it is closed", || code(&agent.client.ask(&Request::AcceptAt(at("socket")))) == ErrorCode::NotFound);
    assert_eq!(fs::read(&path).unwrap(), b"a file");
    let used = UnixListener::bind(folder.path().join("used")).unwrap();
    for taken in ["socket", "used"] {
        assert!(matches!(agent.client.ask(&Request::ListenAt(at(taken))), Event::Failed(_)), "{taken}");
    }
    assert!(UnixStream::connect(folder.path().join("used")).is_ok());
    drop(used);
    for (wrong, reason) in [("no/where", ErrorCode::NotFound), (&"x".repeat(200), ErrorCode::Invalid)] {
        assert_eq!(code(&agent.client.ask(&Request::ListenAt(at(wrong)))), reason, "{wrong}");
    }
    assert_eq!(code(&agent.client.ask(&Request::ListenAt(target("/tmp/outside")))), ErrorCode::Denied);
    // There is an end to how many.
    let many: Vec<_> = (0..65).map(|number| agent.client.open(&Request::ListenAt(at(&format!("s{number}"))))).collect();
    let answers: Vec<Event> = many.iter().map(|stream| agent.client.event(*stream)).collect();
    assert!(answers[..64].iter().all(|answer| *answer == Event::Done));
    assert_eq!(code(&answers[64]), ErrorCode::Exhausted);
    assert!(!folder.path().join("s64").exists());
}
