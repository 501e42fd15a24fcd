//! Server-sent events.

use anyhow::{Context, bail};
use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;

use super::Server;
use super::body::full;

/// Bytes of a line: a record is shorter.
const LINE: usize = 4 * 1024 * 1024;

/// A stream of events; of each, its data.
pub struct Events {
    body: Incoming,
    rest: BytesMut,
}

impl Server {
    /// Listens to what happens.
    pub async fn events(&self, path: &str) -> anyhow::Result<Events> {
        let response = self.send(Method::GET, path, "application/json", full("")).await?;
        Ok(Events { body: response.into_body(), rest: BytesMut::new() })
    }
}

impl Events {
    /// The data of the next event; `None` at the end. Can be dropped and called again without losing one.
    pub async fn next(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = self.rest.split_to(end + 1);
                // Each has its data on one line: JSON has no line ends of its own.
                if let Some(data) = line.strip_prefix(b"data:") {
                    return Ok(Some(String::from_utf8_lossy(data).trim().to_owned()));
                }
            }
            if self.rest.len() > LINE {
                bail!("the server sent an event that is too long");
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            if let Ok(bytes) = frame.context("the server's events broke off")?.into_data() {
                self.rest.extend_from_slice(&bytes);
            }
        }
    }
}
