//! What a grammar has to know of a format, so that an answer is drawn in it: its marks, and how a call is put together.
//!
//! Of marks that stand in a list the first one is written; parsers read any. Only calls whose arguments are JSON have a shape.

use super::Format;
use super::marks::Mark;
use super::syntax::Form;

/// How calls are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallShape<'a> {
    /// Before all of them.
    pub open: Option<&'a str>,
    /// After all of them.
    pub close: Option<&'a str>,
    /// Before each.
    pub each_open: Option<&'a str>,
    /// After each.
    pub each_close: Option<&'a str>,
    /// How one says its name and arguments.
    pub form: CallForm<'a>,
}

/// See [`CallShape::form`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallForm<'a> {
    /// One JSON object with these two members.
    Object {
        /// The member that is the tool's name.
        name: &'a str,
        /// The member that is its arguments.
        arguments: &'a str,
    },
    /// The name, then the arguments as a JSON object.
    Named {
        /// Before the name.
        prefix: &'a str,
        /// After it.
        name_end: Option<&'a str>,
        /// After the arguments.
        tail: Option<&'a str>,
    },
}

impl Format {
    /// What opens and closes the reasoning. `None`: there is none, or it stands on a channel.
    pub fn reasoning_marks(&self) -> Option<(&str, &str)> {
        let reasoning = self.table.reasoning.as_ref()?;
        Some((self.first(&reasoning.open)?, self.first(&reasoning.close)?))
    }

    /// Whether an answer is more than its reasoning and its content, so that content alone cannot be constrained.
    pub fn is_on_channels(&self) -> bool {
        self.table.channels.is_some()
    }

    /// How calls are written, if their arguments are JSON.
    pub fn call_shape(&self) -> Option<CallShape<'_>> {
        let calls = self.table.calls.as_ref()?;
        let form = match &calls.form {
            Form::Object(object) => {
                CallForm::Object { name: object.name.first()?, arguments: object.arguments.first()? }
            }
            Form::Named(named) if !named.name_is_id => CallForm::Named {
                prefix: &named.prefix,
                name_end: self.first(&named.name_end),
                tail: self.first(&named.tail),
            },
            Form::Named(_) | Form::Parameters(_) | Form::Pythonic | Form::Quoted(_) => return None,
        };
        // An answer that is a call without any mark begins with it.
        let marked = |marks: &[Mark]| if calls.bare { None } else { self.first(marks) };
        Some(CallShape {
            open: marked(&calls.open),
            close: marked(&calls.close),
            each_open: marked(&calls.each_open),
            each_close: marked(&calls.each_close),
            form,
        })
    }

    fn first(&self, marks: &[Mark]) -> Option<&str> {
        marks.first().map(|&mark| self.table.marks.text(mark))
    }
}
