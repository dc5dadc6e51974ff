//! Reads calls whose name stands before their arguments: `NAME {...}`, with marks between.

use super::json::{Scanned, Scanner};
use super::{Context, Step, is_of_name};
use crate::formats::marks::{Mark, Unit};

/// The declared marks.
#[derive(Debug, Clone)]
pub(in crate::formats) struct Named {
    pub(in crate::formats) name_end: Vec<Mark>,
    pub(in crate::formats) id_open: Vec<Mark>,
    pub(in crate::formats) tail: Vec<Mark>,
    pub(in crate::formats) prefix: String,
    pub(in crate::formats) name_is_id: bool,
}

#[derive(Debug, Clone)]
pub(in crate::formats) enum Reader {
    Name(String),
    Id {
        name: String,
        id: String,
    },
    /// Between name and arguments.
    Gap {
        name: String,
        id: Option<String>,
    },
    Arguments(Scanner),
}

/// Bytes of a name, or an id, with the white space behind it: it is looked at for each character that comes.
const NAME_BYTES_MAX: usize = 1024;

impl Default for Reader {
    fn default() -> Self {
        Self::Name(String::new())
    }
}

impl Reader {
    pub(super) fn wants(&self, mark: Mark, form: &Named) -> bool {
        match self {
            Self::Name(_) => form.name_end.contains(&mark) || form.id_open.contains(&mark),
            Self::Id { .. } => form.name_end.contains(&mark),
            Self::Gap { .. } | Self::Arguments(_) => false,
        }
    }

    pub(super) fn step(&mut self, unit: Unit, form: &Named, context: &mut Context<'_>) -> Step {
        match (&mut *self, unit) {
            (Self::Name(name), Unit::Mark(mark)) if !name.trim().is_empty() => {
                let name = name.trim().to_owned();
                *self = match form.id_open.contains(&mark) {
                    true => Self::Id { name, id: String::new() },
                    false => Self::Gap { name, id: None },
                };
                Step::Going
            }
            (Self::Id { name, id }, Unit::Mark(_)) if !id.trim().is_empty() => {
                *self = Self::Gap { name: std::mem::take(name), id: Some(id.trim().to_owned()) };
                Step::Going
            }
            (_, Unit::Mark(_)) => Step::Malformed,
            (Self::Name(name), Unit::Char('{')) if !name.trim().is_empty() => {
                let name = name.trim().to_owned();
                self.begin(&name, None, form, context)
            }
            (Self::Gap { name, id }, Unit::Char('{')) => {
                let (name, id) = (std::mem::take(name), id.take());
                self.begin(&name, id, form, context)
            }
            (Self::Id { name, id }, Unit::Char('{')) if !id.trim().is_empty() => {
                let (name, id) = (std::mem::take(name), id.trim().to_owned());
                self.begin(&name, Some(id), form, context)
            }
            (Self::Name(text) | Self::Id { id: text, .. }, Unit::Char(c)) => {
                // White space may stand around a name, not in it.
                if text.is_empty() && c.is_whitespace() {
                    return Step::Going;
                }
                let is_inside = || is_of_name(c) && !text.contains(char::is_whitespace);
                let fits = text.len() < NAME_BYTES_MAX && (c.is_whitespace() || is_inside());
                text.push(c);
                if fits { Step::Going } else { Step::Malformed }
            }
            (Self::Gap { .. }, Unit::Char(c)) => {
                if c.is_whitespace() {
                    Step::Going
                } else {
                    Step::Malformed
                }
            }
            (Self::Arguments(scanner), Unit::Char(c)) => match scanner.step(c) {
                Scanned::Inside => {
                    context.sink.arguments(c.encode_utf8(&mut [0; 4]));
                    Step::Going
                }
                Scanned::Complete => {
                    context.sink.arguments(c.encode_utf8(&mut [0; 4]));
                    context.sink.end();
                    Step::Done
                }
                Scanned::Before | Scanned::Bad => Step::Malformed,
            },
        }
    }

    fn begin(&mut self, said: &str, id: Option<String>, form: &Named, context: &mut Context<'_>) -> Step {
        let name = said.strip_prefix(form.prefix.as_str()).unwrap_or(said);
        let numbered = name.rsplit_once(':').filter(|(_, number)| number.bytes().all(|byte| byte.is_ascii_digit()));
        let (name, id) = match numbered {
            Some((name, _)) if form.name_is_id => (name, Some(said.to_owned())),
            _ => (name, id),
        };
        if name.is_empty() || !context.is_callable(name) {
            return Step::Malformed;
        }
        let mut scanner = Scanner::default();
        scanner.step('{');
        context.sink.start(name, id);
        context.sink.arguments("{");
        *self = Self::Arguments(scanner);
        Step::Going
    }
}
