//! Reads Gemma's calls: `call:NAME{key:VALUE,...}`, where a text stands between two of a mark.

use super::literal::{Brackets, Dialect, arguments};
use super::{Context, Step, is_of_name};
use crate::formats::marks::{Mark, Unit};

/// The declared marks.
#[derive(Debug, Clone)]
pub(in crate::formats) struct Quoted {
    pub(in crate::formats) prefix: String,
    pub(in crate::formats) quote: Mark,
}

#[derive(Debug, Clone)]
pub(in crate::formats) enum Reader {
    /// Prefix and name.
    Name(String),
    Arguments {
        name: String,
        text: String,
        is_quoted: bool,
        brackets: Brackets,
    },
}

impl Default for Reader {
    fn default() -> Self {
        Self::Name(String::new())
    }
}

impl Reader {
    pub(super) fn wants(&self, mark: Mark, form: &Quoted) -> bool {
        matches!(self, Self::Arguments { .. }) && mark == form.quote
    }

    pub(super) fn step(&mut self, unit: Unit, form: &Quoted, context: &mut Context<'_>) -> Step {
        match (&mut *self, unit) {
            (Self::Name(said), Unit::Char('{')) => {
                let name = said.strip_prefix(form.prefix.as_str());
                let Some(name) = name.filter(|name| !name.is_empty() && context.is_callable(name)) else {
                    return Step::Malformed;
                };
                let (name, text, brackets) = (name.to_owned(), String::new(), Brackets::default());
                *self = Self::Arguments { name, text, is_quoted: false, brackets };
                Step::Going
            }
            (Self::Name(said), Unit::Char(c)) if said.is_empty() && c.is_whitespace() => Step::Going,
            (Self::Name(said), Unit::Char(c)) if is_of_name(c) => {
                said.push(c);
                Step::Going
            }
            (Self::Name(_), _) => Step::Malformed,
            (Self::Arguments { text, is_quoted, .. }, Unit::Mark(mark)) => {
                text.push_str(context.marks.text(mark));
                *is_quoted = !*is_quoted;
                Step::Going
            }
            (Self::Arguments { name, text, is_quoted, brackets }, Unit::Char(c)) => {
                if *is_quoted || !brackets.bracket(c) {
                    text.push(c);
                    return Step::Going;
                }
                let dialect = Dialect::Quoted(context.marks.text(form.quote));
                let Some(arguments) = arguments(text, dialect).filter(|_| c == '}') else {
                    return Step::Malformed;
                };
                context.sink.start(name, None);
                context.sink.arguments(&serde_json::Value::Object(arguments).to_string());
                context.sink.end();
                Step::Done
            }
        }
    }
}
