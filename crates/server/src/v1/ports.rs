//! Ports that something inside listens on.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::State as AppState;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::Response;
use bytes::BytesMut;
use serde::{Deserialize, Serialize};
use sloplet_engine::life::Live;
use sloplet_policy::Span;
use sloplet_policy::addresses::OUTLET_PORT;
use sloplet_wire::Target;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use utoipa::ToSchema;

use super::attach::upgraded;
use super::extract::{OptionalPayload, Segments, optional_unit};
use super::processes::reach;
use super::sandboxes::find;
use crate::app::App;
use crate::auth::{Access, Scope};
use crate::error::ApiError;
use crate::preview;

/// Bytes of the kernel's table that are read.
const TABLE: u64 = 4 * 1024 * 1024;

/// Bytes of one message of a tunnel.
const PIECE: usize = 64 * 1024;

/// The kernel's number for a socket that listens.
const LISTEN: &str = "0A";

/// A port that something listens on.
#[derive(Debug, Serialize, ToSchema)]
pub struct Port {
    /// Its number.
    pub port: u16,
    /// Where it is reached with an API key or the sandbox's token.
    pub url: String,
}

/// List the TCP ports that something inside listens on.
#[utoipa::path(get, path = "/sandboxes/{id}/ports", tag = "ports",
    params(("id" = String, Path, description = "The sandbox's id or name")), responses((status = 200, body = Vec<Port>)))]
pub async fn list(
    AppState(app): AppState<App>,
    access: Access,
    Segments(id): Segments<String>,
) -> Result<Json<Vec<Port>>, ApiError> {
    let record = find(&app, &access, &id)?;
    let reached = app.sandboxes().reach(&record.id).await?;
    let mut ports = BTreeSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        if let Ok(text) = read_table(&reached, table).await {
            ports.extend(listening(&text));
        }
    }
    let url = |port| preview::address(&app, &record, port);
    Ok(Json(ports.into_iter().map(|port| Port { port, url: url(port) }).collect()))
}

async fn read_table(live: &Live, path: &str) -> Result<String, ApiError> {
    let target = Target { path: path.as_bytes().to_vec().into(), ..Target::default() };
    let (_, mut download) = live.agent().read(target, 0, Some(TABLE)).await?;
    let mut text = Vec::new();
    while let Some(bytes) = download.chunk().await? {
        if text.len() as u64 > TABLE {
            break;
        }
        text.extend_from_slice(&bytes);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Ports that a table of the kernel's says are listened on.
pub(crate) fn listening(table: &str) -> Vec<u16> {
    let port = |line: &str| {
        let mut words = line.split_whitespace();
        let local = words.nth(1)?;
        let state = words.nth(1)?;
        let (_, port) = local.rsplit_once(':')?;
        // The host's own socket inside is nobody's server.
        u16::from_str_radix(port, 16).ok().filter(|port| state == LISTEN && *port != OUTLET_PORT)
    };
    table.lines().skip(1).filter_map(port).collect()
}

/// How long a link is to work.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewLink {
    /// An hour if left out.
    #[schema(example = "1h", pattern = "^[1-9][0-9]{0,4}(ms|s|m|h|d)$")]
    timeout: Option<String>,
}

/// A link to a port.
#[derive(Debug, Serialize, ToSchema)]
pub struct Link {
    /// Whoever has it can open it, without a key, until its time is over.
    pub url: String,
}

/// Make a link to a port that a browser can open without a key.
#[utoipa::path(post, path = "/sandboxes/{id}/ports/{port}/link", tag = "ports", request_body = Option<NewLink>,
    params(("id" = String, Path, description = "The sandbox's id or name"), ("port" = u16, Path, minimum = 1, description = "Its number")),
    responses((status = 201, body = Link)))]
pub async fn link(
    AppState(app): AppState<App>,
    access: Access,
    Segments((id, port)): Segments<(String, u16)>,
    OptionalPayload(body): OptionalPayload<NewLink>,
) -> Result<(StatusCode, Json<Link>), ApiError> {
    check(port)?;
    let span = optional_unit::<Span>("timeout", body.timeout.as_ref())?;
    let time = span.map_or(std::time::Duration::from_secs(3600), |span| span.0);
    let record = find(&app, &access, &id)?;
    Ok((StatusCode::CREATED, Json(Link { url: preview::link(&app, &record, port, time) })))
}

fn check(port: u16) -> Result<(), ApiError> {
    if port == 0 { Err(ApiError::bad_request("port: 1 to 65535")) } else { Ok(()) }
}

/// Connect to a port inside over a WebSocket: binary messages are the bytes of the connection, both ways. An empty one
/// closes its direction.
#[utoipa::path(get, path = "/sandboxes/{id}/ports/{port}/connect", tag = "ports",
    params(("id" = String, Path, description = "The sandbox's id or name"), ("port" = u16, Path, minimum = 1, description = "Its number")),
    responses((status = 101, description = "A WebSocket")))]
pub async fn connect(
    AppState(app): AppState<App>,
    access: Access,
    Segments((id, port)): Segments<(String, u16)>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    access.require(Scope::Use)?;
    check(port)?;
    let upgrade = upgraded(upgrade)?;
    let reached = reach(&app, &access, &id).await?;
    let connection = reached.agent().dial(port).await?;
    Ok(upgrade.on_upgrade(move |socket| tunnel(socket, connection, reached)))
}

/// Passes bytes both ways until both ends have closed; `_held` is kept for as long.
pub(super) async fn tunnel<S: AsyncRead + AsyncWrite, T>(mut socket: WebSocket, connection: S, _held: T) {
    let (mut from_inside, mut to_inside) = tokio::io::split(connection);
    let mut buffer = BytesMut::with_capacity(PIECE);
    let (mut inside_ended, mut outside_ended) = (false, false);
    while !(inside_ended && outside_ended) {
        tokio::select! {
            count = from_inside.read_buf(&mut buffer), if !inside_ended => {
                inside_ended = !matches!(count, Ok(1..));
                // The empty message says that nothing follows.
                if socket.send(Message::Binary(buffer.split().freeze())).await.is_err() {
                    return;
                }
                buffer.reserve(PIECE);
            }
            message = socket.recv() => match message {
                Some(Ok(Message::Binary(bytes))) if bytes.is_empty() => {
                    outside_ended = true;
                    let _ = to_inside.shutdown().await;
                }
                Some(Ok(Message::Binary(bytes))) => {
                    if to_inside.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => return,
            }
        }
    }
    let _ = socket.send(Message::Close(None)).await;
}

#[cfg(test)]
mod tests {
    use super::listening;

    #[test]
    fn only_sockets_that_listen_are_listed_and_nonsense_is_skipped() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
               0: 0100007F:0BB8 00000000:0000 0A 00000000:00000000\n\
               1: 0100007F:1F90 0100007F:0001 01 00000000:00000000\n\
               2: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A x\n\
               3: 010012C6:0001 00000000:0000 0A x\n\
             nonsense\n 4: x:zzzz y 0A\n";
        assert_eq!(listening(table), [3000, 80]);
        assert!(listening("").is_empty());
    }
}
