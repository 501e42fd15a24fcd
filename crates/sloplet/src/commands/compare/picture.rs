//! A comparison as an SVG: a small chart for each figure, a bar for each wall. Readable on light and on dark pages.

use std::fmt::Write as _;

use super::{Figures, Row};

/// Measures of a chart, in pixels.
const WIDTH: usize = 440;
const NAMES: usize = 92;
const BARS: f64 = 250.0;
const LINE: usize = 22;
const HEAD: usize = 46;
const GAP: usize = 24;
const TOP: usize = 58;

/// Beyond this, the smallest bar of a linear scale could not be seen.
const SPREAD: f64 = 12.0;

/// What one chart shows.
struct Chart {
    title: &'static str,
    better: &'static str,
    value: fn(&Figures) -> f64,
}

const CHARTS: [Chart; 6] = [
    Chart { title: "start, ms", better: "less is better", value: |it| it.start_ms },
    Chart { title: "exec, ms", better: "less is better", value: |it| it.exec_ms },
    Chart {
        title: "memory of an idle sandbox, MiB",
        better: "less is better",
        value: |it| it.memory_bytes.unwrap_or(0) as f64 / 1_048_576.0,
    },
    Chart { title: "system call, µs", better: "less is better", value: |it| it.inside.syscall_ns / 1000.0 },
    Chart { title: "writing a file, MB/s", better: "more is better", value: |it| it.inside.write_mb_s },
    Chart { title: "reading it again, MB/s", better: "more is better", value: |it| it.inside.read_mb_s },
];

const STYLE: &str = "<style>\n\
    svg { font: 13px system-ui, sans-serif; } text { fill: #1c2733; } .quiet { fill: #5b6875; font-size: 11px; }\n\
    .title { font-weight: 600; } .page { fill: #ffffff; } .bar { fill: #3a6ea5; } .own { fill: #2a8f6d; }\n\
    @media (prefers-color-scheme: dark) { text { fill: #e4e9ee; } .quiet { fill: #97a4b0; } .page { fill: #12181f; }\n\
    .bar { fill: #6aa3dc; } .own { fill: #5cc49f; } }\n</style>\n";

/// The picture of all walls that were measured.
pub fn draw(rows: &[Row], rounds: usize) -> String {
    let measured: Vec<(&Row, &Figures)> = rows.iter().filter_map(|row| Some((row, row.figures.as_ref()?))).collect();
    let height = HEAD + measured.len() * LINE;
    let (across, down) = (2 * WIDTH + 3 * GAP, TOP + CHARTS.len().div_ceil(2) * (height + GAP) + GAP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {across} {down}\" role=\"img\" \
         aria-label=\"What each wall costs\">\n{STYLE}<rect class=\"page\" width=\"{across}\" height=\"{down}\" rx=\"8\"/>\n"
    );
    text(&mut svg, GAP, 28, "title", "What each wall costs");
    text(&mut svg, GAP, 46, "quiet", &circumstances(rounds));
    for (number, chart) in CHARTS.iter().enumerate() {
        let (x, y) = (GAP + (number % 2) * (WIDTH + GAP), TOP + (number / 2) * (height + GAP));
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        draw_chart(&mut svg, chart, &measured);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Where and how it was measured: figures of another machine are others.
fn circumstances(rounds: usize) -> String {
    let system = rustix::system::uname();
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (release, machine) = (system.release().to_string_lossy(), system.machine().to_string_lossy());
    let build = if cfg!(debug_assertions) { ", a debug build" } else { "" };
    format!(
        "Linux {release}, {machine}, {processors} processors; middle of {rounds} rounds; sloplet {}{build}. Green: a kernel of its own.",
        env!("CARGO_PKG_VERSION")
    )
}

fn draw_chart(svg: &mut String, chart: &Chart, measured: &[(&Row, &Figures)]) {
    let figures: Vec<f64> = measured.iter().map(|(_, figures)| (chart.value)(figures)).collect();
    let scale = Scale::of(&figures);
    text(svg, 0, 16, "title", chart.title);
    text(svg, 0, 32, "quiet", &format!("{}{}", chart.better, if scale.logarithmic { ", logarithmic" } else { "" }));
    for (number, ((row, _), figure)) in measured.iter().zip(&figures).enumerate() {
        let y = HEAD + number * LINE;
        text(svg, 0, y + 12, "name", &row.driver);
        let (class, width) = (if row.own_kernel { "own" } else { "bar" }, scale.width(*figure));
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{NAMES}\" y=\"{y}\" width=\"{width:.1}\" height=\"15\" rx=\"2\"/>"
        );
        text(svg, NAMES + width as usize + 8, y + 12, "figure", &said(*figure));
    }
}

/// From a figure to the length of its bar.
struct Scale {
    from: f64,
    most: f64,
    logarithmic: bool,
}

impl Scale {
    /// Logarithmic where the figures differ by more than can be seen, from the power of ten below the smallest.
    fn of(figures: &[f64]) -> Self {
        let counted = || figures.iter().copied().filter(|figure| figure.is_finite() && *figure > 0.0);
        let (least, most) = (counted().fold(f64::INFINITY, f64::min), counted().fold(0.0, f64::max));
        if least.is_finite() && most / least > SPREAD {
            return Self { from: least.log10().floor(), most: most.log10(), logarithmic: true };
        }
        Self { from: 0.0, most: if most > 0.0 { most } else { 1.0 }, logarithmic: false }
    }

    fn width(&self, figure: f64) -> f64 {
        let place = match self.logarithmic {
            true if figure > 0.0 => figure.log10(),
            true => self.from,
            false => figure,
        };
        (BARS * (place - self.from) / (self.most - self.from)).clamp(1.0, BARS)
    }
}

/// Three digits that count.
fn said(figure: f64) -> String {
    match figure {
        0.0 => "not counted".to_owned(),
        figure if figure >= 100.0 => format!("{figure:.0}"),
        figure if figure >= 10.0 => format!("{figure:.1}"),
        figure => format!("{figure:.2}"),
    }
}

fn text(svg: &mut String, x: usize, y: usize, class: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{words}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_keep_their_order_on_both_scales() {
        for (figures, logarithmic) in [(vec![1.0, 2.0, 10.0], false), (vec![0.3, 90.0, 2500.0], true)] {
            let scale = Scale::of(&figures);
            assert_eq!(scale.logarithmic, logarithmic);
            let widths: Vec<f64> = figures.iter().map(|figure| scale.width(*figure)).collect();
            assert!(widths.is_sorted() && widths[0] >= 1.0 && widths[2] == BARS, "{widths:?}");
        }
        assert_eq!(Scale::of(&[0.0, f64::NAN]).width(0.0), 1.0);
    }
}
