//! A cell's result: percentiles, rates, as a row and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::load::{Cell, Seen};
use super::prompts::Scenario;
use crate::{config::Word as _, generate::now, machine};

/// One cell, measured once.
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub(super) model: String,
    pub(super) label: Option<String>,
    pub(super) scenario: Scenario,
    pub(super) concurrency: u32,
    pub(super) seed: u64,
    /// Requests with a whole answer.
    pub(super) answered: usize,
    /// Requests without.
    pub(super) errors: usize,
    pub(super) first_error: Option<String>,
    /// Answers with fewer or more tokens than asked for: then rates do not compare.
    pub(super) wrong_lengths: usize,
    pub(super) output_tokens: u64,
    pub(super) prompt_tokens: u64,
    pub(super) wall_s: f64,
    pub(super) ttft: Percentiles,
    pub(super) itl: Percentiles,
    pub(super) e2e: Percentiles,
}

/// Milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Percentiles {
    pub(super) count: usize,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) mean: f64,
    pub(super) max: f64,
}

impl Percentiles {
    /// By nearest rank: each is a value that was seen. All zero if nothing was.
    pub(super) fn of(values: impl Iterator<Item = Duration>) -> Self {
        let mut ms: Vec<f64> = values.map(|value| value.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        let Some(max) = ms.last().copied() else { return Self::default() };
        let rank = |percent: usize| ms[(percent * ms.len()).div_ceil(100) - 1];
        let mean = ms.iter().sum::<f64>() / ms.len() as f64;
        Self { count: ms.len(), p50: rank(50), p90: rank(90), p99: rank(99), mean, max }
    }

    fn json(&self) -> Value {
        let round = |ms: f64| (ms * 1e3).round() / 1e3;
        json!({ "p50": round(self.p50), "p90": round(self.p90), "p99": round(self.p99), "mean": round(self.mean), "max": round(self.max) })
    }
}

pub(super) const HEADING: &str = "\
scenario         c   requests    tok/s    req/s   TTFT p50/p90/p99 ms      ITL p50/p90/p99 ms       E2E p50/p90/p99 ms";

impl Report {
    pub(super) fn new(cell: &Cell, seen: &Seen, model: &str, label: Option<&str>) -> Self {
        let samples = &seen.samples;
        let asked = u64::from(cell.scenario.output);
        Self {
            model: model.to_owned(),
            label: label.map(str::to_owned),
            scenario: cell.scenario,
            concurrency: cell.concurrency,
            seed: cell.seed,
            answered: samples.len(),
            errors: seen.errors.len(),
            first_error: seen.errors.first().cloned(),
            wrong_lengths: samples.iter().filter(|sample| sample.output_tokens != asked).count(),
            output_tokens: samples.iter().map(|sample| sample.output_tokens).sum(),
            prompt_tokens: samples.iter().map(|sample| sample.prompt_tokens).sum(),
            wall_s: seen.wall.as_secs_f64(),
            ttft: Percentiles::of(samples.iter().map(|sample| sample.first)),
            itl: Percentiles::of(samples.iter().flat_map(|sample| sample.gaps.iter().copied())),
            e2e: Percentiles::of(samples.iter().map(|sample| sample.whole)),
        }
    }

    pub(super) fn output_rate(&self) -> f64 {
        self.output_tokens as f64 / self.wall_s
    }

    pub(super) fn row(&self) -> String {
        let three = |p: &Percentiles| format!("{:>7.1} {:>7.1} {:>7.1}", p.p50, p.p90, p.p99);
        let mut row = format!(
            "{:<14} {:>3}   {:>8} {:>8.1} {:>8.2}   {}  {}  {}",
            self.scenario.show(),
            self.concurrency,
            format!("{}/{}", self.answered, self.answered + self.errors),
            self.output_rate(),
            self.answered as f64 / self.wall_s,
            three(&self.ttft),
            three(&self.itl),
            three(&self.e2e),
        );
        if self.wrong_lengths > 0 {
            row.push_str(&format!("  {} answers with another length", self.wrong_lengths));
        }
        if let Some(error) = &self.first_error {
            row.push_str(&format!("  {error}"));
        }
        row
    }

    pub(super) fn json(&self) -> Value {
        let Scenario { shared, own, output } = self.scenario;
        let processor = machine::processor();
        json!({
            "date": now().strftime("%Y-%m-%d"),
            "machine": format!("{}, {} cores", processor.name, processor.usable),
            "model": self.model,
            "label": self.label,
            "scenario": self.scenario.show(),
            "shared_tokens": shared,
            "own_tokens": own,
            "output_tokens_asked": output,
            "concurrency": self.concurrency,
            "seed": self.seed,
            "answered": self.answered,
            "errors": self.errors,
            "first_error": self.first_error,
            "wrong_lengths": self.wrong_lengths,
            "wall_s": self.wall_s,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "output_tokens_per_s": self.output_rate(),
            "prompt_tokens_per_s": self.prompt_tokens as f64 / self.wall_s,
            "requests_per_s": self.answered as f64 / self.wall_s,
            "ttft_ms": self.ttft.json(),
            "itl_ms": self.itl.json(),
            "e2e_ms": self.e2e.json(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let ms = |values: &[u64]| Percentiles::of(values.iter().map(|ms| Duration::from_millis(*ms)));
        let hundred: Vec<u64> = (1..=100).rev().collect();
        let got = ms(&hundred);
        assert_eq!((got.p50, got.p90, got.p99, got.max, got.mean, got.count), (50.0, 90.0, 99.0, 100.0, 50.5, 100));
        assert_eq!(ms(&[7]), Percentiles { count: 1, p50: 7.0, p90: 7.0, p99: 7.0, mean: 7.0, max: 7.0 });
        assert_eq!(ms(&[]), Percentiles::default());
    }

    proptest! {
        #[test]
        fn a_percentile_has_its_share_of_values_below_or_at_it(values in prop::collection::vec(0u64..10_000, 1..200)) {
            let got = Percentiles::of(values.iter().map(|ms| Duration::from_millis(*ms)));
            for (percent, value) in [(50, got.p50), (90, got.p90), (99, got.p99)] {
                let at_or_below = values.iter().filter(|ms| **ms as f64 <= value + 1e-6).count();
                let below = values.iter().filter(|ms| (**ms as f64) < value - 1e-6).count();
                prop_assert!(at_or_below * 100 >= percent * values.len());
                prop_assert!(below * 100 < percent * values.len());
            }
        }
    }
}
