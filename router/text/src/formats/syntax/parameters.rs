//! Reads calls whose parameters stand between marks, as in XML: `<function=NAME><parameter=KEY>VALUE</parameter></function>`.
//!
//! A value is plain text, and what it means is for the tool's schema to say. Where that says "a text", the value streams; else it
//! is kept until it is complete, and is JSON if it can be.

use super::{Context, Scanned, Scanner, Step, is_of_name};
use crate::formats::marks::{Mark, Unit};
use crate::formats::tools::Kinds;

/// The declared marks.
#[derive(Debug, Clone)]
pub(in crate::formats) struct Parameters {
    pub(in crate::formats) name_open: Option<Mark>,
    pub(in crate::formats) name_end: Option<Mark>,
    pub(in crate::formats) key_open: Mark,
    pub(in crate::formats) key_end: Mark,
    pub(in crate::formats) key_end_text: Option<Mark>,
    pub(in crate::formats) key_end_json: Option<Mark>,
    pub(in crate::formats) value_open: Option<Mark>,
    pub(in crate::formats) value_end: Mark,
    pub(in crate::formats) end: Option<Mark>,
    /// End marks of calls and of the section: they end a call that has none of its own.
    pub(in crate::formats) outer: Vec<Mark>,
    pub(in crate::formats) lines: bool,
}

#[derive(Debug, Clone, Default)]
pub(in crate::formats) struct Reader {
    name: String,
    has_parameters: bool,
    place: Place,
}

#[derive(Debug, Clone, Default)]
enum Place {
    #[default]
    Open,
    Name(String),
    /// Between parameters.
    Between,
    Key(String),
    BeforeValue {
        key: String,
        kinds: Kinds,
    },
    /// A text, shown as it comes; `newline`: one that may be the last.
    Text {
        is_first: bool,
        newline: bool,
    },
    /// Kept until it is complete.
    Kept {
        key: String,
        kinds: Kinds,
        text: String,
        /// Of a value that a grammar draws as JSON, as long as it is: marks in its texts are none.
        scanner: Option<Scanner>,
    },
}

impl Reader {
    pub(super) fn wants(&self, mark: Mark, form: &Parameters) -> bool {
        match self.place {
            Place::Open => form.name_open == Some(mark),
            Place::Name(_) => form.name_end == Some(mark) || (form.name_end.is_none() && is_next(mark, form)),
            Place::Between => is_next(mark, form),
            Place::Key(_) => [Some(form.key_end), form.key_end_text, form.key_end_json].contains(&Some(mark)),
            Place::BeforeValue { .. } => form.value_open == Some(mark),
            Place::Kept { scanner: Some(ref scanner), .. } if scanner.is_in_text() => false,
            Place::Text { .. } | Place::Kept { .. } => form.value_end == mark,
        }
    }

    pub(super) fn is_holding(&self) -> bool {
        match self.place {
            Place::Open | Place::Name(_) | Place::Between => false,
            Place::Key(_) | Place::BeforeValue { .. } | Place::Kept { .. } => true,
            Place::Text { newline, .. } => newline,
        }
    }

    pub(super) fn step(&mut self, unit: Unit, form: &Parameters, context: &mut Context<'_>) -> Step {
        match (&mut self.place, unit) {
            (Place::Open, Unit::Mark(_)) => self.at(Place::Name(String::new())),
            (Place::Open, Unit::Char(c)) if c.is_whitespace() => Step::Going,
            (Place::Open, Unit::Char(_)) if form.name_open.is_none() => {
                self.place = Place::Name(String::new());
                self.step(unit, form, context)
            }
            (Place::Name(name), Unit::Mark(mark)) => {
                let name = std::mem::take(name);
                match self.begin(&name, context) {
                    Step::Going if form.name_end.is_none() => self.next(mark, form, context),
                    other => other,
                }
            }
            (Place::Name(name), Unit::Char(c)) if c.is_whitespace() => {
                let name = std::mem::take(name);
                if form.name_end.is_some() { Step::Malformed } else { self.begin(&name, context) }
            }
            (Place::Name(name), Unit::Char(c)) if is_of_name(c) => {
                name.push(c);
                Step::Going
            }
            (Place::Between, Unit::Mark(mark)) => self.next(mark, form, context),
            (Place::Between | Place::BeforeValue { .. }, Unit::Char(c)) if c.is_whitespace() => Step::Going,
            (Place::Key(key), Unit::Mark(mark)) => {
                let key = key.trim().to_owned();
                self.key(key, mark, form, context)
            }
            (Place::Key(key), Unit::Char(c)) if !c.is_control() => {
                key.push(c);
                Step::Going
            }
            (Place::BeforeValue { key, kinds }, Unit::Mark(_)) => {
                let (key, kinds) = (std::mem::take(key), *kinds);
                self.value(key, kinds, context)
            }
            (Place::Text { .. }, Unit::Mark(_)) => {
                if let Place::Text { newline: true, .. } = self.place
                    && !form.lines
                {
                    context.sink.arguments("\\n");
                }
                context.sink.arguments("\"");
                self.at(Place::Between)
            }
            (Place::Text { is_first, newline }, Unit::Char(c)) => {
                let (was_first, had_newline) = (std::mem::take(is_first), std::mem::take(newline));
                if had_newline {
                    context.sink.arguments("\\n");
                }
                match c {
                    '\n' if was_first && form.lines => {}
                    '\n' => self.place = Place::Text { is_first: false, newline: true },
                    c => context.sink.arguments(&inside_quotes(c.encode_utf8(&mut [0; 4]))),
                }
                Step::Going
            }
            (Place::Kept { key, kinds, text, .. }, Unit::Mark(_)) => {
                let text = if form.lines { without_lines(text) } else { text };
                let shown = format!("{}{}", said_key(key, self.has_parameters), kinds.read(text));
                context.sink.arguments(&shown);
                self.has_parameters = true;
                self.at(Place::Between)
            }
            (Place::Kept { text, scanner, .. }, Unit::Char(c)) => {
                text.push(c);
                if scanner.as_mut().is_some_and(|scanner| scanner.step(c) != Scanned::Inside) {
                    *scanner = None; // it is complete, or no JSON
                }
                Step::Going
            }
            _ => Step::Malformed,
        }
    }

    fn at(&mut self, place: Place) -> Step {
        self.place = place;
        Step::Going
    }

    fn begin(&mut self, name: &str, context: &mut Context<'_>) -> Step {
        if name.is_empty() || !context.is_callable(name) {
            return Step::Malformed;
        }
        name.clone_into(&mut self.name);
        context.sink.start(name, None);
        context.sink.arguments("{");
        self.at(Place::Between)
    }

    /// A parameter, or the end.
    fn next(&mut self, mark: Mark, form: &Parameters, context: &mut Context<'_>) -> Step {
        if mark == form.key_open {
            return self.at(Place::Key(String::new()));
        }
        context.sink.arguments("}");
        context.sink.end();
        if form.end == Some(mark) { Step::Done } else { Step::DoneBefore }
    }

    fn key(&mut self, key: String, mark: Mark, form: &Parameters, context: &mut Context<'_>) -> Step {
        let kinds = match Some(mark) {
            said if said == form.key_end_text => Kinds::TEXT,
            said if said == form.key_end_json => Kinds::ANY,
            _ => context.tools.kinds(&self.name, &key),
        };
        match form.value_open {
            Some(_) => self.at(Place::BeforeValue { key, kinds }),
            None => self.value(key, kinds, context),
        }
    }

    fn value(&mut self, key: String, kinds: Kinds, context: &mut Context<'_>) -> Step {
        if kinds != Kinds::TEXT {
            let scanner = context.is_drawn.then(Scanner::default);
            return self.at(Place::Kept { key, kinds, text: String::new(), scanner });
        }
        let shown = format!("{}\"", said_key(&key, self.has_parameters));
        context.sink.arguments(&shown);
        self.has_parameters = true;
        self.at(Place::Text { is_first: true, newline: false })
    }
}

/// Whether a mark may come between parameters.
fn is_next(mark: Mark, form: &Parameters) -> bool {
    mark == form.key_open || form.end == Some(mark) || form.outer.contains(&mark)
}

fn said_key(key: &str, has_parameters: bool) -> String {
    format!("{}\"{}\": ", if has_parameters { ", " } else { "" }, inside_quotes(key))
}

/// A text as it stands between the quotes of JSON.
fn inside_quotes(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Without the line ends that set a value apart.
fn without_lines(text: &str) -> &str {
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}
