//! Reads calls that are JSON objects, `{"name": ..., "arguments": {...}}`, alone or in a list, one character at a time.
//!
//! 1. *Before* it is told, anything wrong makes it none: a name twice or of no text, arguments twice or of another kind.
//! 2. *Told* it is with the first brace of its arguments, or with its own last one if it has none. So whoever hears of a call has
//!    arguments of it, and much that a model gets wrong comes while all of it can still be a text.
//! 3. *Complete* it is with its arguments. What its object has behind them is passed over, also a second name or second arguments:
//!    the first ones may be with the client. Its last brace may be missing.
//!
//! Arguments that are missing, `null` or an empty text are `{}`. A text that holds an object is that object, as models write it that
//! have seen OpenAI's messages. What is told of arguments is a beginning of valid JSON at every moment.

use super::json::{Scanned, Scanner};
use super::unescape::Unescape;
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
    pub(super) fn is_holding(&self) -> bool {
        let ListPlace::InItem(call) = &self.place else { return false };
        matches!(&call.place, Place::InValue(_, Value::Text(text)) if text.unescape.is_within())
    }

    pub(super) fn is_behind_arguments(&self) -> bool {
        matches!(&self.place, ListPlace::InItem(call) if matches!(call.arguments, Arguments::Told))
    }

    pub(super) fn is_behind_call(&self) -> bool {
        matches!(self.place, ListPlace::AfterItem)
    }

    pub(super) fn step(&mut self, c: char, keys: &Keys, context: &mut Context<'_>) -> Step {
        match (&mut self.place, c) {
            (ListPlace::InItem(call), _) => match call.step(c, keys, context) {
                Step::Done => {
                    self.place = ListPlace::AfterItem;
                    if self.is_list { Step::Going } else { Step::Done }
                }
                // Its last brace is missing.
                Step::Malformed if self.is_list && c == ']' && call.is_complete(context) => Step::Done,
                other => other,
            },
            _ if is_space(c) => Step::Going,
            (ListPlace::Start | ListPlace::Item, '{') => {
                self.place = ListPlace::InItem(Box::default());
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
}

/// One object, behind its first brace.
#[derive(Debug, Clone, Default)]
struct Call {
    place: Place,
    name: Option<String>,
    arguments: Arguments,
}

/// The next thing in the object.
#[derive(Debug, Clone, Default)]
enum Place {
    /// A key, or the end.
    #[default]
    First,
    Key,
    InKey(Scanner, String),
    Colon(Member),
    Value(Member),
    InValue(Scanner, Value),
    CommaOrEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Name,
    Arguments,
    Other,
}

/// What a value is good for.
#[derive(Debug, Clone)]
enum Value {
    /// The name, as far as it is read: JSON.
    Name(String),
    Object,
    Text(Box<Text>),
    Null,
    Other,
}

/// Arguments within a text.
#[derive(Debug, Clone, Default)]
struct Text {
    unescape: Unescape,
    place: InText,
}

#[derive(Debug, Clone, Default)]
enum InText {
    #[default]
    Before,
    Object(Scanner),
    Behind,
}

#[derive(Debug, Clone, Default)]
enum Arguments {
    #[default]
    Unsaid,
    /// The model says that there are none.
    Nothing,
    /// The name is not known yet.
    Kept(String),
    Told,
}

impl Call {
    fn step(&mut self, c: char, keys: &Keys, context: &mut Context<'_>) -> Step {
        match std::mem::replace(&mut self.place, Place::CommaOrEnd) {
            Place::InKey(scanner, text) => self.in_key(scanner, text, c, keys),
            Place::InValue(scanner, value) => self.in_value(scanner, value, c, keys, context),
            place if is_space(c) => self.at(place),
            Place::First | Place::Key if c == '"' => self.in_key(Scanner::default(), String::new(), c, keys),
            Place::First | Place::CommaOrEnd if c == '}' => self.end(context),
            Place::CommaOrEnd if c == ',' => self.at(Place::Key),
            Place::Colon(member) if c == ':' => self.at(Place::Value(member)),
            Place::Value(member) => self.value(member, c, keys, context),
            _ => Step::Malformed,
        }
    }

    fn is_complete(&self, context: &Context<'_>) -> bool {
        matches!(self.arguments, Arguments::Told) && !context.sink.is_within_call()
    }

    fn at(&mut self, place: Place) -> Step {
        self.place = place;
        Step::Going
    }

    fn in_key(&mut self, mut scanner: Scanner, mut text: String, c: char, keys: &Keys) -> Step {
        text.push(c);
        match scanner.step(c) {
            Scanned::Inside => self.at(Place::InKey(scanner, text)),
            Scanned::Complete => match self.member(&text, keys) {
                Some(member) => self.at(Place::Colon(member)),
                None => Step::Malformed,
            },
            Scanned::Before | Scanned::Bad => Step::Malformed,
        }
    }

    /// Whose key that is. `None`: nobody's, here.
    fn member(&self, key: &str, keys: &Keys) -> Option<Member> {
        let key = serde_json::from_str::<String>(key).ok()?; // or no Unicode
        let (is_name, is_arguments) = (keys.name.contains(&key), keys.arguments.contains(&key));
        match self.arguments {
            Arguments::Told => Some(Member::Other),
            _ if is_name => self.name.is_none().then_some(Member::Name),
            Arguments::Unsaid if is_arguments => Some(Member::Arguments),
            _ => (!is_arguments).then_some(Member::Other),
        }
    }

    fn value(&mut self, member: Member, c: char, keys: &Keys, context: &mut Context<'_>) -> Step {
        let value = match (member, c) {
            (Member::Name, '"') => Value::Name(String::new()),
            (Member::Arguments, '{') => Value::Object,
            (Member::Arguments, '"') => {
                let mut scanner = Scanner::default();
                scanner.step(c);
                return self.at(Place::InValue(scanner, Value::Text(Box::default())));
            }
            (Member::Arguments, 'n') => Value::Null,
            (Member::Other, _) => Value::Other,
            (Member::Name | Member::Arguments, _) => return Step::Malformed,
        };
        self.in_value(Scanner::default(), value, c, keys, context)
    }

    fn in_value(
        &mut self,
        mut scanner: Scanner,
        mut value: Value,
        c: char,
        keys: &Keys,
        context: &mut Context<'_>,
    ) -> Step {
        let is_last = match scanner.step(c) {
            Scanned::Inside => false,
            Scanned::Complete => true,
            // A number ends with the character after it.
            Scanned::Before => return self.step(c, keys, context),
            Scanned::Bad => return Step::Malformed,
        };
        let step = match &mut value {
            Value::Name(quoted) => {
                quoted.push(c);
                if is_last { self.named(quoted, context) } else { Step::Going }
            }
            Value::Object => self.argument(c, is_last, context),
            Value::Text(text) if is_last => self.end_of_text(text),
            Value::Text(text) => self.in_text(text, c, context),
            Value::Null => {
                self.arguments = Arguments::Nothing;
                Step::Going
            }
            Value::Other => Step::Going,
        };
        self.place = if is_last { Place::CommaOrEnd } else { Place::InValue(scanner, value) };
        step
    }

    fn in_text(&mut self, text: &mut Text, c: char, context: &mut Context<'_>) -> Step {
        let c = match text.unescape.step(c) {
            Ok(Some(c)) => c,
            Ok(None) => return Step::Going,
            Err(_) => return Step::Malformed,
        };
        if matches!(text.place, InText::Before) && c == '{' {
            text.place = InText::Object(Scanner::default());
        }
        match &mut text.place {
            InText::Before if is_space(c) => Step::Going,
            InText::Before => Step::Malformed,
            InText::Object(scanner) => match scanner.step(c) {
                Scanned::Inside => self.argument(c, false, context),
                Scanned::Complete => {
                    text.place = InText::Behind;
                    self.argument(c, true, context)
                }
                Scanned::Before | Scanned::Bad => Step::Malformed,
            },
            InText::Behind => Step::Going,
        }
    }

    fn end_of_text(&mut self, text: &Text) -> Step {
        match text.place {
            InText::Before => self.arguments = Arguments::Nothing,
            InText::Object(_) => return Step::Malformed,
            InText::Behind => {}
        }
        Step::Going
    }

    /// The next character of the arguments.
    fn argument(&mut self, c: char, is_last: bool, context: &mut Context<'_>) -> Step {
        match (&self.name, &mut self.arguments) {
            (None, Arguments::Kept(kept)) => kept.push(c),
            (None, arguments) => *arguments = Arguments::Kept(c.to_string()),
            (Some(name), arguments) => {
                if !matches!(arguments, Arguments::Told) {
                    context.sink.start(name, None);
                    *arguments = Arguments::Told;
                }
                context.sink.arguments(c.encode_utf8(&mut [0; 4]));
                if is_last {
                    context.sink.end();
                }
            }
        }
        Step::Going
    }

    fn named(&mut self, quoted: &str, context: &mut Context<'_>) -> Step {
        let name = serde_json::from_str::<String>(quoted).unwrap_or_default(); // empty: no Unicode
        if name.is_empty() || !context.is_callable(&name) {
            return Step::Malformed;
        }
        if let Arguments::Kept(kept) = &self.arguments {
            context.sink.start(&name, None);
            context.sink.arguments(kept);
            context.sink.end();
            self.arguments = Arguments::Told;
        }
        self.name = Some(name);
        Step::Going
    }

    fn end(&mut self, context: &mut Context<'_>) -> Step {
        let Some(name) = &self.name else { return Step::Malformed };
        if !matches!(self.arguments, Arguments::Told) {
            context.sink.start(name, None);
            context.sink.arguments("{}");
            context.sink.end();
        }
        Step::Done
    }
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\n' | '\r' | '\t')
}
