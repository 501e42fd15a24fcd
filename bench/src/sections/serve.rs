//! The server, over HTTP.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

use super::names::*;
use crate::competitors::docker::Docker;
use crate::http::Http;
use crate::measure::{Contender, Samples, take_turns};
use crate::options::Options;
use crate::process_memory;
use crate::report::{Quantity, Report, Table};
use crate::scratch::Scratch;
use crate::{interrupt, ours, print};

const MIB: f64 = (1 << 20) as f64;
const GIB: u64 = 1 << 30;

/// Measures and prints it.
pub fn measure(options: &Options, report: &mut Report, dir: &Scratch, docker: &Result<Docker>) -> Result<()> {
    let binary = ours::find_binary(options.sloplet.as_deref())?;
    let cold = Served::start(&binary, dir, "cold", &[])?;
    std::thread::sleep(Duration::from_secs(1));
    let idle = process_memory::of(cold.server.id())?.proportional / MIB;
    latency(options, report, docker, &cold)?;
    let mut rows = vec![Quantity::new(SERVE_IDLE, idle, "MiB")];
    crowd(options, &cold, &mut rows)?;
    transfer(&cold, &mut rows)?;
    forks(options, report, &cold)?;
    let table = Table { title: "the server".into(), rows };
    print::quantities(&table);
    report.quantities.push(table);
    Ok(())
}

fn latency(options: &Options, report: &mut Report, docker: &Result<Docker>, cold: &Served) -> Result<()> {
    let (mut to_cold, mut to_exec) = (cold.connect()?, cold.connect()?);
    let id = create(&mut to_exec)?;
    let contenders = vec![
        Contender::new(SERVE_CREATE, || first_output(&mut to_cold)),
        Contender::new(SERVE_EXEC, || {
            let started = Instant::now();
            exec(&mut to_exec, &id, &["true"])?;
            Ok(started.elapsed())
        }),
        match docker {
            Ok(docker) => {
                let (socket, mut api) = (docker.socket(), Http::unix(&docker.socket())?);
                Contender::slow(SERVE_DOCKER, move || docker_first_output(&mut api, &socket))
            }
            Err(error) => Contender::missing(SERVE_DOCKER, anyhow!("{error:#}")),
        },
    ];
    let rows = take_turns(options.rounds(), contenders)?;
    let table = Table { title: "over HTTP".into(), rows };
    print::timings(&table, &[("docker", SERVE_DOCKER)]);
    report.timings.push(table);
    Ok(())
}

/// From the request for a sandbox to the output of its first command.
pub(super) fn first_output(http: &mut Http) -> Result<Duration> {
    let started = Instant::now();
    let id = create(http)?;
    let output = exec(http, &id, &["echo", "hello"])?;
    let took = started.elapsed();
    ensure!(output["stdout"] == "hello\n", "odd output: {output}");
    http.json("DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null)?;
    Ok(took)
}

fn docker_first_output(http: &mut Http, socket: &Path) -> Result<Duration> {
    let started = Instant::now();
    let body = json!({"Image": "bench", "Cmd": ["sleep", "1000"], "HostConfig": {"NetworkMode": "none"}});
    let made = http.json("POST", "/containers/create", &body)?;
    let id = made["Id"].as_str().context("no id")?.to_owned();
    http.ask("POST", &format!("/containers/{id}/start"), "")?;
    let body = json!({"AttachStdout": true, "Tty": true, "Cmd": ["echo", "hello"]});
    let made = http.json("POST", &format!("/containers/{id}/exec"), &body)?;
    let exec = made["Id"].as_str().context("no id")?.to_owned();
    // Its output ends with the connection.
    let body = json!({"Detach": false, "Tty": true}).to_string();
    let output = Http::unix(socket)?.ask("POST", &format!("/exec/{exec}/start"), &body)?;
    let took = started.elapsed();
    ensure!(String::from_utf8_lossy(&output).contains("hello"), "odd output");
    http.ask("DELETE", &format!("/containers/{id}?force=true"), "")?;
    Ok(took)
}

/// Two hundred clients that run `echo` in fifty sandboxes.
fn crowd(options: &Options, served: &Served, rows: &mut Vec<Quantity>) -> Result<()> {
    let each = if options.quick { 5 } else { 25 };
    let mut http = served.connect()?;
    let ids = (0..50).map(|_| create(&mut http)).collect::<Result<Vec<String>>>()?;
    let (failures, started) = (AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for client in 0..200 {
            let (ids, failures) = (&ids, &failures);
            scope.spawn(move || {
                let id = &ids[client % ids.len()];
                let run = || -> Result<()> {
                    let mut http = served.connect()?;
                    for _ in 0..each {
                        let output = exec(&mut http, id, &["echo", "hi"])?;
                        ensure!(output["stdout"] == "hi\n", "odd output: {output}");
                    }
                    Ok(())
                };
                if let Err(error) = run() {
                    eprintln!("a client failed: {error:#}");
                    failures.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let rate = f64::from(200 * each) / started.elapsed().as_secs_f64();
    for id in ids {
        http.json("DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null)?;
    }
    rows.push(Quantity::new(SERVE_CROWD, rate, "/s"));
    rows.push(Quantity::new(SERVE_FAILURES, failures.into_inner() as f64, "clients"));
    interrupt::check()
}

/// A gigabyte up and down.
fn transfer(served: &Served, rows: &mut Vec<Quantity>) -> Result<()> {
    let mut http = served.connect()?;
    let id = create_with(&mut http, &json!({"disk": "3GiB", "memory": "6GiB"}))?;
    let path = format!("/v1/sandboxes/{id}/files?path=/home/user/big");
    let resting = process_memory::of(served.server.id())?.proportional;
    let (mut up, mut down, mut peak) = (Vec::new(), Vec::new(), resting);
    for _ in 0..3 {
        let started = Instant::now();
        http.upload(&path, GIB)?;
        up.push(GIB as f64 / 1e6 / started.elapsed().as_secs_f64());
        peak = peak.max(process_memory::of(served.server.id())?.proportional);
        let started = Instant::now();
        let length = http.download(&path)?;
        ensure!(length == GIB, "{length} bytes came back");
        down.push(GIB as f64 / 1e6 / started.elapsed().as_secs_f64());
        peak = peak.max(process_memory::of(served.server.id())?.proportional);
    }
    let best = |speeds: &[f64]| speeds.iter().copied().fold(0.0, f64::max);
    rows.push(Quantity::new(SERVE_UPLOAD, best(&up), "MB/s"));
    rows.push(Quantity::new(SERVE_DOWNLOAD, best(&down), "MB/s"));
    rows.push(Quantity::new(SERVE_GROWTH, (peak - resting) / MIB, "MiB"));
    http.json("DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null)?;
    interrupt::check()
}

/// Forks of a sandbox that has written 1 GiB in 10,000 files.
fn forks(options: &Options, report: &mut Report, served: &Served) -> Result<()> {
    let mut http = served.connect()?;
    let id = create_with(&mut http, &json!({"disk": "3GiB", "memory": "6GiB", "name": "source"}))?;
    let fill = "mkdir many; for i in $(seq 100); do mkdir many/$i; for j in $(seq 100); do \
                head -c 107374 /dev/zero > many/$i/$j; done; done; find many -type f | wc -l";
    let output = exec(&mut http, &id, &["bash", "-c", fill])?;
    ensure!(output["stdout"] == "10000\n", "odd output: {output}");
    let (mut running, mut frozen) = (Samples::default(), Samples::default());
    for _ in 0..if options.quick { 1 } else { 3 } {
        running.add(fork(&mut http, &id)?);
        let started = http.json("POST", &format!("/v1/sandboxes/{id}/snapshot"), &json!({}))?;
        frozen.add(Duration::from_micros(started["frozen_us"].as_u64().context("no figure")?));
        let snapshot = started["id"].as_str().context("no id")?;
        http.json("DELETE", &format!("/v1/snapshots/{snapshot}"), &Value::Null)?;
    }
    http.json("POST", &format!("/v1/sandboxes/{id}/pause"), &Value::Null)?;
    let first = fork(&mut http, &id)?;
    let mut paused = Samples::default();
    for _ in 0..if options.quick { 5 } else { 50 } {
        interrupt::check()?;
        paused.add(fork(&mut http, &id)?);
        std::thread::sleep(Duration::from_millis(12));
    }
    http.json("DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null)?;
    let mut only = Samples::default();
    only.add(first);
    let rows = vec![
        paused.timing(FORK_PAUSED),
        only.timing("fork, paused a moment ago (its files are being saved)"),
        running.timing("fork, running"),
        frozen.timing("for which it stands still"),
    ];
    let table = Table { title: "a sandbox with 1 GiB in 10,000 files".into(), rows };
    print::timings(&table, &[]);
    report.timings.push(table);
    Ok(())
}

fn fork(http: &mut Http, id: &str) -> Result<Duration> {
    let started = Instant::now();
    let answer = http.json("POST", &format!("/v1/sandboxes/{id}/fork"), &json!({"count": 1}))?;
    let took = started.elapsed();
    let fork = answer["sandboxes"][0]["id"].as_str().with_context(|| format!("no fork: {answer}"))?;
    http.json("DELETE", &format!("/v1/sandboxes/{fork}"), &Value::Null)?;
    Ok(took)
}

fn create(http: &mut Http) -> Result<String> {
    create_with(http, &json!({}))
}

pub(super) fn create_with(http: &mut Http, request: &Value) -> Result<String> {
    let made = http.json("POST", "/v1/sandboxes", request)?;
    Ok(made["id"].as_str().context("no id")?.to_owned())
}

fn exec(http: &mut Http, id: &str, command: &[&str]) -> Result<Value> {
    http.json("POST", &format!("/v1/sandboxes/{id}/exec"), &json!({"command": command}))
}

/// A server of its own, gone with all its sandboxes when dropped.
pub(super) struct Served {
    pub(super) server: Child,
    address: String,
    key: String,
}

impl Served {
    pub(super) fn start(binary: &Path, dir: &Scratch, name: &str, options: &[&str]) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let data: PathBuf = dir.disk().join(format!("serve-{name}"));
        let log = dir.disk().join(format!("serve-{name}.log"));
        let server = Command::new(binary)
            .args(["serve", "--destroy-on-exit", "--listen", &address])
            .args(options)
            .env("SLOPLET_DATA", data)
            .env("SLOPLET_RUN", dir.memory().join(format!("serve-{name}")))
            .env("SLOPLET_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&log)?)
            .spawn()
            .context("starting the server")?;
        let mut served = Self { server, address, key: String::new() };
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            if let Some(key) = said.split_whitespace().find(|word| word.starts_with("e2b_"))
                && std::net::TcpStream::connect(&served.address).is_ok()
            {
                served.key = key.to_owned();
                return Ok(served);
            }
            if Instant::now() > deadline {
                bail!("the server does not start");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn connect(&self) -> Result<Http> {
        Http::tcp(&self.address, &self.key)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.server.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.server.wait();
    }
}
