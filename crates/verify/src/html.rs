//! One page for an auditor: no scripts, nothing loaded, fit to be printed.

use std::fmt::Write;

use crate::junit::escape;
use crate::probe::Verdict;
use crate::report::{Report, Result};

const STYLE: &str = "\
:root{--ink:#1b1f24;--soft:#59636e;--line:#d1d9e0;--good:#1a7f37;--bad:#cf222e;--unclear:#9a6700;--none:#59636e}\
*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.6rem;margin:0 0 .25rem}h2{font-size:1.2rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line);padding-bottom:.25rem}\
.lead{color:var(--soft);margin:0 0 1rem}.seal{font-weight:700;font-size:1.15rem;padding:.75rem 1rem;border:2px solid;border-radius:.5rem;margin:1rem 0}\
.contained{color:var(--good)}.breach{color:var(--bad)}.inconclusive{color:var(--unclear)}.not-applicable{color:var(--none)}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:0}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}\
table{border-collapse:collapse;width:100%;font-size:.875rem}th,td{text-align:left;vertical-align:top;padding:.3rem .5rem;border-bottom:1px solid var(--line);overflow-wrap:anywhere}\
th{color:var(--soft);font-weight:600}th:first-child,td:first-child{min-width:8rem}.verdict{white-space:nowrap;overflow-wrap:normal;font-weight:600}article{border:1px solid var(--line);border-radius:.5rem;padding:.75rem 1rem;margin:.75rem 0;break-inside:avoid}\
article h3{margin:0 0 .4rem;font-size:1rem;display:flex;justify-content:space-between;gap:1rem}article h3 small{color:var(--soft);font-weight:400}\
details{margin-top:.5rem}summary{cursor:pointer;color:var(--soft)}code{font-size:.85em;overflow-wrap:anywhere}footer{color:var(--soft);font-size:.85rem;margin:2rem 0}\
@media print{body{margin:0;max-width:none}details>*{display:block}.seal{break-after:avoid}}";

/// The page.
pub fn page(reports: &[Report]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Containment report</title><style>{STYLE}</style></head><body>\n<h1>Containment report</h1>\n\
         <p class=\"lead\">Every probe attacked a sandbox of the configuration below. Each attempt was first made on the host, \
         unconfined, where it has to take effect: what does not work outside proves nothing inside.</p>\n"
    );
    for report in reports {
        of_report(&mut out, report);
    }
    out.push_str(
        "<footer>A probe shows that an attack fails that somebody thought of; it cannot show that there is no other. \
         Made by sloplet verify.</footer>\n</body></html>\n",
    );
    out
}

fn of_report(out: &mut String, report: &Report) {
    let (class, seal) = match (report.count(Verdict::Breach), report.count(Verdict::Inconclusive)) {
        (0, 0) => ("contained", "Contained".to_owned()),
        (0, unclear) => ("inconclusive", format!("No breach; {unclear} probes were inconclusive")),
        (1, _) => ("breach", "One breach".to_owned()),
        (breaches, _) => ("breach", format!("{breaches} breaches")),
    };
    let mut add = |text: &str| out.push_str(text);
    add(&format!("<h2>{} (isolation {})</h2>\n", escape(&report.driver), escape(&report.isolation)));
    add(&format!("<p class=\"seal {class}\">{seal} <small>({})</small></p>\n<dl>", escape(&report.summary())));
    let took = format!("{:.1} s", report.took_ms as f64 / 1000.0);
    let facts = [
        ("Date", date(report.started_ms)),
        ("Duration", took),
        ("Host", report.host.clone()),
        ("Kernel", report.kernel.clone()),
        ("Verified as", report.user.clone()),
        ("sloplet", report.version.clone()),
        ("Probes", if report.complete { "all".into() } else { "a selection".into() }),
        ("Configuration", report.configuration.clone()),
        ("Digest", report.digest.clone()),
    ];
    for (name, value) in facts {
        add(&format!("<dt>{name}</dt><dd>{}</dd>", escape(&value)));
    }
    if let Some(weakness) = &report.weakened {
        add(&format!("<dt>Weakened</dt><dd class=\"breach\">{} was taken away on purpose</dd>", escape(weakness)));
    }
    add(
        "</dl>\n<h2>Summary</h2>\n<table><thead><tr><th>Probe</th><th>No.</th><th class=\"verdict\">Verdict</th><th>What it tries</th></tr></thead><tbody>\n",
    );
    for result in &report.results {
        let (name, ids) = (escape(&result.probe), numbers(result));
        let _ = writeln!(
            out,
            "<tr><td><a href=\"#{0}-{name}\">{name}</a></td><td>{ids}</td><td class=\"verdict {1}\">{2}</td><td>{3}</td></tr>",
            escape(&report.driver),
            class_of(result.verdict),
            result.verdict,
            escape(&result.tries)
        );
    }
    out.push_str("</tbody></table>\n<h2>Probes</h2>\n");
    for result in &report.results {
        of_result(out, &report.driver, result);
    }
}

fn of_result(out: &mut String, driver: &str, result: &Result) {
    let name = escape(&result.probe);
    let _ = write!(
        out,
        "<article id=\"{}-{name}\"><h3><span>{name} <small>{}</small></span><span class=\"verdict {}\">{}</span></h3><dl>",
        escape(driver),
        numbers(result),
        class_of(result.verdict),
        result.verdict
    );
    let facts = [
        ("Tries", &result.tries),
        ("Why", &result.why),
        ("Control", &result.control),
        ("Inside", &result.detail),
        ("Canary", &result.canary),
    ];
    for (label, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = write!(out, "<dt>{label}</dt><dd>{}</dd>", escape(value));
    }
    out.push_str("</dl>");
    if !result.parts.is_empty() {
        let _ = write!(
            out,
            "<details><summary>{} attempts</summary><table><thead><tr><th>Attempt</th><th>Unconfined</th><th>Inside</th><th class=\"verdict\">Verdict</th></tr></thead><tbody>",
            result.parts.len()
        );
        for part in &result.parts {
            let inside: Vec<String> = part.inside.iter().map(|(user, what)| format!("{user}: {what}")).collect();
            let _ = write!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"verdict {}\">{}</td></tr>",
                escape(&part.name),
                escape(&part.control),
                escape(&inside.join("; ")),
                class_of(part.verdict),
                part.verdict
            );
        }
        out.push_str("</tbody></table></details>");
    }
    out.push_str("</article>\n");
}

fn numbers(result: &Result) -> String {
    result.ids.iter().map(u8::to_string).collect::<Vec<_>>().join(", ")
}

fn class_of(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Contained => "contained",
        Verdict::Breach => "breach",
        Verdict::Inconclusive => "inconclusive",
        Verdict::NotApplicable => "not-applicable",
    }
}

/// A day and a time of day, in UTC.
pub fn date(ms: u64) -> String {
    let (days, seconds) = (ms / 86_400_000, ms / 1000 % 86_400);
    // From days since 1970 to a date of the Gregorian calendar, counted from a first of March.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Cells of the table break anywhere, for paths and hashes; a verdict that does is a column of letters.
    #[test]
    fn the_verdict_column_is_read_at_a_glance() {
        let rule = STYLE.split('}').find(|rule| rule.starts_with(".verdict{")).unwrap_or_default();
        assert!(rule.contains("white-space:nowrap") && rule.contains("overflow-wrap:normal"), "{rule}");
        let part = serde_json::json!({
            "name": "a", "optional": false, "control": "", "works": true, "inside": {}, "verdict": Verdict::Breach,
        });
        let result = serde_json::json!({
            "probe": "fork-bomb", "ids": [1], "tries": "", "why": "", "verdict": Verdict::Breach, "control": "",
            "detail": "", "canary": "", "parts": [part], "took_ms": 1,
        });
        let report = serde_json::json!({
            "started_ms": 0, "took_ms": 1, "driver": "namespaces", "isolation": "container", "kernel": "", "host": "",
            "user": "root", "version": "", "digest": "", "configuration": "", "complete": true, "results": [result],
        });
        let page = page(&[serde_json::from_value(report).unwrap()]);
        let cells = page.matches("<td class=\"verdict breach\">BREACH</td>").count();
        assert_eq!((cells, page.matches("<th class=\"verdict\">Verdict</th>").count()), (2, 2), "{page}");
        assert!(page.contains("<span class=\"verdict breach\">BREACH</span>"), "{page}");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_767_225_599_000), "2025-12-31 23:59:59 UTC");
    }
}
