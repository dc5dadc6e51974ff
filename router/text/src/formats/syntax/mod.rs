//! How one call, or a list of calls, is read: a reader for each syntax, fed unit by unit.
//!
//! A reader puts a call into the sink as soon as it knows its name and that it has arguments, and shows what is certain of these.
//! What it has taken of a call that is not complete is kept by its caller: if the reader gives up, that comes back as content, whole.

mod json;
mod literal;
mod named;
mod object;
mod parameters;
mod pythonic;
mod quoted;
mod unescape;

use super::declaration::Object;
use super::marks::{Mark, Marks, Unit};
use super::sink::Sink;
use super::tools::Tools;
pub(super) use json::{Scanned, Scanner};
pub(super) use named::Named;
pub(super) use parameters::Parameters;
pub(super) use quoted::Quoted;

/// A declared syntax, its marks found.
#[derive(Debug, Clone)]
pub(super) enum Form {
    Object(Object),
    Named(Named),
    Parameters(Parameters),
    Pythonic,
    Quoted(Quoted),
}

/// What surrounds a reader.
pub(super) struct Context<'a> {
    pub(super) marks: &'a Marks,
    pub(super) tools: &'a Tools,
    /// A grammar draws the arguments.
    pub(super) is_drawn: bool,
    pub(super) sink: &'a mut Sink,
}

impl Context<'_> {
    /// Whether somebody offers it: what nobody can answer is no call.
    fn is_callable(&self, name: &str) -> bool {
        self.tools.has(name)
    }
}

/// What a unit meant to a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Going,
    /// It was the last one.
    Done,
    /// What came before it was complete, and it belongs to what follows.
    DoneBefore,
    /// It does not belong here.
    Malformed,
}

/// The state of a reader.
#[derive(Debug, Clone)]
pub(super) enum Reader {
    Object(object::Reader),
    Named(named::Reader),
    Parameters(parameters::Reader),
    Pythonic(pythonic::Reader),
    Quoted(quoted::Reader),
}

impl Form {
    pub(super) fn reader(&self) -> Reader {
        match self {
            Self::Object(_) => Reader::Object(object::Reader::default()),
            Self::Named(_) => Reader::Named(named::Reader::default()),
            Self::Parameters(_) => Reader::Parameters(parameters::Reader::default()),
            Self::Pythonic => Reader::Pythonic(pythonic::Reader::default()),
            Self::Quoted(_) => Reader::Quoted(quoted::Reader::default()),
        }
    }

    /// What a call without any mark can begin with.
    pub(super) fn beginnings(&self) -> &'static [&'static str] {
        match self {
            Self::Object(_) => &["{", "["],
            Self::Pythonic => &["["],
            Self::Named(_) | Self::Parameters(_) | Self::Quoted(_) => &[],
        }
    }

    /// Whether a call without any mark can begin so.
    pub(super) fn may_begin(&self, c: char) -> bool {
        self.beginnings().iter().any(|text| text.starts_with(c))
    }

    /// Marks that may stand after a call, as its own end mark may.
    pub(super) fn tail(&self) -> &[Mark] {
        match self {
            Self::Named(named) => &named.tail,
            _ => &[],
        }
    }
}

impl Reader {
    /// Whether a mark means something here; if not, it is a text like any other.
    pub(super) fn wants(&self, mark: Mark, form: &Form) -> bool {
        match (self, form) {
            (Self::Named(reader), Form::Named(form)) => reader.wants(mark, form),
            (Self::Parameters(reader), Form::Parameters(form)) => reader.wants(mark, form),
            (Self::Quoted(reader), Form::Quoted(form)) => reader.wants(mark, form),
            _ => false,
        }
    }

    /// Whether it keeps some of a call that has been told.
    pub(super) fn is_holding(&self) -> bool {
        match self {
            Self::Object(reader) => reader.is_holding(),
            Self::Parameters(reader) => reader.is_holding(),
            Self::Named(_) | Self::Pythonic(_) | Self::Quoted(_) => false,
        }
    }

    /// Whether it passes over what an object has behind the arguments of its call.
    pub(super) fn is_behind_arguments(&self) -> bool {
        matches!(self, Self::Object(reader) if reader.is_behind_arguments())
    }

    /// Whether it is right behind an object of a list.
    pub(super) fn is_behind_call(&self) -> bool {
        matches!(self, Self::Object(reader) if reader.is_behind_call())
    }

    /// Takes a character, or a mark that it wants.
    pub(super) fn step(&mut self, unit: Unit, form: &Form, context: &mut Context<'_>) -> Step {
        match (self, form, unit) {
            (Self::Object(reader), Form::Object(form), Unit::Char(c)) => reader.step(c, form, context),
            (Self::Named(reader), Form::Named(form), _) => reader.step(unit, form, context),
            (Self::Parameters(reader), Form::Parameters(form), _) => reader.step(unit, form, context),
            (Self::Pythonic(reader), Form::Pythonic, Unit::Char(c)) => reader.step(c, context),
            (Self::Quoted(reader), Form::Quoted(form), _) => reader.step(unit, form, context),
            _ => Step::Malformed,
        }
    }
}

/// What names are made of; anything else is no call.
fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/')
}
