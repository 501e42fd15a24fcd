//! The way in over HTTP ("streamable HTTP"): a session is a conversation.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::{HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::connections::{self, Limits};
use crate::desk::Desk;
use crate::handler::Handler;

/// Bytes of one request.
const BODY: usize = 8 * 1024 * 1024;

/// Who may come in.
#[derive(Clone)]
pub struct Door {
    /// What every request has to show.
    pub token: String,
    /// Pages that may ask, by their origin. Without any, no page may.
    pub origins: Vec<String>,
    /// Whether the address is for others than this machine.
    pub public: bool,
}

/// Serves `/mcp` until `over` says so; then removes what was made.
pub async fn serve_http(
    desk: Arc<Desk>,
    listener: TcpListener,
    door: Door,
    over: CancellationToken,
) -> anyhow::Result<()> {
    let mut sessions = LocalSessionManager::default();
    // As long as its sandbox lives when nobody uses it.
    sessions.session_config.keep_alive = Some(desk.options.times.idle);
    let mut config = StreamableHttpServerConfig::default()
        .with_allowed_origins(door.origins.clone())
        .enforce_origin_validation()
        .with_cancellation_token(over.clone())
        .with_max_request_body_bytes(BODY);
    if door.public {
        // Which names lead here only its users know; a page that got here by a false name lacks the token.
        config = config.disable_allowed_hosts();
    }
    let handlers = desk.clone();
    let service = StreamableHttpService::new(
        move || Handler::new(&handlers, true).map_err(io::Error::other),
        Arc::new(sessions),
        config,
    );
    let limits = Limits::default();
    let router = Router::new()
        .route_service("/mcp", service)
        .layer(from_fn_with_state(limits, gather))
        .layer(from_fn_with_state(door, admit));
    connections::serve(listener, router, limits, over).await;
    desk.close().await;
    Ok(())
}

/// Turns away whoever does not show the token.
async fn admit(State(door): State<Door>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    let fits = shown.is_some_and(|(_, token)| token.trim().as_bytes().ct_eq(door.token.as_bytes()).into());
    match fits {
        true => next.run(request).await,
        false => {
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            let said = "show the token that 'sloplet mcp --http' printed: Authorization: Bearer TOKEN\n";
            (StatusCode::UNAUTHORIZED, challenge, said).into_response()
        }
    }
}

/// Reads all of a request before anybody works on it; of those who were let in only.
async fn gather(State(limits): State<Limits>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let refuse = |status: StatusCode, said: String| (status, [(header::CONNECTION, "close")], said).into_response();
    let too_large = || refuse(StatusCode::PAYLOAD_TOO_LARGE, format!("a request has at most {BODY} bytes\n"));
    // What is said beforehand need not be waited for.
    if body.size_hint().lower() > BODY as u64 {
        return too_large();
    }
    match tokio::time::timeout(limits.body_within, to_bytes(body, BODY)).await {
        Ok(Ok(bytes)) => next.run(Request::from_parts(parts, bytes.into())).await,
        Ok(Err(_)) => too_large(),
        Err(_) => {
            let said = format!("a request is sent within {} seconds\n", limits.body_within.as_secs());
            refuse(StatusCode::REQUEST_TIMEOUT, said)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::post;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    /// What is answered to these bytes, up to the end.
    async fn answer(address: std::net::SocketAddr, said: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(said).await;
        let mut heard = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut heard)).await.unwrap();
        String::from_utf8(heard).unwrap()
    }

    #[tokio::test]
    async fn a_body_has_an_end_in_bytes_and_in_time_and_strangers_need_not_send_one() {
        let quick = Duration::from_millis(100);
        let limits = Limits { headers_within: quick, body_within: quick, ..Limits::default() };
        let door = Door { token: "the-token-of-this-test".into(), origins: Vec::new(), public: false };
        let router = Router::new()
            .route("/mcp", post(async |body: String| body.len().to_string()))
            .layer(from_fn_with_state(limits, gather))
            .layer(from_fn_with_state(door, admit));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let over = CancellationToken::new();
        tokio::spawn(connections::serve(listener, router, limits, over.clone()));
        let ask = |token: &str, length: usize, body: &str| {
            let head = format!("POST /mcp HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n");
            format!("{head}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}").into_bytes()
        };
        let whole = answer(address, &ask("the-token-of-this-test", 5, "hello")).await;
        assert!(whole.starts_with("HTTP/1.1 200") && whole.ends_with("\r\n5"), "{whole}");
        let slow = answer(address, &ask("the-token-of-this-test", 5, "he")).await;
        assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
        let large = answer(address, &ask("the-token-of-this-test", BODY + 1, "")).await;
        assert!(large.starts_with("HTTP/1.1 413"), "{large}");
        let stranger = answer(address, &ask("another-token-of-a-test", BODY + 1, "he")).await;
        assert!(stranger.starts_with("HTTP/1.1 401"), "{stranger}");
        over.cancel();
    }
}
