//! What an agent says to the host, cut anywhere: every request ends, and nothing grows beyond its window.

use std::pin::Pin;
use std::task::{Context, Poll};

use sloplet_client::{Agent, ProcessEvent};
use sloplet_wire::{Exec, Hello, Kind, VERSION, frame, message};
use tokio::io::{AsyncRead, ReadBuf};

use crate::{Target, support};

pub const TARGET: Target = Target { run, seeds, words: &[], longest: 4096 };

/// The agent's bytes in pieces, then the end.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    size: usize,
}

impl AsyncRead for Pieces {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let end = (self.at + self.size.min(buffer.remaining())).min(self.bytes.len());
        buffer.put_slice(&self.bytes[self.at..end]);
        self.at = end;
        Poll::Ready(Ok(()))
    }
}

fn run(bytes: &[u8]) {
    let Some((size, said)) = support::pieces(bytes) else { return };
    let mut bytes = Vec::new();
    let hello = Hello { version: VERSION, build: "fuzz".into(), longest_request: None };
    frame::encode(&mut bytes, Kind::Hello, 0, 0, &message::to_bytes(&hello));
    bytes.extend_from_slice(said);
    support::within_runtime(async move {
        let pieces = Pieces { bytes, at: 0, size };
        let Ok(agent) = Agent::connect_halves(pieces, tokio::io::sink()).await else { return };
        let exec = agent.exec(Exec { argv: vec![b"x".to_vec().into()], ..Exec::default() });
        let target = || sloplet_wire::Target { path: b"/x".to_vec().into(), ..Default::default() };
        let (process, entries, content, processes, _) = tokio::join!(
            exec,
            agent.list(target(), 2),
            agent.read(target(), 0, None),
            agent.processes(),
            agent.ping(),
        );
        drop((entries, processes));
        if let Ok(mut process) = process {
            while let Some(Ok(event)) = process.next().await {
                if let ProcessEvent::Exited(exit) = event {
                    let _ = exit.shell_code();
                }
            }
        }
        if let Ok((_, mut content)) = content {
            while let Ok(Some(_)) = content.chunk().await {}
        }
    });
}

fn seeds() -> Vec<Vec<u8>> {
    let frames = support::wire_frames();
    let answers: Vec<u8> = frames[5..].concat();
    support::in_pieces(vec![answers, frames.concat()])
}
