//! `sloplet audit`

mod export;
mod verify;

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde_json::json;
use sloplet_ledger::{Ledger, Options, Outputs, Retention, plain};
use sloplet_policy::Span;

use crate::cli::{Audit, Audits};
use crate::table::size;
use crate::trail::{Line, Trail, describe};
use crate::{setup, terminal};

/// Records that are shown before those to come.
const USUAL_TAIL: usize = 20;

pub fn run(data: Option<PathBuf>, options: Audit) -> anyhow::Result<u8> {
    setup::runtime()?.block_on(async {
        let trail = Trail::find(data).await?;
        match options.command {
            None => show(&trail, options).await,
            Some(Audits::Verify { head, key, json }) => verify::run(&trail, &head, key, json).await,
            Some(Audits::Head) => head(&trail).await,
            Some(Audits::Export { which, format, out }) => export::run(&trail, &which, format, out).await,
            Some(Audits::Output { digest }) => output(&trail, &digest).await,
            Some(Audits::Prune { older_than, json }) => prune(&trail, older_than, json),
        }
    })
}

async fn show(trail: &Trail, options: Audit) -> anyhow::Result<u8> {
    let show = |text: &str| print(text, options.json);
    let tail = options.tail.or(options.follow.then_some(USUAL_TAIL));
    let last = match tail {
        None => trail.read(&options.which, show).await?,
        Some(tail) => {
            let mut lines = VecDeque::new();
            let last = trail.read(&options.which, |line| {
                lines.push_back(line.to_owned());
                if lines.len() > tail {
                    lines.pop_front();
                }
                true
            });
            let last = last.await?;
            lines.iter().all(|line| show(line));
            last
        }
    };
    if options.follow {
        trail.follow(&options.which, last, show).await?;
    }
    Ok(0)
}

/// Prints a record; false if nobody reads it any more.
pub fn print(text: &str, as_json: bool) -> bool {
    let mut out = std::io::stdout();
    let shown = match Line::parse(text) {
        // For programs as it is, for people without what could steer their terminal.
        _ if as_json && out.is_terminal() => plain(text).into_owned(),
        _ if as_json => text.to_owned(),
        Some(line) => describe::line(&line),
        None => return true,
    };
    writeln!(out, "{shown}").is_ok()
}

async fn head(trail: &Trail) -> anyhow::Result<u8> {
    let head = match trail {
        Trail::Here(data) => serde_json::to_value(Ledger::new(data, Options::default()).head()?)?,
        Trail::There(server) => server.get("/audit/head").await?,
    };
    say!("{head}");
    Ok(0)
}

async fn output(trail: &Trail, digest: &str) -> anyhow::Result<u8> {
    let (content, complete) = match trail {
        Trail::Here(data) => {
            let stored = Outputs::open(data).load(digest)?;
            let stored = stored.context("no such output is stored: it was empty, or is too old")?;
            (stored.content.into(), stored.complete)
        }
        Trail::There(server) => {
            let path = format!("/audit/outputs/{}", crate::api::encode(digest));
            let (content, complete) = server.bytes(&path, "sloplet-complete").await?;
            (content, complete.as_deref() == Some("true"))
        }
    };
    let mut out = std::io::stdout();
    if out.is_terminal() {
        for line in String::from_utf8_lossy(&content).lines() {
            say!("{}", line.split('\t').map(terminal::harmless).collect::<Vec<_>>().join("\t"));
        }
    } else {
        out.write_all(&content).and_then(|()| out.flush()).context("writing the output")?;
    }
    if !complete {
        complain!("sloplet: it was long: its middle was not kept");
    }
    Ok(0)
}

fn prune(trail: &Trail, older_than: Span, as_json: bool) -> anyhow::Result<u8> {
    let Trail::Here(data) = trail else {
        bail!("a server prunes its own record: see 'sloplet serve --keep-records'; or unset SLOPLET_URL");
    };
    let retention = Retention { max_age: Some(older_than.0), max_bytes: None };
    let ledger = Ledger::new(data, Options::default());
    let outputs = ledger.outputs().prune(&retention)?;
    let records = ledger.prune(&retention)?;
    if as_json {
        let of = |removed: sloplet_ledger::Removed| json!({"files": removed.files, "bytes": removed.bytes});
        say!("{}", json!({"records": of(records), "outputs": of(outputs)}));
    } else {
        say!(
            "removed {} segments of records ({}) and {} outputs ({})",
            records.files,
            size(records.bytes),
            outputs.files,
            size(outputs.bytes)
        );
    }
    Ok(0)
}
