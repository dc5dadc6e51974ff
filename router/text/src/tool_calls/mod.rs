//! Splits an answer into content and tool calls as it comes, for models that call in the Hermes form:
//!
//! ```text
//! <tool_call>
//! {"name": "get_weather", "arguments": {"city": "Oslo"}}
//! </tool_call>
//! ```
//!
//! One state machine over characters, so that where the stream is cut makes no difference:
//!
//! 1. *Content*, until `<tool_call>`. A beginning of the marker and white space before it are held back.
//! 2. *Call*: `call` reads the object. As soon as its name is known the call begins, and its arguments stream.
//! 3. *After*: white space and one `</tool_call>` are swallowed; then 1 again.
//!
//! A call that goes wrong before it began comes back as content, every character of it. One that goes wrong later
//! cannot be taken back: it stays without its `CallEnd`, and the rest is content. So a call that ended is valid JSON.

mod call;
mod json;

use call::{Call, Progress};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text for the reader.
    Content(String),
    /// A call begins. Calls are numbered from 0.
    CallStart {
        /// Which call.
        index: usize,
        /// The tool's name.
        name: String,
    },
    /// The next part of a call's arguments, as JSON text.
    CallArguments {
        /// Which call.
        index: usize,
        /// What is added.
        delta: String,
    },
    /// The arguments are complete: together they are one JSON object.
    CallEnd {
        /// Which call.
        index: usize,
    },
}

/// Splits one answer.
#[derive(Debug, Clone, Default)]
pub struct ToolCallParser {
    state: State,
    calls: usize,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone)]
enum State {
    Content {
        /// White space that is dropped if a call follows.
        gap: String,
        /// Bytes of `<tool_call>` that have come.
        matched: usize,
    },
    Call {
        /// Everything since `gap`, until the call begins; then nothing any more.
        raw: String,
        call: Box<Call>,
    },
    After {
        gap: String,
        /// Bytes of `</tool_call>` that have come.
        matched: usize,
        is_closed: bool,
    },
}

impl Default for State {
    fn default() -> Self {
        Self::Content { gap: String::new(), matched: 0 }
    }
}

impl ToolCallParser {
    /// For one answer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a chat template teaches its model to call in this form (and not in one of the others that use the same
    /// marker around XML).
    pub fn detect(template: &str) -> bool {
        let is_hermes = [OPEN, CLOSE, "name", "arguments"].iter().all(|part| template.contains(part));
        is_hermes && !["<function=", "<arg_key>"].iter().any(|part| template.contains(part))
    }

    /// Takes the next text of the answer.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        for c in text.chars() {
            self.step(c);
        }
        std::mem::take(&mut self.pieces)
    }

    /// Ends the answer; gives what was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        match std::mem::take(&mut self.state) {
            State::Content { gap, matched } => self.content(&[&gap, &OPEN[..matched]]),
            State::Call { raw, .. } => self.content(&[&raw]),
            State::After { matched: 0, .. } => {} // white space at the end only ended the line
            State::After { gap, matched, .. } => self.content(&[&gap, &CLOSE[..matched]]),
        }
        std::mem::take(&mut self.pieces)
    }

    fn step(&mut self, c: char) {
        match &mut self.state {
            State::Content { gap, matched } => {
                if OPEN[*matched..].starts_with(c) {
                    *matched += c.len_utf8();
                    if *matched == OPEN.len() {
                        let raw = std::mem::take(gap) + OPEN;
                        self.state = State::Call { raw, call: Box::default() };
                    }
                } else if *matched == 0 && c.is_whitespace() {
                    gap.push(c);
                } else {
                    let (gap, begun) = (std::mem::take(gap), &OPEN[..std::mem::take(matched)]);
                    self.content(&[&gap, begun]);
                    self.content_char(c);
                }
            }
            State::Call { raw, call } => {
                let index = self.calls - usize::from(call.has_begun());
                raw.push(c);
                match call.step(c) {
                    Progress::Reading => {}
                    Progress::Begun { name, arguments } => {
                        raw.clear();
                        self.calls += 1;
                        self.pieces.push(Piece::CallStart { index, name });
                        self.arguments(index, &arguments);
                    }
                    Progress::Arguments => {
                        raw.clear();
                        self.arguments(index, c.encode_utf8(&mut [0; 4]));
                    }
                    Progress::Quiet => raw.clear(),
                    Progress::Done { missing } => {
                        self.arguments(index, missing);
                        self.pieces.push(Piece::CallEnd { index });
                        self.state = State::After { gap: String::new(), matched: 0, is_closed: false };
                    }
                    Progress::Malformed => {
                        let mut raw = std::mem::take(raw);
                        raw.pop(); // `c` itself may begin something new
                        self.state = State::default();
                        self.content(&[&raw]);
                        self.step(c);
                    }
                }
            }
            State::After { gap, matched, is_closed } => {
                if !*is_closed && CLOSE[*matched..].starts_with(c) {
                    *matched += c.len_utf8();
                    if *matched == CLOSE.len() {
                        self.state = State::After { gap: String::new(), matched: 0, is_closed: true };
                    }
                } else if *matched == 0 && c.is_whitespace() {
                    gap.push(c);
                } else {
                    // What has come is content, or begins the next call.
                    let held = std::mem::take(gap) + &CLOSE[..*matched];
                    self.state = State::default();
                    held.chars().for_each(|held| self.step(held));
                    self.step(c);
                }
            }
        }
    }

    /// In the content state, with nothing held back.
    fn content_char(&mut self, c: char) {
        if OPEN.starts_with(c) || c.is_whitespace() {
            self.step(c);
        } else {
            self.content(&[c.encode_utf8(&mut [0; 4])]);
        }
    }

    fn content(&mut self, parts: &[&str]) {
        for part in parts.iter().filter(|part| !part.is_empty()) {
            match self.pieces.last_mut() {
                Some(Piece::Content(text)) => text.push_str(part),
                _ => self.pieces.push(Piece::Content((*part).to_owned())),
            }
        }
    }

    fn arguments(&mut self, index: usize, part: &str) {
        match self.pieces.last_mut() {
            _ if part.is_empty() => {}
            Some(Piece::CallArguments { delta, .. }) => delta.push_str(part),
            _ => self.pieces.push(Piece::CallArguments { index, delta: part.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests;
