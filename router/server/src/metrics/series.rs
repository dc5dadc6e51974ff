//! Counters, histograms, and the classic Prometheus text that shows them.
//!
//! Atomics only: recording takes tens of nanoseconds, and a scrape disturbs nobody. Relaxed ordering throughout: each
//! number stands for itself, and a scrape may see one request's effects partly.

use std::{
    fmt::{Display, Write as _},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Counts up.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counts observations by size.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// Upper edges, ascending.
    edges: Box<[f64]>,
    /// Observations per edge, not yet added up; the last one is beyond all edges.
    counts: Box<[AtomicU64]>,
    /// Of all observations, in millionths, so that it is an integer.
    sum_micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(edges: &[f64]) -> Self {
        assert!(edges.is_sorted(), "edges ascend");
        let counts = (0..=edges.len()).map(|_| AtomicU64::new(0)).collect();
        Self { edges: edges.into(), counts, sum_micros: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, value: f64) {
        self.observe_many(value, 1);
    }

    /// The same value, `count` times.
    pub(crate) fn observe_many(&self, value: f64, count: u64) {
        let bucket = self.edges.partition_point(|&edge| edge < value);
        self.counts[bucket].fetch_add(count, Relaxed);
        // 2^64 millionths are 580,000 years, or 18 trillion tokens; no value is negative.
        self.sum_micros.fetch_add((value * 1e6) as u64 * count, Relaxed);
    }
}

/// 1, 2, 5, 10, 20, 50 ... up to `most`: edges for counts of tokens.
pub(crate) fn one_two_five(most: u32) -> Vec<f64> {
    let decades = (0..10).map(|exponent| 10f64.powi(exponent));
    decades
        .flat_map(|decade| [decade, 2.0 * decade, 5.0 * decade])
        .take_while(|&edge| edge <= f64::from(most))
        .collect()
}

/// The text of one scrape. Every series carries `labels`.
pub(crate) struct Exposition {
    text: String,
    labels: String,
}

impl Exposition {
    /// `labels` as they stand between the braces.
    pub(crate) fn new(labels: String) -> Self {
        Self { text: String::with_capacity(32 << 10), labels }
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, help, "gauge");
        self.sample(name, "", value);
    }

    /// A gauge whose labels are what it tells.
    pub(crate) fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: impl Display) {
        self.family(name, help, "gauge");
        self.sample(name, &labelled(labels), value);
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, help, "counter");
        self.sample(name, "", value);
    }

    /// Counters of one name that differ in their labels.
    pub(crate) fn counters<'a>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (&'a [(&'a str, &'a str)], impl Display)>,
    ) {
        self.family(name, help, "counter");
        for (labels, value) in series {
            self.sample(name, &labelled(labels), value);
        }
    }

    pub(crate) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, help, "histogram");
        self.buckets(name, "", histogram);
    }

    /// Histograms of one name that differ in their labels.
    pub(crate) fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (&'a [(&'a str, &'a str)], &'a Histogram)>,
    ) {
        self.family(name, help, "histogram");
        for (labels, histogram) in series {
            self.buckets(name, &labelled(labels), histogram);
        }
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    fn family(&mut self, name: &str, help: &str, kind: &str) {
        self.put(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn buckets(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        let mut total = 0;
        let bucket = format!("{name}_bucket");
        let separator = if labels.is_empty() { "" } else { "," };
        let edges = histogram.edges.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (edge, count) in edges.zip(&histogram.counts) {
            total += count.load(Relaxed);
            self.sample(&bucket, &format!("{labels}{separator}le=\"{edge}\""), total);
        }
        self.sample(&format!("{name}_sum"), labels, histogram.sum_micros.load(Relaxed) as f64 / 1e6);
        self.sample(&format!("{name}_count"), labels, total);
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let separator = if labels.is_empty() || self.labels.is_empty() { "" } else { "," };
        let common = std::mem::take(&mut self.labels);
        self.put(format_args!("{name}{{{common}{separator}{labels}}} {value}\n"));
        self.labels = common;
    }

    fn put(&mut self, line: std::fmt::Arguments<'_>) {
        self.text.write_fmt(line).expect("writing to a string cannot fail");
    }
}

/// Labels as they stand between the braces, escaped.
pub(crate) fn labelled(labels: &[(&str, &str)]) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_up_to_and_including_each_edge() {
        let histogram = Histogram::new(&[0.5, 1.0]);
        for value in [0.1, 0.5, 0.75, 3.0] {
            histogram.observe(value);
        }
        histogram.observe_many(1.0, 2);
        let mut shown = Exposition::new(labelled(&[("model_name", "a\"b")]));
        shown.histogram("x", "A thing.", &histogram);
        let expected = "# HELP x A thing.\n# TYPE x histogram\n\
            x_bucket{model_name=\"a\\\"b\",le=\"0.5\"} 2\n\
            x_bucket{model_name=\"a\\\"b\",le=\"1\"} 5\n\
            x_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 6\n\
            x_sum{model_name=\"a\\\"b\"} 6.35\n\
            x_count{model_name=\"a\\\"b\"} 6\n";
        assert_eq!(shown.into_text(), expected);
    }

    #[test]
    fn token_counts_have_edges_up_to_the_context() {
        assert_eq!(one_two_five(100), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(one_two_five(99).len(), 6);
    }
}
