//! Follows one answer: tokens in, text out, until a stop string, a stop token or the length ends it.
//!
//! Pure: no engine, no clock. Tokens pass through detokeniser, stop matcher and the parser of the model's format, in this order. Each may
//! hold text back, never changes its order, and gives the rest away at the end.

use std::sync::Arc;

use pelton_engine::{Explanation, Failure, FinishReason, Output, TokenId, TokenLogprobs, TokenScore, Usage};
use pelton_grammar::Thinking;
use pelton_text::{AnswerParser, Detokenizer, Piece, StopMatcher, Tokenizer};

use super::{CallPiece, Part, Said, ToolReading, repetition::Circles, rules::TextRules};

/// What became of one answer since the last delta.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Delta {
    /// Which answer: those of the first prompt come first.
    pub choice: usize,
    /// Of the prompt's tokens from the second one on, if they were asked for: all at once, before the first of `tokens`.
    pub scores: Vec<TokenScore>,
    /// What it says.
    pub said: Said,
    /// The tokens, also those whose text is held back still, unless it may turn out to be a mark before reasoning.
    pub tokens: Vec<Drawn>,
    /// On the last delta of an answer.
    pub finish: Option<Finish>,
}

impl Delta {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.said.is_empty() && self.tokens.is_empty() && self.scores.is_empty() && self.finish.is_none()
    }
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// Which.
    pub token: TokenId,
    /// Characters of text before it, special tokens left out or not as asked.
    pub text_offset: usize,
    /// If asked for.
    pub logprobs: Option<Box<TokenLogprobs>>,
    /// Text that a stop string holds back counts where it comes out.
    pub kind: TokenKind,
    /// How much the answer had said when it had come: the sizes of all [`Part`]s until then.
    pub said: usize,
}

/// To what a token belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// What is shown.
    Text,
    /// The reasoning, or the marks around it.
    Reasoning,
    /// A call that has begun and what follows it up to the next text, a mark, or white space beside one.
    Beside,
    /// Nothing of it is said yet: part of the text that comes next, unless something that is [`TokenKind::Beside`] comes first.
    Held,
    /// It ended the answer, and is not shown.
    End,
}

impl Drawn {
    /// Whether it belongs to the reasoning.
    pub fn is_reasoning(&self) -> bool {
        self.kind == TokenKind::Reasoning
    }
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
    /// Tokens of its reasoning; `None`: nobody tells them apart.
    pub reasoning_tokens: Option<u32>,
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
    /// It went round in circles.
    Repetition,
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
    /// Tell the engine to stop: the text has reached a stop string, or goes round in circles.
    Enough,
    /// Nothing: the engine has ended the answer.
    Over,
}

/// One answer being followed.
pub(crate) struct Follower {
    rules: Arc<TextRules>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    parser: Option<AnswerParser>,
    /// Where the grammar forces their end, if it may.
    thinking: Option<Thinking>,
    circles: Option<Circles>,
    has_calls: bool,
    /// A call has begun and not ended.
    is_within_call: bool,
    /// The same of one that nobody wants.
    is_within_dropped: bool,
    /// A call was complete.
    has_whole_call: bool,
    /// A call has begun, and nothing else has been said since.
    is_behind_call: bool,
    /// A call has begun, and never ended before something else was said.
    has_broken_call: bool,
    /// Sizes of all that was said.
    said: usize,
    reasoning_tokens: Option<u32>,
    cached: u32,
    scores: Vec<TokenScore>,
    drawn: u32,
    /// Characters that the detokeniser has given.
    characters: usize,
    /// Characters that the parser was given.
    parsed: usize,
    /// Tokens that may be part of a mark with which reasoning begins. They are told when it is clear whether they are.
    undecided: Vec<Drawn>,
}

impl Follower {
    pub(crate) fn new(tokenizer: &Tokenizer, rules: Arc<TextRules>) -> Self {
        Self {
            detokenizer: rules.detokenizer(tokenizer),
            stops: StopMatcher::new(rules.stop.clone(), rules.include_stop),
            parser: rules.form.as_ref().map(|(format, reading)| format.parser(reading.clone())),
            thinking: rules.thoughts.clone().filter(|_| rules.form.is_some()).map(Thinking::new),
            circles: rules.repetition.map(Circles::new),
            has_calls: false,
            is_within_call: false,
            is_within_dropped: false,
            has_whole_call: false,
            is_behind_call: false,
            has_broken_call: false,
            said: 0,
            reasoning_tokens: rules.form.as_ref().filter(|(format, _)| format.has_reasoning()).map(|_| 0),
            cached: 0,
            scores: Vec::new(),
            drawn: 0,
            characters: 0,
            parsed: 0,
            undecided: Vec::new(),
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
            Output::Scored(scores) => {
                self.scores.extend(scores);
                if self.scores.len() + 1 == self.rules.prompt as usize {
                    delta.scores = std::mem::take(&mut self.scores);
                }
                Ok(Followed::Going)
            }
            // Nobody wants it: the engine had to draw something to tell of the prompt.
            Output::Token { .. } if self.rules.max_tokens == 0 => Ok(Followed::Going),
            Output::Token { token, logprobs } => Ok(self.token(token, logprobs, delta)),
            Output::Vector(_) => unreachable!("a model that gives vectors generates nothing"),
            Output::Finished { usage, explanation, .. } if self.rules.max_tokens == 0 => {
                let usage = Usage { completion: 0, ..usage };
                delta.finish = Some(self.finish(Ending::Length, usage, Some(explanation)));
                Ok(Followed::Over)
            }
            Output::Finished { reason, usage, explanation } => {
                let ending = self.ending(reason);
                self.end(&ending, delta);
                delta.finish = Some(self.finish(ending, usage, Some(explanation)));
                Ok(Followed::Over)
            }
            Output::Explained(_) => Ok(Followed::Going), // asked for at the end, when nobody follows any more
            Output::Failed(failure) => Err(failure),
        }
    }

    fn token(&mut self, token: TokenId, logprobs: Option<Box<TokenLogprobs>>, delta: &mut Delta) -> Followed {
        self.drawn += 1;
        if let Some(thinking) = &mut self.thinking {
            thinking.take(token);
        }
        let is_stop = self.rules.stop_ids.binary_search(&token).is_ok();
        let is_shown = !is_stop || (self.rules.include_stop && !self.rules.is_mark_behind_form(token));
        let mut text = if is_shown { self.detokenizer.push(token) } else { String::new() };
        let is_last = is_stop || self.drawn == self.rules.max_tokens;
        let is_circle = self.circles.as_mut().is_some_and(|circles| circles.take(token));
        let is_circle = is_circle && !is_last && self.drawn >= self.rules.min_tokens;
        if is_last || is_circle {
            // Nothing comes behind it: the end of a broken character belongs to the last token.
            text.push_str(&self.detokenizer.finish());
        }
        let (text_offset, was_reasoning) = (self.characters, self.is_reasoning());
        let (shown, said) = (delta.said.text_bytes(), self.said);
        let hit = self.text(&text, delta);
        let kind = match is_shown {
            false => TokenKind::End,
            true if self.is_within_call || self.is_within_dropped => TokenKind::Beside,
            true if (self.is_behind_call || self.said == said) && self.holds_nothing() => TokenKind::Beside,
            true if self.is_behind_call || self.said == said => TokenKind::Held,
            true => TokenKind::Text,
        };
        self.undecided.push(Drawn { token, text_offset, logprobs, kind, said: self.said });
        self.decide(was_reasoning, delta.said.text_bytes() > shown, delta);
        let ending = match hit {
            Some(hit) => {
                let ending = Ending::Stop(StopCause::Text(self.rules.stop[hit].clone()));
                self.end_parser(&ending, delta);
                ending
            }
            None if is_circle => {
                self.end(&Ending::Repetition, delta);
                Ending::Repetition
            }
            None => return Followed::Going,
        };
        let usage = Usage { prompt: self.rules.prompt, cached: self.cached, completion: self.drawn };
        // The engine has not said it; whoever wants to know asks it.
        delta.finish = Some(self.finish(ending, usage, None));
        Followed::Enough
    }

    /// Tells tokens of which it is clear what they are. `was_reasoning`: before the last one came; `has_shown`: content came out with it.
    fn decide(&mut self, was_reasoning: bool, has_shown: bool, delta: &mut Delta) {
        if was_reasoning || self.is_reasoning() {
            // What was held is the mark, unless it came out as content before one that the last token was alone.
            let others = if has_shown { self.undecided.len() - 1 } else { 0 };
            for drawn in &mut self.undecided[others..] {
                drawn.kind = TokenKind::Reasoning;
                self.reasoning_tokens = self.reasoning_tokens.map(|count| count + 1);
            }
            delta.tokens.append(&mut self.undecided);
            return;
        }
        let clear = match self.parser.as_ref().and_then(AnswerParser::undecided) {
            Some(held) if held > 0 || self.characters > self.parsed || self.detokenizer.is_within_character() => {
                let begins = self.parsed - held;
                self.undecided.iter().position(|drawn| drawn.text_offset >= begins).unwrap_or(self.undecided.len())
            }
            _ => self.undecided.len(),
        };
        delta.tokens.extend(self.undecided.drain(..clear));
    }

    /// Whether all that has come was said, or is no part of what is: a mark, or white space beside one.
    fn holds_nothing(&self) -> bool {
        self.parser.as_ref().is_some_and(|parser| !parser.is_holding())
            && self.parsed == self.characters
            && !self.detokenizer.is_within_character()
    }

    fn is_reasoning(&self) -> bool {
        self.parser.as_ref().is_some_and(AnswerParser::is_reasoning)
    }

    fn finish(&self, ending: Ending, usage: Usage, explanation: Option<Box<Explanation>>) -> Finish {
        // Nobody is to run a call whose arguments were cut, or went wrong.
        let has_calls = self.has_calls && !self.is_within_call && !self.has_broken_call;
        let reasoning_tokens = self.reasoning_tokens;
        Finish { ending, has_calls, usage, reasoning_tokens, explanation }
    }

    /// Passes text on. Returns the stop string that ended it.
    fn text(&mut self, text: &str, delta: &mut Delta) -> Option<usize> {
        self.characters += text.chars().count();
        if self.drawn <= self.rules.min_tokens {
            self.show(text.to_owned(), delta);
            return None;
        }
        let step = self.stops.push(text);
        self.show(step.text, delta);
        step.hit
    }

    /// Gives away what is still held back.
    fn end(&mut self, ending: &Ending, delta: &mut Delta) {
        let rest = self.stops.finish();
        self.show(rest, delta);
        self.end_parser(ending, delta);
    }

    fn show(&mut self, text: String, delta: &mut Delta) {
        match &mut self.parser {
            None => {
                self.said += text.len();
                delta.said.push(Part::Text(text));
            }
            Some(parser) => {
                self.parsed += text.chars().count();
                let pieces = parser.push(&text);
                self.take(pieces, delta);
            }
        }
    }

    fn end_parser(&mut self, ending: &Ending, delta: &mut Delta) {
        if let Some(parser) = &mut self.parser {
            let is_complete = *ending == Ending::Stop(StopCause::EndOfText);
            if self.thinking.as_ref().is_some_and(Thinking::is_closing) {
                parser.drop_close();
            }
            let pieces = if is_complete { parser.finish() } else { parser.cut() };
            self.take(pieces, delta);
        }
        delta.tokens.append(&mut self.undecided);
    }

    fn take(&mut self, pieces: Vec<Piece>, delta: &mut Delta) {
        for piece in pieces {
            let part = match piece {
                Piece::Reasoning(text) => Part::Thought(text),
                Piece::Content(text) => Part::Text(text),
                Piece::CallStart { .. } if self.has_whole_call && self.rules.tools != Some(ToolReading::Parallel) => {
                    self.is_within_dropped = true;
                    Part::Dropped
                }
                Piece::CallStart { index, id, name } => {
                    self.has_broken_call |= self.is_within_call;
                    (self.has_calls, self.is_within_call) = (true, true);
                    let id = id.unwrap_or_else(|| self.rules.call_id());
                    Part::Call(CallPiece::Start { index, id, name })
                }
                Piece::CallArguments { .. } if self.is_within_dropped => continue,
                Piece::CallArguments { index, delta } => Part::Call(CallPiece::Arguments { index, delta }),
                Piece::CallEnd { .. } => {
                    (self.is_within_call, self.is_within_dropped, self.has_whole_call) = (false, false, true);
                    continue;
                }
            };
            self.is_behind_call = matches!(part, Part::Call(_) | Part::Dropped);
            if !self.is_behind_call {
                self.has_broken_call |= self.is_within_call;
                (self.is_within_call, self.is_within_dropped) = (false, false);
            }
            self.said += part.size();
            delta.said.push(part);
        }
    }

    fn ending(&self, reason: FinishReason) -> Ending {
        match reason {
            FinishReason::Length => Ending::Length,
            FinishReason::Vector => unreachable!("a model that gives vectors generates nothing"),
            FinishReason::StopToken(token) if self.rules.eos_ids.contains(&token) => Ending::Stop(StopCause::EndOfText),
            FinishReason::StopToken(token) => Ending::Stop(StopCause::Token(token)),
        }
    }
}

#[cfg(test)]
mod tests;
