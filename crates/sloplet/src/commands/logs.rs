//! `sloplet logs`

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use serde_json::Value;

use crate::api::{Server, encode, full};
use crate::relay::output::{Sink, Stream};
use crate::terminal;

/// A line that goes on for longer is broken.
const LINE: usize = 64 * 1024;

pub async fn run(
    server: &Server,
    name: &str,
    pid: Option<u32>,
    follow: bool,
    tail: Option<usize>,
) -> anyhow::Result<u8> {
    let tail = tail.map_or_else(String::new, |lines| format!("&tail={lines}"));
    let open = |pid: u64| {
        let path = format!("/sandboxes/{}/processes/{pid}/logs?follow={follow}{tail}", encode(name));
        async move { anyhow::Ok(server.send(Method::GET, &path, "text/plain", full("")).await?.into_body()) }
    };
    if let Some(pid) = pid {
        return raw(open(pid.into()).await?).await;
    }
    let processes = server.get(&format!("/sandboxes/{}/processes", encode(name))).await?;
    let managed = processes.as_array().into_iter().flatten().filter(|one| one["managed"] == true);
    let each = managed.filter_map(|one| Some((one["pid"].as_u64()?, label(one)))).map(|(pid, label)| {
        let open = open(pid);
        async move { prefixed(open.await?, &label).await }
    });
    if follow {
        try_join_all(each).await?;
    } else {
        for one in each {
            one.await?;
        }
    }
    Ok(0)
}

fn label(process: &Value) -> String {
    let text = match process["tag"].as_str() {
        Some(tag) => format!("{} {tag}", process["pid"]),
        None => process["pid"].to_string(),
    };
    terminal::harmless(&text)
}

/// As it was written.
async fn raw(mut body: Incoming) -> anyhow::Result<u8> {
    let mut sink = Sink::new(u64::MAX, false);
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame?.into_data()
            && sink.write(Stream::Out, bytes).await.is_err()
        {
            return Ok(0); // nobody reads it any more
        }
    }
    sink.flush().await;
    Ok(0)
}

/// Line by line, each with the process that wrote it.
async fn prefixed(mut body: Incoming, label: &str) -> anyhow::Result<()> {
    let mut rest = BytesMut::new();
    let print = |line: &[u8]| {
        let text = String::from_utf8_lossy(line);
        let text = text.split('\t').map(terminal::harmless).collect::<Vec<_>>().join("\t");
        say!("{label} | {text}");
    };
    while let Some(frame) = body.frame().await {
        let Ok(bytes): Result<Bytes, _> = frame?.into_data() else { continue };
        rest.extend_from_slice(&bytes);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = rest.split_to(end + 1);
            print(line.strip_suffix(b"\n").unwrap_or(&line));
        }
        if rest.len() > LINE {
            print(&rest.split());
        }
    }
    if !rest.is_empty() {
        print(&rest);
    }
    Ok(())
}
