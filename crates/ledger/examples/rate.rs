//! Measures: `cargo run --release -p sloplet-ledger --example rate`.

use std::time::Instant;

use bytes::Bytes;
use sloplet_ledger::event::{ExecEnded, ExecStarted};
use sloplet_ledger::{Event, Filter, Known, Ledger, LedgerError, Options, OutputDigest, OutputTap};

const RECORDS: u32 = 400_000;

fn started(at: u32) -> Event {
    Event::ExecStarted(ExecStarted {
        exec: format!("e{at}").into(),
        argv: ["bash", "-c", "cargo test --workspace"].into_iter().collect(),
        cwd: "/workspace".into(),
        env: ["PATH", "HOME", "LANG"].into_iter().collect(),
        user: "user".into(),
        tty: false,
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = tempfile::tempdir()?;
    one_shot(data.path())?;

    let ledger = Ledger::new(data.path(), Options::default());
    ledger.redactor().add("sk-ant-0123456789");
    let start = Instant::now();
    for at in 0..RECORDS {
        ledger.record(Some("s1"), "cli", started(at))?;
    }
    ledger.flush()?;
    let took = start.elapsed().as_secs_f64();
    println!("{:>9.0} records/s in batches, with a head at the end", f64::from(RECORDS) / took);

    let start = Instant::now();
    for at in 0..1000 {
        ledger.record(Some("s1"), "cli", started(at))?;
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    let slept = start.elapsed();
    let start = Instant::now();
    for _ in 0..1000 {
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    let extra = slept.saturating_sub(start.elapsed());
    println!("{:>9.1} µs for a record that finds the writer asleep", extra.as_secs_f64() * 1e6 / 1000.0);
    ledger.flush()?;

    let start = Instant::now();
    let report = ledger.verify(&Known::default())?;
    println!("{:>9.0} records/s verified", report.records as f64 / start.elapsed().as_secs_f64());
    let start = Instant::now();
    let read = ledger.query(Filter::default())?.count();
    println!("{:>9.0} records/s read", read as f64 / start.elapsed().as_secs_f64());
    let start = Instant::now();
    let filter = Filter { after_seq: u64::from(RECORDS) - 5, ..Filter::default() };
    let _ = ledger.query(filter)?.next();
    println!("{:>9.0} µs to the last records", start.elapsed().as_secs_f64() * 1e6);

    streams();
    Ok(())
}

/// As `sloplet run` does it: a record, the command, a record, the end.
fn one_shot(data: &std::path::Path) -> Result<(), LedgerError> {
    for name in ["first of all", "second", "third"] {
        let start = Instant::now();
        let ledger = Ledger::new(data, Options::default());
        ledger.record(Some("s1"), "cli", started(0))?;
        let recorded = start.elapsed();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let start = Instant::now();
        ledger.record(Some("s1"), "cli", Event::ExecEnded(ExecEnded::default()))?;
        drop(ledger);
        let took = (recorded.as_secs_f64() * 1e6, start.elapsed().as_secs_f64() * 1e6);
        println!(
            "{:>9.0} µs to the first record, {:.0} µs from the last to all written and signed: {name} run",
            took.0, took.1
        );
    }
    Ok(())
}

/// How fast an output can pass.
fn streams() {
    let chunk = Bytes::from(vec![b'x'; 256 * 1024]);
    let total = 4096_u32;
    let gigabytes = f64::from(total) * chunk.len() as f64 / 1e9;
    let start = Instant::now();
    let mut digest = OutputDigest::default();
    (0..total).for_each(|_| digest.push(&chunk));
    digest.finish();
    println!("{:>9.2} GB/s hashed on the caller's thread", gigabytes / start.elapsed().as_secs_f64());
    let start = Instant::now();
    let mut tap = OutputTap::default();
    (0..total).for_each(|_| tap.push(chunk.clone()));
    tap.finish();
    println!("{:>9.2} GB/s through a tap", gigabytes / start.elapsed().as_secs_f64());
}
