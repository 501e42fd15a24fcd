//! Masking a table of customers.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};
use sloplet_mask::{Config, Format, Key, generate, mask_file};

use super::names::MASK_SPEED;
use crate::measure::median;
use crate::options::Options;
use crate::process_memory::{forget_peak, resident};
use crate::report::{Quantity, Report, Table};
use crate::scratch::Scratch;
use crate::{interrupt, print};

const MIB: f64 = (1 << 20) as f64;

/// What tables of customers have: the rows are made by these rules from nothing, and masked by them.
const RULES: &str = r#"
[table.customers]
id = { rule = "id", domain = "customer_id", unique = true, pattern = '########' }
first_name = "first_name"
last_name = "last_name"
email = { rule = "email", unique = true }
phone = "phone"
card = "card"
street = "street"
city = "city"
postcode = { rule = "postcode", pattern = '#####' }
birth = { rule = "date", days = 200, from = "1930-01-01", to = "2005-12-31" }
balance = { rule = "number", jitter = 0.1, min = 0, max = 10000 }
plan = { rule = "keep", values = ["free", "team", "business"] }
country = { rule = "keep", values = ["DE", "FR", "US"] }
"#;

/// Measures and prints it.
pub fn measure(options: &Options, report: &mut Report, dir: &Scratch) -> Result<()> {
    let (rounds, rows) = if options.quick { (2, 50_000) } else { (7, 2_000_000) };
    let (source, out) = (dir.disk().join("customers.csv"), dir.disk().join("masked.csv"));
    let (config, key) = (Config::parse(RULES)?, Key::from_seed(1));
    generate(&config, None, rows, 1, &source, Some(Format::Csv)).context("making a table")?;
    let (resting, _) = resident()?;
    forget_peak()?;
    let (mut speeds, mut per_processor) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        interrupt::check()?;
        let (started, used) = (Instant::now(), processor());
        let masked = mask_file(&source, &config, &key, &out).context("masking a table")?;
        let megabytes = masked.source_bytes as f64 / 1e6;
        speeds.push(megabytes / started.elapsed().as_secs_f64());
        per_processor.push(megabytes / (processor() - used));
    }
    let (_, peak) = resident()?;
    let megabytes = fs::metadata(&source).context("looking at the table")?.len() as f64 / 1e6;
    [source, out].iter().try_for_each(fs::remove_file).context("removing the tables")?;
    let table = Table {
        title: format!("A CSV table of {rows} customers, {megabytes:.0} MB, median of {rounds}"),
        rows: vec![
            Quantity::new(MASK_SPEED, median(speeds), "MB/s"),
            Quantity::new("for each second of a processor", median(per_processor), "MB"),
            Quantity::new("growth of this process at its peak while masking", (peak - resting) / MIB, "MiB"),
        ],
    };
    print::quantities(&table);
    report.quantities.push(table);
    Ok(())
}

/// Seconds of processors that this process used: they say more than the clock where others use them, too.
fn processor() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
