//! QEMU's monitor: lines of JSON. QEMU is hostile once a guest has broken out.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use sloplet_client::{Agent, Connection};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::machine::dial;
use crate::qemu::MONITOR_PORT;

/// Most bytes of a line.
const MAX_LINE: u64 = 1 << 20;

/// A conversation with the monitor.
pub struct Monitor {
    stream: BufReader<Connection>,
}

impl Monitor {
    /// Begins one.
    pub async fn open(agent: &Agent) -> io::Result<Self> {
        let mut monitor = Self { stream: BufReader::new(dial(agent, MONITOR_PORT).await?) };
        monitor.line().await?;
        monitor.run("qmp_capabilities", json!({})).await?;
        Ok(monitor)
    }

    async fn line(&mut self) -> io::Result<Value> {
        let mut line = Vec::new();
        (&mut self.stream).take(MAX_LINE).read_until(b'\n', &mut line).await?;
        Ok(serde_json::from_slice(&line)?)
    }

    /// Runs a command and returns what it says.
    pub async fn run(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        let mut line = serde_json::to_vec(&json!({ "execute": command, "arguments": arguments }))?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).await?;
        loop {
            let mut answer = self.line().await?;
            if let Some(fault) = answer.get("error") {
                return Err(io::Error::other(format!("{command}: {}", fault["desc"].as_str().unwrap_or("it failed"))));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Says whether memory that is a shared file is part of a machine's state.
    pub async fn ignore_shared(&mut self, ignore: bool) -> io::Result<()> {
        let capability = json!({ "capability": "x-ignore-shared", "state": ignore });
        self.run("migrate-set-capabilities", json!({ "capabilities": [capability] })).await.map(drop)
    }

    /// Waits until the state has gone out or come in.
    pub async fn moved(&mut self) -> io::Result<()> {
        loop {
            let told = self.run("query-migrate", json!({})).await?;
            match told["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => {
                    let why = told["error-desc"].as_str().unwrap_or("QEMU does not say why");
                    return Err(io::Error::other(why.to_owned()));
                }
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }
}
