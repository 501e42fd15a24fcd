//! A server for a user who never started one.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Search, Server};
use anyhow::{Context, bail};

/// What a server listens on if nobody says otherwise.
const USUAL: &str = "127.0.0.1:7070";

/// Any free port: somebody else has the usual one.
const ANY: &str = "127.0.0.1:0";

/// How long a start may take: it may have to find many sandboxes again.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts a server that goes on without us, and waits until it answers.
pub async fn in_background(search: &Search, server: &Server) -> anyhow::Result<()> {
    fs::DirBuilder::new().mode(0o700).recursive(true).create(&search.data)?;
    let path = search.data.join("server.log");
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let log = log.with_context(|| format!("cannot write {}", path.display()))?;
    let listen = if TcpListener::bind(USUAL).is_ok() { USUAL } else { ANY };
    // Its first key goes nowhere: whoever wants one makes it with 'sloplet key create'.
    let mut child = Command::new("/proc/self/exe")
        .args(["serve", "--detached", "--listen", listen])
        .env("SLOPLET_DATA", &search.data)
        .env("SLOPLET_RUN", &search.run)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("starting a server")?;
    let started = Instant::now();
    loop {
        // Also if ours ends: another start may have been faster.
        if server.connect().await.is_ok() {
            let _ =
                writeln!(io::stderr(), "sloplet: started a server in the background (its log is {})", path.display());
            return Ok(());
        }
        if let Some(status) = child.try_wait()?
            && !status.success()
        {
            tokio::time::sleep(Duration::from_millis(200)).await;
            if server.connect().await.is_ok() {
                return Ok(());
            }
            bail!("the server could not start: {}", last_words(&path));
        }
        if started.elapsed() > PATIENCE {
            bail!("the server did not start in time: see {}", path.display());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn last_words(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").to_owned()
}
