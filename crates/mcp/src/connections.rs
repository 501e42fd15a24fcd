//! Connections over HTTP: how many there may be, and how long each may take to say what it wants.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Bytes of headers, and of a body that are read at once.
const HEADERS: usize = 64 * 1024;

/// What a client gets.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once. One more waits until another ends.
    pub connections: usize,
    /// How long a client may take until its next request is said, up to its body; also between requests.
    pub headers_within: Duration,
    /// How long the body may take.
    pub body_within: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 512, headers_within: Duration::from_secs(15), body_within: Duration::from_secs(60) }
    }
}

/// Serves until `over` says so. Streams that clients hold open are not waited for.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, over: CancellationToken) {
    let room = Arc::new(Semaphore::new(limits.connections));
    loop {
        let accepted = async {
            let place = room.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted,
            () = over.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, most likely: trying again at once would only burn the processor.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (router, over) = (router.clone(), over.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = talk(stream, router, limits) => {}
                () = over.cancelled() => {}
            }
            drop(place);
        });
    }
}

/// HTTP/1 only: to find out which version a client speaks, the library would wait for its first bytes without end.
async fn talk(stream: TcpStream, router: Router, limits: Limits) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| router.clone().oneshot(request.map(Body::new)));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.headers_within).max_buf_size(HEADERS);
    // A client that went away, or said nothing for too long, has nothing to be told.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";

    async fn start(limits: Limits) -> (std::net::SocketAddr, CancellationToken) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, over) = (listener.local_addr().unwrap(), CancellationToken::new());
        let router = Router::new().route("/", get(async || "hello"));
        tokio::spawn(serve(listener, router, limits, over.clone()));
        (address, over)
    }

    async fn answered(stream: &mut TcpStream) -> String {
        let mut heard = Vec::new();
        while !heard.ends_with(b"hello") {
            let mut piece = [0; 1024];
            match stream.read(&mut piece).await {
                Ok(count @ 1..) => heard.extend_from_slice(&piece[..count]),
                _ => break,
            }
        }
        String::from_utf8(heard).unwrap()
    }

    #[tokio::test]
    async fn whoever_says_nothing_or_stops_in_the_middle_is_let_go() {
        let limits = Limits { headers_within: Duration::from_millis(100), ..Limits::default() };
        let (address, over) = start(limits).await;
        // Nothing, half a line, half of the headers, the beginning of HTTP/2; and one that asks, and then is silent.
        let two = b"PRI * HTTP/2.0\r\n\r\nSM";
        for said in [&b""[..], b"GE", b"GET / HTTP/1.1\r\nHost: he", two, ASK] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(said).await.unwrap();
            let mut heard = Vec::new();
            let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut heard)).await;
            assert!(ended.is_ok(), "it is still open after {:?}", String::from_utf8_lossy(said));
            assert_eq!(heard.ends_with(b"hello"), said == ASK);
        }
        over.cancel();
    }

    #[tokio::test]
    async fn so_many_are_served_at_once_and_the_next_when_one_leaves() {
        let (address, over) = start(Limits { connections: 2, ..Limits::default() }).await;
        let mut served = Vec::new();
        for _ in 0..2 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(ASK).await.unwrap();
            assert!(answered(&mut stream).await.starts_with("HTTP/1.1 200"));
            served.push(stream);
        }
        let mut third = TcpStream::connect(address).await.unwrap();
        third.write_all(ASK).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(100), answered(&mut third)).await;
        assert!(early.is_err(), "{early:?}");
        served.pop();
        assert!(answered(&mut third).await.starts_with("HTTP/1.1 200"));
        over.cancel();
        assert_eq!(answered(&mut third).await, "", "the end of the server is the end of its connections");
    }
}
