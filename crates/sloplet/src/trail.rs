//! Where records come from: this user's data folder, or a server elsewhere.

pub mod describe;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use serde::Deserialize;
use serde_json::Value;
use sloplet_engine::origins::Origins;
use sloplet_ledger::{Event, Filter, Follow, LedgerError, Reader};

use crate::api::{self, Server, encode};
use crate::cli::Which;
use crate::setup;

/// Where records come from.
pub enum Trail {
    /// A data folder.
    Here(PathBuf),
    /// A server.
    There(Server),
}

/// A record, as far as it is shown.
#[derive(Debug, Deserialize)]
pub struct Line {
    /// Its number.
    pub seq: u64,
    /// When.
    pub time_ms: u64,
    /// The sandbox it is about.
    pub sandbox: Option<String>,
    /// Who did it.
    pub actor: String,
    event: Value,
}

impl Line {
    /// Takes a record apart; `None` if it is none.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }

    /// What kind of event it is.
    pub fn kind(&self) -> &str {
        self.event["kind"].as_str().unwrap_or_default()
    }

    /// The event.
    pub fn event(&self) -> Event {
        serde_json::from_value(self.event.clone()).unwrap_or_else(|_| Event::Unknown(self.event.clone()))
    }
}

impl Trail {
    /// The server that `SLOPLET_URL` names, or else the data folder.
    pub async fn find(data: Option<PathBuf>) -> anyhow::Result<Self> {
        if api::is_elsewhere() {
            return Ok(Self::There(Server::find(&setup::search(data, false)?).await?));
        }
        Ok(Self::Here(setup::places(data)?.data))
    }

    /// Shows every record that is wanted, oldest first, until `show` says that it is enough. Returns the number of the last.
    pub async fn read(&self, which: &Which, mut show: impl FnMut(&str) -> bool) -> anyhow::Result<u64> {
        let mut last = 0;
        let mut show = |line: &str| {
            last = Line::parse(line).map_or(last, |line| line.seq);
            show(line)
        };
        match self {
            Self::Here(data) => {
                let mut damaged = 0;
                for record in Reader::new(data, filter(data, which)?) {
                    match record {
                        Err(LedgerError::Damaged { .. }) => damaged += 1,
                        record => {
                            if !show(record?.line()) {
                                break;
                            }
                        }
                    }
                }
                if damaged > 0 {
                    complain!("sloplet: {damaged} lines of the record are damaged: see 'sloplet audit verify'");
                }
            }
            Self::There(server) => {
                let mut after = Some("0".to_owned());
                while let Some(from) = after {
                    let path = format!("/audit?format=jsonl&limit=1000&after={from}{}", query(which));
                    let (lines, next) = server.bytes(&path, "sloplet-next").await?;
                    if !String::from_utf8_lossy(&lines).lines().all(&mut show) {
                        break;
                    }
                    after = next;
                }
            }
        }
        Ok(last)
    }

    /// Shows every record that is wanted behind `after` as it comes, until `show` says that it is enough.
    pub async fn follow(&self, which: &Which, after: u64, mut show: impl FnMut(&str) -> bool) -> anyhow::Result<()> {
        match self {
            Self::Here(data) => {
                let mut records = Follow::open(data, Filter { after_seq: after, ..filter(data, which)? });
                loop {
                    match records.next().await {
                        Err(LedgerError::Damaged { .. }) => {}
                        record => {
                            if !show(record?.line()) {
                                return Ok(());
                            }
                        }
                    }
                }
            }
            Self::There(server) => {
                let mut events = server.events(&format!("/events?after={after}{}", query(which))).await?;
                while let Some(line) = events.next().await? {
                    if !show(&line) {
                        return Ok(());
                    }
                }
                Err(anyhow!("the server ended"))
            }
        }
    }
}

/// The records of a data folder that are wanted.
pub fn filter(data: &Path, which: &Which) -> anyhow::Result<Filter> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let since = which.since.map(|span| now.saturating_sub(span.0));
    Ok(Filter {
        sandbox: which.name.as_deref().map(|name| sandbox(data, name)).transpose()?,
        kinds: which.kind.clone(),
        since_ms: since.map(|since: Duration| since.as_millis() as u64),
        ..Filter::default()
    })
}

/// The id of a sandbox, which may be gone.
pub fn sandbox(data: &Path, name: &str) -> anyhow::Result<String> {
    let mut origins = Origins::default();
    origins.read_on(data).context("reading the record")?;
    origins.find(name, None).ok_or_else(|| anyhow!("nothing is recorded of a sandbox '{name}'"))
}

/// The same for a server.
pub fn query(which: &Which) -> String {
    let mut query = String::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            query.push_str(&format!("&{name}={}", encode(&value)));
        }
    };
    add("sandbox", which.name.clone());
    add("kind", (!which.kind.is_empty()).then(|| which.kind.join(",")));
    add("since", which.since.map(|span| format!("{}s", span.0.as_secs().max(1))));
    query
}
