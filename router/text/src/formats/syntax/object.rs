//! Reads calls that are JSON objects, `{"name": ..., "arguments": {...}}`, alone or in a list, one character at a time.
//!
//! Strict: exactly one name (a string), at most one `arguments` (an object; missing: `{}`), other members are passed
//! over. What it lets through of the arguments is a beginning of valid JSON at every moment.

use super::json::{Scanned, Scanner};
use super::{Context, Step};
use crate::formats::declaration::Object as Keys;

/// An object, or a list of objects.
#[derive(Debug, Clone, Default)]
pub(in crate::formats) struct Reader {
    is_list: bool,
    place: ListPlace,
}

#[derive(Debug, Clone, Default)]
enum ListPlace {
    #[default]
    Start,
    Item,
    InItem(Box<Call>),
    AfterItem,
}

impl Reader {
    pub(super) fn step(&mut self, c: char, keys: &Keys, context: &mut Context<'_>) -> Step {
        let is_space = matches!(c, ' ' | '\n' | '\r' | '\t');
        match (&mut self.place, c) {
            (ListPlace::InItem(call), _) => {
                let progress = call.step(c, keys);
                self.progress(progress, c, context)
            }
            _ if is_space => Step::Going,
            (ListPlace::Start | ListPlace::Item, '{') => {
                let mut call = Box::<Call>::default();
                call.step(c, keys);
                self.place = ListPlace::InItem(call);
                Step::Going
            }
            (ListPlace::Start, '[') => {
                *self = Self { is_list: true, place: ListPlace::Item };
                Step::Going
            }
            (ListPlace::AfterItem, ',') => {
                self.place = ListPlace::Item;
                Step::Going
            }
            (ListPlace::AfterItem, ']') => Step::Done,
            _ => Step::Malformed,
        }
    }

    fn progress(&mut self, progress: Progress, c: char, context: &mut Context<'_>) -> Step {
        match progress {
            Progress::Reading | Progress::Quiet => {}
            Progress::Begun { name, .. } if !context.is_callable(&name) => return Step::Malformed,
            Progress::Begun { name, arguments } => {
                context.sink.start(&name, None);
                context.sink.arguments(&arguments);
            }
            Progress::Arguments => context.sink.arguments(c.encode_utf8(&mut [0; 4])),
            Progress::Done { missing } => {
                context.sink.arguments(missing);
                context.sink.end();
                self.place = ListPlace::AfterItem;
                return if self.is_list { Step::Going } else { Step::Done };
            }
            Progress::Malformed => return Step::Malformed,
        }
        Step::Going
    }
}

/// What a character meant.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    /// The name is not known yet.
    Reading,
    /// The name is known. `arguments`: as much of them as came before it.
    Begun { name: String, arguments: String },
    /// The call has begun and this character belongs to its arguments.
    Arguments,
    /// The call has begun; this character says nothing.
    Quiet,
    /// The object is complete. `missing`: arguments that were not said.
    Done { missing: &'static str },
    /// Not a call, or not any more.
    Malformed,
}

#[derive(Debug, Clone, Default)]
struct Call {
    place: Place,
    name: Option<String>,
    arguments: Arguments,
}

/// The next thing in the object.
#[derive(Debug, Clone, Default)]
enum Place {
    #[default]
    Open,
    /// A key; or the end, if the object is empty so far.
    Key {
        may_end: bool,
    },
    InKey(Scanner, String),
    Colon(Member),
    Value(Member),
    InValue(Member, Scanner, String),
    CommaOrEnd,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Name,
    Arguments,
    Other,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Arguments {
    #[default]
    Unsaid,
    /// Kept until the name is known.
    Kept(String),
    Shown,
}

impl Call {
    /// Whether the name is known.
    fn has_begun(&self) -> bool {
        self.name.is_some()
    }

    fn step(&mut self, c: char, keys: &Keys) -> Progress {
        let is_space = matches!(c, ' ' | '\n' | '\r' | '\t');
        match std::mem::replace(&mut self.place, Place::Ended) {
            Place::InKey(scanner, text) => self.in_key(scanner, text, c, keys),
            Place::InValue(member, scanner, text) => self.in_value(member, scanner, text, c, keys),
            place if is_space => self.at(place),
            Place::Open if c == '{' => self.at(Place::Key { may_end: true }),
            Place::Key { .. } if c == '"' => self.in_key(Scanner::default(), String::new(), c, keys),
            Place::Key { may_end: true } | Place::CommaOrEnd if c == '}' => self.end(),
            Place::CommaOrEnd if c == ',' => self.at(Place::Key { may_end: false }),
            Place::Colon(member) if c == ':' => self.at(Place::Value(member)),
            Place::Value(member) => self.value(member, c, keys),
            _ => Progress::Malformed,
        }
    }

    fn at(&mut self, place: Place) -> Progress {
        self.place = place;
        if self.has_begun() { Progress::Quiet } else { Progress::Reading }
    }

    fn in_key(&mut self, mut scanner: Scanner, mut text: String, c: char, keys: &Keys) -> Progress {
        text.push(c);
        match scanner.step(c) {
            Scanned::Inside => self.at(Place::InKey(scanner, text)),
            Scanned::Complete => {
                let Ok(key) = serde_json::from_str::<String>(&text) else {
                    return Progress::Malformed; // no Unicode
                };
                let (is_name, is_arguments) = (keys.name.contains(&key), keys.arguments.contains(&key));
                if (is_name && self.name.is_some()) || (is_arguments && self.arguments != Arguments::Unsaid) {
                    return Progress::Malformed; // said twice
                }
                let member = match (is_name, is_arguments) {
                    (true, _) => Member::Name,
                    (_, true) => Member::Arguments,
                    _ => Member::Other,
                };
                self.at(Place::Colon(member))
            }
            Scanned::Before | Scanned::Bad => Progress::Malformed,
        }
    }

    fn value(&mut self, member: Member, c: char, keys: &Keys) -> Progress {
        match (member, c) {
            (Member::Name, '"') | (Member::Other, _) => {}
            (Member::Arguments, '{') => {
                self.arguments = if self.has_begun() { Arguments::Shown } else { Arguments::Kept(String::new()) };
            }
            _ => return Progress::Malformed,
        }
        self.in_value(member, Scanner::default(), String::new(), c, keys)
    }

    fn in_value(&mut self, member: Member, mut scanner: Scanner, mut text: String, c: char, keys: &Keys) -> Progress {
        let scanned = scanner.step(c);
        match scanned {
            Scanned::Bad => return Progress::Malformed,
            // A number ends with the character after it.
            Scanned::Before => {
                self.place = Place::CommaOrEnd;
                return self.step(c, keys);
            }
            Scanned::Inside | Scanned::Complete => {}
        }
        if member == Member::Name {
            text.push(c);
        }
        if let (Member::Arguments, Arguments::Kept(kept)) = (member, &mut self.arguments) {
            kept.push(c);
        }
        if scanned == Scanned::Inside {
            self.place = Place::InValue(member, scanner, text);
        } else {
            self.place = Place::CommaOrEnd;
            if member == Member::Name {
                return self.begin(&text);
            }
        }
        match member {
            Member::Arguments if self.has_begun() => Progress::Arguments,
            _ if self.has_begun() => Progress::Quiet,
            _ => Progress::Reading,
        }
    }

    fn begin(&mut self, quoted: &str) -> Progress {
        let Ok(name) = serde_json::from_str::<String>(quoted) else {
            return Progress::Malformed;
        };
        if name.is_empty() {
            return Progress::Malformed;
        }
        self.name = Some(name.clone());
        let arguments = match &mut self.arguments {
            Arguments::Kept(kept) => std::mem::take(kept),
            Arguments::Unsaid | Arguments::Shown => String::new(),
        };
        if !arguments.is_empty() {
            self.arguments = Arguments::Shown;
        }
        Progress::Begun { name, arguments }
    }

    fn end(&mut self) -> Progress {
        match (&self.name, &self.arguments) {
            (None, _) => Progress::Malformed,
            (Some(_), Arguments::Unsaid) => Progress::Done { missing: "{}" },
            (Some(_), _) => Progress::Done { missing: "" },
        }
    }
}
