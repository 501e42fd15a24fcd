//! `sloplet mask`

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sloplet_mask::{Config, Format, Key, Options, Report, generate, mask_file_with, suggest};

use crate::cli::Mask;
use crate::terminal;

/// A key instead of a file with one.
const VARIABLE: &str = "SLOPLET_MASK_KEY";

pub fn run(options: Mask) -> anyhow::Result<u8> {
    let format =
        options.format.as_deref().map(|name| name.parse::<Format>().map_err(anyhow::Error::msg)).transpose()?;
    if let Some(path) = &options.new_key {
        Key::create(path)?;
        if options.json {
            say!("{}", serde_json::json!({ "key": path }));
        } else {
            say!("wrote a new key to {}: keep it away from what you mask", path.display());
        }
        return Ok(0);
    }
    if options.suggest {
        let suggestion = suggest(needed(options.source.as_deref(), "a file to look at")?, format)?;
        if options.json {
            say!("{}", serde_json::to_string_pretty(&suggestion)?);
        } else {
            say!("{}", suggestion.rules.trim_end());
        }
        return Ok(0);
    }
    let out = needed(options.out.as_deref(), "--out FILE")?;
    let report = if let Some(rows) = options.rows {
        let schema = needed(options.schema.as_deref().or(options.config.as_deref()), "--schema FILE")?;
        generate(&Config::load(schema)?, options.table.as_deref(), rows, options.seed, out, format)?
    } else {
        let source = needed(options.source.as_deref(), "a file to mask")?;
        let config = Config::load(needed(options.config.as_deref(), "--config FILE (--suggest proposes one)")?)?;
        let key = key(options.key.as_deref())?;
        let how = Options { format, table: options.table, strict: options.strict, threads: None };
        mask_file_with(source, &config, &key, out, &how)?
    };
    tell(&report, options.report, options.json)?;
    Ok(0)
}

fn needed<'a>(value: Option<&'a Path>, what: &str) -> anyhow::Result<&'a Path> {
    value.with_context(|| format!("{what} is missing (see `sloplet mask --help`)"))
}

fn key(path: Option<&Path>) -> anyhow::Result<Key> {
    match (path, std::env::var(VARIABLE)) {
        (Some(path), _) => Ok(Key::load(path)?),
        (None, Ok(text)) => Key::parse(&text).with_context(|| format!("{VARIABLE} is not 64 hexadecimal digits")),
        (None, Err(_)) => {
            anyhow::bail!("a key is missing: make one with `sloplet mask --new-key FILE` and give it with --key FILE")
        }
    }
}

fn tell(report: &Report, file: Option<PathBuf>, json: bool) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(report)?;
    if let Some(path) = file {
        fs::write(&path, format!("{text}\n"))
            .with_context(|| format!("cannot write the report '{}'", path.display()))?;
    }
    if json {
        say!("{text}");
    } else {
        report.to_string().lines().for_each(|line| say!("{}", terminal::harmless(line)));
    }
    Ok(())
}
