//! The way out: how long a connection takes, how fast a stream is, and what it costs to have one.

use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use sloplet_engine::{Command, Engine, Patron, Sandbox};
use sloplet_policy::network::{Network, NetworkLimits};
use sloplet_policy::{Bind, Spec};

use super::names::*;
use crate::competitors::networks::{Networks, SERVER, Work};
use crate::measure::{Samples, median};
use crate::options::Options;
use crate::ours::{self, Ours};
use crate::report::{Quantity, Report, Table, Timing};
use crate::scratch::Scratch;
use crate::traffic::{self, Measured};
use crate::{interrupt, print};

/// Connections at once.
const CROWD: usize = 1000;

/// Where a sandbox sees this program.
const INSIDE: &str = "/bench";

/// One of those that take turns.
struct Way<'a> {
    name: &'static str,
    down: &'static str,
    up: &'static str,
    measure: Box<dyn FnMut(Work) -> Result<Measured> + 'a>,
    missing: Option<String>,
    connects: Samples,
    streams: Vec<(f64, f64)>,
}

impl<'a> Way<'a> {
    fn new(
        name: &'static str,
        down: &'static str,
        up: &'static str,
        there: Result<()>,
        measure: Box<dyn FnMut(Work) -> Result<Measured> + 'a>,
    ) -> Self {
        let missing = there.err().map(|error| format!("{error:#}"));
        Self { name, down, up, measure, missing, connects: Samples::default(), streams: Vec::new() }
    }
}

/// Measures and prints it.
pub fn measure(options: &Options, report: &mut Report, dir: &Scratch) -> Result<()> {
    let mut networks = Networks::make()?;
    let nat = networks.behind_nat();
    let slirp = networks.behind_slirp();
    let pasta = networks.behind_pasta(dir.disk());
    let networks = &networks;
    // On a thread of its own, which is then in another namespace for good.
    let measured = thread::scope(|scope| {
        let work = scope.spawn(move || {
            networks.enter("near")?;
            let ours = Ours::start(dir, 1)?;
            let (timings, quantities) = connections(options, networks, &ours, [nat, slirp, pasta])?;
            anyhow::Ok((timings, quantities, creation(options, &ours)?))
        });
        work.join().unwrap_or_else(|_| anyhow::bail!("the measuring thread panicked"))
    });
    let (timings, quantities, creation) = measured?;
    print::timings(&timings, &[("direct", DIRECT), ("NAT", NAT)]);
    print::quantities(&quantities);
    print::timings(&creation, &[("without", WITHOUT_RULES)]);
    report.timings.extend([timings, creation]);
    report.quantities.push(quantities);
    Ok(())
}

/// What a sandbox of this section may reach.
fn spec() -> Result<Spec> {
    let own = std::env::current_exe().context("finding this program")?;
    let limits = NetworkLimits { connections: 2000, new_per_second: 100_000, ..NetworkLimits::default() };
    let network = Network { allow: vec![SERVER.parse()?], limits, ..Network::default() };
    let mounts = vec![Bind { from: own, to: INSIDE.into(), ..Bind::default() }];
    Ok(Spec { network, mounts, ..Spec::default() })
}

async fn create(engine: &Engine, spec: Spec) -> Result<Sandbox> {
    engine.create(spec, &Patron::plain("bench")).await.context("creating a sandbox")
}

async fn measure_inside(sandbox: &Sandbox, work: Work) -> Result<Measured> {
    let words = [INSIDE.to_owned(), traffic::CLIENT.to_owned()].into_iter().chain(work.words());
    let output = sandbox.exec(Command::new(words)).await?.output(1 << 20).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.exit.code == Some(0), "the client inside: {}", said.trim());
    serde_json::from_slice(&output.stdout).context("reading what the client measured")
}

fn connections(
    options: &Options,
    networks: &Networks,
    ours: &Ours,
    [nat, slirp, pasta]: [Result<()>; 3],
) -> Result<(Table<Timing>, Table<Quantity>)> {
    let (rounds, work) = match options.quick {
        true => (2, Work { connections: 50, bytes: 64 << 20, at_once: 0 }),
        false => (7, Work { connections: 200, bytes: 512 << 20, at_once: 0 }),
    };
    let spec = spec()?;
    let sandbox = ours.block_on(async |engine| create(engine, spec).await)?;
    let inside = |work| ours.block_on(async |_| measure_inside(&sandbox, work).await);
    let at = |space: &'static str| Box::new(move |work| networks.measure(space, work));
    let mut ways = [
        Way::new(DIRECT, "direct, down", "direct, up", Ok(()), at("far")),
        Way::new(NAT, NAT_DOWN, NAT_UP, nat, at("masked")),
        Way::new("slirp4netns", SLIRP_DOWN, SLIRP_UP, slirp, at("slirp")),
        Way::new("pasta", "pasta, down", "pasta, up", pasta, at("pasta")),
        Way::new(EGRESS, EGRESS_DOWN, EGRESS_UP, Ok(()), Box::new(inside)),
    ];
    for round in 0..rounds {
        for step in 0..ways.len() {
            interrupt::check()?;
            let index = (round + step) % ways.len();
            let way = &mut ways[index];
            if way.missing.is_some() {
                continue;
            }
            match (way.measure)(work) {
                Ok(measured) => {
                    measured
                        .connect_us
                        .iter()
                        .for_each(|us| way.connects.add(std::time::Duration::from_secs_f64(us / 1e6)));
                    way.streams.push((measured.down, measured.up));
                }
                Err(error) => way.missing = Some(format!("{error:#}")),
            }
        }
    }
    let crowd = (ways[4].measure)(Work { connections: 0, bytes: 0, at_once: CROWD })?.at_once;
    let mut rows = Vec::new();
    let mut quantities = Vec::new();
    for way in ways {
        let (down, up): (Vec<f64>, Vec<f64>) = way.streams.into_iter().unzip();
        if way.missing.is_none() {
            quantities.push(Quantity::new(way.down, median(down), "MB/s"));
            quantities.push(Quantity::new(way.up, median(up), "MB/s"));
        }
        rows.push(Timing { missing: way.missing, ..way.connects.timing(way.name) });
    }
    quantities.push(Quantity::new(EGRESS_CROWD, crowd as f64, "of 1000"));
    ours.block_on(async |_| Ok(sandbox.destroy().await?))?;
    let title = "Out of a sandbox: a connection, from the call to the first answer".to_owned();
    let streams = Table { title: format!("A single stream, median of {rounds}"), rows: quantities };
    Ok((Table { title, rows }, streams))
}

/// What it costs to have a way out: creations with one and without, in turns.
fn creation(options: &Options, ours: &Ours) -> Result<Table<Timing>> {
    let with = Spec { mounts: Vec::new(), ..spec()? };
    ours.block_on(ours::whole_life)?;
    let mut samples: [Samples; 2] = Default::default();
    for round in 0..2 * options.rounds() {
        interrupt::check()?;
        // What the last one left to the kernel is not this one's.
        thread::sleep(std::time::Duration::from_millis(12));
        // Not always the same one first.
        let which = (round + round / 2) % 2;
        let spec = if which == 0 { Spec::default() } else { with.clone() };
        let took = ours.block_on(async |engine| {
            let started = Instant::now();
            let sandbox = create(engine, spec).await?;
            let took = started.elapsed();
            sandbox.destroy().await?;
            Ok(took)
        })?;
        samples[which].add(took);
    }
    let [without, with] = samples;
    let rows = vec![without.timing(WITHOUT_RULES), with.timing(WITH_RULES)];
    Ok(Table { title: "Creating a sandbox".into(), rows })
}
