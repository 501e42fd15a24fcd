//! The plainest HTTP client: one connection, one request after the other. What it measures is the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A connection that stays open.
pub struct Http {
    reader: BufReader<Box<dyn Read + Send>>,
    writer: Box<dyn Write + Send>,
    headers: String,
}

impl Http {
    /// To `address`, with an API key.
    pub fn tcp(address: &str, key: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        let headers = format!("Host: {address}\r\nX-API-KEY: {key}\r\n");
        Ok(Self {
            reader: BufReader::with_capacity(1 << 18, Box::new(stream.try_clone()?)),
            writer: Box::new(stream),
            headers,
        })
    }

    /// To a Unix socket.
    pub fn unix(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| format!("connecting to {}", path.display()))?;
        let headers = "Host: localhost\r\n".to_owned();
        Ok(Self { reader: BufReader::new(Box::new(stream.try_clone()?)), writer: Box::new(stream), headers })
    }

    /// Sends JSON and returns the JSON of the answer, which must be a success.
    pub fn json(&mut self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let answer = self.ask(method, path, &body.to_string())?;
        if answer.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&answer).context("not JSON") }
    }

    /// Sends JSON and returns the body of the answer.
    pub fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<Vec<u8>> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.headers,
            body.len()
        );
        self.writer.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        let status = self.answer(&mut |bytes| answer.extend_from_slice(bytes))?;
        ensure!((200..300).contains(&status), "{method} {path}: {status} {}", String::from_utf8_lossy(&answer));
        Ok(answer)
    }

    /// Uploads so many zeros.
    pub fn upload(&mut self, path: &str, length: u64) -> Result<()> {
        let head = format!(
            "PUT {path} HTTP/1.1\r\n{}Content-Type: application/octet-stream\r\nContent-Length: {length}\r\n\r\n",
            self.headers
        );
        self.writer.write_all(head.as_bytes())?;
        let piece = vec![0u8; 1 << 18];
        let mut left = length;
        while left > 0 {
            let count = left.min(piece.len() as u64) as usize;
            self.writer.write_all(&piece[..count])?;
            left -= count as u64;
        }
        let status = self.answer(&mut |_| ())?;
        ensure!((200..300).contains(&status), "upload: {status}");
        Ok(())
    }

    /// Downloads; returns how many bytes came.
    pub fn download(&mut self, path: &str) -> Result<u64> {
        write!(self.writer, "GET {path} HTTP/1.1\r\n{}\r\n", self.headers)?;
        let mut length = 0;
        let status = self.answer(&mut |bytes| length += bytes.len() as u64)?;
        ensure!(status == 200, "download: {status}");
        Ok(length)
    }

    fn answer(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<u16> {
        let status = self.line()?;
        let status: u16 = status.split(' ').nth(1).context("no status")?.parse()?;
        let (mut length, mut chunked) = (None, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            match line.split_once(": ") {
                Some(("content-length", value)) => length = Some(value.parse::<u64>()?),
                Some(("transfer-encoding", "chunked")) => chunked = true,
                _ => {}
            }
        }
        match length {
            _ if chunked => loop {
                let size = u64::from_str_radix(&self.line()?, 16)?;
                self.take_bytes(size, take)?;
                self.line()?;
                if size == 0 {
                    break;
                }
            },
            Some(length) => self.take_bytes(length, take)?,
            None if status == 204 => {}
            None => self.take_rest(take)?,
        }
        Ok(status)
    }

    fn take_bytes(&mut self, mut left: u64, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        while left > 0 {
            let there = self.reader.fill_buf()?;
            ensure!(!there.is_empty(), "the server broke off");
            let count = left.min(there.len() as u64) as usize;
            take(&there[..count]);
            self.reader.consume(count);
            left -= count as u64;
        }
        Ok(())
    }

    /// Until the other end closes: the connection is of no more use then.
    fn take_rest(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        loop {
            let there = self.reader.fill_buf()?;
            if there.is_empty() {
                return Ok(());
            }
            take(there);
            let count = there.len();
            self.reader.consume(count);
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "the server broke off");
        Ok(line.trim_end().to_owned())
    }
}
