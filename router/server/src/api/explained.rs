//! What a request went through, for people and for programs: in `pelton replay`, and with an answer that was asked for it.

use std::fmt::Write as _;

use bytes::BytesMut;
use pelton_engine::{Explanation, Wait};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::stream::{Events, Head, event};
use crate::{
    error::ApiError,
    generate::{Delta, Finish, Whole},
};

/// A whole response, with the object `pelton` if it was asked for.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{R}Explained")]
pub(crate) struct Explained<R> {
    #[serde(flatten)]
    response: R,
    #[serde(skip_serializing_if = "Option::is_none")]
    pelton: Option<Pelton>,
}

/// What only Pelton tells.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct Pelton {
    /// By answer; `null` for one that drew no token.
    explanations: Vec<Value>,
}

impl Pelton {
    fn take(&mut self, choice: usize, finish: &Finish) {
        if self.explanations.len() <= choice {
            self.explanations.resize(choice + 1, Value::Null);
        }
        self.explanations[choice] = finish.explanation.as_deref().map_or(Value::Null, json);
    }
}

impl<R> Explained<R> {
    /// The response that `form` makes of the answers.
    pub(crate) fn of(answers: Vec<Whole>, explains: bool, form: impl FnOnce(Vec<Whole>) -> R) -> Self {
        let mut pelton = explains.then(Pelton::default);
        if let Some(pelton) = &mut pelton {
            answers.iter().enumerate().for_each(|(choice, answer)| pelton.take(choice, &answer.finish));
        }
        Self { response: form(answers), pelton }
    }
}

/// A stream whose explanations come in a chunk of their own, without choices, before the one of its usage.
pub(crate) struct ExplainedEvents<E> {
    head: Head,
    events: E,
    pelton: Pelton,
}

#[derive(Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: [(); 0],
    pelton: &'a Pelton,
}

impl<E: Events> ExplainedEvents<E> {
    pub(crate) fn new(head: Head, events: E) -> Self {
        Self { head, events, pelton: Pelton::default() }
    }
}

impl<E: Events> Events for ExplainedEvents<E> {
    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut BytesMut) {
        for delta in &deltas {
            if let Some(finish) = &delta.finish {
                self.pelton.take(delta.choice, finish);
            }
        }
        self.events.deltas(deltas, out);
    }

    fn end(&mut self, out: &mut BytesMut) {
        event(out, &Chunk { head: &self.head, choices: [], pelton: &self.pelton });
        self.events.end(out);
    }

    fn keep_alive(&mut self, out: &mut BytesMut) {
        self.events.keep_alive(out);
    }

    fn error(&mut self, error: &ApiError, out: &mut BytesMut) {
        self.events.error(error, out);
    }
}

/// As an object. Times are in milliseconds; `request` is the number by which recordings know it.
pub(crate) fn json(told: &Explanation) -> Value {
    let waits = Wait::ALL.into_iter().filter(|&wait| told.waited.micros(wait) > 0);
    let since_arrival = |at: pelton_engine::Micros| ms(at.0.saturating_sub(told.arrival.0));
    json!({
        "request": told.request.0,
        "arrival_ms": ms(told.arrival.0),
        "deadline_after_ms": told.deadline.map(since_arrival),
        "admitted_after_ms": told.admitted.map(since_arrival),
        "first_token_after_ms": told.first_token.map(since_arrival),
        "lasted_ms": since_arrival(told.until),
        "waited_ms": ms(told.waited.total()),
        "waited_for_ms": waits.map(|wait| (wait.name().to_owned(), json!(ms(told.waited.micros(wait))))).collect::<Map<_, _>>(),
        "prompt_tokens": told.prompt,
        "cached_tokens": told.cached,
        "cached_tokens_from": {
            "device": told.cached - told.cached_host - told.cached_disk,
            "host": told.cached_host,
            "disk": told.cached_disk,
        },
        "not_cached": {
            "prefix_caching_off": told.missed.is_off,
            "prompt_scored": told.missed.is_scored,
            "new_tokens": told.new_tokens(),
            "evicted_tokens": told.missed.evicted,
            "too_short_tokens": told.missed.too_short,
            // Whether it is known under another salt is for the operator's replay alone: a salt is there so that nobody can ask.
        },
        "completion_tokens": told.drawn,
        "drafts": { "computed": told.drafted, "accepted": told.accepted },
        "prompt_chunks": told.chunks,
        "steps": told.steps,
        "steps_ms": ms(told.steps_us),
        "preempted": { "times": told.preempted.times, "tokens": told.preempted.tokens },
        "workers_lost": told.replayed,
        "computed_again": { "own_preemption": told.again_preempted, "worker_lost": told.again_lost },
        "preempted_others": { "times": told.preempted_others.times, "tokens": told.preempted_others.tokens },
        "slowed_others_ms": ms(told.slowed_others_us),
    })
}

/// As some lines.
pub(crate) fn text(told: &Explanation, end: &str) -> String {
    let mut text = format!("request {}, at {}: {end}", told.request.0, seconds(told.arrival.0));
    let after = |at: pelton_engine::Micros| seconds(at.0.saturating_sub(told.arrival.0));
    let mut line = |words: String| {
        let _ = write!(text, "\n  {words}"); // a String takes all
    };
    let first_token = told.first_token.map_or(String::new(), |at| format!(", the first token after {}", after(at)));
    let deadline = told.deadline.map_or(String::new(), |at| format!("; its deadline was after {}", after(at)));
    line(format!("lasted {}{first_token}{deadline}", after(told.until)));
    for wait in Wait::ALL {
        let micros = told.waited.micros(wait);
        if micros > 0 {
            line(format!("waited {} {}", seconds(micros), wait.words()));
        }
    }
    let below = if told.cached_host + told.cached_disk > 0 {
        format!(" ({} brought back from host memory, {} from disk)", told.cached_host, told.cached_disk)
    } else {
        String::new()
    };
    line(format!(
        "prompt: {} tokens, {} of them from the prefix cache{below}{}",
        told.prompt,
        told.cached,
        missed(told)
    ));
    line(format!(
        "drew {} tokens in {} steps that took {}; {} of them had more than one of its tokens",
        told.drawn,
        told.steps,
        seconds(told.steps_us),
        told.chunks
    ));
    if told.drafted > 0 {
        line(format!("{} tokens were drafted, {} of them drawn", told.drafted, told.accepted));
    }
    if told.preempted.times > 0 {
        line(format!(
            "preempted {} times, which gave up {} tokens: {} were computed again",
            told.preempted.times, told.preempted.tokens, told.again_preempted
        ));
    }
    if told.replayed > 0 {
        line(format!("lost its worker {} times: {} tokens were computed again", told.replayed, told.again_lost));
    }
    if told.preempted_others.times > 0 {
        let others = &told.preempted_others;
        line(format!("cost others: {} preemptions, {} tokens computed again", others.times, others.tokens));
    }
    if told.slowed_others_us > 0 {
        line(format!("cost others: steps that were longer by {} in all, as foreseen", seconds(told.slowed_others_us)));
    }
    text.push('\n');
    text
}

/// Microseconds, as people read them.
pub(crate) fn seconds(micros: u64) -> String {
    format!("{}.{:06} s", micros / 1_000_000, micros % 1_000_000)
}

fn missed(told: &Explanation) -> String {
    let others = told.prompt.saturating_sub(told.cached);
    if told.admitted.is_none() {
        return "; it was never admitted".to_owned();
    }
    if told.missed.is_off {
        return "; --prefix-caching is off".to_owned();
    }
    if told.missed.is_scored {
        return "; its log-probabilities were asked for, so all of it was computed".to_owned();
    }
    let mut why = Vec::new();
    if told.missed.evicted > 0 {
        why.push(format!("{} had been there and were given up", told.missed.evicted));
    }
    if told.missed.has_other_salt {
        why.push("they are there under another salt".to_owned());
    }
    match (others, why.as_slice()) {
        (0 | 1, _) => String::new(), // the last one is never looked for: it must be computed to draw the next
        (_, []) => format!("; {others} were not there"),
        (_, why) => format!("; of the other {others}: {}", why.join(", ")),
    }
}

fn ms(micros: u64) -> f64 {
    // Below 2^53 microseconds, 285 years, nothing is lost.
    micros as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use pelton_engine::{Micros, RequestId};

    use super::*;

    #[test]
    fn what_did_not_happen_is_not_told() {
        let mut told = Explanation::new(RequestId(7), Micros(1_500_000), None, 40);
        (told.until, told.admitted, told.first_token) =
            (Micros(2_000_000), Some(Micros(1_500_000)), Some(Micros(1_750_000)));
        (told.cached, told.drawn, told.steps, told.steps_us, told.chunks) = (32, 3, 3, 9_000, 1);
        let expected = "\
request 7, at 1.500000 s: finished
  lasted 0.500000 s, the first token after 0.250000 s
  prompt: 40 tokens, 32 of them from the prefix cache; 8 were not there
  drew 3 tokens in 3 steps that took 0.009000 s; 1 of them had more than one of its tokens
";
        assert_eq!(text(&told, "finished"), expected);
        assert_eq!(json(&told)["waited_for_ms"], json!({}));
    }

    #[test]
    fn what_happened_is_told_with_its_cost() {
        let mut told = Explanation::new(RequestId(7), Micros(0), Some(Micros(9_000_000)), 40);
        told.admitted = Some(Micros(1));
        (told.missed.evicted, told.missed.has_other_salt) = (16, true);
        (told.preempted.times, told.preempted.tokens, told.replayed) = (2, 300, 1);
        (told.again_preempted, told.again_lost) = (20, 7);
        (told.preempted_others.times, told.preempted_others.tokens, told.slowed_others_us) = (3, 400, 1_234);
        let text = text(&told, "aborted");
        for part in [
            "its deadline was after 9.000000 s",
            "of the other 40: 16 had been there and were given up, they are there under another salt",
            "preempted 2 times, which gave up 300 tokens: 20 were computed again",
            "lost its worker 1 times: 7 tokens were computed again",
            "lost its worker 1 times",
            "3 preemptions, 400 tokens",
            "longer by 0.001234 s",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert_eq!(json(&told)["preempted_others"]["tokens"], 400);
        told.missed.too_short = 1;
        assert_eq!(json(&told)["not_cached"]["new_tokens"], 40 - 16 - 1);
        told.missed.is_scored = true;
        assert!(self::text(&told, "aborted").contains("its log-probabilities were asked for"));
    }
}
