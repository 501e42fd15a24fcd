//! Takes out of a stream what only the gateway asked for.
//!
//! OpenAI's streams tell their usage only if asked, in an event of its own without a choice. Programs that did not ask
//! look at the first choice of every event, and would fail.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame};
use memchr::memmem;

use crate::body::{Body, BoxError};

/// Longest event that is looked at; the one to take out has some hundred bytes.
const LONGEST: usize = 64 * 1024;

/// A stream of events without the one that tells the usage.
pub(crate) struct WithoutUsage {
    inner: Body,
    held: Vec<u8>,
    over: bool,
}

impl WithoutUsage {
    pub fn new(inner: Body) -> Self {
        Self { inner, held: Vec::new(), over: false }
    }

    /// Takes a piece; returns the events that are complete, but for the one.
    fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        let mut passed = Vec::new();
        while let Some(end) = end_of_event(&self.held) {
            let event: Vec<u8> = self.held.drain(..end).collect();
            if !tells_only_usage(&event) {
                passed.extend(event);
            }
        }
        if self.held.len() > LONGEST {
            passed.append(&mut self.held);
        }
        passed
    }
}

fn end_of_event(text: &[u8]) -> Option<usize> {
    let plain = memmem::find(text, b"\n\n").map(|at| at + 2);
    let returns = memmem::find(text, b"\r\n\r\n").map(|at| at + 4);
    plain.into_iter().chain(returns).min()
}

fn tells_only_usage(event: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Chunk {
        choices: Vec<serde::de::IgnoredAny>,
        usage: Option<serde::de::IgnoredAny>,
    }
    let event = event.trim_ascii();
    let Some(data) = event.strip_prefix(b"data:") else { return false };
    serde_json::from_slice::<Chunk>(data).is_ok_and(|chunk| chunk.choices.is_empty() && chunk.usage.is_some())
}

impl HttpBody for WithoutUsage {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if self.over {
                return Poll::Ready(None);
            }
            let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(context)) else {
                self.over = true;
                let rest = std::mem::take(&mut self.held);
                return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest.into()))));
            };
            // These APIs have no trailers; what comes after the data is of no use without it.
            let Ok(data) = frame?.into_data() else { continue };
            let passed = self.push(&data);
            if !passed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(passed.into()))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::full;

    #[test]
    fn only_the_event_with_usage_alone_is_taken_out() {
        let kept = "data: {\"choices\":[{}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":null}\r\n\r\n: ping\n\n";
        let taken = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n";
        let stream = format!("{kept}{taken}data: [DONE]\n\n");
        for size in 1..stream.len() {
            let mut filter = WithoutUsage::new(full(""));
            let passed: Vec<u8> = stream.as_bytes().chunks(size).flat_map(|piece| filter.push(piece)).collect();
            assert_eq!(String::from_utf8(passed).unwrap(), format!("{kept}data: [DONE]\n\n"), "in pieces of {size}");
        }
    }

    #[test]
    fn an_endless_event_is_not_held() {
        let mut filter = WithoutUsage::new(full(""));
        let passed: usize = (0..100).map(|_| filter.push(&[b'x'; 1000]).len()).sum();
        assert!(passed >= 100_000 - LONGEST - 1000 && filter.held.len() <= LONGEST);
    }
}
