//! Measures the agent alone, without a wall: `measure` prints exec latency beside a bare spawn, and stdout throughput.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use sloplet_wire::{Decoder, Event, Exec, Kind, Request, frame, from_bytes, to_bytes};

fn main() -> std::io::Result<()> {
    let mut program = std::env::current_exe()?;
    program.set_file_name("serve");
    let (mut socket, theirs) = UnixStream::pair()?;
    let mut agent = std::process::Command::new(program).args(["/", "fixed"]).stdin(OwnedFd::from(theirs)).spawn()?;
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(500u32);
    let mut decoder = Decoder::new();
    let (mut bare, mut through) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let start = Instant::now();
        std::process::Command::new("/bin/true").status()?;
        bare.push(start.elapsed());
        let start = Instant::now();
        run(&mut socket, &mut decoder, round, &["/bin/true"])?;
        through.push(start.elapsed());
    }
    let middle = |times: &mut Vec<Duration>, per_cent: usize| {
        times.sort_unstable();
        times[(times.len() - 1) * per_cent / 100]
    };
    for (name, times) in [("bare spawn of true", &mut bare), ("exec of true through the agent", &mut through)] {
        println!("{name}: p50 {:?}, p95 {:?}", middle(times, 50), middle(times, 95));
    }
    let start = Instant::now();
    let bytes = run(&mut socket, &mut decoder, rounds + 1, &["head", "-c", "1073741824", "/dev/zero"])?;
    let seconds = start.elapsed().as_secs_f64();
    println!("1 GiB of stdout: {:.2} GB/s", bytes as f64 / seconds / 1e9);
    std::thread::sleep(Duration::from_secs(3));
    let memory = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", agent.id()))?;
    for line in memory.lines().filter(|line| line.starts_with("Private_Dirty") || line.starts_with("Pss:")) {
        println!("idle agent: {line}");
    }
    drop(socket);
    agent.wait().map(|_| ())
}

fn run(socket: &mut UnixStream, decoder: &mut Decoder, stream: u32, argv: &[&str]) -> std::io::Result<u64> {
    let argv = argv.iter().map(|argument| argument.as_bytes().to_vec().into()).collect();
    let mut out = Vec::new();
    frame::encode(&mut out, Kind::Request, stream, 0, &to_bytes(&Request::Exec(Exec { argv, ..Exec::default() })));
    socket.write_all(&out)?;
    let mut buffer = vec![0; 1 << 20];
    let (mut total, mut unacknowledged) = (0u64, 0u32);
    loop {
        while let Some(frame) = decoder.next_frame().map_err(std::io::Error::other)? {
            match frame.header.kind {
                Kind::Data => {
                    total += u64::from(frame.header.len);
                    unacknowledged += frame.header.len;
                }
                Kind::Event => {
                    if let Event::Exited(_) | Event::Failed(_) =
                        from_bytes(frame.payload, "event").map_err(std::io::Error::other)?
                    {
                        return Ok(total);
                    }
                }
                _ => {}
            }
        }
        if unacknowledged > 256 * 1024 {
            out.clear();
            frame::encode(&mut out, Kind::Window, stream, 1, &std::mem::take(&mut unacknowledged).to_le_bytes());
            socket.write_all(&out)?;
        }
        let len = socket.read(&mut buffer)?;
        if len == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        decoder.extend(&buffer[..len]);
    }
}
