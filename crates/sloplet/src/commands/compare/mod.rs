//! `sloplet compare`: what each wall costs, measured here and now. [`picture`] draws it.

mod picture;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sloplet_engine::{Command, Engine, Patron};
use sloplet_policy::{Bind, DriverReport, Enforcement, Feature, Isolation, Spec};
use sloplet_verify::processes::Process;

use crate::progress::ProgressLine;
use crate::table::{print, size};
use crate::{setup, terminal};

/// The hidden subcommand that measures inside.
pub const MEASURE: &str = "__measure";

/// System calls for one figure.
const CALLS: u32 = 20_000;

/// Bytes written and read for another.
const FILE_BYTES: usize = 32 << 20;

/// Commands in each sandbox.
const EXECS: usize = 10;

/// One wall.
#[derive(Debug, Serialize)]
struct Row {
    driver: String,
    isolation: Isolation,
    own_kernel: bool,
    memory_snapshots: bool,
    #[serde(flatten)]
    figures: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unavailable: Option<String>,
}

/// Middle values.
#[derive(Debug, Serialize)]
struct Figures {
    start_ms: f64,
    exec_ms: f64,
    /// Absent where this user may not look.
    memory_bytes: Option<u64>,
    #[serde(flatten)]
    inside: Inside,
}

/// What was measured inside.
#[derive(Debug, Serialize, Deserialize)]
struct Inside {
    syscall_ns: f64,
    write_mb_s: f64,
    read_mb_s: f64,
}

pub fn run(data: Option<PathBuf>, rounds: usize, json: bool, svg: Option<&Path>) -> anyhow::Result<u8> {
    let engine = setup::engine(data, None)?;
    let runtime = setup::runtime()?;
    let mut rows = Vec::new();
    let line = ProgressLine::of("looking which walls work here");
    for report in engine.reports() {
        let measured = match &report.unavailable {
            Some(reason) => Err(reason.clone()),
            None if report.driver == sloplet_driver_vm::whole::NAME => {
                Err("a whole machine needs an image with an init system, and is the machine of 'vm' otherwise".into())
            }
            None => runtime.block_on(measure(&engine, &report, rounds, &line)).map_err(|error| format!("{error:#}")),
        };
        let holds = |feature| {
            let found = report.capabilities.iter().find(|capability| capability.feature == feature);
            found.is_some_and(|capability| capability.enforcement != Enforcement::Missing)
        };
        rows.push(Row {
            own_kernel: holds(Feature::OwnKernel),
            memory_snapshots: holds(Feature::MemorySnapshot),
            unavailable: measured.as_ref().err().map(|reason| terminal::harmless(reason)),
            figures: measured.ok(),
            driver: report.driver,
            isolation: report.isolation,
        });
    }
    engine.shut_down();
    drop(line);
    if let Some(path) = svg {
        std::fs::write(path, picture::draw(&rows, rounds.max(1)))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if json {
        say!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(0);
    }
    let header = ["DRIVER", "ISOLATION", "KERNEL", "START", "EXEC", "MEMORY", "SYSCALL", "WRITE", "READ"];
    print(header, &rows.iter().map(cells).collect::<Vec<_>>());
    for row in &rows {
        if let Some(reason) = &row.unavailable {
            say!("{}: {reason}", row.driver);
        }
    }
    Ok(0)
}

fn cells(row: &Row) -> [String; 9] {
    let kernel = if row.own_kernel { "own" } else { "host's" };
    let mut cells = std::array::from_fn(|_| "-".to_owned());
    (cells[0], cells[1], cells[2]) = (row.driver.clone(), row.isolation.to_string(), kernel.to_owned());
    if let Some(Figures { start_ms, exec_ms, memory_bytes, inside }) = &row.figures {
        cells[3] = format!("{start_ms:.1} ms");
        cells[4] = format!("{exec_ms:.1} ms");
        cells[5] = memory_bytes.map_or_else(|| "-".into(), size);
        cells[6] = format!("{:.2} µs", inside.syscall_ns / 1000.0);
        cells[7] = format!("{:.0} MB/s", inside.write_mb_s);
        cells[8] = format!("{:.0} MB/s", inside.read_mb_s);
    }
    cells
}

async fn measure(
    engine: &Engine,
    report: &DriverReport,
    rounds: usize,
    line: &ProgressLine,
) -> anyhow::Result<Figures> {
    let program = std::fs::read_link(setup::PROGRAM).context("finding this program")?;
    let inside = match report.isolation {
        Isolation::Process => program.clone(),
        _ => PathBuf::from("/sloplet-measure"),
    };
    let mount = Bind { from: program, to: inside.clone(), ..Bind::default() };
    let driver = Some(report.driver.clone());
    let spec = Spec { driver, best_effort: true, mounts: vec![mount], ..Spec::default() };
    let (mut starts, mut execs, mut memory, mut found) = (Vec::new(), Vec::new(), Vec::new(), None);
    for round in 1..=rounds.max(1) {
        line.step(&format!("measuring {}: sandbox {round} of {}", report.driver, rounds.max(1)));
        let since = Instant::now();
        let sandbox = engine.create(spec.clone(), &Patron::plain("compare")).await?;
        starts.push(since.elapsed());
        for _ in 0..EXECS {
            let since = Instant::now();
            let output = sandbox.exec(Command::new(["true"])).await?.output(1 << 20).await?;
            anyhow::ensure!(output.exit.code == Some(0), "'true' failed inside");
            execs.push(since.elapsed());
        }
        memory.extend(sandbox.pid().and_then(held));
        if found.is_none() {
            let words = [inside.display().to_string(), MEASURE.to_owned()];
            let output = sandbox.exec(Command::new(words)).await?.output(1 << 20).await?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            found = Some(serde_json::from_slice(&output.stdout).with_context(|| format!("measuring inside: {said}"))?);
        }
        sandbox.destroy().await?;
    }
    memory.sort_unstable();
    Ok(Figures {
        start_ms: middle(&mut starts),
        exec_ms: middle(&mut execs),
        memory_bytes: memory.get(memory.len() / 2).copied(),
        inside: found.context("nothing was measured inside")?,
    })
}

/// Memory of a process and all that descend from it, each page shared among those who have it: alike for all walls, for what a
/// machine is made of is a process of the host, too.
fn held(first: i32) -> Option<u64> {
    let share = |process: &Process| {
        let text = std::fs::read_to_string(process.file("smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    };
    let all = Process::tree(first);
    all.iter().map(share).sum::<Option<u64>>().filter(|_| !all.is_empty())
}

fn middle(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
}

/// Measures where it is started, and says so as JSON.
pub fn inside() -> anyhow::Result<()> {
    let since = Instant::now();
    for _ in 0..CALLS {
        std::hint::black_box(rustix::process::getppid());
    }
    let syscall_ns = since.elapsed().as_nanos() as f64 / f64::from(CALLS);
    let folder = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    let path = folder.join(format!("sloplet-measure-{}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).context("making a file")?;
    std::fs::remove_file(&path).context("removing its name")?;
    let mut block = vec![7; 1 << 20];
    let rate = |since: Instant| FILE_BYTES as f64 / 1e6 / since.elapsed().as_secs_f64();
    let since = Instant::now();
    for _ in 0..FILE_BYTES / block.len() {
        file.write_all(&block)?;
    }
    let write_mb_s = rate(since);
    file.seek(SeekFrom::Start(0))?;
    let since = Instant::now();
    for _ in 0..FILE_BYTES / block.len() {
        file.read_exact(&mut block)?;
    }
    say!("{}", serde_json::to_string(&Inside { syscall_ns, write_mb_s, read_mb_s: rate(since) })?);
    Ok(())
}
