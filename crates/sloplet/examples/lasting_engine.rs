//! An engine for the tests, to be killed: it carries out orders from its standard input, one a line, and answers each
//! with one line of JSON. Its spawners are this same program.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};
use sloplet_driver_namespaces::Namespaces;
use sloplet_engine::{Command, Engine, MachineState, Outlets, Overdue, Patron, Places, PutFile, Sandbox};
use sloplet_image::Image;
use sloplet_policy::Spec;
use sloplet_spawner::launcher::{Forked, SUBCOMMAND};
use sloplet_spawner::server::{self, Haste};
use tokio::io::AsyncWriteExt;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == SUBCOMMAND) {
        return match std::io::stdin().as_fd().try_clone_to_owned() {
            Ok(control) => ExitCode::from(server::serve(control, Haste::None) as u8),
            Err(_) => ExitCode::FAILURE,
        };
    }
    // Like a program that is about to run one sandbox.
    let forked = std::env::args_os().any(|word| word == "--one-with-outlet");
    let forked = forked.then(|| Forked::fork(Haste::OneContainerWithOutlet)).and_then(Result::ok);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map(|runtime| runtime.block_on(serve(forked))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

async fn serve(forked: Option<Forked>) -> anyhow::Result<()> {
    let places = Places::usual();
    let program = std::env::var("SPAWNER_PROGRAM").unwrap_or_else(|_| "/proc/self/exe".to_owned());
    let driver = Namespaces::new(Path::new(&program), &places.own_run()?, &places.data, 1);
    let driver = match forked {
        Some(forked) => driver.with_forked(forked),
        None => driver.lasting(),
    };
    let mut host = Host { engine: Engine::new(places, vec![Box::new(driver)]), sandboxes: HashMap::new() };
    // The runtime goes on while this waits: the spawner is listened to.
    let (sender, mut orders) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || std::io::stdin().lock().lines().map_while(Result::ok).try_for_each(|l| sender.send(l)));
    while let Some(line) = orders.recv().await {
        let order: Value = serde_json::from_str(&line).context("an order that is no JSON")?;
        let answer = host.obey(&order).await.unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
        writeln!(std::io::stdout(), "{answer}")?;
    }
    drop(host.sandboxes);
    host.engine.shut_down();
    Ok(())
}

struct Host {
    engine: Engine,
    sandboxes: HashMap<String, Sandbox>,
}

impl Host {
    async fn obey(&mut self, order: &Value) -> anyhow::Result<Value> {
        let text = |name: &str| order[name].as_str().map(str::to_owned);
        let id = text("id").unwrap_or_default();
        let found = self.sandboxes.get(&id).context("no such sandbox");
        match order["do"].as_str().unwrap_or_default() {
            "create" => {
                let spec = spec_of(order)?;
                let image = self.engine.resolve(&spec.image)?;
                let started = Instant::now();
                let extras = extras_of(order);
                let sandbox = self.engine.create_lasting(id.clone(), spec.clone(), image.clone(), Vec::new(), &extras);
                let sandbox = sandbox.await?;
                let took = started.elapsed().as_micros() as u64;
                let pid = sandbox.pid();
                self.sandboxes.insert(id, sandbox);
                Ok(json!({ "pid": pid, "image": image, "took_us": took }))
            }
            "create_tied" => {
                let spec = spec_of(order)?;
                let started = Instant::now();
                let sandbox = self.engine.make(spec, &extras_of(order)).await?;
                let took = started.elapsed().as_micros() as u64;
                let (id, pid) = (sandbox.id().to_owned(), sandbox.pid());
                self.sandboxes.insert(id.clone(), sandbox);
                Ok(json!({ "id": id, "pid": pid, "took_us": took }))
            }
            "adopt" => {
                let started = Instant::now();
                let adoption = self.engine.adopt().await?;
                let (mut living, spec) = (Vec::new(), spec_of(order)?);
                for adopted in adoption.living {
                    let (id, frozen, pid) = (adopted.id.clone(), adopted.frozen, adopted.machine.pid());
                    let image: Image = match order["images"].get(&id) {
                        Some(image) => serde_json::from_value(image.clone())?,
                        None => self.engine.resolve(&spec.image)?,
                    };
                    let sandbox = self.engine.take_over(adopted, spec.clone(), image, &Patron::plain("test")).await?;
                    living.push(json!({ "id": id, "frozen": frozen, "pid": pid }));
                    self.sandboxes.insert(id, sandbox);
                }
                let ended = adoption.ended.iter().map(|(id, end)| json!({ "id": id, "timed_out": end.timed_out }));
                let ended: Vec<Value> = ended.collect();
                let took = started.elapsed().as_micros() as u64;
                Ok(json!({ "living": living, "ended": ended, "took_us": took }))
            }
            "exec" => {
                let command =
                    Command { user: text("user"), ..Command::new(["sh", "-c", &text("script").unwrap_or_default()]) };
                let (exit, output) =
                    found?.exec(command).await?.output(1 << 24).await.map(|o| (o.exit.code, o.stdout))?;
                Ok(json!({ "code": exit, "out": String::from_utf8_lossy(&output) }))
            }
            // A file operation on behalf of the usual user.
            "home" => {
                let entry = found?.agent().stat(sloplet_wire::Target::default()).await?;
                Ok(json!({ "uid": entry.uid }))
            }
            "background" => {
                let command = Command::new(["sh", "-c", &text("script").unwrap_or_default()]);
                let process = found?.exec(Command { background: true, ..command }).await?;
                Ok(json!({ "pid": process.pid }))
            }
            "attach" => {
                let pid = order["pid"].as_u64().unwrap_or_default() as u32;
                let output = found?.agent().attach(pid).await?.output(1 << 24).await?;
                Ok(json!({ "code": output.exit.code, "out": String::from_utf8_lossy(&output.stdout) }))
            }
            "reconnect" => {
                found?.reconnect().await?.ping().await?;
                Ok(json!({}))
            }
            "pause" => {
                found?.pause(order["frozen"].as_bool().unwrap_or_default()).await?;
                Ok(json!({}))
            }
            "deadline" => {
                let overdue = if order["freeze"] == true { Overdue::Freeze } else { Overdue::Destroy };
                let after = order["after_ms"].as_u64().map(Duration::from_millis);
                found?.machine().set_deadline(after, overdue).await?;
                Ok(json!({}))
            }
            "usage" => {
                let usage = found?.machine().usage().await?;
                Ok(json!({
                    "cpu_us": usage.cpu_us, "memory": usage.memory, "memory_peak": usage.memory_peak,
                    "pids": usage.pids, "disk_used": usage.disk_used, "disk_total": usage.disk_total,
                    "files_used": usage.files_used, "files_total": usage.files_total,
                }))
            }
            "state" => Ok(json!(format!("{:?}", *found?.machine().state().borrow()))),
            "wait_frozen" => {
                let mut state = found?.machine().state();
                let frozen = |state: &MachineState| *state == MachineState::Frozen { overdue: true };
                let waited = tokio::time::timeout(Duration::from_secs(10), state.wait_for(frozen)).await;
                Ok(json!({ "frozen": matches!(waited, Ok(Ok(_))) }))
            }
            "wait_ended" => {
                let machine = found?.machine();
                // Several wait, and one gives up.
                let _ = tokio::time::timeout(Duration::from_millis(1), machine.ended()).await;
                let both = async { (machine.ended().await, machine.ended().await) };
                let (end, again) = tokio::time::timeout(Duration::from_secs(20), both).await?;
                anyhow::ensure!(end == again, "two ends: {end:?}, {again:?}");
                Ok(json!({ "timed_out": end.timed_out, "lost": end.lost, "oom_kills": end.oom_kills }))
            }
            "snapshot" => {
                let sandbox = found?;
                let started = Instant::now();
                let config = sandbox.image().config.clone();
                let (image, report) = self.engine.snapshot(sandbox, text("name").as_deref(), config).await?;
                let took = started.elapsed().as_micros() as u64;
                Ok(json!({
                    "name": image.name, "layers": image.layers, "took_us": took, "bytes": report.bytes,
                    "files": report.files, "skipped": report.skipped, "frozen_us": report.frozen_for.as_micros() as u64,
                }))
            }
            "answer" => {
                let outlets = found?.machine().take_outlets().context("it has no way out")?;
                let (listeners, resolvers) = (outlets.listeners.len(), outlets.resolvers.len());
                answer(outlets)?;
                Ok(json!({ "listeners": listeners, "resolvers": resolvers }))
            }
            "destroy" => {
                let sandbox = self.sandboxes.remove(&id).context("no such sandbox")?;
                let end = sandbox.destroy().await?;
                Ok(json!({ "timed_out": end.timed_out }))
            }
            "forget" => {
                self.sandboxes.remove(&id);
                Ok(json!({}))
            }
            "remove_image" => {
                self.engine.images()?.remove(&text("name").unwrap_or_default())?;
                Ok(json!({}))
            }
            "gc" => {
                let collected = self.engine.images()?.gc()?;
                let leftovers = self.engine.collect()?;
                Ok(json!({ "layers": collected.layers, "imports": collected.dead_imports, "leftovers": leftovers }))
            }
            other => anyhow::bail!("no order '{other}'"),
        }
    }
}

/// Is the outside: tells every connection which address it wanted, and repeats every question.
fn answer(outlets: Outlets) -> anyhow::Result<()> {
    for listener in outlets.listeners {
        let listener = tokio::net::TcpListener::from_std(listener.into())?;
        tokio::spawn(async move {
            while let Ok((mut stream, peer)) = listener.accept().await {
                tokio::spawn(async move {
                    let local = stream.local_addr()?;
                    let wanted = std::net::SocketAddr::new(local.ip().to_canonical(), local.port());
                    let said = format!("host {wanted} from {}\n", peer.ip().to_canonical());
                    stream.write_all(said.as_bytes()).await?;
                    // Until the other side closes, as a server would.
                    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
                });
            }
        });
    }
    for resolver in outlets.resolvers {
        let resolver = tokio::net::UdpSocket::from_std(resolver.into())?;
        tokio::spawn(async move {
            let mut question = [0; 1500];
            while let Ok((length, peer)) = resolver.recv_from(&mut question).await {
                let _ = resolver.send_to(&[b"answer to ", &question[..length]].concat(), peer).await;
            }
        });
    }
    Ok(())
}

fn extras_of(order: &Value) -> Patron {
    let mut files = Vec::new();
    if let Some(pem) = order["certificates"].as_str() {
        files.push(PutFile::certificates(pem));
    }
    Patron { outlets: order["egress"] == true, files, ..Patron::plain("test") }
}

fn spec_of(order: &Value) -> anyhow::Result<Spec> {
    let mut spec = Spec::default();
    if let Some(image) = order["image"].as_str() {
        image.clone_into(&mut spec.image);
    }
    if let Some(memory) = order["memory_mib"].as_u64() {
        spec.limits.memory = sloplet_policy::ByteSize::mib(memory);
    }
    if let Some(disk) = order["disk_mib"].as_u64() {
        spec.limits.disk = sloplet_policy::ByteSize::mib(disk);
    }
    spec.best_effort = order["best_effort"] == true;
    Ok(spec)
}
