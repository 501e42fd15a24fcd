//! `sloplet watch`

mod scene;
mod screen;

use std::io::{IsTerminal, Read};
use std::time::Duration;

use anyhow::bail;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::{audit, ls};
use crate::api::{Server, encode};
use crate::terminal::RawMode;
use scene::Scene;
use screen::Screen;

/// How often figures are asked for.
const REFRESH: Duration = Duration::from_secs(1);

/// How often the screen is drawn, at most.
const FRAME: Duration = Duration::from_millis(100);

/// What lies back so far is shown at the start.
const BACK: &str = "15m";

/// So many sandboxes are asked for their figures.
const MOST: usize = 16;

/// What a sandbox does now, as the server says.
pub struct Figures {
    /// As listed.
    pub sandbox: Value,
    /// Its resources; null if it has none.
    pub usage: Value,
    /// Its money.
    pub budget: Value,
    /// Its processes; null if it was not asked.
    pub processes: Value,
}

pub async fn run(server: &Server, name: Option<String>, as_json: bool) -> anyhow::Result<u8> {
    let about = match &name {
        Some(name) => {
            // Says so if there is none.
            server.get(&format!("/sandboxes/{}", encode(name))).await?;
            format!("&sandbox={}", encode(name))
        }
        None => String::new(),
    };
    if as_json {
        let mut events = server.events(&format!("/events?{}", about.trim_start_matches('&'))).await?;
        while let Some(line) = events.next().await? {
            if !audit::print(&line, true) {
                break;
            }
        }
        return Ok(0);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("this needs a terminal: use --json elsewhere");
    }
    let mut events = server.events(&format!("/events?since={BACK}{about}")).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (raw, mut screen) = (RawMode::enter()?, Screen::open());
    let (mut keys, mut figures) = (keys(), figures(server.clone(), name));
    let mut scene = Scene::default();
    let mut frame = tokio::time::interval(FRAME);
    frame.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut changed = true;
    let ended = loop {
        tokio::select! {
            key = keys.recv() => match key {
                // q, Escape, Ctrl-C, Ctrl-D, or no terminal any more.
                Some(b'q' | b'Q' | 0x1b | 0x03 | 0x04) | None => break Ok(0),
                Some(_) => {}
            },
            _ = terminate.recv() => break Ok(0),
            more = figures.recv() => match more {
                Some(Ok(more)) => {
                    scene.measure(&more);
                    changed = true;
                }
                Some(Err(error)) => break Err(error),
                None => break Ok(0),
            },
            event = events.next() => match event {
                Ok(Some(line)) => {
                    scene.add(&line);
                    changed = true;
                }
                Ok(None) => break Err(anyhow::anyhow!("the server ended")),
                Err(error) => break Err(error),
            },
            _ = frame.tick(), if changed => {
                screen.draw(&scene);
                changed = false;
            }
        }
    };
    drop(screen);
    drop(raw);
    ended
}

/// What is typed. Read on a thread of its own, which ends with this process.
fn keys() -> mpsc::Receiver<u8> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut key = [0];
        while std::io::stdin().read(&mut key).is_ok_and(|read| read == 1) && sender.blocking_send(key[0]).is_ok() {}
    });
    receiver
}

/// What sandboxes use, again and again. On a task of its own: keys must not wait for a slow server.
fn figures(server: Server, name: Option<String>) -> mpsc::Receiver<anyhow::Result<Vec<Figures>>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let more = ask(&server, name.as_deref()).await;
            let failed = more.is_err();
            if sender.send(more).await.is_err() || failed {
                return;
            }
            tokio::time::sleep(REFRESH).await;
        }
    });
    receiver
}

async fn ask(server: &Server, name: Option<&str>) -> anyhow::Result<Vec<Figures>> {
    let sandboxes = match name {
        Some(name) => vec![server.get(&format!("/sandboxes/{}", encode(name))).await?],
        None => ls::sandboxes(server, "limit=1000").await?,
    };
    let mut all = Vec::with_capacity(sandboxes.len());
    for (index, sandbox) in sandboxes.into_iter().enumerate() {
        let path = format!("/sandboxes/{}", sandbox["id"].as_str().unwrap_or_default());
        let mut one = Figures { sandbox, usage: Value::Null, budget: Value::Null, processes: Value::Null };
        if index < MOST && one.sandbox["state"] == "running" {
            // It may end meanwhile.
            one.usage = server.get(&format!("{path}/usage")).await.unwrap_or_default();
            one.budget = server.get(&format!("{path}/budget")).await.unwrap_or_default();
            // To ask for its processes is to use it: one that is to pause when nobody does would never.
            if one.sandbox["idle_timeout"].is_null() {
                one.processes = server.get(&format!("{path}/processes")).await.unwrap_or_default();
            }
        }
        all.push(one);
    }
    Ok(all)
}
