//! What is written to a process.

use std::sync::Arc;

use axum::Json;
use axum::response::Response;
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use sloplet_engine::life::Tracked;
use sloplet_wire::ErrorCode;

use super::call::{Call, Inputs, Single};
use super::connect::{self, Code, Messages, RpcError};
use super::json::Base64;
use super::output::at;
use super::process::Selector;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Input {
    stdin: Option<Base64>,
    pty: Option<Base64>,
}

impl Input {
    async fn write(self, process: &Tracked) -> Result<(), RpcError> {
        let data = match (self.stdin, self.pty, process.terminal) {
            (Some(data), None, false) | (None, Some(data), true) => data.0,
            (Some(_), None, true) => return Err(wrong("the process has a terminal: write to the pty, not to stdin")),
            (None, Some(_), false) => return Err(wrong("the process has no terminal: write to stdin, not to the pty")),
            _ => return Err(RpcError::invalid("input is either for stdin or for the pty")),
        };
        match process.send_input(&data, false).await {
            Err(error) if error.failure().is_some_and(|failure| failure.code == ErrorCode::Invalid) => {
                Err(wrong(&error.to_string()))
            }
            result => Ok(result?),
        }
    }
}

fn wrong(message: &str) -> RpcError {
    RpcError::new(Code::FailedPrecondition, message)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Send {
    process: Selector,
    input: Input,
}

/// `SendInput`.
pub async fn send(Single(call, request): Single<Send>) -> Result<Json<Value>, RpcError> {
    let process = request.process.find(&call.sandbox)?;
    request.input.write(&process).await?;
    Ok(Json(json!({})))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Close {
    process: Selector,
}

/// `CloseStdin`.
pub async fn close(Single(call, request): Single<Close>) -> Result<Json<Value>, RpcError> {
    let process = request.process.find(&call.sandbox)?;
    if process.terminal {
        return Err(wrong("the input of a terminal has no end: send Ctrl+D (0x04) instead"));
    }
    match process.send_input(b"", true).await {
        // It is closed already.
        Err(error) if error.failure().is_some_and(|failure| failure.code == ErrorCode::Invalid) => {}
        result => result?,
    }
    Ok(Json(json!({})))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    start: Option<Close>,
    data: Option<Data>,
    keepalive: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Data {
    input: Input,
}

/// `StreamInput`.
pub async fn stream(Inputs(call, mut messages): Inputs) -> Response {
    let deadline = call.deadline;
    let written = tokio::select! {
        written = write_all(&call, &mut messages) => written,
        () = at(deadline) => Err(RpcError::late()),
    };
    match written {
        Ok(()) => connect::stream_of(stream::iter([Ok(connect::message(&json!({}))), Ok(connect::last(None))])),
        Err(error) => {
            messages.discard().await;
            error.streamed()
        }
    }
}

async fn write_all(call: &Call, messages: &mut Messages) -> Result<(), RpcError> {
    let mut process: Option<Arc<Tracked>> = None;
    while let Some(event) = messages.next::<Event>().await? {
        match event {
            Event { start: Some(start), data: None, keepalive: None } => {
                process = Some(start.process.find(&call.sandbox)?);
            }
            Event { start: None, data: Some(data), keepalive: None } => {
                let process = process.as_ref().ok_or_else(|| RpcError::invalid("data came before the start event"))?;
                data.input.write(process).await?;
            }
            Event { start: None, data: None, keepalive: Some(_) } => {}
            _ => return Err(RpcError::invalid("a message is a start, data or keepalive event")),
        }
    }
    Ok(())
}
