//! Both ends of the connections that are measured, as hidden subcommands of this program: the same client runs everywhere.
//!
//! A client says one byte (`c`: an answer, `d`: so many bytes down, `u`: so many up) and a number of eight bytes.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// The server's subcommand: then comes the address to listen on.
pub const SERVER: &str = "__traffic_server";

/// The client's subcommand: then come the address to connect to, and how many connections, bytes, and connections at once.
pub const CLIENT: &str = "__traffic_client";

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

const BUFFER: usize = 256 << 10;

/// What a client measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Of each connection, from the call to the first answer, in microseconds.
    pub connect_us: Vec<f64>,
    /// A single stream, in megabytes per second.
    pub down: f64,
    /// The same in the other direction.
    pub up: f64,
    /// Connections that answered while all of them were open.
    pub at_once: usize,
}

/// Serves until it is killed.
pub fn serve(address: Option<String>) -> ExitCode {
    let listener = match TcpListener::bind(address.unwrap_or_default()) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("listening");
    for stream in listener.incoming().flatten() {
        thread::spawn(move || answer(stream));
    }
    ExitCode::SUCCESS
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut order = [0; 9];
    stream.read_exact(&mut order)?;
    let [what, number @ ..] = order;
    let mut left = u64::from_be_bytes(number);
    let mut buffer = vec![0; BUFFER];
    match what {
        b'd' => {
            while left > 0 {
                let part = buffer.len().min(left as usize);
                stream.write_all(&buffer[..part])?;
                left -= part as u64;
            }
        }
        b'u' => {
            while left > 0 {
                left = left.saturating_sub(stream.read(&mut buffer)?.max(1) as u64);
            }
            stream.write_all(b"!")?;
        }
        _ => {
            stream.write_all(b"!")?;
            // Open until the client goes.
            let _ = stream.read(&mut buffer)?;
        }
    }
    Ok(())
}

/// Measures and prints it as JSON.
pub fn measure(words: &[String]) -> ExitCode {
    match client(words).and_then(|measured| Ok(serde_json::to_string(&measured)?)) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn client(words: &[String]) -> Result<Measured> {
    let [address, connections, bytes, at_once] = words else { anyhow::bail!("four words are needed") };
    let (connections, bytes, at_once) = (connections.parse()?, bytes.parse()?, at_once.parse()?);
    let mut connect_us = Vec::new();
    for number in 0..connections {
        let started = Instant::now();
        asked(address)?;
        // The first ones fill caches.
        if number >= connections / 10 {
            connect_us.push(started.elapsed().as_secs_f64() * 1e6);
        }
        thread::sleep(Duration::from_millis(2));
    }
    let (mut down, mut up) = (0.0, 0.0);
    if bytes > 0 {
        down = speed(bytes, || drain(order(address, b'd', bytes)?, bytes))?;
        up = speed(bytes, || fill(order(address, b'u', bytes)?, bytes))?;
    }
    let mut open = Vec::new();
    for _ in 0..at_once {
        if let Ok(stream) = order(address, b'c', 0) {
            open.push(stream);
        }
        // Politely: a bound on new connections in a second is not what is measured.
        thread::sleep(Duration::from_micros(500));
    }
    let answered = open.iter_mut().filter_map(|stream| stream.read_exact(&mut [0]).ok()).count();
    Ok(Measured { connect_us, down, up, at_once: answered })
}

fn order(address: &str, what: u8, number: u64) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).context("connecting")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut order = vec![what];
    order.extend(number.to_be_bytes());
    stream.write_all(&order)?;
    Ok(stream)
}

fn asked(address: &str) -> Result<TcpStream> {
    let mut stream = order(address, b'c', 0)?;
    stream.read_exact(&mut [0]).context("waiting for the answer")?;
    Ok(stream)
}

fn drain(mut stream: TcpStream, bytes: u64) -> Result<()> {
    let (mut total, mut buffer) = (0, vec![0; BUFFER]);
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            count => total += count as u64,
        }
    }
    ensure!(total == bytes, "{total} bytes came, not {bytes}");
    Ok(())
}

fn fill(mut stream: TcpStream, bytes: u64) -> Result<()> {
    let (mut left, buffer) = (bytes, vec![0; BUFFER]);
    while left > 0 {
        let part = buffer.len().min(left as usize);
        stream.write_all(&buffer[..part])?;
        left -= part as u64;
    }
    Ok(stream.read_exact(&mut [0])?)
}

fn speed(bytes: u64, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(bytes as f64 / 1e6 / started.elapsed().as_secs_f64())
}
