//! Measures how fast CSV is masked, beside a plain copy record by record with the crate `csv`, in one thread, without a digest:
//! `cargo run --release -p sloplet-mask --example speed [MiB] [FOLDER]`.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use sloplet_mask::{Config, Key, mask_file};

const RULES: &str = r#"
[table.customers]
id = { rule = "id", domain = "customer_id", unique = true }
first_name = "first_name"
last_name = "last_name"
email = { rule = "email", unique = true }
phone = "phone"
street = "street"
city = "city"
postcode = "postcode"
birth = { rule = "date", days = 200 }
balance = { rule = "number", jitter = 0.1 }
plan = "keep"
country = "keep"
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let size: u64 = arguments.next().map_or(Ok(256), |size| size.parse())? << 20;
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let (source, out) = (folder.join("sloplet-speed.csv"), folder.join("sloplet-speed-masked.csv"));
    let mut file = BufWriter::new(File::create(&source)?);
    writeln!(file, "id,first_name,last_name,email,phone,street,city,postcode,birth,balance,plan,country")?;
    let (mut written, mut row, mut noise) = (0, 0u64, 0x9e37_79b9_7f4a_7c15u64);
    while written < size {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        let line = format!(
            "{},{},{},given{}.family{row}@mail{}.test,+1 555-{:03}-{:04},{} Elm {} Road,Town{},{:05},19{:02}-{:02}-{:02},{}.{:02},{},{}\n",
            1_000_000 + row,
            word(noise % 900),
            word(noise / 7 % 20_000),
            noise % 900,
            noise / 11 % 60,
            noise / 13 % 1000,
            noise / 17 % 10_000,
            1 + noise / 19 % 200,
            noise / 23 % 5000,
            noise / 29 % 3000,
            noise / 31 % 100_000,
            30 + noise / 37 % 70,
            1 + noise / 41 % 12,
            1 + noise / 43 % 28,
            noise / 47 % 10_000,
            noise / 53 % 100,
            ["free", "team", "business"][(noise / 59 % 3) as usize],
            ["DE", "FR", "US"][(noise / 61 % 3) as usize],
        );
        file.write_all(line.as_bytes())?;
        written += line.len() as u64;
        row += 1;
    }
    file.into_inner()?.sync_all()?;
    let (config, key) = (Config::parse(RULES)?, Key::from_seed(1));
    for _ in 0..3 {
        let begin = Instant::now();
        let bytes = copy(&source, &out)?;
        println!("a plain copy: {:.0} MB/s", bytes as f64 / 1e6 / begin.elapsed().as_secs_f64());
        let (begin, before) = (Instant::now(), processor());
        let report = mask_file(&source, &config, &key, &out)?;
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{} rows, {:.0} MB in {seconds:.2} s: {:.0} MB/s; {:.0} MB for each second of a processor; {}",
            report.rows(),
            report.source_bytes as f64 / 1e6,
            report.source_bytes as f64 / 1e6 / seconds,
            report.source_bytes as f64 / 1e6 / (processor() - before),
            peak()
        );
    }
    fs::remove_file(source)?;
    fs::remove_file(out)?;
    Ok(())
}

/// A name of letters.
fn word(number: u64) -> String {
    let syllables = ["ba", "ker", "lin", "mo", "ra", "stein", "ton", "vi", "wal", "ze"];
    let mut name: String = number.to_string().bytes().map(|digit| syllables[usize::from(digit - b'0')]).collect();
    name[..1].make_ascii_uppercase();
    name
}

/// Reads and writes every record.
fn copy(source: &Path, out: &Path) -> Result<u64, Box<dyn std::error::Error>> {
    let (mut reader, mut writer) = (csv::Reader::from_path(source)?, csv::Writer::from_path(out)?);
    writer.write_byte_record(reader.byte_headers()?)?;
    let mut record = csv::ByteRecord::new();
    while reader.read_byte_record(&mut record)? {
        writer.write_byte_record(&record)?;
    }
    writer.flush()?;
    Ok(fs::metadata(source)?.len())
}

/// Seconds of processors that were used, which says more than the clock where others use them, too.
fn processor() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn peak() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    format!("most memory: {}", line.trim_start_matches("VmHWM:").trim())
}
