//! Log messages: where they go and how they look.
//!
//! They go to standard error, above a progress bar if one is there. Never here: what is worth a message.

use std::io::{IsTerminal as _, Write};

use indicatif::MultiProgress;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{Log, LogFormat, LogLevel};

/// Begins to log as `log` says. A second call in one process changes nothing: the first one's messages go on.
pub(crate) fn start(log: &Log, bars: &MultiProgress) {
    let bars = bars.clone();
    let writer = move || Above { bars: bars.clone(), line: Vec::new() };
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let filtered = tracing_subscriber::registry().with(filter(log.log_level));
    // An error means that the process logs already, which is what was wanted.
    _ = match log.log_format {
        LogFormat::Json => filtered.with(layer.json().flatten_event(true)).try_init(),
        LogFormat::Text => {
            filtered.with(layer.with_target(false).with_ansi(std::io::stderr().is_terminal())).try_init()
        }
    };
}

/// Pelton's messages down to `level`; those of libraries only where something looks wrong, or at `trace`.
fn filter(level: LogLevel) -> Targets {
    let (ours, theirs) = match level {
        LogLevel::Error => (LevelFilter::ERROR, LevelFilter::ERROR),
        LogLevel::Warn => (LevelFilter::WARN, LevelFilter::WARN),
        LogLevel::Info => (LevelFilter::INFO, LevelFilter::WARN),
        LogLevel::Debug => (LevelFilter::DEBUG, LevelFilter::WARN),
        LogLevel::Trace => (LevelFilter::TRACE, LevelFilter::DEBUG),
    };
    Targets::new().with_default(theirs).with_target("pelton", ours)
}

/// Collects one message and writes it above the bars, in one piece.
struct Above {
    bars: MultiProgress,
    line: Vec<u8>,
}

impl Write for Above {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let line = std::mem::take(&mut self.line);
        self.bars.suspend(|| std::io::stderr().write_all(&line))
    }
}

impl Drop for Above {
    fn drop(&mut self) {
        // Nobody is left to tell if standard error is closed.
        _ = self.flush();
    }
}
