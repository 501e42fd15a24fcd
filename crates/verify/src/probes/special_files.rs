//! The file API on what is no file.

use std::time::{Duration, Instant};

use crate::drill::{Drill, DrillError, settle};
use crate::probe::{Finding, Kind, Pending, Probe};

pub const PROBE: Probe = Probe {
    name: "special-files",
    ids: &[38],
    tries: "read a FIFO, /dev/zero, /dev/tty and endless files of /proc by the file API",
    why: "whoever waits for a FIFO, or reads /dev/zero to its end, serves nobody else",
    needs: &[],
    kind: Kind::Drill(run),
};

fn run<'a>(drill: &'a Drill<'a>) -> Pending<'a> {
    settle(attack(drill))
}

async fn attack(drill: &Drill<'_>) -> Result<Finding, DrillError> {
    use std::io::Read;
    let works =
        std::fs::File::open("/dev/zero").and_then(|mut file| file.read(&mut [0u8; 16])).is_ok_and(|count| count == 16);
    let sandbox = drill.sandbox(|_| {}).await?;
    let mut taken = Vec::new();
    let started = Instant::now();
    for path in ["/dev/zero", "/dev/tty", "/dev/random", "/dev/stdin", "/proc/kmsg", "/proc/self/mem"] {
        let read = tokio::time::timeout(Duration::from_secs(3), drill.read(&sandbox, path.as_bytes())).await;
        match read {
            Err(_) => taken.push(format!("{path} is waited for")),
            Ok(Ok(bytes)) if bytes.len() > 1 << 16 => taken.push(format!("{path} gave {} bytes", bytes.len())),
            Ok(_) => {}
        }
    }
    let serves = drill.serves(&sandbox).await;
    sandbox.destroy().await?;
    let detail = format!(
        "answered in {} ms; {}",
        started.elapsed().as_millis(),
        if taken.is_empty() { "none was read".into() } else { taken.join(", ") }
    );
    if !works {
        return Ok(Finding::inconclusive("", "/dev/zero cannot be read on the host either"));
    }
    Ok(Finding::judge(taken.is_empty() && serves, "/dev/zero gives what it is asked for on the host", detail))
}
