//! Splits an answer by the table of its format. One state machine over characters and marks:
//!
//! 1. *Text*: content. White space is held back, since it is dropped if a call or the end of a wrapper follows.
//! 2. *Reasoning*, from one of its marks to another, or from the beginning if the prompt ends within it.
//! 3. *Between* calls: after the section's mark or a call's end. White space and separators are held back; white space right behind a
//!    call is dropped.
//! 4. *Call*: a reader (`syntax`) takes what comes. All of a call, from its mark on, is kept until it is complete, and is content if
//!    the reader gives up.
//!
//! White space next to a mark is the format's, not the answer's. Everything else that comes goes into exactly one piece.

use std::sync::Arc;

use super::marks::{Cutter, Mark, Marks, Unit};
use super::sink::Sink;
use super::syntax::{Context, Reader, Step};
use super::table::{Calls, Table};
use super::{Certain, Piece, Reading};

#[derive(Debug, Clone)]
pub(super) struct Parser {
    table: Arc<Table>,
    reading: Reading,
    cutter: Cutter,
    sink: Sink,
    state: State,
    /// What has been taken of a call that is not complete, from its mark or the gap before it on.
    raw: String,
    /// Nothing but white space has been shown as content.
    is_fresh: bool,
    /// White space that comes now is dropped: it follows a mark.
    trims: bool,
    has_reasoned: bool,
    /// The reader has just refused a unit.
    is_refused: bool,
}

#[derive(Debug, Clone)]
enum State {
    Text { gap: String },
    Reasoning { gap: String, is_empty: bool },
    Between(Between),
    Call { reader: Reader, is_told: bool },
}

/// Between calls.
#[derive(Debug, Clone, Default)]
struct Between {
    gap: String,
    /// Whether a call has come since the section began.
    has_called: bool,
    /// End marks that have come since the last call.
    ends: Vec<Mark>,
}

impl State {
    const TEXT: Self = Self::Text { gap: String::new() };
}

impl Parser {
    pub(super) fn new(table: Arc<Table>, reading: Reading) -> Self {
        let has_reasoned = reading.starts_in_reasoning && table.reasoning.is_some();
        let state = match has_reasoned {
            true => State::Reasoning { gap: String::new(), is_empty: true },
            false => State::TEXT,
        };
        Self {
            table,
            reading,
            cutter: Cutter::default(),
            sink: Sink::default(),
            state,
            raw: String::new(),
            is_fresh: true,
            trims: false,
            has_reasoned,
            is_refused: false,
        }
    }

    pub(super) fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning { .. })
    }

    /// See [`super::AnswerParser::undecided`].
    pub(super) fn undecided(&self) -> Option<usize> {
        let reasoning = self.table.reasoning.as_ref()?;
        let may_open = reasoning.anywhere || (self.is_fresh && !self.has_reasoned);
        if !may_open || !matches!(self.state, State::Text { .. }) {
            return None;
        }
        let held = self.cutter.held();
        let is_mark = reasoning.open.iter().any(|mark| self.table.marks.text(*mark).starts_with(held));
        Some(if is_mark { held.chars().count() } else { 0 })
    }

    /// See [`super::AnswerParser::is_holding`].
    pub(super) fn is_holding(&self) -> bool {
        self.cutter.is_holding()
            || match &self.state {
                State::Text { gap } => !gap.is_empty(),
                State::Reasoning { gap, is_empty } => !is_empty && !gap.is_empty(),
                State::Between(between) => !(self.raw.is_empty() && between.gap.is_empty()),
                State::Call { reader, is_told: true } if self.sink.is_within_call() => reader.is_holding(),
                State::Call { .. } => !self.raw.is_empty(),
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
        self.settle()
    }

    pub(super) fn cut(&mut self) -> Vec<Piece> {
        let is_of_a_call = self.is_of_a_call();
        self.flush();
        // What comes behind its name was cut with the answer, and is no text.
        if let State::Call { is_told: true, .. } = self.state {
            (self.state, self.raw) = (State::TEXT, String::new());
        }
        let mut pieces = self.settle();
        pieces.retain(|piece| !(is_of_a_call && matches!(piece, Piece::Content(_))));
        pieces
    }

    /// Nothing more comes that could make a mark of what is held back.
    fn flush(&mut self) {
        let table = Arc::clone(&self.table);
        if self.is_cut_behind_a_call(&table) {
            self.cutter = Cutter::default();
        }
        let units = self.cutter.finish(&table.marks);
        units.into_iter().for_each(|unit| self.step(unit, &table));
    }

    /// Gives away what is kept: nothing comes that could make a call of it.
    fn settle(&mut self) -> Vec<Piece> {
        match std::mem::replace(&mut self.state, State::TEXT) {
            State::Text { gap } => self.sink.content(&gap),
            State::Reasoning { is_empty: true, .. } => {}
            State::Reasoning { gap, .. } => self.sink.reasoning(&gap),
            State::Between(Between { gap, .. }) => self.give_back(&gap),
            // The last call is complete, and what may come behind it says nothing.
            State::Call { reader, is_told: true } if !self.sink.is_within_call() && reader.is_behind_arguments() => {}
            State::Call { .. } => self.give_back(""),
        }
        self.raw.clear();
        self.sink.take()
    }

    /// See [`super::AnswerParser::drop_close`].
    pub(super) fn drop_close(&mut self) {
        let (State::Reasoning { gap, .. }, Some(reasoning)) = (&mut self.state, &self.table.reasoning) else { return };
        if reasoning.close.iter().any(|&mark| self.cutter.ends_within(self.table.marks.text(mark))) {
            self.cutter = Cutter::default();
            gap.clear();
        }
    }

    /// Whether what is kept can belong to a call alone.
    fn is_of_a_call(&self) -> bool {
        let all_is = match self.reading.certain {
            Certain::All => true,
            // What begins with a call is calls.
            Certain::First => self.sink.has_called(),
            Certain::Marked | Certain::Nothing => false,
        };
        match (&self.state, self.reading.certain) {
            (State::Reasoning { .. }, _) => false,
            // Its name and arguments have been told. What does not belong to these begins a mark.
            (State::Call { is_told: true, .. }, _) => true,
            _ if all_is => true,
            (State::Text { .. } | State::Between(Between { has_called: true, .. }), _) => false,
            (State::Call { .. } | State::Between(_), Certain::First) => self.is_fresh,
            (State::Call { .. } | State::Between(_), certain) => certain == Certain::Marked,
        }
    }

    /// Whether the answer ends within a mark that may follow a call: as when `max_tokens` cuts it. Nobody wants to see that.
    fn is_cut_behind_a_call(&self, table: &Table) -> bool {
        let (State::Between(Between { gap, has_called: true, .. }), Some(calls)) = (&self.state, &table.calls) else {
            return false;
        };
        let begins = |mark: &Mark| self.cutter.ends_within(table.marks.text(*mark));
        let follows = |mark: &Mark| calls.ends(*mark) || calls.opens(*mark);
        let marks = table.marks.all();
        gap.is_empty() && (calls.close.iter().any(begins) || marks.filter(follows).any(|mark| begins(&mark)))
    }

    fn step(&mut self, unit: Unit, table: &Table) {
        match &self.state {
            State::Text { .. } => self.in_text(unit, table),
            State::Reasoning { .. } => self.in_reasoning(unit, table),
            State::Between(_) => self.between(unit, table),
            State::Call { .. } => self.in_call(unit, table),
        }
    }

    /// The calls, if they are read.
    fn calls<'a>(&self, table: &'a Table) -> Option<&'a Calls> {
        table.calls.as_ref().filter(|_| self.reading.tools.is_some())
    }

    fn in_text(&mut self, unit: Unit, table: &Table) {
        let calls = self.calls(table);
        let is_of_form = self.is_of_form();
        let State::Text { gap } = &mut self.state else { return };
        match unit {
            Unit::Char(c) if c.is_whitespace() => {
                if !self.trims {
                    gap.push(c);
                }
            }
            Unit::Mark(_) if is_of_form => self.literal(unit, table),
            Unit::Mark(mark) => {
                if !self.mark_in_text(mark, table) {
                    self.literal(unit, table);
                }
            }
            Unit::Char(c) => match calls.filter(|calls| calls.bare && calls.form.may_begin(c)) {
                Some(calls) if self.is_fresh => {
                    self.raw = std::mem::take(gap);
                    self.state = State::Call { reader: calls.form.reader(), is_told: false };
                    self.in_call(unit, table);
                }
                _ => self.literal(unit, table),
            },
        }
    }

    /// Whether what comes belongs to a text that a grammar draws, and that has begun.
    fn is_of_form(&self) -> bool {
        self.reading.has_form && !self.is_fresh && !self.sink.has_called()
    }

    /// A unit that means itself.
    fn literal(&mut self, unit: Unit, table: &Table) {
        let mut buffer = [0; 4];
        // What looks like a special token in a text that is drawn was spelled.
        let shows_special = self.reading.shows_special || self.reading.has_form;
        let shown = shown(unit, shows_special, &table.marks, &mut buffer);
        if shown.is_empty() {
            return; // a special token that means nothing here
        }
        if let State::Text { gap } = &mut self.state {
            self.sink.content(gap);
            gap.clear();
        }
        self.sink.content(shown);
        (self.is_fresh, self.trims) = (false, false);
    }

    /// Returns whether the mark means something.
    fn mark_in_text(&mut self, mark: Mark, table: &Table) -> bool {
        let calls = self.calls(table).filter(|calls| calls.opens(mark));
        let State::Text { gap } = &mut self.state else { return false };
        if let Some(reasoning) = &table.reasoning {
            let may_open = reasoning.anywhere || (self.is_fresh && !self.has_reasoned);
            if may_open && reasoning.open.contains(&mark) {
                if !self.is_fresh {
                    self.sink.content(gap);
                }
                self.reason();
                return true;
            }
            // Thoughts that were none: the prompt has opened them without a trace, or the model knows no better.
            if self.is_fresh && !self.has_reasoned && !self.reading.has_form && reasoning.close.contains(&mark) {
                gap.clear();
                (self.has_reasoned, self.trims) = (true, true);
                return true;
            }
        }
        if let Some(calls) = calls {
            self.raw = std::mem::take(gap);
            self.open_call(mark, calls, table);
            return true;
        }
        let wraps = (self.is_fresh && table.answer_open.contains(&mark)) || table.answer_close.contains(&mark);
        let wraps = wraps && !self.reading.has_form;
        if wraps {
            gap.clear();
            self.trims = true;
        }
        wraps
    }

    fn reason(&mut self) {
        let gap = if self.has_reasoned { "\n" } else { "" };
        self.state = State::Reasoning { gap: gap.to_owned(), is_empty: true };
        self.has_reasoned = true;
    }

    /// A mark with which calls begin, in content or between calls.
    fn open_call(&mut self, mark: Mark, calls: &Calls, table: &Table) {
        self.raw.push_str(shown(Unit::Mark(mark), self.reading.shows_special, &table.marks, &mut [0; 4]));
        self.state = match calls.each_open.contains(&mark) {
            true => State::Call { reader: calls.form.reader(), is_told: false },
            false => State::Between(Between::default()),
        };
    }

    fn in_reasoning(&mut self, unit: Unit, table: &Table) {
        let calls = self.calls(table);
        let (State::Reasoning { gap, is_empty }, Some(reasoning)) = (&mut self.state, &table.reasoning) else { return };
        match unit {
            Unit::Char(c) if c.is_whitespace() => {
                if !*is_empty {
                    gap.push(c);
                }
            }
            Unit::Mark(mark) if reasoning.close.contains(&mark) => {
                self.state = State::TEXT;
                self.trims = true;
            }
            // The prompt has opened it, and the model does so again.
            Unit::Mark(mark) if *is_empty && reasoning.open.contains(&mark) => {}
            Unit::Mark(mark) if reasoning.hidden.contains(&mark) => {}
            Unit::Mark(mark) if reasoning.ended_by_calls && calls.is_some_and(|calls| calls.opens(mark)) => {
                self.state = State::TEXT;
                self.trims = true;
                self.in_text(unit, table);
            }
            Unit::Char(_) | Unit::Mark(_) => {
                let mut buffer = [0; 4];
                let shown = shown(unit, self.reading.shows_special, &table.marks, &mut buffer);
                if !shown.is_empty() {
                    *is_empty = false;
                    self.sink.reasoning(gap);
                    gap.clear();
                    self.sink.reasoning(shown);
                }
            }
        }
    }

    fn between(&mut self, unit: Unit, table: &Table) {
        let (Some(calls), State::Between(between)) = (&table.calls, &mut self.state) else { return };
        let has_called = between.has_called;
        match unit {
            // White space behind a call belongs to it.
            Unit::Char(c) if c.is_whitespace() && has_called && between.gap.is_empty() => return,
            Unit::Char(c) if c.is_whitespace() || (has_called && calls.separators.contains(c)) => {
                return between.gap.push(c);
            }
            Unit::Mark(mark) if has_called && calls.close.contains(&mark) => {
                self.state = State::TEXT;
                self.trims = true;
                return;
            }
            // Once each: a second one is no part of this call.
            Unit::Mark(mark) if has_called && calls.ends(mark) && !between.ends.contains(&mark) => {
                between.gap.clear();
                return between.ends.push(mark);
            }
            Unit::Mark(mark) if calls.each_open.contains(&mark) || (has_called && calls.open.contains(&mark)) => {
                self.raw.push_str(&between.gap);
                return self.open_call(mark, calls, table);
            }
            Unit::Char(_) | Unit::Mark(_) => {}
        }
        // A call without a mark of its own begins with what it is made of.
        let may_begin = match unit {
            Unit::Char(c) => !has_called || !calls.close.is_empty() || calls.form.may_begin(c),
            Unit::Mark(mark) => calls.form.reader().wants(mark, &calls.form),
        };
        let gap = std::mem::take(&mut between.gap);
        if calls.each_open.is_empty() && may_begin {
            self.raw.push_str(&gap);
            self.state = State::Call { reader: calls.form.reader(), is_told: false };
            return self.in_call(unit, table);
        }
        self.trims |= has_called;
        self.give_back(&gap);
        self.step(unit, table);
    }

    fn in_call(&mut self, unit: Unit, table: &Table) {
        let (Some(calls), State::Call { reader, .. }) = (&table.calls, &self.state) else { return };
        let text = match unit {
            Unit::Mark(mark) if !reader.wants(mark, &calls.form) => table.marks.text(mark),
            _ => return self.read(unit, unit, table),
        };
        // A mark that means nothing to the reader is a text like any other; if it does not even begin as one, it may mean
        // something to whoever comes next.
        let mut chars = text.chars().map(Unit::Char);
        let Some(first) = chars.next() else { return };
        self.read(first, unit, table);
        if self.is_refused {
            return;
        }
        chars.for_each(|unit| match self.state {
            State::Call { .. } => self.read(unit, unit, table),
            _ => self.step(unit, table),
        });
    }

    /// Gives the reader a unit. If it refuses it, `other` is what comes next in its place.
    fn read(&mut self, unit: Unit, other: Unit, table: &Table) {
        let (State::Call { reader, .. }, Some(calls)) = (&mut self.state, &table.calls) else { return };
        let Some(tools) = &self.reading.tools else { return };
        let before = self.sink.events();
        let is_drawn = self.reading.draws_arguments();
        let mut context = Context { marks: &table.marks, tools, is_drawn, sink: &mut self.sink };
        let step = reader.step(unit, &calls.form, &mut context);
        self.is_refused = step == Step::Malformed;
        let has_told = self.sink.events() > before;
        if has_told {
            (self.is_fresh, self.trims) = (false, false);
            if let State::Call { is_told, .. } = &mut self.state {
                *is_told = true;
            }
        }
        let is_complete = has_told || matches!(&self.state, State::Call { reader, .. } if reader.is_behind_call());
        if is_complete && !self.sink.is_within_call() {
            self.raw.clear();
        } else if step == Step::Going && !(self.is_right_behind_call() && is_space(unit)) {
            // Within a call a special token is a text like any other.
            match unit {
                Unit::Char(c) => self.raw.push(c),
                Unit::Mark(_) => self.raw.push_str(shown(unit, self.reading.shows_special, &table.marks, &mut [0; 4])),
            }
        }
        match step {
            Step::Going => {}
            Step::Malformed => {
                if self.is_right_behind_call() {
                    // It is complete, whatever should have come behind it.
                    self.state = State::Between(Between { has_called: true, ..Between::default() });
                } else {
                    self.give_back("");
                }
                self.step(other, table);
                self.is_refused = true;
            }
            Step::Done | Step::DoneBefore => {
                self.raw.clear();
                self.state = State::Between(Between { has_called: true, ..Between::default() });
                if step == Step::DoneBefore {
                    self.step(other, table);
                }
            }
        }
    }

    /// Whether a call is complete, in a list say, and nothing but white space has come behind it.
    fn is_right_behind_call(&self) -> bool {
        matches!(self.state, State::Call { is_told: true, .. }) && !self.sink.is_within_call() && self.raw.is_empty()
    }

    /// What was kept for a call is content, and so is `gap`.
    fn give_back(&mut self, gap: &str) {
        self.state = State::TEXT;
        let raw = std::mem::take(&mut self.raw) + gap;
        if !raw.is_empty() {
            self.sink.content(&raw);
            (self.is_fresh, self.trims) = (false, false);
        }
    }
}

fn is_space(unit: Unit) -> bool {
    matches!(unit, Unit::Char(c) if c.is_whitespace())
}

/// What is shown of a unit that means nothing.
fn shown<'a>(unit: Unit, shows_special: bool, marks: &'a Marks, buffer: &'a mut [u8; 4]) -> &'a str {
    match unit {
        Unit::Char(c) => c.encode_utf8(buffer),
        Unit::Mark(mark) if shows_special => marks.text(mark),
        Unit::Mark(mark) => marks.plain(mark),
    }
}
