//! What the client itself costs: round trips and bulk output against the simplest agent there can be, on a socket pair.
//!
//! `cargo run --release -p sloplet-client --example speed`

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use sloplet_client::wire::flow::SendWindow;
use sloplet_client::wire::frame::encode;
use sloplet_client::wire::message::{from_bytes, to_bytes};
use sloplet_client::wire::{Channel, Decoder, Event, Exec, Exit, HEADER_LEN, Header, Hello, Kind, Request, VERSION};
use sloplet_client::{Agent, ProcessEvent};

const TOTAL: usize = 1 << 30;
const PIECE: usize = 64 * 1024;
const ROUNDS: u32 = 20_000;

/// Answers `Signal` with `Done` and `Exec` with [`TOTAL`] bytes.
fn serve(mut socket: UnixStream) {
    let mut out = Vec::new();
    encode(
        &mut out,
        Kind::Hello,
        0,
        0,
        &to_bytes(&Hello { version: VERSION, build: "speed".into(), longest_request: None }),
    );
    let mut decoder = Decoder::new();
    let mut buffer = vec![0; PIECE];
    let piece = vec![b'x'; PIECE];
    let (mut flooding, mut window, mut left) = (0, SendWindow::default(), 0);
    loop {
        socket.write_all(&out).unwrap();
        out.clear();
        while left > 0 && window.available() >= PIECE {
            let head = Header::new(Kind::Data, flooding, Channel::Output as u8, PIECE).to_bytes();
            let wrote = socket.write_vectored(&[IoSlice::new(&head), IoSlice::new(&piece)]).unwrap();
            if wrote < HEADER_LEN {
                socket.write_all(&head[wrote..]).unwrap();
            }
            socket.write_all(&piece[wrote.saturating_sub(HEADER_LEN)..]).unwrap();
            window.consume(PIECE);
            left -= PIECE;
            if left == 0 {
                encode(&mut out, Kind::Event, flooding, 0, &to_bytes(&Event::Exited(Exit::default())));
                socket.write_all(&out).unwrap();
                out.clear();
            }
        }
        let count = socket.read(&mut buffer).unwrap();
        if count == 0 {
            return;
        }
        decoder.extend(&buffer[..count]);
        while let Some(frame) = decoder.next_frame().unwrap() {
            let stream = frame.header.stream;
            match frame.header.kind {
                Kind::Window => window.grant(u32::from_le_bytes(frame.payload.try_into().unwrap())).unwrap(),
                Kind::Request => match from_bytes(frame.payload, "request").unwrap() {
                    Request::Exec(_) => {
                        encode(&mut out, Kind::Event, stream, 0, &to_bytes(&Event::Started { pid: 1, held: None }));
                        (flooding, window, left) = (stream, SendWindow::default(), TOTAL);
                    }
                    _ => encode(&mut out, Kind::Event, stream, 0, &to_bytes(&Event::Done)),
                },
                other => panic!("{other:?}"),
            }
        }
    }
}

async fn measure(name: &str) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let served = std::thread::spawn(move || serve(theirs));
    ours.set_nonblocking(true).unwrap();
    let (reader, writer) = tokio::net::UnixStream::from_std(ours).unwrap().into_split();
    let agent = Agent::connect_halves(reader, writer).await.unwrap();

    let start = Instant::now();
    for _ in 0..ROUNDS {
        agent.signal(1, 0, false).await.unwrap();
    }
    println!("{name}: round trip {:.1} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS));

    for _ in 0..3 {
        let start = Instant::now();
        let mut process = agent.exec(Exec::default()).await.unwrap();
        let mut received = 0;
        while let ProcessEvent::Stdout(bytes) = process.next().await.unwrap().unwrap() {
            received += bytes.len();
        }
        assert_eq!(received, TOTAL);
        println!("{name}: output {:.2} GB/s", TOTAL as f64 / 1e9 / start.elapsed().as_secs_f64());
    }
    drop(agent);
    tokio::task::spawn_blocking(move || served.join().unwrap()).await.unwrap();
}

fn main() {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(measure("current thread"));
    // A task of its own: `block_on` itself does not run on a worker.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::spawn(measure("multi thread")).await.unwrap() });
}
