//! Tables, and figures as people read them.

use std::time::SystemTime;

use sloplet_policy::ByteSize;
use time::OffsetDateTime;

use crate::terminal;

/// Prints columns that are as wide as they must be. Cells may hold anything that was said inside a sandbox.
pub fn print<const COLUMNS: usize>(header: [&str; COLUMNS], rows: &[[String; COLUMNS]]) {
    let rows: Vec<[String; COLUMNS]> = [header.map(str::to_owned)]
        .iter()
        .chain(rows)
        .map(|row| row.each_ref().map(|cell| terminal::harmless(cell)))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
    for row in &rows {
        let padded = |(cell, width): (&String, &usize)| painted(cell, &format!("{cell:<width$}"));
        let cells: Vec<String> = row.iter().zip(&widths).map(padded).collect();
        say!("{}", cells.join("  ").trim_end());
    }
}

/// A cell in the colour of what it says, where colours are shown.
fn painted(cell: &str, shown: &str) -> String {
    match cell {
        "running" | "contained" | "allowed" => terminal::green(shown),
        "failed" | "BREACH" | "denied" => terminal::red(shown),
        _ => shown.to_owned(),
    }
}

/// To one decimal at most: a person reads this.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / ByteSize::mib(1).0 as f64),
        _ => format!("{:.1} GiB", bytes as f64 / ByteSize::gib(1).0 as f64),
    }
}

/// Millionths of a dollar.
pub fn dollars(micros: u64) -> String {
    match micros {
        0 => "$0".into(),
        1..10_000_000 => format!("${:.4}", micros as f64 / 1e6),
        _ => format!("${:.2}", micros as f64 / 1e6),
    }
}

/// A millisecond since 1970: `2026-01-31 12:00:00.123`, UTC.
pub fn time(ms: u64) -> String {
    let moment = i64::try_from(ms / 1000).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    let Some(moment) = moment else { return format!("{ms} ms") };
    let (hour, minute, second) = moment.to_hms();
    let date = (moment.year(), u8::from(moment.month()), moment.day());
    format!("{:04}-{:02}-{:02} {hour:02}:{minute:02}:{second:02}.{:03}", date.0, date.1, date.2, ms % 1000)
}

/// How long ago a second since 1970 was.
pub fn age(created: u64) -> String {
    format!("{} ago", span(now().saturating_sub(created)))
}

/// How far ahead a second since 1970 is.
pub fn ahead(then: u64) -> String {
    format!("in {}", span(then.saturating_sub(now())))
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn span(seconds: u64) -> String {
    // To the nearest: what was set to two hours a moment ago is not 119 minutes.
    let nearest = |unit: u64| (seconds + unit / 2) / unit;
    match seconds {
        0..120 => format!("{seconds} seconds"),
        120..7170 => format!("{} minutes", nearest(60)),
        7170..171_000 => format!("{} hours", nearest(3600)),
        _ => format!("{} days", nearest(86_400)),
    }
}
