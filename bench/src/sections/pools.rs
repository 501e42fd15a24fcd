//! Pools of machines that wait, over HTTP.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::names::*;
use super::serve::{Served, create_with};
use crate::http::Http;
use crate::measure::{Contender, take_turns};
use crate::options::Options;
use crate::report::{Quantity, Report, Table};
use crate::scratch::Scratch;
use crate::{interrupt, ours, print};

/// Claims at once.
const CROWD: usize = 100;

/// Claims of one burst; bursts come two seconds apart.
const BURST: usize = 16;

/// Measures and prints it.
pub fn measure(options: &Options, report: &mut Report, dir: &Scratch) -> Result<()> {
    let binary = ours::find_binary(options.sloplet.as_deref())?;
    let served = Served::start(&binary, dir, "pools", &[])?;
    latency(options, report, &served)?;
    let mut rows = Vec::new();
    crowd(options, &served, &mut rows)?;
    let bursts = if options.quick { 3 } else { 6 };
    for (name, adaptive) in [(HITS_FIXED, false), (HITS_ADAPTIVE, true)] {
        rows.push(Quantity::new(name, 100.0 * hit_rate(&served, adaptive, bursts)?, "%"));
        interrupt::check()?;
    }
    let table = Table { title: "pools".into(), rows };
    print::quantities(&table);
    report.quantities.push(table);
    Ok(())
}

fn latency(options: &Options, report: &mut Report, served: &Served) -> Result<()> {
    let mut setting = served.connect()?;
    fill(&mut setting, &json!({"target_ready": 16, "max_ready": 16}))?;
    let (mut claiming, mut starting, mut writing) = (served.connect()?, served.connect()?, served.connect()?);
    let contenders = vec![
        Contender::new(CLAIM, || claimed(&mut claiming, None)),
        Contender::new(CLAIM_EXEC, || claimed(&mut starting, Some("processes"))),
        Contender::new(CLAIM_OUTPUT, || claimed(&mut writing, Some("exec"))),
    ];
    let rows = take_turns(options.rounds(), contenders)?;
    // The server has let go of a connection that nothing was asked on for so long.
    let mut setting = served.connect()?;
    let told = setting.json("GET", "/v1/pools/bench", &Value::Null)?;
    ensure!(told["metrics"]["acquires_cold_start"] == 0, "some found no machine: {told}");
    setting.json("DELETE", "/v1/pools/bench", &Value::Null)?;
    let table = Table { title: "from a pool, over HTTP".into(), rows };
    print::timings(&table, &[]);
    report.timings.push(table);
    Ok(())
}

/// From the request for a machine to the answer, or to what its first command comes to. What the last one leaves to be done,
/// such as another machine in its place, is done before: it is no part of this one's time.
fn claimed(http: &mut Http, then: Option<&str>) -> Result<Duration> {
    rest(http)?;
    let started = Instant::now();
    let id = create_with(http, &json!({"pool": "bench"}))?;
    if let Some(path) = then {
        let command = json!({"command": ["echo", "hello"]});
        http.json("POST", &format!("/v1/sandboxes/{id}/{path}"), &command)?;
    }
    let took = started.elapsed();
    http.json("DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null)?;
    Ok(took)
}

/// Fills a pool, and lets the machine come to rest.
fn fill(http: &mut Http, config: &Value) -> Result<()> {
    http.json("PUT", "/v1/pools/bench", config)?;
    rest(http)?;
    std::thread::sleep(Duration::from_millis(500));
    Ok(())
}

/// Waits until the pool is full and nothing is made for it.
fn rest(http: &mut Http) -> Result<()> {
    http.json("POST", "/v1/pools/bench/fill", &json!({}))?;
    std::thread::sleep(Duration::from_millis(20));
    Ok(())
}

/// As many clients as machines, all at once. The best of some rounds: this process's hundred threads are measured, too.
fn crowd(options: &Options, served: &Served, rows: &mut Vec<Quantity>) -> Result<()> {
    let mut http = served.connect()?;
    let (mut best, mut hits) = (f64::INFINITY, 0);
    for _ in 0..if options.quick { 2 } else { 5 } {
        fill(&mut http, &json!({"target_ready": CROWD, "max_ready": CROWD, "adaptive": false}))?;
        let before = found(&mut http)?;
        let (took, ids) = at_once(served, CROWD)?;
        hits = found(&mut http)? - before;
        best = best.min(took.as_secs_f64() * 1e3);
        remove(&mut http, &ids)?;
        interrupt::check()?;
    }
    http.json("DELETE", "/v1/pools/bench", &Value::Null)?;
    rows.push(Quantity::new(CLAIM_CROWD, best, "ms"));
    rows.push(Quantity::new(CLAIM_CROWD_HITS, hits as f64, "claims"));
    Ok(())
}

/// Claims by so many clients, and how long it took until the last had its own.
fn at_once(served: &Served, count: usize) -> Result<(Duration, Vec<String>)> {
    let connections = (0..count).map(|_| served.connect()).collect::<Result<Vec<Http>>>()?;
    let start = Barrier::new(count + 1);
    std::thread::scope(|scope| {
        let claimers: Vec<_> = connections
            .into_iter()
            .map(|mut http| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let id = create_with(&mut http, &json!({"pool": "bench"}));
                    (id, Instant::now())
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        let (mut last, mut ids) = (began, Vec::with_capacity(count));
        for claimer in claimers {
            let (id, at) = claimer.join().ok().context("a client panicked")?;
            ids.push(id?);
            last = last.max(at);
        }
        Ok((last.duration_since(began), ids))
    })
}

/// How many of the claims found a machine, in bursts with a claim now and then between them.
fn hit_rate(served: &Served, adaptive: bool, bursts: usize) -> Result<f64> {
    let mut http = served.connect()?;
    fill(&mut http, &json!({"target_ready": 4, "max_ready": 32, "adaptive": adaptive}))?;
    for _ in 0..bursts {
        let (_, mut ids) = at_once(served, BURST)?;
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(500));
            ids.push(create_with(&mut http, &json!({"pool": "bench"}))?);
        }
        remove(&mut http, &ids)?;
    }
    let told = http.json("GET", "/v1/pools/bench", &Value::Null)?;
    http.json("DELETE", "/v1/pools/bench", &Value::Null)?;
    told["metrics"]["pool_hit_rate"].as_f64().context("no figure")
}

fn found(http: &mut Http) -> Result<u64> {
    let told = http.json("GET", "/v1/pools/bench", &Value::Null)?;
    told["metrics"]["acquires_from_pool"].as_u64().context("no figure")
}

fn remove(http: &mut Http, ids: &[String]) -> Result<()> {
    ids.iter().try_for_each(|id| http.json("DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null).map(drop))
}
