//! A picture of a run, as SVG: output tokens a second, TTFT and ITL over the concurrency, one line for each scenario.
//!
//! Written by hand because it is three panels of polylines; a plotting library would be the largest dependency of the server.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::report::Report;
use crate::config::Word as _;

const PANEL: (f64, f64) = (330.0, 230.0);
const MARGIN: (f64, f64) = (70.0, 50.0);
const COLOURS: [&str; 6] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"];

/// What a panel shows: its title, and the value of a report.
type Panel = (&'static str, fn(&Report) -> f64);

const PANELS: [Panel; 3] = [
    ("output tokens / s", |report| report.output_rate()),
    ("TTFT p50, ms", |report| report.ttft.p50),
    ("ITL p50, ms", |report| report.itl.p50),
];

/// The whole picture. Cells that were measured several times are shown by their median.
pub(super) fn svg(reports: &[Report]) -> String {
    let width = PANELS.len() as f64 * (PANEL.0 + MARGIN.0) + 30.0;
    let height = PANEL.1 + 2.0 * MARGIN.1 + 20.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, panel) in PANELS.iter().enumerate() {
        let left = MARGIN.0 + index as f64 * (PANEL.0 + MARGIN.0);
        draw_panel(&mut svg, left, panel, &series(reports, panel.1));
    }
    let model = reports.first().map_or("", |report| report.model.as_str());
    _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\">{}</text>",
        MARGIN.0,
        height - 8.0,
        escape(&format!("{model}; requests at a time on the x axis"))
    );
    svg.push_str("</svg>\n");
    svg
}

/// By scenario: (concurrency, median value), in rising order.
fn series(reports: &[Report], value: fn(&Report) -> f64) -> BTreeMap<String, Vec<(u32, f64)>> {
    let mut cells: BTreeMap<String, BTreeMap<u32, Vec<f64>>> = BTreeMap::new();
    for report in reports.iter().filter(|report| report.answered > 0) {
        cells.entry(report.scenario.show()).or_default().entry(report.concurrency).or_default().push(value(report));
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[(values.len() - 1) / 2]
    };
    let line = |cells: BTreeMap<u32, Vec<f64>>| {
        cells.into_iter().map(|(concurrency, values)| (concurrency, median(values))).collect()
    };
    cells.into_iter().map(|(name, cells)| (name, line(cells))).collect()
}

fn draw_panel(svg: &mut String, left: f64, (title, _): &Panel, lines: &BTreeMap<String, Vec<(u32, f64)>>) {
    let (width, height) = PANEL;
    let top = MARGIN.1;
    let points = || lines.values().flatten();
    let most = points().map(|(_, value)| *value).fold(0.0, f64::max);
    let most = if most > 0.0 { round_up(most) } else { 1.0 };
    let (least_c, most_c) = points().fold((u32::MAX, 1), |(least, most), (c, _)| (least.min(*c), most.max(*c)));
    // Concurrency is usually doubled from cell to cell, so its axis is logarithmic.
    let span = (f64::from(most_c).log2() - f64::from(least_c.min(most_c)).log2()).max(1e-9);
    let x = |c: u32| left + width * (f64::from(c).log2() - f64::from(least_c.min(most_c)).log2()) / span;
    let y = |value: f64| top + height * (1.0 - value / most);

    _ = writeln!(svg, "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{}</text>", top - 25.0, escape(title));
    for step in 0..=4 {
        let value = most * f64::from(step) / 4.0;
        let at = y(value);
        _ = writeln!(
            svg,
            "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>",
            left + width
        );
        _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 6.0,
            at + 4.0,
            short(value)
        );
    }
    let all: std::collections::BTreeSet<u32> = points().map(|(c, _)| *c).collect();
    for c in all {
        _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{c}</text>", x(c), top + height + 18.0);
    }
    for (index, (name, line)) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let path: Vec<String> = line.iter().map(|(c, value)| format!("{:.1},{:.1}", x(*c), y(*value))).collect();
        _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            path.join(" ")
        );
        for (c, value) in line {
            _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"><title>{}</title></circle>",
                x(*c),
                y(*value),
                short(*value)
            );
        }
        _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" fill=\"{colour}\">{}</text>",
            left + index as f64 * (width / lines.len() as f64).min(100.0),
            top - 8.0,
            escape(name)
        );
    }
}

/// The next 1, 2, 2.5 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(value)
}

fn short(value: f64) -> String {
    if value >= 100.0 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::prompts::Scenario;
    use super::super::report::Percentiles;
    use super::*;

    fn report(scenario: &str, concurrency: u32, output_tokens: u64) -> Report {
        let p = Percentiles { count: 1, p50: 5.0, p90: 5.0, p99: 5.0, mean: 5.0, max: 5.0 };
        Report {
            model: "a<b&c".into(),
            label: None,
            scenario: Scenario::parse(scenario).expect("a scenario"),
            concurrency,
            seed: 1,
            answered: 1,
            errors: 0,
            first_error: None,
            wrong_lengths: 0,
            output_tokens,
            prompt_tokens: 1,
            wall_s: 1.0,
            ttft: p,
            itl: p,
            e2e: p,
        }
    }

    #[test]
    fn each_scenario_is_a_line_over_the_concurrency() {
        let reports = [
            report("32/64", 8, 100),
            report("32/64", 1, 50),
            report("512/64", 1, 20),
            report("32/64", 8, 300),
            report("32/64", 8, 200),
        ];
        assert_eq!(series(&reports, Report::output_rate)["32/64"], [(1, 50.0), (8, 200.0)], "medians, in order");
        let svg = svg(&reports);
        assert_eq!(svg.matches("<polyline").count(), 3 * 2);
        assert_eq!(svg.matches("<circle").count(), 3 * 3);
        assert!(svg.contains("a&lt;b&amp;c") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn a_picture_of_nothing_and_of_one_cell_has_no_nonsense_numbers() {
        let mut failed = report("32/64", 4, 0);
        failed.answered = 0;
        for reports in [vec![], vec![failed], vec![report("32/64", 4, 10)], vec![report("32/64", 1, 0)]] {
            let svg = svg(&reports);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, expected) in [(0.7, 1.0), (1.0, 1.0), (1.7, 2.0), (230.0, 250.0), (4700.0, 5000.0), (9.9, 10.0)] {
            assert_eq!(round_up(value), expected);
        }
    }
}
