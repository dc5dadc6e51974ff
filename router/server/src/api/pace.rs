//! `stream_interval`: so many tokens of an answer in a chunk at least, but for the first and the last.

use bytes::BytesMut;

use super::stream::Events;
use crate::{error::ApiError, generate::Delta};

/// Events that are held together.
pub(crate) struct Paced<E> {
    events: E,
    interval: usize,
    /// By answer.
    answers: Vec<Held>,
}

#[derive(Default)]
struct Held {
    has_begun: bool,
    delta: Option<Delta>,
}

impl<E: Events> Paced<E> {
    /// An `interval` of 1 holds nothing.
    pub(crate) fn new(events: E, interval: u32) -> Self {
        Self { events, interval: interval as usize, answers: Vec::new() }
    }

    /// Adds a delta to what is held; gives back what is due.
    fn take(&mut self, delta: Delta, due: &mut Vec<Delta>) {
        let choice = delta.choice;
        if self.answers.len() <= choice {
            self.answers.resize_with(choice + 1, Held::default);
        }
        let held = &mut self.answers[choice];
        let delta = match held.delta.take() {
            Some(mut earlier) => {
                join(&mut earlier, delta);
                earlier
            }
            None => delta,
        };
        if !held.has_begun || delta.finish.is_some() || delta.tokens.len() >= self.interval {
            held.has_begun = true;
            due.push(delta);
        } else {
            held.delta = Some(delta);
        }
    }
}

fn join(earlier: &mut Delta, later: Delta) {
    let Delta { choice: _, scores, said, tokens, finish } = later;
    earlier.scores.extend(scores);
    earlier.said.append(said);
    earlier.tokens.extend(tokens);
    earlier.finish = finish;
}

impl<E: Events> Events for Paced<E> {
    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut BytesMut) {
        if self.interval <= 1 {
            return self.events.deltas(deltas, out);
        }
        let mut due = Vec::with_capacity(deltas.len());
        deltas.into_iter().for_each(|delta| self.take(delta, &mut due));
        if !due.is_empty() {
            self.events.deltas(due, out);
        }
    }

    fn end(&mut self, out: &mut BytesMut) {
        self.events.end(out);
    }

    fn keep_alive(&mut self, out: &mut BytesMut) {
        self.events.keep_alive(out);
    }

    /// What has come is told before it.
    fn error(&mut self, error: &ApiError, out: &mut BytesMut) {
        let held: Vec<Delta> = self.answers.iter_mut().filter_map(|answer| answer.delta.take()).collect();
        if !held.is_empty() {
            self.events.deltas(held, out);
        }
        self.events.error(error, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{CallPiece, Drawn, Ending, Finish, Part, Said, TokenKind};

    /// Notes what it is told.
    #[derive(Default)]
    struct Told(Vec<Delta>);

    impl Events for Told {
        fn deltas(&mut self, deltas: Vec<Delta>, _: &mut BytesMut) {
            self.0.extend(deltas);
        }

        fn end(&mut self, _: &mut BytesMut) {}
    }

    fn drawn(token: u32) -> Drawn {
        Drawn { token, text_offset: 0, logprobs: None, kind: TokenKind::Text, said: 0 }
    }

    fn text(choice: usize, token: u32, text: &str) -> Delta {
        Delta { choice, said: Said::text(text), tokens: vec![drawn(token)], ..Delta::default() }
    }

    fn end(choice: usize) -> Delta {
        let usage = pelton_engine::Usage::default();
        let ending = Ending::Length;
        let finish = Finish { ending, has_calls: false, usage, reasoning_tokens: None, explanation: None };
        Delta { choice, finish: Some(finish), ..Delta::default() }
    }

    /// The texts of chunks of each answer, and how many tokens each has.
    fn paced(interval: u32, deltas: Vec<Delta>) -> Vec<(usize, String, usize)> {
        let mut paced = Paced::new(Told::default(), interval);
        let mut out = BytesMut::new();
        deltas.into_iter().for_each(|delta| paced.deltas(vec![delta], &mut out));
        paced.events.0.into_iter().map(|delta| (delta.choice, delta.said.apart().text, delta.tokens.len())).collect()
    }

    #[test]
    fn tokens_come_together_but_for_the_first_and_the_last() {
        let deltas = || {
            let letters = ["a", "b", "c", "d", "e", "f"];
            let texts = letters.iter().enumerate().map(|(at, letter)| text(0, at as u32, letter));
            texts.chain([end(0)]).collect::<Vec<_>>()
        };
        let of = |pieces: &[(&str, usize)]| -> Vec<(usize, String, usize)> {
            pieces.iter().map(|(text, tokens)| (0, (*text).to_owned(), *tokens)).collect()
        };
        assert_eq!(paced(3, deltas()), of(&[("a", 1), ("bcd", 3), ("ef", 2)]));
        assert_eq!(paced(100, deltas()), of(&[("a", 1), ("bcdef", 5)]));
        assert_eq!(paced(1, deltas()).len(), 7, "as they come");
    }

    #[test]
    fn each_answer_has_its_own_pace() {
        let deltas = vec![text(1, 0, "a"), text(0, 0, "x"), text(1, 1, "b"), text(1, 2, "c"), end(0), end(1)];
        let told = paced(2, deltas);
        let of = |choice: usize, text: &str, tokens| (choice, text.to_owned(), tokens);
        assert_eq!(told, [of(1, "a", 1), of(0, "x", 1), of(1, "bc", 2), of(0, "", 0), of(1, "", 0)]);
    }

    #[test]
    fn what_is_said_keeps_its_order() {
        let call = Part::Call(CallPiece::Start { index: 0, id: "1".into(), name: "f".into() });
        let thought = Part::Thought("hm".into());
        let of = |part: &Part| Delta { said: Said::of([part.clone()]), tokens: vec![drawn(2)], ..Delta::default() };
        let mut paced = Paced::new(Told::default(), 100);
        let mut out = BytesMut::new();
        for delta in [text(0, 0, "a"), text(0, 1, "b"), of(&call), text(0, 3, "c"), of(&thought), end(0)] {
            paced.deltas(vec![delta], &mut out);
        }
        let told: Vec<Said> = paced.events.0.into_iter().map(|delta| delta.said).collect();
        let behind = [Part::Text("b".into()), call, Part::Text("c".into()), thought];
        assert_eq!(told, [Said::text("a"), Said::of(behind)]);
    }

    #[test]
    fn an_error_comes_behind_what_was_held() {
        let mut paced = Paced::new(Told::default(), 100);
        let mut out = BytesMut::new();
        paced.deltas(vec![text(0, 0, "a")], &mut out);
        paced.deltas(vec![text(0, 1, "b")], &mut out);
        paced.error(&ApiError::TextQueueFull, &mut out);
        assert_eq!(paced.events.0.len(), 2);
        assert!(out.starts_with(b"data: {\"error\":"));
    }
}
