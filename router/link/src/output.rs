//! What a worker prints: to the log, line by line; the last lines are kept for the reason of its death.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::io::{AsyncRead, AsyncReadExt};

const LINES_KEPT: usize = 12;
const LINE_BYTES_MAX: usize = 4096; // a longer line is cut in pieces

/// The last lines of all streams of one worker.
#[derive(Clone, Default)]
pub(crate) struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES_KEPT {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    pub(crate) fn read(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Logs a stream until its end.
pub(crate) async fn follow(mut stream: impl AsyncRead + Unpin, pid: u32, last_lines: LastLines) {
    let mut pending = Vec::new();
    let mut chunk = vec![0; LINE_BYTES_MAX];
    loop {
        let count = match stream.read(&mut chunk).await {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) => {
                tracing::warn!(pid, "cannot read the worker's output: {error}");
                break;
            }
        };
        pending.extend_from_slice(&chunk[..count]);
        for line in complete_lines(&mut pending) {
            tell(&line, pid, &last_lines);
        }
    }
    if !pending.is_empty() {
        tell(&pending, pid, &last_lines);
    }
}

fn tell(line: &[u8], pid: u32, last_lines: &LastLines) {
    let line = String::from_utf8_lossy(line);
    let line = line.trim_end();
    if line.is_empty() {
        return;
    }
    // Pelton's worker begins a line with its level; whatever else a process prints is worth knowing, and no more.
    let (level, text) = line.split_once(' ').unwrap_or((line, ""));
    match level {
        "DEBUG" => tracing::debug!(target: "pelton_worker", pid, "{text}"),
        "INFO" => tracing::info!(target: "pelton_worker", pid, "{text}"),
        "WARNING" => tracing::warn!(target: "pelton_worker", pid, "{text}"),
        "ERROR" | "CRITICAL" => tracing::error!(target: "pelton_worker", pid, "{text}"),
        _ => tracing::info!(target: "pelton_worker", pid, "{line}"),
    }
    last_lines.push(line);
}

/// Takes out of `pending` all lines that have ended, or that are too long to wait for their end.
fn complete_lines(pending: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut lines = Vec::new();
    loop {
        let end = pending.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let Some(end) = end.or((pending.len() >= LINE_BYTES_MAX).then_some(LINE_BYTES_MAX)) else {
            return lines;
        };
        lines.push(pending.drain(..end.min(LINE_BYTES_MAX)).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_in_any_pieces_becomes_the_same_lines_and_the_last_ones_are_kept() {
        let text: String = (0..20).map(|line| format!("line {line}\n")).collect::<String>() + "\n\nno end";
        for size in [1, 3, 7, 4096] {
            let (mut pending, last_lines) = (Vec::new(), LastLines::default());
            for piece in text.as_bytes().chunks(size) {
                pending.extend_from_slice(piece);
                complete_lines(&mut pending).iter().for_each(|line| tell(line, 1, &last_lines));
            }
            tell(&pending, 1, &last_lines);
            let expected: Vec<String> =
                (9..20).map(|line| format!("line {line}")).chain(["no end".to_owned()]).collect();
            assert_eq!(last_lines.read(), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_cut_and_does_not_grow() {
        let mut pending = vec![b'x'; 3 * LINE_BYTES_MAX + 5];
        assert_eq!(complete_lines(&mut pending).len(), 3);
        assert_eq!(pending.len(), 5);
    }
}
