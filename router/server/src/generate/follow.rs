//! Follows one answer: tokens in, text out, until a stop string, a stop token or the length ends it.
//!
//! Pure: no engine, no clock. Tokens pass through detokeniser, stop matcher and tool-call parser, in this order. Each may
//! hold text back, never changes its order, and gives the rest away at the end.

use std::sync::Arc;

use pelton_engine::{Explanation, Failure, FinishReason, Output, TokenId, TokenLogprobs, Usage};
use pelton_text::{Detokenizer, Piece, StopMatcher, Tokenizer, ToolCallParser};

use super::ToolReading;

/// What ends an answer and what of it is shown.
#[derive(Debug, Clone)]
pub(crate) struct TextRules {
    pub(crate) stop: Vec<String>,
    pub(crate) include_stop: bool,
    /// Every token that ends the answer, sorted.
    pub(crate) stop_ids: Arc<[TokenId]>,
    /// Those of them that are the model's own, and therefore not worth naming.
    pub(crate) eos_ids: Vec<TokenId>,
    /// The answer's last token is its `max_tokens`th.
    pub(crate) max_tokens: u32,
    /// In the text of so many first tokens, no stop string counts.
    pub(crate) min_tokens: u32,
    pub(crate) skip_special: bool,
    pub(crate) tools: Option<ToolReading>,
    /// Tokens of the prompt.
    pub(crate) prompt: u32,
}

/// What became of one answer since the last delta.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Delta {
    /// Which answer: those of the first prompt come first.
    pub choice: usize,
    /// Text to show.
    pub text: String,
    /// Parts of tool calls.
    pub calls: Vec<CallPiece>,
    /// The tokens, also those whose text is held back still.
    pub tokens: Vec<Drawn>,
    /// On the last delta of an answer.
    pub finish: Option<Finish>,
}

impl Delta {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.calls.is_empty() && self.tokens.is_empty() && self.finish.is_none()
    }
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// Which.
    pub token: TokenId,
    /// Characters of text before it, special tokens left out or not as asked.
    pub text_offset: usize,
    /// The text that became complete with it, if log-probabilities were asked for. So these texts add up to the answer's
    /// (before stop strings and tool calls are taken out): a token that ends within a character has less text than bytes.
    pub text: String,
    /// If asked for.
    pub logprobs: Option<Box<TokenLogprobs>>,
}

/// A part of a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallPiece {
    /// A call begins.
    Start {
        /// Counted from 0 within the answer.
        index: usize,
        /// Unique in the world.
        id: String,
        /// The function's name.
        name: String,
    },
    /// More of its arguments, a JSON text.
    Arguments {
        /// Which call.
        index: usize,
        /// To be appended.
        delta: String,
    },
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// Why.
    pub ending: Ending,
    /// Whether it called a tool.
    pub has_calls: bool,
    /// What it took.
    pub usage: Usage,
    /// What it went through.
    pub explanation: Option<Box<Explanation>>,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// It was complete.
    Stop(StopCause),
    /// `max_tokens` or the context was reached.
    Length,
}

/// What ended a complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopCause {
    /// One of the model's own end tokens.
    EndOfText,
    /// One of the request's `stop_token_ids`.
    Token(TokenId),
    /// One of the request's `stop` texts.
    Text(String),
}

/// What the caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Followed {
    /// Wait for more.
    Going,
    /// Tell the engine to stop: the text has reached a stop string.
    StopText,
    /// Nothing: the engine has ended the answer.
    Over,
}

/// One answer being followed.
pub(crate) struct Follower {
    rules: Arc<TextRules>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    calls: Option<ToolCallParser>,
    has_calls: bool,
    cached: u32,
    drawn: u32,
    /// Characters that the detokeniser has given.
    characters: usize,
}

impl Follower {
    pub(crate) fn new(tokenizer: &Tokenizer, rules: Arc<TextRules>) -> Self {
        Self {
            detokenizer: Detokenizer::new(tokenizer.clone(), rules.skip_special),
            stops: StopMatcher::new(rules.stop.clone(), rules.include_stop),
            calls: rules.tools.map(|_| ToolCallParser::new()),
            has_calls: false,
            cached: 0,
            drawn: 0,
            characters: 0,
            rules,
        }
    }

    /// Takes the engine's next output and adds what it leads to. Not called again after it returned an end.
    pub(crate) fn push(&mut self, output: Output, delta: &mut Delta) -> Result<Followed, Failure> {
        match output {
            Output::Admitted { cached } => {
                self.cached = cached;
                Ok(Followed::Going)
            }
            Output::Token { token, logprobs } => Ok(self.token(token, logprobs, delta)),
            Output::Finished { reason, usage, explanation } => {
                self.end(delta);
                let ending = self.ending(reason);
                delta.finish =
                    Some(Finish { ending, has_calls: self.has_calls, usage, explanation: Some(explanation) });
                Ok(Followed::Over)
            }
            Output::Explained(_) => Ok(Followed::Going), // asked for at the end, when nobody follows any more
            Output::Failed(failure) => Err(failure),
        }
    }

    fn token(&mut self, token: TokenId, logprobs: Option<Box<TokenLogprobs>>, delta: &mut Delta) -> Followed {
        self.drawn += 1;
        let is_stop = self.rules.stop_ids.binary_search(&token).is_ok();
        let is_shown = !is_stop || self.rules.include_stop;
        let mut text = if is_shown { self.detokenizer.push(token) } else { String::new() };
        if is_stop || self.drawn == self.rules.max_tokens {
            // `Finished` is next: the end of a broken character belongs to the last token.
            text.push_str(&self.detokenizer.finish());
        }
        let of_token = if logprobs.is_some() { text.clone() } else { String::new() };
        delta.tokens.push(Drawn { token, text_offset: self.characters, text: of_token, logprobs });
        let Some(hit) = self.text(&text, delta) else { return Followed::Going };
        self.end_calls(delta);
        let usage = Usage { prompt: self.rules.prompt, cached: self.cached, completion: self.drawn };
        let ending = Ending::Stop(StopCause::Text(self.rules.stop[hit].clone()));
        // The engine has not said it; whoever wants to know asks it.
        delta.finish = Some(Finish { ending, has_calls: self.has_calls, usage, explanation: None });
        Followed::StopText
    }

    /// Passes text on. Returns the stop string that ended it.
    fn text(&mut self, text: &str, delta: &mut Delta) -> Option<usize> {
        self.characters += text.chars().count();
        if self.drawn <= self.rules.min_tokens {
            self.show(text, delta);
            return None;
        }
        let step = self.stops.push(text);
        self.show(&step.text, delta);
        step.hit
    }

    /// Gives away what is still held back.
    fn end(&mut self, delta: &mut Delta) {
        let rest = self.stops.finish();
        self.show(&rest, delta);
        self.end_calls(delta);
    }

    fn show(&mut self, text: &str, delta: &mut Delta) {
        match &mut self.calls {
            None => delta.text.push_str(text),
            Some(calls) => {
                let pieces = calls.push(text);
                self.take(pieces, delta);
            }
        }
    }

    fn end_calls(&mut self, delta: &mut Delta) {
        if let Some(calls) = &mut self.calls {
            let pieces = calls.finish();
            self.take(pieces, delta);
        }
    }

    fn take(&mut self, pieces: Vec<Piece>, delta: &mut Delta) {
        let is_wanted = |index| index == 0 || self.rules.tools == Some(ToolReading::Parallel);
        for piece in pieces {
            match piece {
                Piece::Content(text) => delta.text.push_str(&text),
                Piece::CallStart { index, name } if is_wanted(index) => {
                    self.has_calls = true;
                    let id = format!("call_{}", uuid::Uuid::new_v4().simple());
                    delta.calls.push(CallPiece::Start { index, id, name });
                }
                Piece::CallArguments { index, delta: arguments } if is_wanted(index) => match delta.calls.last_mut() {
                    Some(CallPiece::Arguments { index: last, delta }) if *last == index => delta.push_str(&arguments),
                    _ => delta.calls.push(CallPiece::Arguments { index, delta: arguments }),
                },
                Piece::CallStart { .. } | Piece::CallArguments { .. } | Piece::CallEnd { .. } => {}
            }
        }
    }

    fn ending(&self, reason: FinishReason) -> Ending {
        match reason {
            FinishReason::Length => Ending::Length,
            FinishReason::StopToken(token) if self.rules.eos_ids.contains(&token) => Ending::Stop(StopCause::EndOfText),
            FinishReason::StopToken(token) => Ending::Stop(StopCause::Token(token)),
        }
    }
}

#[cfg(test)]
mod tests {
    use pelton_engine::{Micros, RequestId};

    use super::*;
    use crate::generate::testing::{END, tokenizer, tokens};

    fn rules() -> TextRules {
        TextRules {
            stop: Vec::new(),
            include_stop: false,
            stop_ids: [b'#'.into(), END].into(),
            eos_ids: vec![END],
            max_tokens: 1000,
            min_tokens: 0,
            skip_special: true,
            tools: None,
            prompt: 7,
        }
    }

    fn explanation() -> Box<Explanation> {
        Box::new(Explanation::new(RequestId(1), Micros(0), None, 7))
    }

    /// What is shown of an answer of these tokens, and how it ends. `None` after the tokens: by its length.
    fn follow(mut rules: TextRules, answer: &[u32]) -> Delta {
        rules.max_tokens = u32::try_from(answer.len()).expect("short");
        let mut follower = Follower::new(&tokenizer(), Arc::new(rules.clone()));
        let mut delta = Delta::default();
        let mut push = |output| follower.push(output, &mut delta).expect("no failure was pushed");
        assert_eq!(push(Output::Admitted { cached: 3 }), Followed::Going);
        for (count, &token) in (1..).zip(answer) {
            match push(Output::Token { token, logprobs: Some(Box::default()) }) {
                Followed::Going => {}
                Followed::StopText => return delta,
                Followed::Over => panic!("the engine has not ended the answer"),
            }
            if rules.stop_ids.contains(&token) {
                let usage = Usage { prompt: 7, cached: 3, completion: count };
                assert_eq!(
                    push(Output::Finished {
                        reason: FinishReason::StopToken(token),
                        usage,
                        explanation: explanation()
                    }),
                    Followed::Over
                );
                return delta;
            }
        }
        let completion = u32::try_from(answer.len()).expect("short");
        let usage = Usage { prompt: 7, cached: 3, completion };
        assert_eq!(
            push(Output::Finished { reason: FinishReason::Length, usage, explanation: explanation() }),
            Followed::Over
        );
        delta
    }

    #[track_caller]
    fn check(rules: TextRules, answer: &[u32], text: &str, ending: Ending, completion: u32) {
        let delta = follow(rules, answer);
        let finish = delta.finish.expect("it has ended");
        assert_eq!((delta.text.as_str(), &finish.ending), (text, &ending));
        assert_eq!(finish.usage, Usage { prompt: 7, cached: 3, completion });
        assert_eq!(delta.tokens.len(), completion as usize);
    }

    fn stopping_at(stop: &[&str]) -> TextRules {
        TextRules { stop: stop.iter().map(|text| (*text).to_owned()).collect(), ..rules() }
    }

    fn by_text(text: &str) -> Ending {
        Ending::Stop(StopCause::Text(text.to_owned()))
    }

    #[test]
    fn a_stop_token_ends_the_answer_and_is_not_shown() {
        let answer = [tokens("hi"), vec![END]].concat();
        check(rules(), &answer, "hi", Ending::Stop(StopCause::EndOfText), 3);
        check(rules(), &tokens("hi#"), "hi", Ending::Stop(StopCause::Token(b'#'.into())), 3);
        check(rules(), &tokens("hi"), "hi", Ending::Length, 2);
    }

    #[test]
    fn what_ended_the_answer_is_shown_on_demand() {
        let shown = TextRules { include_stop: true, ..rules() };
        check(shown, &tokens("hi#"), "hi#", Ending::Stop(StopCause::Token(b'#'.into())), 3);
        let shown = TextRules { include_stop: true, ..stopping_at(&["END"]) };
        check(shown, &tokens("go END on"), "go END", by_text("END"), 6);
    }

    #[test]
    fn a_stop_text_ends_the_answer_wherever_its_tokens_are_cut() {
        check(stopping_at(&["END"]), &tokens("go END on"), "go ", by_text("END"), 6);
        check(stopping_at(&["€"]), &tokens("5 € more"), "5 ", by_text("€"), 5);
        check(stopping_at(&["END"]), &tokens("go EN"), "go EN", Ending::Length, 5);
        check(stopping_at(&["END"]), &tokens("go EN#"), "go EN", Ending::Stop(StopCause::Token(b'#'.into())), 6);
    }

    #[test]
    fn a_stop_text_within_the_first_tokens_does_not_count() {
        // B:SA4
        let late = TextRules { min_tokens: 2, ..stopping_at(&["a"]) };
        check(late, &tokens("aabac"), "aab", by_text("a"), 4);
    }

    #[test]
    fn half_a_character_is_shown_as_broken_at_the_end_alone() {
        check(rules(), &tokens("é")[..1], "\u{fffd}", Ending::Length, 1);
        check(rules(), &tokens("é"), "é", Ending::Length, 2);
    }

    #[test]
    fn a_token_knows_its_text_and_where_it_begins() {
        let whole = tokens("aéb€");
        for (answer, texts, offsets) in [
            (&whole[..4], vec!["a", "", "é", "b"], vec![0, 1, 1, 2]),
            (&whole[..5], vec!["a", "", "é", "b", "\u{fffd}"], vec![0, 1, 1, 2, 3]),
            (&[&whole[..5], &[END]].concat(), vec!["a", "", "é", "b", "", "\u{fffd}"], vec![0, 1, 1, 2, 3, 3]),
        ] {
            let delta = follow(rules(), answer);
            assert_eq!(delta.tokens.iter().map(|drawn| drawn.text.as_str()).collect::<Vec<_>>(), texts);
            assert_eq!(delta.tokens.iter().map(|drawn| drawn.text_offset).collect::<Vec<_>>(), offsets);
            assert_eq!(delta.text, texts.concat());
        }
    }

    const CALLS: &str = "ok <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
                         <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";

    fn names(calls: &[CallPiece]) -> Vec<&str> {
        let started = calls.iter().filter_map(|piece| match piece {
            CallPiece::Start { name, .. } => Some(name.as_str()),
            CallPiece::Arguments { .. } => None,
        });
        started.collect()
    }

    #[test]
    fn calls_are_read_only_if_tools_were_offered() {
        let delta = follow(TextRules { tools: Some(ToolReading::Parallel), ..rules() }, &tokens(CALLS));
        assert_eq!(names(&delta.calls), ["f", "g"]);
        assert_eq!(delta.text.trim(), "ok");
        assert!(delta.finish.expect("it has ended").has_calls);
        let delta = follow(TextRules { tools: Some(ToolReading::Single), ..rules() }, &tokens(CALLS));
        assert_eq!(names(&delta.calls), ["f"]);
        let delta = follow(rules(), &tokens(CALLS));
        assert_eq!(delta.text, CALLS);
        assert!(!delta.finish.expect("it has ended").has_calls);
    }

    #[test]
    fn a_failure_is_passed_on() {
        let mut follower = Follower::new(&tokenizer(), Arc::new(rules()));
        let failure = Failure::Internal("broken".to_owned());
        assert_eq!(follower.push(Output::Failed(failure.clone()), &mut Delta::default()), Err(failure));
    }
}
