//! How far something is: a bar on a terminal, a few lines in the log elsewhere.

use std::sync::Mutex;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Something under way. Cleared when dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
    is_terminal: bool,
    said: Mutex<Said>,
}

/// What the lines have said last.
#[derive(Default, PartialEq, Eq, Clone)]
struct Said {
    stage: String,
    quarter: u64,
}

impl Progress {
    /// A bar among `bars`.
    pub(crate) fn new(bars: &MultiProgress) -> Self {
        let bar = bars.add(ProgressBar::no_length());
        Self { bar, is_terminal: console_is_terminal(), said: Mutex::default() }
    }

    /// `total` 0: not known.
    pub(crate) fn show(&self, stage: &str, done: u64, total: u64) {
        if self.is_terminal {
            self.draw(stage, done, total);
        } else if let Some(line) = self.line(stage, done, total) {
            tracing::info!("{line}");
        }
    }

    /// Numbers come before the look that shows them: each change may be drawn, and none may be drawn half.
    fn draw(&self, stage: &str, done: u64, total: u64) {
        if total > 0 {
            self.bar.set_length(total);
            self.bar.set_position(done);
        }
        self.bar.set_message(stage.to_owned());
        self.bar.set_style(ProgressStyle::with_template(template(done, total)).expect("a valid template"));
        self.bar.tick();
    }

    /// One line for each stage, and one for each quarter of what takes long enough to wonder about.
    fn line(&self, stage: &str, done: u64, total: u64) -> Option<String> {
        let is_long = total >= LONG_BYTES && done < total;
        let quarter = if is_long { done.saturating_mul(4) / total } else { 0 };
        let now = Said { stage: stage.to_owned(), quarter };
        let mut said = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *said == now || (said.stage == stage && !is_long) {
            return None;
        }
        *said = now;
        Some(if is_long {
            format!("{stage}: {} of {}", super::bytes(done), super::bytes(total))
        } else {
            format!("{stage} ...")
        })
    }
}

/// A bar for what has bytes to count, and a guess of the rest only of what is long, once a good part of it is measured.
fn template(done: u64, total: u64) -> &'static str {
    if done >= total {
        "{spinner} {msg}"
    } else if total < LONG_BYTES || done < total / 10 {
        "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes}"
    } else {
        "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta} left"
    }
}

/// A second or more, on most disks and networks.
const LONG_BYTES: u64 = 256 << 20;

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn console_is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stderr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_shows_a_bar_for_what_has_bytes_and_a_guess_of_what_is_long_from_a_tenth_on() {
        const GIB: u64 = 1 << 30;
        for (done, total, has_bar, has_guess) in [
            (0, 0, false, false),
            (0, 8 << 20, true, false),
            (6 << 20, 8 << 20, true, false),
            (0, 4 * GIB, true, false),
            (GIB / 3, 4 * GIB, true, false),
            (GIB, 4 * GIB, true, true),
            (4 * GIB, 4 * GIB, false, false), // what follows the bytes: memory for KV, the first step
        ] {
            let shown = template(done, total);
            let (bar, guess) = (shown.contains("bar"), shown.contains("eta"));
            assert_eq!((bar, guess), (has_bar, has_guess), "{done} of {total}: {shown}");
        }
    }

    #[test]
    fn without_a_terminal_each_stage_is_said_once_and_a_long_one_in_quarters() {
        let progress = Progress { bar: ProgressBar::hidden(), is_terminal: false, said: Mutex::default() };
        let mut lines = Vec::new();
        lines.extend(progress.line("starting the worker", 0, 0));
        for done in 0..=1000u64 {
            lines.extend(progress.line("reading weights", done << 20, 1000 << 20));
        }
        lines.extend(progress.line("trying a step", 1000 << 20, 1000 << 20));
        assert_eq!(
            lines,
            [
                "starting the worker ...",
                "reading weights: 0 B of 1000 MiB",
                "reading weights: 250 MiB of 1000 MiB",
                "reading weights: 500 MiB of 1000 MiB",
                "reading weights: 750 MiB of 1000 MiB",
                "trying a step ...",
            ]
        );
    }
}
