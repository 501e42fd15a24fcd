//! `sloplet image`

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use anyhow::bail;
use serde_json::{Value, json};
use sloplet_image::{Image, Progress, PullOptions, Recipe, build_image};
use sloplet_policy::ByteSize;

use crate::cli::Image as Command;
use crate::{setup, terminal};

pub fn run(data: Option<PathBuf>, command: Command) -> anyhow::Result<u8> {
    let engine = setup::engine(data, None)?;
    let store = engine.images()?;
    let line = ProgressLine::new();
    let progress = |step: Progress| line.show(&step);
    let (image, as_json) = match command {
        Command::Import { source, name, json } => {
            engine.check_source(&source)?;
            (store.import(&source, name.as_deref(), &progress)?, json)
        }
        Command::Pull { reference, json } => {
            let pull = store.pull(&reference, PullOptions::default(), &progress);
            (setup::runtime()?.block_on(pull)?, json)
        }
        Command::Build { name, json } => {
            let Some(recipe) = Recipe::named(&name) else {
                let names = Recipe::names().collect::<Vec<_>>().join(", ");
                bail!("there is no recipe for '{}'; there are: {names}", terminal::harmless(&name));
            };
            (build_image(store, recipe, &progress)?, json)
        }
        Command::Ls { json } => return list(&store.list()?, json),
        Command::Rm { names } => {
            for name in &names {
                if name == "host" {
                    bail!("the image 'host' is this host itself: there is nothing to remove");
                }
                store.remove(name)?;
            }
            store.gc()?;
            return Ok(0);
        }
    };
    line.clear();
    if as_json {
        say!("{}", describe(&image));
    } else {
        say!("{} {} ({})", image.name, short(&image.digest), size(image.size_bytes));
        if image.skipped_entries > 0 {
            complain!("sloplet: note: {} devices, sockets or FIFOs were left out", image.skipped_entries);
        }
    }
    Ok(0)
}

fn list(images: &[Image], as_json: bool) -> anyhow::Result<u8> {
    if as_json {
        say!("{}", serde_json::to_string_pretty(&images.iter().map(describe).collect::<Vec<_>>())?);
        return Ok(0);
    }
    let rows: Vec<[String; 4]> = images
        .iter()
        .map(|image| {
            [terminal::harmless(&image.name), short(&image.digest), size(image.size_bytes), age(image.created)]
        })
        .collect();
    let header = ["IMAGE", "DIGEST", "SIZE", "CREATED"].map(str::to_owned);
    let width = |column: usize| rows.iter().chain([&header]).map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..4).map(width).collect();
    for row in [&header].into_iter().chain(&rows) {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        say!("{}", cells.join("  ").trim_end());
    }
    Ok(0)
}

fn describe(image: &Image) -> Value {
    json!({
        "name": image.name,
        "digest": image.digest,
        "layers": image.layers.len(),
        "size_bytes": image.size_bytes,
        "created": image.created,
        "skipped_entries": image.skipped_entries,
    })
}

fn short(digest: &str) -> String {
    digest.split(':').next_back().unwrap_or(digest).chars().take(12).collect()
}

/// To one decimal at most: a person reads this.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / ByteSize::mib(1).0 as f64),
        _ => format!("{:.1} GiB", bytes as f64 / ByteSize::gib(1).0 as f64),
    }
}

fn age(created: u64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    match now.saturating_sub(created) {
        seconds @ 0..120 => format!("{seconds} seconds ago"),
        seconds @ 120..7200 => format!("{} minutes ago", seconds / 60),
        seconds @ 7200..172_800 => format!("{} hours ago", seconds / 3600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

/// One line that is overwritten; nothing where nobody looks, and nothing for what takes less than a moment.
struct ProgressLine {
    visible: bool,
    last: Mutex<Instant>,
}

impl ProgressLine {
    fn new() -> Self {
        Self { visible: std::io::stderr().is_terminal(), last: Mutex::new(Instant::now()) }
    }

    fn show(&self, step: &Progress) {
        let Ok(mut last) = self.last.lock() else { return };
        if !self.visible || last.elapsed() < Duration::from_millis(100) {
            return;
        }
        *last = Instant::now();
        let text = match step {
            Progress::Fetching { digest, bytes } => format!("fetching {} ({})", short(digest), size(*bytes)),
            Progress::Unpacking { layer, of, bytes } => format!("unpacking layer {layer} of {of}: {}", size(*bytes)),
            Progress::Present { layer, of } => format!("layer {layer} of {of} is there"),
            Progress::Message(text) => terminal::harmless(text).chars().take(100).collect(),
            _ => return,
        };
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
        let _ = std::io::stderr().flush();
    }

    fn clear(&self) {
        if self.visible {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
