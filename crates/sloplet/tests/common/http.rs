//! A client that says exactly what it is told, right or wrong.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: String,
    pub body: Vec<u8>,
}

impl Reply {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }

    /// Fails unless the status is that.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}\n{}", self.headers, self.text());
        self
    }

    /// Fails unless it is a refusal of that status, in the shape that all refusals have.
    #[track_caller]
    pub fn expect_refusal(self, status: u16) -> String {
        let reply = self.expect(status);
        let said = reply.json();
        assert_eq!(said["code"], status, "{said}");
        let message = said["message"].as_str().unwrap_or_default().to_owned();
        assert!(!message.is_empty(), "{said}");
        message
    }
}

/// Connects to `127.0.0.1:PORT`.
pub fn connect(address: &str) -> TcpStream {
    try_connect(address).expect("a connection")
}

fn try_connect(address: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends a request as it is and reads the answer to its end. The status is 0 where nobody answers.
pub fn exchange(address: &str, request: &[u8]) -> Reply {
    let Ok(mut stream) = try_connect(address) else {
        return Reply { status: 0, headers: "nobody listens".into(), body: Vec::new() };
    };
    // Whoever refuses may do so before it has read everything.
    let _ = stream.write_all(request);
    let mut reader = BufReader::new(stream);
    let (status, headers) = head(&mut reader);
    let body = body(&mut reader, &headers);
    Reply { status, headers, body }
}

/// Reads the status line and the headers.
pub fn head(reader: &mut impl BufRead) -> (u16, String) {
    let mut headers = String::new();
    loop {
        let mut line = String::new();
        let count = reader.read_line(&mut line).unwrap_or(0);
        if count == 0 || line == "\r\n" {
            break;
        }
        headers.push_str(&line);
    }
    let status = headers.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    (status, headers)
}

fn body(reader: &mut impl BufRead, headers: &str) -> Vec<u8> {
    let lower = headers.to_lowercase();
    let mut all = Vec::new();
    if lower.contains("transfer-encoding: chunked") {
        while let Some(mut piece) = chunk(reader) {
            all.append(&mut piece);
        }
    } else if let Some(length) = lower.lines().find_map(|line| line.strip_prefix("content-length: ")) {
        all.resize(length.trim().parse().unwrap(), 0);
        reader.read_exact(&mut all).expect("a whole body");
    } else if !lower.starts_with("http/1.1 204") {
        let _ = reader.read_to_end(&mut all);
    }
    all
}

/// One piece of a body in pieces; `None` at its end.
pub fn chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let length = usize::from_str_radix(line.trim(), 16).ok().filter(|length| *length > 0)?;
    let mut piece = vec![0; length + 2];
    reader.read_exact(&mut piece).ok()?;
    piece.truncate(length);
    Some(piece)
}
