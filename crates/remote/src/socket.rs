//! WebSockets: a command's streams, and tunnels to ports.

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use hyper::Method;
use serde_json::{Value, json};
use sloplet_client::ProcessEvent;
use sloplet_wire::Exit;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::connect::Wire;
use super::{Refused, Server};

/// Bytes of one message.
const MESSAGE: usize = 2 * 1024 * 1024;

/// Bytes of input in one message; the server takes a MiB.
const PIECE: usize = 64 * 1024;

type Duplex = WebSocketStream<Box<dyn Wire>>;

/// A command's streams.
pub struct Socket {
    /// Its pid inside.
    pub pid: u32,
    incoming: SplitStream<Duplex>,
    outgoing: Option<SplitSink<Duplex, Message>>,
    over: bool,
}

impl Server {
    async fn upgrade(&self, path: &str) -> anyhow::Result<Duplex> {
        let request = self
            .builder(Method::GET, path)?
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", generate_key())
            // The library takes the scheme from here, and looks at nothing else of it.
            .uri(format!("ws://{}{}/v1{path}", self.authority(), self.base()))
            .body(())?;
        let limits = WebSocketConfig::default().max_message_size(Some(MESSAGE)).max_frame_size(Some(MESSAGE));
        let stream = self.connect().await?;
        match tokio_tungstenite::client_async_with_config(request, stream, Some(limits)).await {
            Ok((socket, _)) => Ok(socket),
            Err(Error::Http(response)) => {
                let said = response.body().as_deref().and_then(|text| serde_json::from_slice::<Value>(text).ok());
                let message = said.as_ref().and_then(|said| said["message"].as_str()).map(str::to_owned);
                let status = response.status();
                let message = message.unwrap_or_else(|| format!("the server answered {status}"));
                Err(Refused { status: status.as_u16(), message }.into())
            }
            Err(error) => Err(error).context("the server did not answer"),
        }
    }

    /// Starts a command, or attaches to one; `first` says which.
    pub async fn attach(&self, sandbox: &str, first: &Value) -> anyhow::Result<Socket> {
        let socket = self.upgrade(&format!("/sandboxes/{}/attach", super::encode(sandbox))).await?;
        let (mut outgoing, mut incoming) = socket.split();
        outgoing.send(Message::text(first.to_string())).await?;
        loop {
            match incoming.next().await.context("the server left")?? {
                Message::Text(text) => {
                    let said: Value = serde_json::from_str(&text).context("the server's answer is not JSON")?;
                    if let Some(error) = refusal(&said) {
                        return Err(error);
                    }
                    let pid = said["started"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
                    let pid = pid.context("the server did not say what it started")?;
                    return Ok(Socket { pid, incoming, outgoing: Some(outgoing), over: false });
                }
                Message::Ping(_) | Message::Pong(_) => {}
                _ => bail!("the server answered something else"),
            }
        }
    }

    /// Connects to a port inside.
    pub async fn dial(&self, sandbox: &str, port: u16) -> anyhow::Result<Tunnel> {
        let path = format!("/sandboxes/{}/ports/{port}/connect", super::encode(sandbox));
        Ok(Tunnel(self.upgrade(&path).await?))
    }

    /// Connects to the SSH server.
    pub async fn ssh(&self) -> anyhow::Result<Tunnel> {
        Ok(Tunnel(self.upgrade("/ssh").await?))
    }
}

fn refusal(said: &Value) -> Option<anyhow::Error> {
    let error = said.get("error")?;
    let status = error["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
    let message = error["message"].as_str().unwrap_or("the server gave no reason").to_owned();
    Some(Refused { status, message }.into())
}

impl Socket {
    /// Passes everything on and closes the command's input at the end. Ends early when nobody takes more.
    pub fn feed(&mut self, mut input: mpsc::Receiver<Vec<u8>>) {
        let Some(mut outgoing) = self.outgoing.take() else { return };
        tokio::spawn(async move {
            while let Some(bytes) = input.recv().await {
                let bytes = Bytes::from(bytes);
                for start in (0..bytes.len()).step_by(PIECE) {
                    let piece = bytes.slice(start..bytes.len().min(start + PIECE));
                    if outgoing.send(Message::Binary(piece)).await.is_err() {
                        return;
                    }
                }
            }
            let _ = outgoing.send(Message::text(json!({"close_stdin": true}).to_string())).await;
        });
    }

    /// What the command does next; `None` after its end. May be dropped and called again without loss.
    pub async fn next(&mut self) -> Option<anyhow::Result<ProcessEvent>> {
        while !self.over {
            let message = match self.incoming.next().await {
                Some(Ok(message)) => message,
                Some(Err(error)) => {
                    self.over = true;
                    return Some(Err(anyhow!(error).context("the connection to the server was lost")));
                }
                None => {
                    self.over = true;
                    return Some(Err(anyhow!("the connection to the server was lost")));
                }
            };
            match message {
                Message::Binary(mut bytes) if !bytes.is_empty() => {
                    let channel = bytes.split_to(1)[0];
                    return Some(Ok(if channel == 2 {
                        ProcessEvent::Stderr(bytes)
                    } else {
                        ProcessEvent::Stdout(bytes)
                    }));
                }
                Message::Text(text) => {
                    self.over = true;
                    return Some(last(&text));
                }
                Message::Close(_) => {
                    self.over = true;
                    return Some(Err(anyhow!("the server closed the connection")));
                }
                _ => {}
            }
        }
        None
    }
}

fn last(text: &str) -> anyhow::Result<ProcessEvent> {
    let said: Value = serde_json::from_str(text).context("the server's answer is not JSON")?;
    if let Some(error) = refusal(&said) {
        return Err(error);
    }
    let exit = &said["exit"];
    if let Some(reason) = exit["lost"].as_str() {
        bail!("the command's end is not known: {reason}");
    }
    let signal = exit["signal"].as_i64().and_then(|signal| i32::try_from(signal).ok());
    let code = exit["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok());
    let timed_out = exit["timed_out"].as_bool().unwrap_or(false);
    Ok(ProcessEvent::Exited(Exit { code: code.filter(|_| signal.is_none()), signal, timed_out, ..Exit::default() }))
}

/// A connection to a port inside, or to the SSH server.
pub struct Tunnel(Duplex);

impl Tunnel {
    /// Passes bytes both ways until both ends have closed.
    pub async fn join(self, stream: tokio::net::TcpStream) -> anyhow::Result<()> {
        let (outgoing, incoming) = self.0.split();
        let (from, to) = stream.into_split();
        tokio::try_join!(outwards(from, outgoing), inwards(incoming, to)).map(drop)
    }

    /// Passes bytes both ways until the server has closed.
    pub async fn pipe(self, from: impl AsyncRead + Unpin, to: impl AsyncWrite + Unpin) -> anyhow::Result<()> {
        let (outgoing, incoming) = self.0.split();
        let outwards = async {
            outwards(from, outgoing).await?;
            std::future::pending().await
        };
        tokio::select! { ended = inwards(incoming, to) => ended, failed = outwards => failed }
    }
}

async fn outwards(mut from: impl AsyncRead + Unpin, mut outgoing: SplitSink<Duplex, Message>) -> anyhow::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let count = from.read(&mut buffer).await?;
        // The empty message says that nothing follows.
        outgoing.send(Message::Binary(Bytes::copy_from_slice(&buffer[..count]))).await?;
        if count == 0 {
            return Ok(());
        }
    }
}

async fn inwards(mut incoming: SplitStream<Duplex>, mut to: impl AsyncWrite + Unpin) -> anyhow::Result<()> {
    while let Some(message) = incoming.next().await {
        match message? {
            Message::Binary(bytes) if bytes.is_empty() => break,
            Message::Binary(bytes) => {
                to.write_all(&bytes).await?;
                to.flush().await?;
            }
            Message::Close(_) => break,
            _ => {}
        }
    }
    to.shutdown().await?;
    Ok(())
}
