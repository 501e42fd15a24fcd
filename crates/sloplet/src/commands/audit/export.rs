//! `sloplet audit export`

use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::{Context, bail};
use sloplet_ledger::{Exported, LedgerError, Reader, export_jsonl, export_otlp};

use crate::cli::{Format, Which};
use crate::trail::{self, Trail};

/// Some records could not be read.
const INCOMPLETE: u8 = 1;

pub async fn run(trail: &Trail, which: &Which, format: Format, out: Option<PathBuf>) -> anyhow::Result<u8> {
    let out: Box<dyn Write> = match &out {
        Some(path) => {
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            Box::new(file.with_context(|| format!("cannot write {}", path.display()))?)
        }
        None => Box::new(std::io::stdout()),
    };
    let mut out = BufWriter::new(out);
    let exported = match (trail, format) {
        (Trail::Here(data), format) => {
            let records = Reader::new(data, trail::filter(data, which)?);
            match format {
                Format::Jsonl => export_jsonl(records, &mut out),
                Format::Otel => export_otlp(records, &mut out),
            }
        }
        (Trail::There(_), Format::Jsonl) => {
            let mut written = Ok(());
            let read = trail.read(which, |line| {
                written = writeln!(out, "{line}");
                written.is_ok()
            });
            read.await?;
            written.and_then(|()| out.flush()).map(|()| Exported::default()).map_err(LedgerError::Export)
        }
        (Trail::There(_), Format::Otel) => {
            bail!(
                "a server gives records as they are: use --format jsonl, or unset SLOPLET_URL to read the data folder"
            )
        }
    };
    match exported {
        // Whoever read it has enough.
        Err(LedgerError::Export(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        exported => {
            let damaged = exported?.damaged;
            if damaged > 0 {
                complain!("sloplet: {damaged} damaged lines were left out: see 'sloplet audit verify'");
            }
            Ok(if damaged > 0 { INCOMPLETE } else { 0 })
        }
    }
}
