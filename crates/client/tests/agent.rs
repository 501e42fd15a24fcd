//! The client against the real agent, in a child process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::time::Duration;

use bytes::Bytes;
use sloplet_client::wire::{ChangeKind, ErrorCode, Exec, FileKind, Target, TerminalSize};
use sloplet_client::{Agent, ClientError, ProcessEvent};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Long enough that only a hang reaches it.
const HANG: Duration = Duration::from_secs(60);

struct Served {
    agent: Option<Agent>,
    child: Child,
    root: TempDir,
}

impl Served {
    async fn start() -> Self {
        let root = TempDir::new().unwrap();
        // Built by cargo beside the tests: target/…/deps/test → target/…/examples/agent.
        let mut program = std::env::current_exe().unwrap();
        program.pop();
        program.pop();
        program.push("examples/agent");
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let child = Command::new(program).arg(root.path()).stdin(OwnedFd::from(theirs)).spawn();
        let child = child.expect("the `agent` example; `cargo build -p sloplet-client --examples` builds it");
        ours.set_nonblocking(true).unwrap();
        let (reader, writer) = tokio::net::UnixStream::from_std(ours).unwrap().into_split();
        let agent = soon(Agent::connect_halves(reader, writer)).await.unwrap();
        Self { agent: Some(agent), child, root }
    }

    fn agent(&self) -> &Agent {
        self.agent.as_ref().unwrap()
    }

    fn target(&self, path: &str) -> Target {
        let path = self.root.path().join(path).into_os_string().into_encoded_bytes();
        Target { path: path.into(), ..Target::default() }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // An agent that sees its connection end kills what it has started; one that is killed cannot.
        self.agent = None;
        for _ in 0..500 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        assert!(std::thread::panicking(), "the agent outlived its connection");
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, future).await.expect("hang")
}

fn shell(script: &str) -> Exec {
    Exec {
        argv: [b"/bin/sh".as_slice(), b"-c", script.as_bytes()].map(|arg| arg.to_vec().into()).to_vec(),
        env: vec![b"PATH=/usr/bin:/bin".to_vec().into()],
        ..Exec::default()
    }
}

#[tokio::test]
async fn processes_run_and_fail() {
    let served = Served::start().await;
    let agent = served.agent();
    let process = soon(agent.exec(shell("echo out; echo err >&2; exit 3"))).await.unwrap();
    let output = soon(process.output(1000)).await.unwrap();
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!((output.exit.code, output.truncated), (Some(3), false));

    let missing = Exec { argv: vec![b"/no/such/program".to_vec().into()], ..Exec::default() };
    let error = soon(agent.exec(missing)).await.err().unwrap();
    assert_eq!(error.failure().unwrap().code, ErrorCode::NotFound);

    let process = soon(agent.exec(shell("kill -9 $$"))).await.unwrap();
    assert_eq!(soon(process.output(0)).await.unwrap().exit.signal, Some(9));
    soon(agent.ping()).await.unwrap();
}

#[tokio::test]
async fn many_megabytes_go_through_and_come_back() {
    let served = Served::start().await;
    let mut process = soon(served.agent().exec(Exec { stdin: true, ..shell("cat") })).await.unwrap();
    let mut stdin = process.take_stdin().unwrap();
    let data: Bytes = (0..20_000_000u32).map(|n| (n * 7 + n / 251) as u8).collect::<Vec<_>>().into();
    let sent = data.clone();
    let writing = tokio::spawn(async move { stdin.write(sent).await });
    let output = soon(process.output(usize::MAX)).await.unwrap();
    writing.await.unwrap().unwrap();
    assert!(output.stdout == data);
}

#[tokio::test]
async fn a_flood_that_nobody_reads_stalls_nobody() {
    let served = Served::start().await;
    let agent = served.agent();
    let mut flood = soon(agent.exec(shell("exec cat /dev/zero"))).await.unwrap();
    for _ in 0..20 {
        let process = soon(agent.exec(shell("echo ok"))).await.unwrap();
        assert_eq!(soon(process.output(10)).await.unwrap().stdout, b"ok\n");
    }
    // It has not broken the flood either.
    let mut received = 0;
    while received < 5_000_000 {
        match soon(flood.next()).await {
            Some(Ok(ProcessEvent::Stdout(bytes))) => received += bytes.len(),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn dropping_kills_a_foreground_process_and_not_a_background_one() {
    let served = Served::start().await;
    let agent = served.agent();
    let foreground = soon(agent.exec(shell("exec sleep 1000"))).await.unwrap();
    let foreground_pid = foreground.pid;
    let script = "echo early; while [ ! -e go ]; do sleep 0.01; done; echo late";
    let cwd = Some(served.root.path().as_os_str().as_encoded_bytes().to_vec().into());
    let background = soon(agent.exec(Exec { background: true, cwd, ..shell(script) })).await.unwrap();
    drop(foreground);
    let pid = background.detach();
    // Gone: the agent no longer knows it.
    soon(async {
        while agent.signal(foreground_pid, 0, false).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let attached = soon(agent.attach(pid)).await.unwrap();
    assert_eq!(attached.pid, pid);
    std::fs::write(served.root.path().join("go"), "").unwrap();
    let output = soon(attached.output(1000)).await.unwrap();
    assert_eq!((&output.stdout[..], output.exit.code), (&b"early\nlate\n"[..], Some(0)));
}

#[tokio::test]
async fn a_terminal_has_a_size_that_changes() {
    let served = Served::start().await;
    let agent = served.agent();
    let terminal = Some(TerminalSize { columns: 90, rows: 20 });
    let mut process = soon(agent.exec(Exec { terminal, ..shell("stty size; read line; stty size") })).await.unwrap();
    let mut stdin = process.take_stdin().unwrap();
    let mut seen = String::new();
    loop {
        match soon(process.next()).await.unwrap().unwrap() {
            ProcessEvent::Stdout(bytes) => seen.push_str(std::str::from_utf8(&bytes).unwrap()),
            ProcessEvent::Stderr(bytes) => panic!("{bytes:?}"),
            ProcessEvent::Exited(exit) => break assert_eq!(exit.code, Some(0)),
        }
        if seen == "20 90\r\n" {
            soon(agent.resize(process.pid, TerminalSize { columns: 50, rows: 10 })).await.unwrap();
            soon(stdin.write("\n")).await.unwrap();
        }
    }
    assert!(seen.ends_with("10 50\r\n"), "{seen:?}");
}

#[tokio::test]
async fn files_go_in_and_come_out() {
    let served = Served::start().await;
    let agent = served.agent();
    let data: Bytes = (0..5_000_000u32).map(|n| (n / 3) as u8).collect::<Vec<_>>().into();
    let mut upload = soon(agent.write(served.target("a/b/file"), 0o640, true)).await.unwrap();
    soon(upload.write(data.clone())).await.unwrap();
    let entry = soon(upload.finish()).await.unwrap();
    assert_eq!((entry.size, entry.mode & 0o777, entry.kind), (data.len() as u64, 0o640, FileKind::File));
    assert_eq!(soon(agent.stat(served.target("a/b/file"))).await.unwrap(), entry);

    let (read, mut download) = soon(agent.read(served.target("a/b/file"), 10, Some(1_000_000))).await.unwrap();
    assert_eq!(read.path, entry.path);
    let mut content = Vec::new();
    soon(download.read_to_end(&mut content)).await.unwrap();
    assert!(content == data[10..1_000_010]);

    soon(agent.move_(served.target("a/b/file"), served.target("a/moved").path.to_vec())).await.unwrap();
    soon(agent.set_mode(served.target("a/moved"), 0o600)).await.unwrap();
    let mut listed: Vec<_> = soon(agent.list(served.target("a"), 1)).await.unwrap();
    listed.sort_by(|a, b| a.path.cmp(&b.path));
    assert_eq!(listed.iter().map(|entry| entry.kind).collect::<Vec<_>>(), [FileKind::Directory, FileKind::File]);

    let mut archive = Vec::new();
    soon(soon(agent.pack(served.target("a"))).await.unwrap().read_to_end(&mut archive)).await.unwrap();
    let mut upload = soon(agent.unpack(served.target("copy"))).await.unwrap();
    soon(upload.write(archive)).await.unwrap();
    soon(upload.finish()).await.unwrap();
    assert!(std::fs::read(served.root.path().join("copy/moved")).unwrap() == data);

    soon(agent.remove(served.target("a"), true)).await.unwrap();
    let error = soon(agent.stat(served.target("a"))).await.unwrap_err();
    assert_eq!(error.failure().unwrap().code, ErrorCode::NotFound);

    // An upload that is given up leaves nothing.
    soon(agent.make_dir(served.target("d"), 0o755, false)).await.unwrap();
    let mut upload = soon(agent.write(served.target("d/file"), 0o644, false)).await.unwrap();
    soon(upload.write("half")).await.unwrap();
    drop(upload);
    soon(agent.ping()).await.unwrap();
    assert!(soon(agent.list(served.target("d"), 1)).await.unwrap().is_empty());
}

#[tokio::test]
async fn changes_are_seen_and_ports_dialed() {
    let served = Served::start().await;
    let agent = served.agent();
    let mut watcher = soon(agent.watch(served.target(""), true)).await.unwrap();
    std::fs::write(served.root.path().join("new"), "x").unwrap();
    let change = soon(watcher.recv()).await.unwrap();
    assert_eq!((change.kind, &change.path[..]), (ChangeKind::Create, &b"new"[..]));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut all = Vec::new();
        socket.read_to_end(&mut all).await.unwrap();
        socket.write_all(&all).await.unwrap();
    });
    let connection = soon(agent.dial(port)).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(connection);
    let data = vec![b'z'; 3_000_000];
    let mut back = Vec::new();
    let writing = async {
        writer.write_all(&data).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    soon(async { tokio::join!(writing, reader.read_to_end(&mut back)) }).await.1.unwrap();
    soon(echo).await.unwrap();
    assert!(back == data);
    let refused = soon(agent.dial(port)).await.err().unwrap();
    assert!(matches!(refused, ClientError::Failed(failure) if failure.code == ErrorCode::Refused));
}

#[tokio::test]
async fn running_processes_are_listed() {
    let served = Served::start().await;
    let agent = served.agent();
    let process = soon(agent.exec(Exec { tag: Some("sleeper".into()), ..shell("exec sleep 1000") })).await.unwrap();
    let listed = soon(agent.processes()).await.unwrap();
    let found = listed.iter().find(|info| info.pid == process.pid).unwrap();
    assert_eq!((found.managed, found.tag.as_deref()), (true, Some("sleeper")));
}

#[tokio::test]
async fn the_agent_ends_with_its_connection() {
    let mut served = Served::start().await;
    drop(served.agent.take());
    for _ in 0..HANG.as_millis() / 10 {
        if let Some(status) = served.child.try_wait().unwrap() {
            assert!(status.success());
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the agent is still there");
}
