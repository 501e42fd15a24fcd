//! A client that takes of a server all that it can get: connections, bodies, streams.

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};
use crate::served::Served;

pub const PROBE: Probe = Probe {
    name: "server-limits",
    ids: &[65],
    tries: "hold a server's connections, and fill its memory with bodies that stall and streams that nobody reads",
    why: "one key, or nobody with a key at all, must not stop the server for everybody else",
    needs: &[],
    kind: Kind::Drill(run),
};

/// What the server may have.
const PLACES: usize = 32;
const BUFFERS: &str = "16MiB";

/// Idle connections, stalled bodies and their size, unread streams. The latter two fit into three quarters of the places.
const IDLE: usize = 150;
const BODIES: usize = 12;
const BODY: usize = 16 << 20;
const STREAMS: usize = 8;

/// Most memory that the attack may cost: the buffers, and what a server and its allocator need to refuse the rest. The bodies
/// alone are twice as much.
const MOST: u64 = 96 << 20;

/// How long a connection is let go, or a write may take.
const PATIENCE: Duration = Duration::from_secs(10);
const STALLED: Duration = Duration::from_millis(300);

/// The greeting of HTTP/2, with empty settings.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    let places = PLACES.to_string();
    let server = Served::start_with(drill, &["--max-connections", &places, "--buffers", BUFFERS]).await?;
    let finding = at_the_door(&server).await;
    server.end().await?;
    finding
}

async fn at_the_door(server: &Served) -> Result<Finding, DrillError> {
    let stranger = server.stranger().await?;
    let served = server.own("GET", "/v1/sandboxes", None).await?.status;
    let before = server.memory()?;
    if served != 200 {
        return Ok(Finding::inconclusive("", format!("the server answers {served} before anything is tried")));
    }
    // Connections that never ask for anything.
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        idle.push(send(server, GREETING).await?);
    }
    let until = Instant::now() + PATIENCE;
    let mut open = idle.iter().filter(|stream| is_open(stream)).count();
    while open > PLACES && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
        open = idle.iter().filter(|stream| is_open(stream)).count();
    }
    // Bodies that stall, and streams that nobody reads.
    let head = |method: &str, path: &str, more: &str| {
        format!("{method} /v1{path} HTTP/1.1\r\nHost: x\r\nX-API-KEY: {stranger}\r\n{more}\r\n").into_bytes()
    };
    let (mut held, length) = (Vec::new(), 24 << 20);
    let piece = vec![b' '; 1 << 20];
    for _ in 0..BODIES {
        let more = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
        let mut stream = send(server, &head("POST", "/sandboxes", &more)).await?;
        for _ in 0..BODY / piece.len() {
            let sent = tokio::time::timeout(STALLED, stream.write_all(&piece)).await;
            if !matches!(sent, Ok(Ok(()))) {
                break;
            }
        }
        held.push(stream);
    }
    for _ in 0..STREAMS {
        held.push(send(server, &head("GET", "/events?since=24h", "")).await?);
    }
    let answered = server.own("GET", "/v1/sandboxes", None).await.map_or(0, |answer| answer.status);
    let grown = server.memory()?.saturating_sub(before);
    drop((idle, held));
    let control = "it answers before; each connection was taken at first";
    let detail = format!(
        "{open} of {IDLE} idle connections kept ({PLACES} places); {} MiB more memory for {} MiB of bodies; {}",
        grown >> 20,
        (BODIES * BODY) >> 20,
        if answered == 200 { "others are served" } else { "others are not served" },
    );
    Ok(Finding::judge(open <= PLACES && grown < MOST && answered == 200, control, detail))
}

/// A connection on which this was said.
async fn send(server: &Served, bytes: &[u8]) -> Result<TcpStream, DrillError> {
    let mut stream = TcpStream::connect(server.address()).await?;
    // It may be hung up on at once.
    let _ = stream.write_all(bytes).await;
    Ok(stream)
}

/// Whether the server has not hung up. What it says meanwhile is passed over.
fn is_open(stream: &TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.try_read(&mut buffer) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}
