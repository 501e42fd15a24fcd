//! The client against agents that are honest, slow and hostile, played frame by frame.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use bytes::Bytes;
use sloplet_client::wire::flow::INITIAL_WINDOW;
use sloplet_client::wire::frame::encode;
use sloplet_client::wire::message::{from_bytes, to_bytes};
use sloplet_client::wire::{
    Change, ChangeKind, Channel, Decoder, Entry, ErrorCode, Event, Exec, Exit, Failure, Fatal, FileKind, Header, Hello,
    Kind, MAX_PAYLOAD, Request, Target, VERSION, WireError,
};
use sloplet_client::{Agent, ClientError, ProcessEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

/// Long enough that only a hang reaches it.
const HANG: Duration = Duration::from_secs(60);

/// The agent's end, under the test's control.
struct Script {
    stream: DuplexStream,
    decoder: Decoder,
}

impl Script {
    async fn send(&mut self, kind: Kind, stream: u32, channel: u8, payload: &[u8]) {
        let mut out = Vec::new();
        encode(&mut out, kind, stream, channel, payload);
        self.stream.write_all(&out).await.unwrap();
    }

    async fn event(&mut self, stream: u32, event: Event) {
        self.send(Kind::Event, stream, 0, &to_bytes(&event)).await;
    }

    /// The next frame from the host; `None` when the host has closed.
    async fn receive(&mut self) -> Option<(Header, Vec<u8>)> {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some((frame.header, frame.payload.to_vec()));
            }
            let mut bytes = vec![0; 64 * 1024];
            let count = tokio::time::timeout(HANG, self.stream.read(&mut bytes)).await.expect("hang").unwrap();
            if count == 0 {
                return None;
            }
            self.decoder.extend(&bytes[..count]);
        }
    }

    async fn request(&mut self) -> (u32, Request) {
        let (header, payload) = self.receive().await.expect("closed");
        assert_eq!(header.kind, Kind::Request);
        (header.stream, from_bytes(&payload, "request").unwrap())
    }
}

fn silent() -> (DuplexStream, Script) {
    let (host, stream) = duplex(4 * 1024 * 1024);
    (host, Script { stream, decoder: Decoder::new() })
}

async fn greeted() -> (Agent, Script) {
    let (host, mut script) = silent();
    let hello = Hello { version: VERSION, build: "test".into(), longest_request: None };
    script.send(Kind::Hello, 0, 0, &to_bytes(&hello)).await;
    (Agent::connect(host).await.unwrap(), script)
}

/// Both at once: what the host does and what the agent does.
async fn both<A, B>(host: impl Future<Output = A>, agent: impl Future<Output = B>) -> (A, B) {
    tokio::time::timeout(HANG, async { tokio::join!(host, agent) }).await.expect("hang")
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, future).await.expect("hang")
}

fn target(path: &str) -> Target {
    Target { path: path.as_bytes().to_vec().into(), ..Target::default() }
}

fn entry(path: &str) -> Entry {
    Entry {
        path: path.as_bytes().to_vec().into(),
        kind: FileKind::File,
        size: 1,
        mode: 0o644,
        uid: 0,
        gid: 0,
        modified_ns: 0,
        link_target: None,
        owner: None,
        group: None,
        rare: None,
    }
}

/// Starts a process; returns it and its stream.
async fn started(agent: &Agent, script: &mut Script, exec: Exec) -> (sloplet_client::Process, u32) {
    let (process, stream) = both(agent.exec(exec), async {
        let (stream, _) = script.request().await;
        script.event(stream, Event::Started { pid: 7, held: None }).await;
        stream
    })
    .await;
    (process.unwrap(), stream)
}

#[tokio::test]
async fn a_process_delivers_output_in_order_then_its_end() {
    let (agent, mut script) = greeted().await;
    assert_eq!(agent.build(), "test");
    let exec = Exec { argv: vec![b"true".to_vec().into()], ..Exec::default() };
    let (mut process, stream) = started(&agent, &mut script, exec).await;
    assert_eq!(process.pid, 7);
    assert!(process.take_stdin().is_none());
    let big = vec![b'x'; 100_000];
    for (channel, data) in [(Channel::Output, &b"a"[..]), (Channel::Error, b"b"), (Channel::Output, &big)] {
        script.send(Kind::Data, stream, channel as u8, data).await;
    }
    script.send(Kind::End, stream, Channel::Output as u8, b"").await;
    script.send(Kind::End, stream, Channel::Error as u8, b"").await;
    let exit = Exit { code: Some(3), ..Exit::default() };
    script.event(stream, Event::Exited(exit.clone())).await;
    let mut seen = Vec::new();
    while let Some(event) = soon(process.next()).await {
        seen.push(event.unwrap());
    }
    let expected = [
        ProcessEvent::Stdout(Bytes::from_static(b"a")),
        ProcessEvent::Stderr(Bytes::from_static(b"b")),
        ProcessEvent::Stdout(big.into()),
        ProcessEvent::Exited(exit),
    ];
    assert_eq!(seen, expected);
    drop((process, agent));
    assert!(script.receive().await.is_none(), "a finished process needs no reset, and the connection closes");
}

#[tokio::test]
async fn a_failed_set_up_is_told_with_its_step() {
    let (host, mut script) = silent();
    let fatal = Fatal { step: "mount proc".into(), errno: 1, detail: String::new() };
    script.send(Kind::Fatal, 0, 0, &to_bytes(&fatal)).await;
    let error = soon(Agent::connect(host)).await.err().unwrap();
    assert_eq!(error.to_string(), "sandbox set-up failed at `mount proc`: Operation not permitted (os error 1)");
    assert!(matches!(error, ClientError::SetUp(told) if told == fatal));
}

#[tokio::test]
async fn greetings_that_are_none_are_refused() {
    let (host, mut script) = silent();
    script
        .send(
            Kind::Hello,
            0,
            0,
            &to_bytes(&Hello { version: VERSION + 1, build: String::new(), longest_request: None }),
        )
        .await;
    assert!(matches!(soon(Agent::connect(host)).await, Err(ClientError::Version { agent }) if agent == VERSION + 1));

    let (host, mut script) = silent();
    script.send(Kind::Data, 1, 1, b"x").await;
    assert!(matches!(soon(Agent::connect(host)).await, Err(ClientError::Unexpected(_))));

    let (host, mut script) = silent();
    script.send(Kind::Hello, 0, 0, b"\xff\xff").await;
    assert!(matches!(soon(Agent::connect(host)).await, Err(ClientError::Wire(_))));

    let (host, mut script) = silent();
    script.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    assert!(matches!(soon(Agent::connect(host)).await, Err(ClientError::Wire(_))));

    let (host, script) = silent();
    drop(script);
    assert!(matches!(soon(Agent::connect(host)).await, Err(ClientError::Closed)));
}

#[tokio::test]
async fn frames_that_break_the_protocol_end_the_connection_for_everyone() {
    let oversized = [&u32::MAX.to_le_bytes()[..], &[0; 8]].concat();
    let frame = |kind, stream, channel, payload: &[u8]| {
        let mut out = Vec::new();
        encode(&mut out, kind, stream, channel, payload);
        out
    };
    let done = to_bytes(&Event::Done);
    let violations = [
        ("unknown kind", [&[0; 8][..], &[99, 0, 0, 0]].concat()),
        ("oversized frame", oversized),
        (
            "second hello",
            frame(
                Kind::Hello,
                0,
                0,
                &to_bytes(&Hello { version: VERSION, build: String::new(), longest_request: None }),
            ),
        ),
        ("request from the agent", frame(Kind::Request, 1, 0, &to_bytes(&Request::Processes))),
        ("event on a stream never opened", frame(Kind::Event, 99, 0, &done)),
        ("data on stream 0", frame(Kind::Data, 0, 1, b"x")),
        ("malformed event", frame(Kind::Event, 1, 0, b"\xff")),
        ("event that is no answer", frame(Kind::Event, 1, 0, &to_bytes(&Event::Started { pid: 1, held: None }))),
        ("data on the input channel", frame(Kind::Data, 1, 0, b"x")),
        ("data on a channel that does not exist", frame(Kind::Data, 1, 9, b"x")),
        ("window that is no number", frame(Kind::Window, 1, 0, b"abc")),
        ("window for output", frame(Kind::Window, 1, 1, &1u32.to_le_bytes())),
        ("impossible window", frame(Kind::Window, 1, 0, &u32::MAX.to_le_bytes())),
        ("oversized ping", frame(Kind::Ping, 0, 0, &[0; 9])),
        ("malformed pong", frame(Kind::Pong, 0, 0, b"")),
        ("data after the end", [frame(Kind::End, 1, 1, b""), frame(Kind::Data, 1, 1, b"x")].concat()),
        ("fatal while serving", {
            frame(Kind::Fatal, 0, 0, &to_bytes(&Fatal { step: "x".into(), errno: 0, detail: String::new() }))
        }),
    ];
    for (what, bytes) in violations {
        let (agent, mut script) = greeted().await;
        let (results, ()) =
            both(async { tokio::join!(agent.stat(target("/a")), agent.processes(), agent.ping()) }, async {
                script.request().await;
                script.request().await;
                script.stream.write_all(&bytes).await.unwrap();
            })
            .await;
        for result in [results.0.err(), results.1.err(), results.2.err(), soon(agent.ping()).await.err()] {
            let error = result.unwrap_or_else(|| panic!("{what}: no error"));
            let named = matches!(error, ClientError::Wire(_) | ClientError::Unexpected(_) | ClientError::SetUp(_));
            assert!(named, "{what}: {error:?}");
        }
        // Whatever was under way comes first; then the host must have closed.
        while script.receive().await.is_some() {}
    }
}

#[tokio::test]
async fn an_overrun_window_ends_the_connection() {
    let (agent, mut script) = greeted().await;
    let (mut process, stream) = started(&agent, &mut script, Exec::default()).await;
    let chunk = vec![0; MAX_PAYLOAD];
    for _ in 0..INITIAL_WINDOW as usize / MAX_PAYLOAD {
        script.send(Kind::Data, stream, 1, &chunk).await;
    }
    script.send(Kind::Data, stream, 1, b"!").await;
    while script.receive().await.is_some() {}
    let mut received = 0;
    let error = loop {
        match soon(process.next()).await.unwrap() {
            Ok(ProcessEvent::Stdout(bytes)) => received += bytes.len(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(received, INITIAL_WINDOW as usize);
    assert!(matches!(error, ClientError::Wire(error) if *error == WireError::WindowOverrun(1)));
}

#[tokio::test]
async fn a_slow_consumer_does_not_stall_another_stream() {
    let (agent, mut script) = greeted().await;
    let (mut flooding, stream) = started(&agent, &mut script, Exec::default()).await;
    let chunk = vec![0; MAX_PAYLOAD];
    for channel in [1, 2] {
        for _ in 0..INITIAL_WINDOW as usize / MAX_PAYLOAD {
            script.send(Kind::Data, stream, channel, &chunk).await;
        }
    }
    // Nothing of it is taken, and others get through.
    for _ in 0..3 {
        let (found, ()) = both(agent.stat(target("/a")), async {
            let (stream, _) = script.request().await;
            script.event(stream, Event::Entry(entry("/a"))).await;
        })
        .await;
        assert_eq!(found.unwrap(), entry("/a"));
    }
    // Taking it grants credit, exactly what was taken and for the right channel.
    let mut credit = [0; 3];
    for _ in 0..2 * INITIAL_WINDOW as usize / MAX_PAYLOAD {
        soon(flooding.next()).await.unwrap().unwrap();
        let (header, payload) = soon(script.receive()).await.unwrap();
        assert_eq!((header.kind, header.stream), (Kind::Window, stream));
        credit[header.channel as usize] += u32::from_le_bytes(payload.try_into().unwrap());
    }
    assert_eq!(credit, [0, INITIAL_WINDOW, INITIAL_WINDOW]);
}

#[tokio::test]
async fn dropping_resets_and_what_was_under_way_is_ignored() {
    let (agent, mut script) = greeted().await;
    let (process, stream) = started(&agent, &mut script, Exec { stdin: true, ..Exec::default() }).await;
    drop(process);
    let (header, _) = script.receive().await.unwrap();
    assert_eq!((header.kind, header.stream), (Kind::Reset, stream), "and no End of its input");

    // A request given up before its answer.
    let mut request = Box::pin(agent.processes());
    tokio::select! {
        biased;
        _ = &mut request => panic!("nothing answered"),
        _ = script.receive() => {}
    }
    drop(request);
    let (header, _) = script.receive().await.unwrap();
    assert_eq!((header.kind, header.stream), (Kind::Reset, stream + 1));

    for stream in [stream, stream + 1] {
        script.send(Kind::Data, stream, 1, &[0; 100_000]).await;
        script.send(Kind::Data, stream, 1, b"x").await;
        script.send(Kind::Window, stream, 0, &1u32.to_le_bytes()).await;
        script.send(Kind::End, stream, 1, b"").await;
        script.event(stream, Event::Exited(Exit::default())).await;
        script.send(Kind::Reset, stream, 0, b"").await;
    }
    let (pong, ()) = both(agent.ping(), async {
        let (_, payload) = script.receive().await.unwrap();
        script.send(Kind::Pong, 0, 0, &payload).await;
    })
    .await;
    pong.unwrap();
}

#[tokio::test]
async fn input_waits_for_credit_and_ends_when_dropped() {
    let (agent, mut script) = greeted().await;
    let (mut process, stream) = started(&agent, &mut script, Exec { stdin: true, ..Exec::default() }).await;
    let mut stdin = process.take_stdin().unwrap();
    let window = INITIAL_WINDOW as usize;
    let data: Bytes = (0..2 * window + 5).map(|n| n as u8).collect::<Vec<_>>().into();
    let (written, received) = both(
        async {
            stdin.write(data.clone()).await?;
            drop(stdin);
            Ok::<_, ClientError>(())
        },
        async {
            let mut received = Vec::new();
            loop {
                let (header, payload) = script.receive().await.unwrap();
                match header.kind {
                    Kind::Data => received.extend_from_slice(&payload),
                    Kind::End => return received,
                    other => panic!("{other:?}"),
                }
                if received.len() % window == 0 {
                    // The host has stopped by itself.
                    let more = tokio::time::timeout(Duration::from_millis(20), script.receive()).await;
                    assert!(more.is_err(), "sent beyond its credit");
                    script.send(Kind::Window, stream, 0, &INITIAL_WINDOW.to_le_bytes()).await;
                }
            }
        },
    )
    .await;
    written.unwrap();
    assert!(received == data);
}

#[tokio::test]
async fn input_to_a_process_that_ended_fails_instead_of_waiting() {
    let (agent, mut script) = greeted().await;
    let (mut process, stream) = started(&agent, &mut script, Exec { stdin: true, ..Exec::default() }).await;
    let mut stdin = process.take_stdin().unwrap();
    let (written, ()) = both(stdin.write(vec![0; 2 * INITIAL_WINDOW as usize]), async {
        script.receive().await.unwrap();
        script.event(stream, Event::Exited(Exit::default())).await;
    })
    .await;
    assert!(matches!(written, Err(ClientError::InputClosed)));
    assert!(matches!(soon(process.next()).await, Some(Ok(ProcessEvent::Exited(_)))));
    assert!(matches!(soon(stdin.write("x")).await, Err(ClientError::InputClosed)));
}

#[tokio::test]
async fn an_agent_that_grants_credit_but_does_not_read_makes_writers_wait() {
    let (host, mut script) = {
        let (host, stream) = duplex(1024);
        (host, Script { stream, decoder: Decoder::new() })
    };
    let greeting = to_bytes(&Hello { version: VERSION, build: String::new(), longest_request: None });
    script.send(Kind::Hello, 0, 0, &greeting).await;
    let agent = Agent::connect(host).await.unwrap();
    let mut upload = agent.write(target("/a"), 0o644, false).await.unwrap();
    script.send(Kind::Window, 1, 0, &(u32::MAX - INITIAL_WINDOW).to_le_bytes()).await;
    let mut queued = 0;
    while tokio::time::timeout(Duration::from_millis(50), upload.write(vec![0; 64 * 1024])).await.is_ok() {
        queued += 64 * 1024;
        assert!(queued < 4 * 1024 * 1024, "the queue grows without bound");
    }
    // A flood of pings from an agent that does not read is not hoarded either, and nothing breaks.
    for _ in 0..10_000 {
        script.send(Kind::Ping, 0, 0, b"12345678").await;
    }
    let mut pongs = 0;
    while let Ok(Some((header, _))) = tokio::time::timeout(Duration::from_millis(200), script.receive()).await {
        pongs += usize::from(header.kind == Kind::Pong);
    }
    assert!(pongs < 5_000, "{pongs} pongs were queued");
}

#[tokio::test]
async fn an_upload_hears_of_its_failure_early_and_of_its_success_at_the_end() {
    let (agent, mut script) = greeted().await;
    let mut upload = agent.write(target("/a"), 0o644, true).await.unwrap();
    let failure = Failure { code: ErrorCode::Exhausted, message: "disk full".into() };
    let (written, ()) = both(upload.write(vec![0; 2 * INITIAL_WINDOW as usize]), async {
        let (stream, _) = script.request().await;
        script.event(stream, Event::Failed(failure.clone())).await;
    })
    .await;
    assert_eq!(written.unwrap_err().failure(), Some(&failure));
    drop(upload);
    for _ in 0..INITIAL_WINDOW as usize / MAX_PAYLOAD {
        assert_eq!(script.receive().await.unwrap().0.kind, Kind::Data);
    }

    let mut upload = agent.unpack(target("/b")).await.unwrap();
    soon(upload.write("tar")).await.unwrap();
    let (finished, ()) = both(upload.finish(), async {
        let (stream, request) = script.request().await;
        assert_eq!(request, Request::Unpack(target("/b")), "a failed upload needs no reset");
        assert_eq!(script.receive().await.unwrap().1, b"tar");
        assert_eq!(script.receive().await.unwrap().0.kind, Kind::End);
        script.event(stream, Event::Done).await;
    })
    .await;
    finished.unwrap();

    drop(agent.write(target("/c"), 0o644, true).await.unwrap());
    let (stream, _) = script.request().await;
    let (header, _) = script.receive().await.unwrap();
    assert_eq!((header.kind, header.stream), (Kind::Reset, stream), "an abandoned upload is reset");
}

#[tokio::test]
async fn a_download_is_complete_only_when_the_agent_says_so() {
    let (agent, mut script) = greeted().await;
    for complete in [true, false] {
        let (read, stream) = both(agent.read(target("/a"), 0, None), async {
            let (stream, _) = script.request().await;
            script.event(stream, Event::Entry(entry("/a"))).await;
            script.send(Kind::Data, stream, 1, b"hello").await;
            stream
        })
        .await;
        let (found, mut download) = read.unwrap();
        assert_eq!(found, entry("/a"));
        if complete {
            script.send(Kind::End, stream, 1, b"").await;
            script.event(stream, Event::Done).await;
            let mut all = String::new();
            soon(download.read_to_string(&mut all)).await.unwrap();
            assert_eq!(all, "hello");
        } else {
            let failure = Failure { code: ErrorCode::Io, message: "bad disk".into() };
            script.event(stream, Event::Failed(failure.clone())).await;
            assert_eq!(soon(download.chunk()).await.unwrap().unwrap(), "hello");
            assert_eq!(soon(download.chunk()).await.unwrap_err().failure(), Some(&failure));
        }
    }
}

#[tokio::test]
async fn listings_are_collected_and_bounded() {
    let (agent, mut script) = greeted().await;
    let (listed, ()) = both(agent.list(target("/"), 2), async {
        let (stream, _) = script.request().await;
        script.event(stream, Event::Entries(vec![entry("/a"), entry("/b")])).await;
        script.event(stream, Event::Entries(vec![entry("/c")])).await;
        script.event(stream, Event::Done).await;
    })
    .await;
    assert_eq!(listed.unwrap().len(), 3);

    // Endless, few and long: ends with an error and a reset, and the connection lives.
    let (listed, ()) = both(agent.list(target("/"), 2), async {
        let (stream, _) = script.request().await;
        let long = to_bytes(&Event::Entries(vec![entry(&"x".repeat(MAX_PAYLOAD - 100))]));
        let (mut reader, mut writer) = tokio::io::split(&mut script.stream);
        let mut frame = Vec::new();
        encode(&mut frame, Kind::Event, stream, 0, &long);
        let flood = async {
            loop {
                writer.write_all(&frame).await.unwrap();
            }
        };
        let mut head = [0; 12];
        tokio::select! {
            () = flood => {}
            read = reader.read_exact(&mut head) => {
                read.unwrap();
                assert_eq!(Header::parse(&head).unwrap().kind, Kind::Reset);
            }
        }
    })
    .await;
    assert!(matches!(listed, Err(ClientError::TooMuch { .. })));
}

#[tokio::test]
async fn a_watcher_that_is_not_read_loses_the_oldest_and_says_so() {
    let (agent, mut script) = greeted().await;
    let change = |n: u32| Change { kind: ChangeKind::Write, path: n.to_string().into_bytes().into() };
    let (watcher, stream) = both(agent.watch(target("/"), true), async {
        let (stream, _) = script.request().await;
        script.event(stream, Event::Done).await;
        for n in 0..50_000 {
            script.event(stream, Event::Change(change(n))).await;
        }
        stream
    })
    .await;
    let mut watcher = watcher.unwrap();
    // Everything has been dispatched once the answer to a later ping is there.
    let (pong, ()) = both(agent.ping(), async {
        let (_, payload) = script.receive().await.unwrap();
        script.send(Kind::Pong, 0, 0, &payload).await;
    })
    .await;
    pong.unwrap();
    assert_eq!(soon(watcher.recv()).await.unwrap().kind, ChangeKind::Overflow);
    let first = soon(watcher.recv()).await.unwrap();
    let first: u32 = String::from_utf8(first.path.to_vec()).unwrap().parse().unwrap();
    assert!(first > 0);
    for n in first + 1..50_000 {
        assert_eq!(soon(watcher.recv()).await.unwrap(), change(n));
    }
    drop(watcher);
    let (header, _) = script.receive().await.unwrap();
    assert_eq!((header.kind, header.stream), (Kind::Reset, stream));
}

#[tokio::test]
async fn a_dialed_connection_closes_its_halves_separately() {
    let (agent, mut script) = greeted().await;
    let (dialed, stream) = both(agent.dial(80), async {
        let (stream, request) = script.request().await;
        assert_eq!(request, Request::Dial { port: 80 });
        script.event(stream, Event::Done).await;
        stream
    })
    .await;
    let mut connection = dialed.unwrap();
    connection.write_all(b"GET").await.unwrap();
    connection.shutdown().await.unwrap();
    assert!(connection.write_all(b"x").await.is_err());
    assert_eq!(script.receive().await.unwrap().1, b"GET");
    assert_eq!(script.receive().await.unwrap().0.kind, Kind::End);
    script.send(Kind::Data, stream, 1, b"200").await;
    script.send(Kind::End, stream, 1, b"").await;
    let mut answer = Vec::new();
    soon(connection.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(answer, b"200");
    drop((connection, agent));
    assert!(script.receive().await.is_none(), "both halves ended: no reset");
}

#[tokio::test]
async fn an_agent_that_dies_or_abandons_is_noticed() {
    let (agent, mut script) = greeted().await;
    let (asked, ()) = both(agent.processes(), async {
        let (stream, _) = script.request().await;
        script.send(Kind::Reset, stream, 0, b"").await;
    })
    .await;
    assert!(matches!(asked, Err(ClientError::Reset)));

    let (mut process, _) = started(&agent, &mut script, Exec::default()).await;
    drop(script);
    assert!(matches!(soon(process.next()).await, Some(Err(ClientError::Closed))));
    assert!(soon(process.next()).await.is_none());
    assert!(soon(agent.exec(Exec::default())).await.is_err());
}

#[tokio::test]
async fn a_request_that_does_not_fit_is_refused_and_long_input_is_cut() {
    let (agent, mut script) = greeted().await;
    let exec = Exec { argv: vec![vec![b'x'; MAX_PAYLOAD].into()], ..Exec::default() };
    assert!(matches!(soon(agent.exec(exec)).await, Err(ClientError::TooLarge { .. })));
    let data = vec![b'y'; MAX_PAYLOAD + 1];
    let (sent, received) = both(agent.send_input(7, &data, true), async {
        let mut received = Vec::new();
        loop {
            let (stream, request) = script.request().await;
            let Request::SendInput { pid: 7, data, end } = request else { panic!("{request:?}") };
            received.extend_from_slice(&data);
            script.event(stream, Event::Done).await;
            if end {
                return received;
            }
        }
    })
    .await;
    sent.unwrap();
    assert_eq!(received, data);
}

#[tokio::test]
async fn input_that_a_process_does_not_read_yet_is_offered_again() {
    let (agent, mut script) = greeted().await;
    let (sent, received) = both(agent.send_input(7, b"much", true), async {
        for _ in 0..3 {
            let (stream, _) = script.request().await;
            let full = Failure { code: ErrorCode::Exhausted, message: "it does not read".into() };
            script.event(stream, Event::Failed(full)).await;
        }
        let (stream, request) = script.request().await;
        script.event(stream, Event::Done).await;
        request
    })
    .await;
    sent.unwrap();
    assert!(matches!(received, Request::SendInput { pid: 7, data, end: true } if data[..] == *b"much"));
}

#[test]
fn callers_are_told_when_the_runtime_goes_away() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (agent, script) = runtime.block_on(greeted());
    drop(runtime);
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(matches!(other.block_on(soon(agent.ping())), Err(ClientError::Closed)));
    drop(script);
}
