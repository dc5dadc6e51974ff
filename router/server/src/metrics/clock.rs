//! Times one answer and records what came of it, also if its client left.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Instant,
};

use super::Metrics;
use crate::generate::{Ending, Finish};

/// Runs from a request's arrival to the end of one of its answers. Dropped earlier, it counts a client that left.
pub(crate) struct RequestClock {
    metrics: Arc<Metrics>,
    /// All answers to its prompt.
    siblings: Option<Arc<Siblings>>,
    max_tokens: u32,
    arrival: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    is_over: bool,
}

/// The answers to one prompt. A prompt is what the peer calls a request: some things are counted once for all answers to it, when the last
/// one is complete; never, if one does not become so.
pub(crate) struct Siblings {
    answers: u32,
    incomplete: AtomicU32,
    /// Tokens of the longest one so far.
    longest: AtomicU32,
}

impl Siblings {
    pub(crate) fn new(answers: u32) -> Arc<Self> {
        Arc::new(Self { answers, incomplete: AtomicU32::new(answers), longest: AtomicU32::new(0) })
    }

    fn completed(&self, tokens: u32, metrics: &Metrics) {
        // The answers to a request are followed by one task.
        self.longest.fetch_max(tokens, Relaxed);
        if self.incomplete.fetch_sub(1, Relaxed) == 1 {
            metrics.max_generation_tokens.observe(f64::from(self.longest.load(Relaxed)));
            metrics.params_n.observe(f64::from(self.answers));
        }
    }
}

/// Indices into `ENDS`.
const STOP: usize = 0;
const LENGTH: usize = 1;
const TOOL_CALLS: usize = 2;
const ABORT: usize = 3;
const ERROR: usize = 4;
const REPETITION: usize = 5;

impl RequestClock {
    pub(crate) fn new(metrics: &Arc<Metrics>, arrival: Instant, max_tokens: u32) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            siblings: None,
            max_tokens,
            arrival,
            admitted: None,
            first_token: None,
            last_token: None,
            is_over: false,
        }
    }

    /// Its answer is one of these.
    pub(crate) fn among(mut self, siblings: &Arc<Siblings>) -> Self {
        self.siblings = Some(Arc::clone(siblings));
        self
    }

    /// The answer has entered a batch.
    pub(crate) fn admitted(&mut self) {
        let now = Instant::now();
        self.admitted = Some(now);
        self.metrics.queue.observe((now - self.arrival).as_secs_f64());
    }

    /// So many tokens have come since the last call.
    pub(crate) fn drawn(&mut self, tokens: usize) {
        if tokens == 0 {
            return;
        }
        let now = Instant::now();
        if let Some(last) = self.last_token.replace(now) {
            let share = (now - last).as_secs_f64() / tokens as f64;
            self.metrics.between_tokens.observe_many(share, tokens as u64);
            return;
        }
        self.first_token = Some(now);
        self.metrics.to_first_token.observe((now - self.arrival).as_secs_f64());
        if let Some(admitted) = self.admitted {
            self.metrics.prefill.observe((now - admitted).as_secs_f64());
        }
    }

    /// The answer is complete.
    pub(crate) fn finished(&mut self, finish: &Finish) {
        self.is_over = true;
        let end = match finish.ending {
            Ending::Length => LENGTH,
            Ending::Repetition => REPETITION,
            Ending::Stop(_) if finish.has_calls => TOOL_CALLS,
            Ending::Stop(_) => STOP,
        };
        let metrics = &self.metrics;
        metrics.ended[end].add(1);
        metrics.end_to_end.observe(self.arrival.elapsed().as_secs_f64());
        metrics.prompt_tokens.observe(f64::from(finish.usage.prompt));
        metrics.generation_tokens.observe(f64::from(finish.usage.completion));
        metrics.params_max_tokens.observe(f64::from(self.max_tokens));
        if let Some(siblings) = &self.siblings {
            siblings.completed(finish.usage.completion, metrics);
        }
        let (Some(first), Some(last)) = (self.first_token, self.last_token) else { return };
        let decode = (last - first).as_secs_f64();
        metrics.decode.observe(decode);
        if finish.usage.completion > 1 {
            metrics.per_output_token.observe(decode / f64::from(finish.usage.completion - 1));
        }
        if let Some(admitted) = self.admitted {
            metrics.inference.observe((last - admitted).as_secs_f64());
        }
    }

    /// The vector is complete, of a prompt of so many tokens.
    pub(crate) fn pooled(&mut self, prompt: u32) {
        self.is_over = true;
        let (metrics, now) = (&self.metrics, Instant::now());
        metrics.ended[STOP].add(1);
        metrics.end_to_end.observe((now - self.arrival).as_secs_f64());
        metrics.prompt_tokens.observe(f64::from(prompt));
        if let Some(admitted) = self.admitted {
            metrics.inference.observe((now - admitted).as_secs_f64());
        }
    }

    /// The engine could not finish the answer, or another one without which it is nothing. Of an answer that is over it says nothing new.
    pub(crate) fn failed(&mut self) {
        if !self.is_over {
            self.is_over = true;
            self.metrics.ended[ERROR].add(1);
        }
    }
}

impl Drop for RequestClock {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.metrics.ended[ABORT].add(1);
        let phase = match (self.admitted, self.first_token) {
            (None, _) => 0,
            (Some(_), None) => 1,
            (Some(_), Some(_)) => 2,
        };
        self.metrics.cancelled[phase].add(1);
    }
}

#[cfg(test)]
mod tests {
    use pelton_engine::Usage;

    use super::{super::series::Exposition, *};
    use crate::generate::StopCause;

    fn clock(metrics: &Arc<Metrics>) -> RequestClock {
        RequestClock::new(metrics, Instant::now(), 16)
    }

    #[test]
    fn a_client_that_leaves_is_counted_where_it_left() {
        let metrics = Arc::new(Metrics::new("demo", 100));
        drop(clock(&metrics));
        let mut waiting = clock(&metrics);
        waiting.admitted();
        drop(waiting);
        let mut reading = clock(&metrics);
        reading.admitted();
        reading.drawn(1);
        drop(reading);
        let counts: Vec<u64> = metrics.cancelled.iter().map(super::super::Counter::value).collect();
        assert_eq!(counts, [1, 1, 1]);
        assert_eq!(metrics.ended[ABORT].value(), 3);
    }

    #[test]
    fn a_complete_answer_is_counted_once_by_its_reason() {
        let metrics = Arc::new(Metrics::new("demo", 100));
        let usage = Usage { prompt: 3, cached: 0, completion: 2 };
        for (ending, has_calls) in [
            (Ending::Length, false),
            (Ending::Stop(StopCause::EndOfText), false),
            (Ending::Stop(StopCause::EndOfText), true),
            (Ending::Length, true),
            (Ending::Repetition, false),
        ] {
            let mut clock = clock(&metrics);
            clock.drawn(2);
            clock.finished(&Finish { ending, has_calls, usage, reasoning_tokens: None, explanation: None });
        }
        let mut clock = clock(&metrics);
        clock.failed();
        clock.failed();
        drop(clock);
        let counts: Vec<u64> = metrics.ended.iter().map(super::super::Counter::value).collect();
        assert_eq!(counts, [1, 2, 1, 0, 1, 1]);
    }

    #[test]
    fn an_answer_that_is_complete_does_not_fail_with_another() {
        let metrics = Arc::new(Metrics::new("demo", 100));
        let mut clock = clock(&metrics);
        clock.pooled(3);
        clock.failed();
        drop(clock);
        assert_eq!([STOP, ERROR, ABORT].map(|end| metrics.ended[end].value()), [1, 0, 0]);
    }

    #[test]
    fn what_is_counted_of_a_prompt_is_counted_when_all_its_answers_are_complete() {
        let metrics = Arc::new(Metrics::new("demo", 100));
        let finish = |completion| {
            let usage = Usage { prompt: 3, cached: 0, completion };
            Finish { ending: Ending::Length, has_calls: false, usage, reasoning_tokens: None, explanation: None }
        };
        for (answers, failing) in [(&[5, 9, 2][..], 0), (&[4], 0), (&[7], 1)] {
            let siblings = Siblings::new((answers.len() + failing) as u32);
            for &tokens in answers {
                clock(&metrics).among(&siblings).finished(&finish(tokens));
            }
            (0..failing).for_each(|_| clock(&metrics).among(&siblings).failed());
        }
        let mut shown = Exposition::new(String::new());
        metrics.show_requests(&mut shown);
        let text = shown.into_text();
        for line in [
            "vllm:request_params_n_count{} 2\n",
            "vllm:request_params_n_sum{} 4\n",
            "vllm:request_max_num_generation_tokens_count{} 2\n",
            "vllm:request_max_num_generation_tokens_sum{} 13\n",
            "vllm:request_params_max_tokens_count{} 5\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
