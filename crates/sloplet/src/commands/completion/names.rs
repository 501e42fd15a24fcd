//! What there is to be named.

use std::path::PathBuf;
use std::time::Duration;

use clap::Arg;
use serde_json::Value;
use sloplet_image::{Recipe, Store};
use tokio::time::timeout;

use super::line::Candidate;
use crate::api::Server;
use crate::setup;

/// Whoever presses TAB does not wait longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A kind of name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sandbox,
    /// A sandbox, with a colon behind it.
    Inside,
    Image,
    Snapshot,
    Volume,
    Pool,
    Recipe,
    Isolation,
    Driver,
    AtCap,
    Client,
}

impl Kind {
    /// What an argument of a command names, if that is anything that there is already.
    pub fn of(path: &[&str], arg: &Arg) -> &'static [Self] {
        let id = arg.get_id().as_str();
        match (path, id, arg.is_positional()) {
            (_, "image", false) => &[Self::Image, Self::Snapshot],
            (_, "isolation", _) => &[Self::Isolation],
            (_, "driver", _) => &[Self::Driver],
            (_, "at_cap", _) => &[Self::AtCap],
            (_, "pool", false) => &[Self::Pool],
            (_, "volume", false) => &[Self::Volume],
            (_, "print_config", _) => &[Self::Client],
            (["mcp"], "sandbox", _) => &[Self::Sandbox],
            (["fork"], "from", _) => &[Self::Snapshot],
            (["cp"], "source" | "destination", true) => &[Self::Inside],
            (["image", "build"], "name", true) => &[Self::Recipe],
            (["image", "rm"], "names", true) => &[Self::Image],
            (["snapshot", "export" | "rm"], "name" | "names", true) => &[Self::Snapshot],
            (["volume", "rm"], "names", true) => &[Self::Volume],
            (["pool", ..], "name" | "names", true) => &[Self::Pool],
            ([_] | ["audit", "export"], "name" | "names", true) => &[Self::Sandbox],
            _ => &[],
        }
    }
}

/// All names of a kind; none where nobody can tell. No server is started for it.
pub fn find(kind: Kind, data: Option<PathBuf>) -> Vec<Candidate> {
    let fixed = |words: &[&str]| words.iter().map(|&word| (word.to_owned(), String::new())).collect();
    match kind {
        Kind::Isolation => fixed(&["process", "container", "gvisor", "vm"]),
        Kind::AtCap => fixed(&["deny", "pause", "kill"]),
        Kind::Client => fixed(&["claude", "claude-desktop", "codex", "cursor", "gemini", "vscode", "windsurf", "zed"]),
        Kind::Recipe => Recipe::names().map(|name| (name.to_owned(), String::new())).collect(),
        Kind::Driver => setup::engine(data, None)
            .map(|engine| engine.walls().map(|(name, level)| (name.to_owned(), level.to_string())).collect())
            .unwrap_or_default(),
        Kind::Image => images(data),
        Kind::Sandbox => ask("/sandboxes?limit=1000", data),
        Kind::Inside => {
            ask("/sandboxes?limit=1000", data).into_iter().map(|(name, about)| (format!("{name}:"), about)).collect()
        }
        Kind::Snapshot => ask("/snapshots", data),
        Kind::Volume => ask("/volumes", data),
        Kind::Pool => ask("/pools", data),
    }
}

fn images(data: Option<PathBuf>) -> Vec<Candidate> {
    let store = setup::places(data).ok().and_then(|places| Store::open(&places.data).ok());
    let found = store.and_then(|store| store.list().ok()).unwrap_or_default();
    let named = found.into_iter().map(|image| (image.name, "image".to_owned()));
    std::iter::once(("host".to_owned(), "this host's own programs".to_owned())).chain(named).collect()
}

/// What a server lists, by name, or by id where it has none.
fn ask(path: &str, data: Option<PathBuf>) -> Vec<Candidate> {
    let asked = async {
        let server = Server::find(&setup::search(data, false)?).await?;
        server.get(path).await
    };
    let Ok(runtime) = setup::runtime() else { return Vec::new() };
    let Ok(Ok(found)) = runtime.block_on(async { timeout(PATIENCE, asked).await }) else { return Vec::new() };
    let listed = found.as_array().or_else(|| found["sandboxes"].as_array()).cloned().unwrap_or_default();
    listed.iter().filter_map(name).collect()
}

fn name(one: &Value) -> Option<Candidate> {
    let text = |field: &str| one[field].as_str();
    let named = text("name").or(text("id"))?;
    // What a shell would have to quote, and what steers a terminal, is left to whoever types.
    let plain = named.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_./:@".contains(letter));
    plain.then(|| (named.to_owned(), text("state").or(text("image")).unwrap_or_default().to_owned()))
}
