//! Output of a command, a gigabyte of it.

use std::io::Read;
use std::process::{Command as HostCommand, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use sloplet_client::ProcessEvent;
use sloplet_engine::{Command, Sandbox};

use super::names::{PIPE_SPEED, STREAM_GROWTH, STREAM_SPEED, STREAM_UNRECORDED};
use crate::competitors::program;
use crate::measure::median;
use crate::options::Options;
use crate::ours::{self, Ours};
use crate::process_memory::{self, forget_peak, resident};
use crate::report::{Quantity, Report, Table};
use crate::scratch::Scratch;
use crate::{interrupt, print};

const BYTES: u64 = 1 << 30;

/// What the agent reads at once, for the plain pipe as well.
const BUFFER: usize = 256 * 1024;

const MIB: f64 = (1 << 20) as f64;

/// Measures and prints it.
pub fn measure(options: &Options, report: &mut Report, dir: &Scratch) -> Result<()> {
    let rounds = if options.quick { 2 } else { 7 };
    let ours = Ours::start(dir, 1)?;
    let sandbox = ours.block_on(ours::create)?;
    let (mut pipe, mut stream, mut unrecorded) = (Vec::new(), Vec::new(), Vec::new());
    through_a_pipe()?;
    let (resting, _) = resident()?;
    forget_peak()?;
    for _ in 0..rounds {
        interrupt::check()?;
        pipe.push(through_a_pipe()?);
        stream.push(ours.block_on(async |_| through_the_engine(&sandbox, true).await)?);
        unrecorded.push(ours.block_on(async |_| through_the_engine(&sandbox, false).await)?);
    }
    let (_, peak) = resident()?;
    let agent = process_memory::of(sandbox.pid().context("the sandbox has no pid")? as u32)?;
    ours.block_on(async |_| Ok(sandbox.destroy().await?))?;
    let (pipe, stream, unrecorded) = (median(pipe), median(stream), median(unrecorded));
    let rows = vec![
        Quantity::new(PIPE_SPEED, pipe, "GB/s"),
        Quantity::new(STREAM_SPEED, stream, "GB/s"),
        Quantity::new("ratio", stream / pipe, "×"),
        Quantity::new(STREAM_UNRECORDED, unrecorded, "GB/s"),
        Quantity::new(STREAM_GROWTH, (peak - resting) / MIB, "MiB"),
        Quantity::new("private memory of PID 1 afterwards", agent.private / MIB, "MiB"),
    ];
    let table = Table { title: format!("1 GiB of output, median of {rounds}"), rows };
    print::quantities(&table);
    report.quantities.push(table);
    Ok(())
}

fn through_a_pipe() -> Result<f64> {
    let started = Instant::now();
    let mut child = HostCommand::new(program::find("head")?)
        .args(["-c", &BYTES.to_string(), "/dev/zero"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting head")?;
    let mut output = child.stdout.take().context("no pipe")?;
    let mut buffer = vec![0; BUFFER];
    let mut total = 0;
    loop {
        match output.read(&mut buffer).context("reading from a pipe")? {
            0 => break,
            got => total += got as u64,
        }
    }
    child.wait().context("waiting for head")?;
    speed(total, started)
}

async fn through_the_engine(sandbox: &Sandbox, recorded: bool) -> Result<f64> {
    let started = Instant::now();
    let size = BYTES.to_string();
    let command = ["head", "-c", &size, "/dev/zero"];
    let mut process = match recorded {
        true => sandbox.exec(Command::new(command)).await?,
        false => ours::exec_unrecorded(sandbox, &command).await?,
    };
    let mut total = 0;
    while let Some(event) = process.next().await {
        if let ProcessEvent::Stdout(bytes) = event? {
            total += bytes.len() as u64;
        }
    }
    speed(total, started)
}

fn speed(total: u64, started: Instant) -> Result<f64> {
    ensure!(total == BYTES, "{total} bytes came, not {BYTES}");
    Ok(total as f64 / 1e9 / started.elapsed().as_secs_f64())
}
