//! Tables for people.

use crate::report::{Machine, Quantity, Table, Target, Timing};

/// Where it was measured.
pub fn machine(machine: &Machine) {
    println!("Linux {}, {} processors, load {} at the start", machine.kernel, machine.cpus, machine.load);
}

/// Times, with the ratio of each median to that of each reference: a label and the name of its row.
pub fn timings(table: &Table<Timing>, references: &[(&str, &str)]) {
    println!("\n{}", table.title);
    let heads: Vec<String> = references.iter().map(|(label, _)| format!("{:>10}", format!("× {label}"))).collect();
    println!("  {:<34}{:>9}{:>9}{:>9}{:>6}{}", "", "p50 ms", "p95 ms", "best", "n", heads.concat());
    for row in &table.rows {
        if let Some(reason) = &row.missing {
            println!("  {:<34}missing: {}", row.name, first_line(reason));
            continue;
        }
        let ratios: Vec<String> = references
            .iter()
            .map(|(_, name)| {
                let reference = table.rows.iter().find(|other| other.name == *name).map(|other| other.p50_ms);
                format!("{:>10}", reference.map_or_else(String::new, |reference| ratio(row.p50_ms / reference)))
            })
            .collect();
        let failures = if row.failures > 0 { format!("   {} failed", row.failures) } else { String::new() };
        println!(
            "  {:<34}{:>9.2}{:>9.2}{:>9.2}{:>6}{}{failures}",
            row.name,
            row.p50_ms,
            row.p95_ms,
            row.best_ms,
            row.samples,
            ratios.concat()
        );
    }
}

/// Other quantities.
pub fn quantities(table: &Table<Quantity>) {
    println!("\n{}", table.title);
    for row in &table.rows {
        println!("  {:<50}{:>12.2} {}", row.name, row.value, row.unit);
    }
}

/// What was promised.
pub fn targets(targets: &[Target]) {
    if targets.is_empty() {
        return;
    }
    println!("\nTargets");
    for target in targets {
        let mark = match target.kept {
            Some(true) => "pass",
            Some(false) => "FAIL",
            None => "  – ",
        };
        println!("  {mark}  {:<72} {}", target.promise, target.measured);
    }
}

/// Small ratios as fractions: `1/80` says more than `0.01`.
fn ratio(ratio: f64) -> String {
    match ratio {
        r if !r.is_finite() => String::new(),
        r if r < 0.2 => format!("1/{:.0}", 1.0 / r),
        r => format!("{r:.2}"),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
