//! Splits an answer that consists of messages on channels, as gpt-oss writes them ("Harmony"):
//!
//! ```text
//! <|channel|>analysis<|message|>THOUGHTS<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGUMENTS<|call|>
//! <|start|>assistant<|channel|>final<|message|>CONTENT<|return|>
//! ```
//!
//! Models slip, and nothing of it is an error: a text without a header is content, a header may have its parts in any order, a
//! message ends with the next header, and arguments that are no object are content.

use std::sync::Arc;

use super::marks::{Cutter, Mark, Unit};
use super::sink::Sink;
use super::syntax::{Scanned, Scanner};
use super::table::{Channels, Table};
use super::{Certain, Piece, Reading};

#[derive(Debug, Clone)]
pub(super) struct Parser {
    table: Arc<Table>,
    reading: Reading,
    cutter: Cutter,
    sink: Sink,
    state: State,
    /// Messages with something in them, by where they went: a line's end stands between two of a kind.
    thoughts: usize,
    contents: usize,
    /// Characters of a header that does not say yet what its message is.
    header: usize,
}

#[derive(Debug, Clone)]
enum State {
    /// Before a header.
    Outside,
    Header(Header),
    Reasoning {
        is_empty: bool,
    },
    Content {
        is_empty: bool,
    },
    /// Before the arguments; what has come.
    Call {
        name: String,
        gap: String,
    },
    /// Within the arguments; what has come of them.
    Arguments {
        scanner: Scanner,
        said: String,
    },
    /// After the arguments.
    Called,
}

#[derive(Debug, Clone, Default)]
struct Header {
    text: String,
    /// Where in `text` the channel's name begins.
    channel: Option<usize>,
}

/// Bytes of a header that are read: it is looked at for each character that comes. The longest that means something has two names.
const HEADER_BYTES_MAX: usize = 1024;

impl Header {
    fn push(&mut self, c: char) {
        if self.text.len() < HEADER_BYTES_MAX {
            self.text.push(c);
        }
    }

    /// Of a header that is too long, all but the last word, which may be cut.
    fn known(&self) -> &str {
        match self.text.len() < HEADER_BYTES_MAX {
            true => &self.text,
            false => self.text.rfind(char::is_whitespace).map_or("", |at| &self.text[..at]),
        }
    }

    fn channel(&self) -> &str {
        let behind = self.channel.and_then(|at| self.known().get(at..));
        behind.and_then(|behind| behind.split_whitespace().next()).unwrap_or_default()
    }

    /// The function that the message is for.
    fn recipient(&self) -> Option<&str> {
        let to = self.known().split_whitespace().find_map(|word| word.strip_prefix("to="))?;
        let name = to.strip_prefix("functions.").unwrap_or(to);
        (!name.is_empty() && name != "assistant" && name != "user").then_some(name)
    }
}

impl Parser {
    pub(super) fn new(table: Arc<Table>, reading: Reading) -> Self {
        let (cutter, sink) = (Cutter::default(), Sink::default());
        let state = match (reading.is_continued, reading.starts_in_reasoning) {
            (false, _) => State::Outside,
            (true, false) => State::Content { is_empty: true },
            (true, true) => State::Reasoning { is_empty: true },
        };
        Self { table, reading, cutter, sink, state, thoughts: 0, contents: 0, header: 0 }
    }

    pub(super) fn is_reasoning(&self) -> bool {
        match &self.state {
            State::Reasoning { .. } => true,
            State::Header(header) => header.channel() == "analysis",
            _ => false,
        }
    }

    /// Whether the thoughts themselves have begun: the header is a mark around them.
    pub(super) fn is_thinking(&self) -> bool {
        matches!(self.state, State::Reasoning { .. })
    }

    /// See [`super::AnswerParser::undecided`].
    pub(super) fn undecided(&self) -> Option<usize> {
        let is_before = matches!(self.state, State::Outside | State::Header(_));
        is_before.then(|| self.header + self.cutter.held().chars().count())
    }

    /// See [`super::AnswerParser::is_holding`].
    pub(super) fn is_holding(&self) -> bool {
        self.cutter.is_holding()
            || match &self.state {
                // All else of a header is a mark around its message.
                State::Header(header) => header.recipient().is_some(),
                State::Call { .. } => true,
                State::Outside
                | State::Reasoning { .. }
                | State::Content { .. }
                | State::Arguments { .. }
                | State::Called => false,
            }
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Piece> {
        let table = Arc::clone(&self.table);
        let units = self.cutter.push(&table.marks, text);
        units.into_iter().for_each(|unit| self.step(unit, &table));
        self.sink.take()
    }

    pub(super) fn finish(&mut self) -> Vec<Piece> {
        self.flush();
        self.end();
        self.sink.take()
    }

    /// Nothing more comes that could make a mark of what is held back.
    fn flush(&mut self) {
        let table = Arc::clone(&self.table);
        let units = self.cutter.finish(&table.marks);
        units.into_iter().for_each(|unit| self.step(unit, &table));
    }

    pub(super) fn cut(&mut self) -> Vec<Piece> {
        let is_within_arguments = matches!(self.state, State::Arguments { .. });
        let is_of_a_call = is_within_arguments || (self.reading.certain == Certain::All && !self.is_reasoning());
        if let State::Call { .. } = self.state {
            self.state = State::Outside; // nobody knows whether it would have had arguments, and its header is no text
        }
        self.flush();
        if let State::Arguments { .. } = self.state {
            self.state = State::Outside; // what comes behind its name was cut with the answer, and is no text
        }
        let mut pieces = self.finish();
        pieces.retain(|piece| !(is_of_a_call && matches!(piece, Piece::Content(_))));
        pieces
    }

    /// See [`super::AnswerParser::drop_close`].
    pub(super) fn drop_close(&mut self) {
        let (State::Reasoning { .. }, Some(channels)) = (&self.state, &self.table.channels) else { return };
        if channels.ends.iter().any(|&mark| self.cutter.ends_within(self.table.marks.text(mark))) {
            self.cutter = Cutter::default();
        }
    }

    fn step(&mut self, unit: Unit, table: &Table) {
        let Some(channels) = &table.channels else { return };
        match unit {
            Unit::Mark(mark) if self.is_in_drawn_text() => table.marks.text(mark).chars().for_each(|c| self.char(c)),
            Unit::Mark(mark) => self.mark(mark, channels, table),
            Unit::Char(c) => self.char(c),
        }
        let length = match unit {
            Unit::Mark(mark) => table.marks.text(mark).chars().count(),
            Unit::Char(_) => 1,
        };
        self.header = if matches!(self.state, State::Header(_)) { self.header + length } else { 0 };
    }

    /// Whether what comes is within a text that a grammar draws: marks there mean nothing.
    fn is_in_drawn_text(&self) -> bool {
        match &self.state {
            State::Content { is_empty } => self.reading.has_form && !is_empty,
            State::Arguments { scanner, .. } => self.reading.draws_arguments() && scanner.is_in_text(),
            State::Outside | State::Header(_) | State::Reasoning { .. } | State::Call { .. } | State::Called => false,
        }
    }

    fn mark(&mut self, mark: Mark, channels: &Channels, table: &Table) {
        if mark == channels.start {
            self.end();
            self.state = State::Header(Header::default());
        } else if mark == channels.channel {
            if !matches!(self.state, State::Header(_)) {
                self.end();
                self.state = State::Header(Header::default());
            }
            if let State::Header(header) = &mut self.state {
                header.push(' ');
                header.channel = Some(header.text.len());
            }
        } else if mark == channels.message {
            if let State::Header(header) = &self.state {
                self.state = self.body(&header.clone());
            }
        } else if mark == channels.constrain && matches!(self.state, State::Header(_)) {
            self.char(' ');
        } else if channels.ends.contains(&mark) {
            self.end();
            self.state = State::Outside;
        } else {
            let text = if self.reading.shows_special { table.marks.text(mark) } else { table.marks.plain(mark) };
            text.chars().for_each(|c| self.char(c));
        }
    }

    /// What a message is, by its header.
    fn body(&self, header: &Header) -> State {
        let is_offered = |name: &&str| self.reading.tools.as_ref().is_some_and(|tools| tools.has(name));
        match header.recipient().filter(is_offered) {
            Some(name) => State::Call { name: name.to_owned(), gap: String::new() },
            None if header.channel() == "analysis" => State::Reasoning { is_empty: true },
            None => State::Content { is_empty: true },
        }
    }

    fn char(&mut self, c: char) {
        let mut buffer = [0; 4];
        let text = &*c.encode_utf8(&mut buffer);
        match &mut self.state {
            State::Header(header) => header.push(c),
            State::Reasoning { is_empty } => {
                if std::mem::take(is_empty) {
                    self.thoughts += 1;
                    self.sink.reasoning(if self.thoughts > 1 { "\n" } else { "" });
                }
                self.sink.reasoning(text);
            }
            State::Content { is_empty } => {
                if std::mem::take(is_empty) {
                    self.contents += 1;
                    self.sink.content(if self.contents > 1 { "\n" } else { "" });
                }
                self.sink.content(text);
            }
            // White space between messages belongs to neither.
            State::Outside | State::Called if c.is_whitespace() => {}
            State::Outside | State::Called => self.content(text),
            State::Call { gap, .. } if c.is_whitespace() => gap.push(c),
            State::Call { name, .. } if c == '{' => {
                let mut scanner = Scanner::default();
                scanner.step(c);
                self.sink.start(name, None);
                self.sink.arguments(text);
                self.state = State::Arguments { scanner, said: text.to_owned() };
            }
            State::Call { gap, .. } => {
                let gap = std::mem::take(gap);
                self.content(&(gap + text));
            }
            State::Arguments { scanner, said } => match scanner.step(c) {
                Scanned::Inside => {
                    self.sink.arguments(text);
                    said.push(c);
                }
                Scanned::Complete => {
                    self.sink.arguments(text);
                    self.sink.end();
                    self.state = State::Called;
                }
                Scanned::Before | Scanned::Bad => {
                    let said = std::mem::take(said);
                    self.content(&(said + text));
                }
            },
        }
    }

    /// A text that begins content.
    fn content(&mut self, text: &str) {
        self.state = State::Content { is_empty: true };
        text.chars().for_each(|c| self.char(c));
    }

    /// The message has ended, or the answer. A call without any arguments is one of a function that takes none, and arguments that
    /// are not complete are content; a header without a message says nothing.
    fn end(&mut self) {
        match std::mem::replace(&mut self.state, State::Outside) {
            State::Call { name, .. } => {
                self.sink.start(&name, None);
                self.sink.arguments("{}");
                self.sink.end();
            }
            State::Arguments { said, .. } => {
                self.content(&said);
                self.state = State::Outside;
            }
            State::Outside | State::Header(_) | State::Reasoning { .. } | State::Content { .. } | State::Called => {}
        }
    }
}
