//! `sloplet mcp`

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::Value;
use sloplet_mcp::clients::Client;
use sloplet_mcp::{Desk, Door, Grant, Options, Share, Times, serve_http, serve_stdio};
use sloplet_policy::Span;
use sloplet_policy::file::File;
use sloplet_policy::protect::Protected;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::create;
use crate::cli::{Create, Git, Lifetime, Mcp};
use crate::{config, setup};

/// How long a sandbox lives that nobody uses, unless that is said.
const USUAL: Duration = Duration::from_secs(3600);

/// What a sandbox's LLM calls may cost, unless a budget is said.
const USUAL_USD: &str = "1";

/// Shortest token that is taken.
const TOKEN: usize = 16;

pub fn run(data: Option<PathBuf>, autostart: bool, options: Mcp) -> anyhow::Result<u8> {
    if let Some(client) = options.print_config {
        print(client)?;
        return Ok(0);
    }
    if let Some(address) = options.http.filter(|address| !address.ip().is_loopback() && !options.public) {
        bail!("{address} can be reached by others: add --public if that is meant");
    }
    let search = setup::search(data, autostart)?;
    let file = config::file(&search.data, &options.machine)?;
    let shares = shares(&file, &options)?;
    let grant = Grant::new(&options.tools, options.read_only, !shares.is_empty())?;
    let http = options.http;
    let door = Door { token: token(http.is_some())?, origins: options.origin.clone(), public: options.public };
    let (attach, keep, longest) = (options.sandbox.clone(), options.keep, options.max_life.0);
    let (request, idle) = request(file, options)?;
    let times = Times { idle: idle.min(longest), longest };
    let desk = Desk::new(Options { search, grant, request, attach, keep, times, shares });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let over = ended_by_signal()?;
        match http {
            None => serve_stdio(desk, over).await,
            Some(address) => {
                let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
                complain!("sloplet: serving http://{}/mcp", listener.local_addr()?);
                if std::env::var_os("SLOPLET_MCP_TOKEN").is_none() {
                    complain!("sloplet: the token is {}", door.token);
                }
                serve_http(desk, listener, door, over).await
            }
        }
    });
    // A thread may still wait for our input.
    runtime.shutdown_background();
    outcome.map(|()| 0)
}

/// The sandbox of a conversation, as the API takes it, and how long it lives without being used.
fn request(mut file: File, options: Mcp) -> anyhow::Result<(Value, Duration)> {
    if file.untrusted {
        // It may lower what is usual here, too, and not replace it.
        let usual = USUAL_USD.parse()?;
        file.budget.usd = Some(file.budget.usd.map_or(usual, |usd| usd.min(usual)));
    }
    let wanted = Create {
        name: options.name,
        image: options.image,
        pool: None,
        git: Git::default(),
        machine: options.machine,
        timeout: options.timeout.map(|span| Lifetime(Some(span))),
        pause_on_timeout: false,
        idle_timeout: None,
        auto_resume: false,
        volume: options.volume,
        metadata: options.metadata,
        json: false,
    };
    let mut request = create::request(file, wanted)?;
    let idle = match request["timeout"].as_str() {
        Some(text) => text.parse::<Span>().map_err(|error| anyhow::anyhow!("timeout: {error}"))?.0,
        None => USUAL,
    };
    request["timeout"] = Span(idle.min(options.max_life.0)).to_string().into();
    let bounded = ["usd", "tokens", "group"].iter().any(|name| !request["budget"][name].is_null());
    if !bounded {
        request["budget"]["usd"] = USUAL_USD.into();
    }
    Ok((request, idle))
}

/// Folders of the host, none of which holds what is to be protected.
fn shares(file: &File, options: &Mcp) -> anyhow::Result<Vec<Share>> {
    let home = std::env::home_dir();
    let radius = file.protect.clone().at_home(home.as_deref());
    let protected = Protected::for_host(None, &[]).with(&radius.paths);
    let open = |text: &String| {
        let (path, writable) = Share::parse(text);
        let (folder, real) = protected.open(&path).with_context(|| format!("--share {text}"))?;
        Share::of(folder, &real, writable)
    };
    options.share.iter().map(open).collect()
}

/// What requests over HTTP have to show.
fn token(needed: bool) -> anyhow::Result<String> {
    match std::env::var("SLOPLET_MCP_TOKEN") {
        Ok(token) if needed && (token.len() < TOKEN || token.contains(char::is_whitespace)) => {
            bail!("SLOPLET_MCP_TOKEN: a token has at least {TOKEN} characters and no spaces")
        }
        Ok(token) => Ok(token),
        Err(_) => {
            let mut bytes = [0u8; 20];
            getrandom(&mut bytes, GetRandomFlags::empty()).context("making a token")?;
            Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
        }
    }
}

fn ended_by_signal() -> anyhow::Result<CancellationToken> {
    let over = CancellationToken::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        let (mut signal, over) = (signal(kind)?, over.clone());
        tokio::spawn(async move {
            signal.recv().await;
            over.cancel();
        });
    }
    Ok(over)
}

/// The configuration that starts us as we were started.
fn print(client: Client) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("finding this program")?;
    let program = program.to_str().map(|path| path.trim_end_matches(" (deleted)")).unwrap_or("sloplet");
    let program = if Path::new(program).exists() { program } else { "sloplet" };
    let mut words = std::env::args().skip(1);
    let mut arguments = Vec::new();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--print-config" => drop(words.next()),
            word if word.starts_with("--print-config=") => {}
            _ => arguments.push(word),
        }
    }
    complain!("sloplet: this belongs into {}", client.file());
    say!("{}", client.config(program, &arguments));
    Ok(())
}
