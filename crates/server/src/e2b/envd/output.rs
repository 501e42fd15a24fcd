//! What a process does, as a stream of events.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use serde_json::json;
use sloplet_engine::life::{Ended, Next, Reached, Reader, Source, Tracked};
use sloplet_wire::Exit;
use tokio::time::Instant;

use super::call::Call;
use super::connect::{self, RpcError};

/// Output that is there already is put together up to this many bytes.
const GATHERED: usize = 32 * 1024;

/// Why a reader that is too slow is cut off.
const LOST: &str = "output was lost: it was not read in time, and the server holds no more of it";

/// Streams what a process does, from an offset of its output on. The process outlives the stream; one that is not
/// read holds the process up.
pub fn events(call: Call, process: Arc<Tracked>, offset: u64) -> Response {
    let events = Events {
        reader: process.read_from(offset),
        expected: offset,
        stage: Stage::Start(process.pid),
        deadline: call.deadline,
        keepalive: call.keepalive,
        _sandbox: call.sandbox,
    };
    connect::stream_of(stream::unfold(events, |mut events| async move { Some((events.next().await?, events)) }))
}

struct Events {
    reader: Reader,
    /// Where the next output begins.
    expected: u64,
    stage: Stage,
    deadline: Option<Instant>,
    keepalive: Duration,
    // Held: it is in use.
    _sandbox: Reached,
}

enum Stage {
    Start(u32),
    Output,
    Lost(String),
    Over,
}

impl Events {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        match &mut self.stage {
            Stage::Start(pid) => {
                let pid = *pid;
                self.stage = Stage::Output;
                return Some(Ok(connect::message(&json!({"event": {"start": {"pid": pid}}}))));
            }
            Stage::Output => {}
            // Broken off, as a connection to a machine that is gone would be: then the SDKs ask whether it is.
            Stage::Lost(why) => {
                let error = io::Error::other(std::mem::take(why));
                self.stage = Stage::Over;
                return Some(Err(error));
            }
            Stage::Over => return None,
        }
        Some(Ok(self.output().await))
    }

    async fn output(&mut self) -> Bytes {
        let next = tokio::select! {
            biased;
            () = at(self.deadline) => return self.end(Vec::new(), Some(&RpcError::late())),
            next = self.reader.next() => next,
            () = tokio::time::sleep(self.keepalive) => {
                return connect::message(&json!({"event": {"keepalive": {}}}));
            }
        };
        let mut out = Vec::new();
        let mut next = next;
        loop {
            match next {
                Some(Next::Chunk(chunk)) if chunk.offset > self.expected => {
                    self.stage = Stage::Lost(LOST.into());
                    return out.into();
                }
                Some(Next::Chunk(chunk)) => {
                    self.expected = chunk.offset + chunk.bytes.len() as u64;
                    push_data(&mut out, chunk.source, &chunk.bytes);
                }
                // The last of it was lost: there was no memory for it, or for what an earlier server had read.
                Some(Next::Ended(_)) if self.reader.end() > self.expected => {
                    self.stage = Stage::Lost(LOST.into());
                    return out.into();
                }
                Some(Next::Ended(ended)) => return self.tell_end(out, ended),
                None => return self.end(out, None),
            }
            if out.len() >= GATHERED {
                break;
            }
            match self.reader.try_next() {
                None => break,
                more => next = more,
            }
        }
        out.into()
    }

    fn tell_end(&mut self, mut out: Vec<u8>, ended: Ended) -> Bytes {
        match &ended {
            Ended::Exited(exit) if exit.timed_out => self.end(out, Some(&RpcError::late())),
            Ended::Exited(exit) => {
                out.extend_from_slice(&connect::message(&json!({"event": {"end": describe(exit)}})));
                self.end(out, None)
            }
            Ended::Lost(why) => {
                self.stage = Stage::Lost(format!("the connection to the sandbox ended before the process did: {why}"));
                out.into()
            }
        }
    }

    fn end(&mut self, mut out: Vec<u8>, error: Option<&RpcError>) -> Bytes {
        self.stage = Stage::Over;
        out.extend_from_slice(&connect::last(error));
        out.into()
    }
}

/// Waits for a time that may never come.
pub async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn push_data(out: &mut Vec<u8>, source: Source, bytes: &[u8]) {
    let name = match source {
        Source::Stdout => "stdout",
        Source::Stderr => "stderr",
        Source::Terminal => "pty",
    };
    connect::push_message(out, |out| {
        out.extend_from_slice(format!(r#"{{"event":{{"data":{{"{name}":""#).as_bytes());
        let start = out.len();
        out.resize(start + base64::encoded_len(bytes.len(), true).unwrap_or(0), 0);
        let written = STANDARD.encode_slice(bytes, &mut out[start..]).unwrap_or(0);
        out.truncate(start + written);
        out.extend_from_slice(br#""}}}"#);
    });
}

/// The end in the words of E2B's clients, which are Go's.
fn describe(exit: &Exit) -> serde_json::Value {
    let status = match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal: {}", signal_name(signal)),
        (None, None) => "unknown".into(),
    };
    let mut end = json!({"exitCode": exit.code.unwrap_or(-1), "exited": exit.code.is_some(), "status": status});
    if exit.code != Some(0) {
        end["error"] = json!(status);
    }
    end
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_in_known_words() {
        let exit = |code, signal| describe(&Exit { code, signal, ..Exit::default() });
        assert_eq!(exit(Some(0), None), json!({"exitCode": 0, "exited": true, "status": "exit status 0"}));
        let failed = json!({"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"});
        assert_eq!(exit(Some(3), None), failed);
        let killed = json!({"exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed"});
        assert_eq!(exit(None, Some(9)), killed);
    }

    #[test]
    fn output_is_enveloped() {
        let mut out = Vec::new();
        push_data(&mut out, Source::Terminal, b"hi");
        push_data(&mut out, Source::Stderr, b"");
        assert_eq!(&out[..5], [0, 0, 0, 0, 33]);
        assert_eq!(&out[5..38], br#"{"event":{"data":{"pty":"aGk="}}}"#);
        assert_eq!(&out[43..], br#"{"event":{"data":{"stderr":""}}}"#);
    }
}
