//! What a grammar has to know of a format, so that an answer is drawn in it: its marks, and how a call is put together.
//!
//! Of marks that stand in a list the first one is written; parsers read any.

use super::Format;
use super::marks::Mark;
use super::syntax::{Form, Parameters};
use super::tools::Kinds;

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
        /// Whether the name is followed by `:` and a number, which are part of the call's id.
        is_numbered: bool,
    },
    /// The name, then each argument between marks.
    Parameters(ParameterMarks<'a>),
    /// `NAME(key=VALUE, ...)`, with values as JSON has them, within a list.
    Pythonic,
    /// `PREFIX NAME{key:VALUE,...}`, with texts between two of a mark.
    Quoted {
        /// Before the name.
        prefix: &'a str,
        /// Around a text.
        quote: &'a str,
    },
}

/// What stands around the parts of a call, as models write it. Parts without a mark have an empty one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParameterMarks<'a> {
    /// Before the name.
    pub name_open: &'a str,
    /// After it.
    pub name_end: &'a str,
    /// Before a key.
    pub key_open: &'a str,
    /// After a key.
    pub key_end: &'a str,
    /// Between a key and a value that is a plain text.
    pub key_end_text: &'a str,
    /// Between a key and a value that is JSON.
    pub key_end_json: &'a str,
    /// Before a value.
    pub value_open: &'a str,
    /// After it.
    pub value_end: &'a str,
    /// After the last one.
    pub end: &'a str,
    /// Whether values stand on lines of their own.
    pub lines: bool,
}

/// How a value is written where plain texts stand beside JSON, and how it is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// A text, and nothing else.
    Text,
    /// A number, a truth value or nothing.
    Scalar,
    /// It may be a text, or hold some.
    Other,
}

impl Written {
    /// By the schema of a parameter.
    pub fn of(schema: &serde_json::Value) -> Self {
        match Kinds::of(schema) {
            Kinds::TEXT => Self::Text,
            kinds if kinds.is_scalar() => Self::Scalar,
            _ => Self::Other,
        }
    }
}

/// What is free beside calls, as the parser tells the two apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside<'a> {
    /// How calls begin.
    pub begin: Begin<'a>,
    /// Marks with which the parser begins a call, or a message that may be one, wherever they stand.
    pub marks: Vec<&'a str>,
    /// With what calls go on behind such a mark; none: not known.
    pub behind: &'static [&'static str],
}

/// See [`Beside::begin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begin<'a> {
    /// With a mark.
    Marked,
    /// With what an answer begins with: calls themselves, or marks behind which the answer still has to begin.
    Bare(Vec<&'a str>),
    /// As messages of their own, beside others.
    Messages {
        /// Before the texts of others.
        headers: &'static [&'static str],
        /// Between such a text and the next message.
        between: &'static str,
    },
}

/// Headers of messages that are no calls.
const HEADERS: &[&str] =
    &["<|channel|>analysis<|message|>", "<|channel|>commentary<|message|>", "<|channel|>final<|message|>"];

/// A call is the last message of an answer.
const ON_A_CHANNEL: CallForm<'_> = CallForm::Named {
    prefix: "<|channel|>commentary to=functions.",
    name_end: Some(" <|constrain|>json<|message|>"),
    tail: None,
    is_numbered: false,
};

impl Format {
    /// What opens and closes the reasoning. `None`: there is none.
    pub fn reasoning_marks(&self) -> Option<(&str, &str)> {
        if self.is_on_channels() {
            return Some(("<|channel|>analysis<|message|>", "<|end|>"));
        }
        let reasoning = self.table.reasoning.as_ref()?;
        Some((self.first(&reasoning.open)?, self.first(&reasoning.close)?))
    }

    /// What stands between the end of the reasoning and what comes then, if there is a mark for it.
    pub fn mark_behind_reasoning(&self) -> Option<&str> {
        self.is_on_channels().then_some("<|start|>assistant")
    }

    /// What stands before content, if there is a mark for it.
    pub fn content_mark(&self) -> Option<&str> {
        self.is_on_channels().then_some("<|channel|>final<|message|>")
    }

    /// Whether an answer is messages on channels.
    pub fn is_on_channels(&self) -> bool {
        self.table.channels.is_some()
    }

    /// How calls are written.
    pub fn call_shape(&self) -> Option<CallShape<'_>> {
        if self.is_on_channels() {
            return Some(CallShape { open: None, close: None, each_open: None, each_close: None, form: ON_A_CHANNEL });
        }
        let calls = self.table.calls.as_ref()?;
        let is_bare = calls.begin_answers();
        let form = match &calls.form {
            Form::Object(object) => {
                CallForm::Object { name: object.name.first()?, arguments: object.arguments.first()? }
            }
            Form::Named(named) => CallForm::Named {
                prefix: &named.prefix,
                name_end: self.first(&named.name_end),
                tail: self.first(&named.tail),
                is_numbered: named.name_is_id,
            },
            Form::Parameters(form) => CallForm::Parameters(self.parameter_marks(form)),
            Form::Pythonic => CallForm::Pythonic,
            Form::Quoted(form) => CallForm::Quoted { prefix: &form.prefix, quote: self.table.marks.text(form.quote) },
        };
        // An answer that is a call without any mark begins with it.
        let marked = |marks: &[Mark]| if is_bare { None } else { self.first(marks) };
        Some(CallShape {
            open: marked(&calls.open),
            close: marked(&calls.close),
            each_open: marked(&calls.each_open),
            each_close: marked(&calls.each_close),
            form,
        })
    }

    /// What is free beside calls. `None`: there are no calls.
    pub fn beside_calls(&self) -> Option<Beside<'_>> {
        if let Some(channels) = &self.table.channels {
            let marks = [channels.start, channels.channel].into_iter().chain(channels.ends.iter().copied());
            let between = "<|end|><|start|>assistant";
            return Some(Beside {
                begin: Begin::Messages { headers: HEADERS, between },
                marks: self.texts(marks),
                behind: &[],
            });
        }
        let calls = self.table.calls.as_ref()?;
        let marks = self.texts(calls.open.iter().chain(&calls.each_open).copied());
        let behind = if let Form::Object(_) = &calls.form { calls.form.beginnings() } else { &[] };
        if !calls.begin_answers() {
            return Some(Beside { begin: Begin::Marked, marks, behind });
        }
        // Behind these an answer still begins.
        let reasoning = self.table.reasoning.iter().flat_map(|reasoning| reasoning.open.iter().chain(&reasoning.close));
        let wraps = self.table.answer_open.iter().chain(&self.table.answer_close);
        let mut with = self.texts(reasoning.chain(wraps).copied());
        with.extend(calls.form.beginnings());
        Some(Beside { begin: Begin::Bare(with), marks, behind })
    }

    /// Marks that end thoughts for the parser, or begin what is none: beside the one that is written.
    pub fn marks_behind_thoughts(&self) -> Vec<&str> {
        if let Some(channels) = &self.table.channels {
            return self.texts([channels.start, channels.channel].into_iter().chain(channels.ends.iter().copied()));
        }
        let Some(reasoning) = &self.table.reasoning else { return Vec::new() };
        let calls = self.table.calls.iter().filter(|_| reasoning.ended_by_calls);
        let calls = calls.flat_map(|calls| calls.open.iter().chain(&calls.each_open));
        self.texts(reasoning.close.iter().chain(calls).copied())
    }

    fn texts(&self, marks: impl Iterator<Item = Mark>) -> Vec<&str> {
        marks.map(|mark| self.table.marks.text(mark)).collect()
    }

    fn parameter_marks(&self, form: &Parameters) -> ParameterMarks<'_> {
        let text = |mark: Option<Mark>| mark.map_or("", |mark| self.table.marks.text(mark));
        let key_end = self.table.marks.text(form.key_end);
        let or_key_end = |mark: Option<Mark>| mark.map_or(key_end, |mark| self.table.marks.text(mark));
        ParameterMarks {
            name_open: text(form.name_open),
            // The end of the line, where it has no mark.
            name_end: form.name_end.map_or("\n", |mark| self.table.marks.text(mark)),
            key_open: text(Some(form.key_open)),
            key_end,
            key_end_text: or_key_end(form.key_end_text),
            key_end_json: or_key_end(form.key_end_json),
            value_open: text(form.value_open),
            value_end: text(Some(form.value_end)),
            end: text(form.end),
            lines: form.lines,
        }
    }

    fn first(&self, marks: &[Mark]) -> Option<&str> {
        marks.first().map(|&mark| self.table.marks.text(mark))
    }
}
