//! `sloplet image`

use std::path::PathBuf;

use anyhow::bail;
use serde_json::{Value, json};
use sloplet_image::{Image, Progress, PullOptions, Recipe, build_image};

use crate::cli::Image as Command;
use crate::progress::ProgressLine;
use crate::table::{age, size};
use crate::{setup, table, terminal};

pub fn run(data: Option<PathBuf>, command: Command) -> anyhow::Result<u8> {
    let engine = setup::engine(data, None)?;
    let store = engine.images()?;
    let line = ProgressLine::new();
    let progress = |step: Progress| line.show(|| text(&step));
    let (image, as_json) = match command {
        Command::Import { source, name, json } => {
            let source = engine.check_source(&source)?;
            line.step(&format!("importing {}", source.display()));
            (store.import(&source, name.as_deref(), &progress)?, json)
        }
        Command::Pull { reference, json } => {
            line.step(&format!("pulling {reference}"));
            let pull = store.pull(&reference, PullOptions::default(), &progress);
            (setup::runtime()?.block_on(pull)?, json)
        }
        Command::Build { name, json } => {
            let Some(recipe) = Recipe::named(&name) else {
                let names = Recipe::names().collect::<Vec<_>>().join(", ");
                bail!("there is no recipe for '{}'; there are: {names}", terminal::harmless(&name));
            };
            line.step(&format!("building {name}"));
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
    table::print(["IMAGE", "DIGEST", "SIZE", "CREATED"], &rows);
    for image in images.iter().filter(|image| outdated(image)) {
        let name = recipe(image);
        complain!(
            "sloplet: {name} is older than 30 days, and so are its programs: 'sloplet image build {name}' makes it anew"
        );
    }
    Ok(0)
}

/// The recipe's name, for an image that was built here.
fn recipe(image: &Image) -> &str {
    image.name.split(':').next().unwrap_or_default()
}

/// Built here so long ago that what its distribution mended since is missing.
fn outdated(image: &Image) -> bool {
    const OLD: u64 = 30 * 24 * 3600;
    Recipe::named(recipe(image)).is_some() && table::now().saturating_sub(image.created) > OLD
}

fn describe(image: &Image) -> Value {
    json!({
        "name": image.name,
        "digest": image.digest,
        "layers": image.layers.len(),
        "size_bytes": image.size_bytes,
        "created_ms": image.created * 1000,
        "outdated": outdated(image),
        "skipped_entries": image.skipped_entries,
    })
}

fn short(digest: &str) -> String {
    digest.split(':').next_back().unwrap_or(digest).chars().take(12).collect()
}

/// What a step is called while it is under way.
fn text(step: &Progress) -> Option<String> {
    Some(match step {
        Progress::Fetching { digest, bytes } => format!("fetching {} ({})", short(digest), size(*bytes)),
        Progress::Unpacking { layer, of, bytes } => format!("unpacking layer {layer} of {of}: {}", size(*bytes)),
        Progress::Present { layer, of } => format!("layer {layer} of {of} is there"),
        Progress::Message(text) => format!("building: {}", text.trim_start_matches("I: ")),
        _ => return None,
    })
}
