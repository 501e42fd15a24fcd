//! Results for machines that read JUnit's XML.

use std::fmt::Write;

use crate::probe::Verdict;
use crate::report::Report;

/// A document with a suite for each report. What proves nothing, or does not apply, counts as skipped.
pub fn document(reports: &[Report]) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"sloplet verify\">\n");
    for report in reports {
        let skipped = report.count(Verdict::Inconclusive) + report.count(Verdict::NotApplicable);
        // Writing into a string cannot fail.
        let _ = writeln!(
            out,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{skipped}\" time=\"{:.3}\" hostname=\"{}\">",
            escape(&report.driver),
            report.results.len(),
            report.count(Verdict::Breach),
            report.took_ms as f64 / 1000.0,
            escape(&report.host),
        );
        for result in &report.results {
            let (name, seconds) = (escape(&result.probe), result.took_ms as f64 / 1000.0);
            let _ = write!(
                out,
                "    <testcase classname=\"sloplet.{}\" name=\"{name}\" time=\"{seconds:.3}\">",
                escape(&report.driver)
            );
            let said = escape(&format!("{}: {}", result.verdict, result.detail));
            let _ = match result.verdict {
                Verdict::Contained => Ok(()),
                Verdict::Breach => write!(out, "<failure message=\"{said}\" type=\"breach\">{said}</failure>"),
                _ => write!(out, "<skipped message=\"{said}\"/>"),
            };
            let _ = writeln!(out, "<system-out>{}</system-out></testcase>", escape(&result.control));
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

/// Text in XML and HTML. Control characters do not exist in either.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
