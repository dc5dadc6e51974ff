//! Reads calls as Python writes them: `f(a=1, b="x")`, or a list of such calls. A call is shown when it is complete, since only
//! then is it clear that its literals are some.

use super::literal::{Brackets, Dialect, arguments};
use super::{Context, Step, is_of_name};

#[derive(Debug, Clone, Default)]
pub(in crate::formats) struct Reader {
    is_list: bool,
    place: Place,
}

#[derive(Debug, Clone, Default)]
enum Place {
    #[default]
    Start,
    Item,
    Name(String),
    Arguments {
        name: String,
        text: String,
        brackets: Brackets,
    },
    AfterItem,
}

impl Reader {
    pub(super) fn step(&mut self, c: char, context: &mut Context<'_>) -> Step {
        match (&mut self.place, c) {
            (Place::Start | Place::Item | Place::AfterItem, c) if c.is_whitespace() => Step::Going,
            (Place::Start, '[') => {
                *self = Self { is_list: true, place: Place::Item };
                Step::Going
            }
            (Place::Start | Place::Item, c) if c.is_alphabetic() || c == '_' => {
                self.place = Place::Name(c.to_string());
                Step::Going
            }
            (Place::Name(name), '(') => {
                let name = std::mem::take(name);
                if !context.is_callable(&name) {
                    return Step::Malformed;
                }
                self.place = Place::Arguments { name, text: String::new(), brackets: Brackets::default() };
                Step::Going
            }
            (Place::Name(name), c) if is_of_name(c) => {
                name.push(c);
                Step::Going
            }
            (Place::Arguments { name, text, brackets }, c) => {
                if !brackets.python(c) {
                    text.push(c);
                    return Step::Going;
                }
                let Some(arguments) = arguments(text, Dialect::Python).filter(|_| c == ')') else {
                    return Step::Malformed;
                };
                context.sink.start(name, None);
                context.sink.arguments(&serde_json::Value::Object(arguments).to_string());
                context.sink.end();
                self.place = Place::AfterItem;
                if self.is_list { Step::Going } else { Step::Done }
            }
            (Place::AfterItem, ',') => {
                self.place = Place::Item;
                Step::Going
            }
            (Place::AfterItem, ']') => Step::Done,
            _ => Step::Malformed,
        }
    }
}
