//! A declaration whose marks are found: what parsers look things up in.

use super::declaration::{self, Declaration, Ids};
use super::marks::{Mark, Marks};
use super::syntax::{Form, Named, Parameters, Quoted};

#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) marks: Marks,
    pub(super) reasoning: Option<Reasoning>,
    pub(super) answer_open: Vec<Mark>,
    pub(super) answer_close: Vec<Mark>,
    pub(super) calls: Option<Calls>,
    pub(super) channels: Option<Channels>,
}

#[derive(Debug, Clone)]
pub(super) struct Reasoning {
    pub(super) open: Vec<Mark>,
    pub(super) close: Vec<Mark>,
    pub(super) anywhere: bool,
    pub(super) ended_by_calls: bool,
    pub(super) hidden: Vec<Mark>,
}

#[derive(Debug, Clone)]
pub(super) struct Calls {
    pub(super) open: Vec<Mark>,
    pub(super) close: Vec<Mark>,
    pub(super) each_open: Vec<Mark>,
    pub(super) each_close: Vec<Mark>,
    pub(super) separators: String,
    pub(super) bare: bool,
    pub(super) ids: Ids,
    pub(super) form: Form,
}

/// The marks of messages on channels.
#[derive(Debug, Clone)]
pub(super) struct Channels {
    pub(super) start: Mark,
    pub(super) channel: Mark,
    pub(super) constrain: Mark,
    pub(super) message: Mark,
    pub(super) ends: Vec<Mark>,
}

impl Table {
    pub(super) fn new(declaration: &Declaration) -> Self {
        let mut marks = Marks::default();
        let channels = declaration.channels.then(|| Channels::new(&mut marks));
        let reasoning = declaration.reasoning.as_ref().map(|reasoning| Reasoning {
            open: all(&mut marks, &reasoning.open),
            close: all(&mut marks, &reasoning.close),
            anywhere: reasoning.anywhere,
            ended_by_calls: reasoning.ended_by_calls,
            hidden: all(&mut marks, &reasoning.hidden),
        });
        let calls = declaration.calls.as_ref().map(|calls| Calls::new(&mut marks, calls));
        let (answer_open, answer_close) =
            (all(&mut marks, &declaration.answer.open), all(&mut marks, &declaration.answer.close));
        Self { marks, reasoning, answer_open, answer_close, calls, channels }
    }
}

impl Channels {
    fn new(marks: &mut Marks) -> Self {
        Self {
            start: marks.add("<|start|>"),
            channel: marks.add("<|channel|>"),
            constrain: marks.add("<|constrain|>"),
            message: marks.add("<|message|>"),
            ends: ["<|end|>", "<|call|>", "<|return|>"].map(|text| marks.add(text)).to_vec(),
        }
    }
}

impl Calls {
    fn new(marks: &mut Marks, calls: &declaration::Calls) -> Self {
        let (close, each_close) = (all(marks, &calls.close), all(marks, &calls.each_close));
        let form = match &calls.form {
            declaration::Form::Object(keys) => Form::Object(keys.clone()),
            declaration::Form::Pythonic => Form::Pythonic,
            declaration::Form::Named(named) => Form::Named(Named {
                name_end: all(marks, &named.name_end),
                id_open: all(marks, &named.id_open),
                tail: all(marks, &named.tail),
                prefix: named.prefix.clone(),
                name_is_id: named.name_is_id,
            }),
            declaration::Form::Parameters(form) => Form::Parameters(Parameters {
                name_open: maybe(marks, form.name_open.as_ref()),
                name_end: maybe(marks, form.name_end.as_ref()),
                key_open: marks.add(&form.key_open),
                key_end: marks.add(&form.key_end),
                key_end_text: maybe(marks, form.key_end_text.as_ref()),
                key_end_json: maybe(marks, form.key_end_json.as_ref()),
                value_open: maybe(marks, form.value_open.as_ref()),
                value_end: marks.add(&form.value_end),
                end: maybe(marks, form.end.as_ref()),
                outer: close.iter().chain(&each_close).copied().collect(),
                lines: form.lines,
            }),
            declaration::Form::Quoted(quoted) => {
                Form::Quoted(Quoted { prefix: quoted.prefix.clone(), quote: marks.add(&quoted.quote) })
            }
        };
        Self {
            open: all(marks, &calls.open),
            each_open: all(marks, &calls.each_open),
            close,
            each_close,
            separators: calls.separators.clone(),
            bare: calls.bare,
            ids: calls.ids,
            form,
        }
    }

    /// Whether an answer may be calls without any mark before them.
    pub(super) fn begin_answers(&self) -> bool {
        self.bare && !self.form.beginnings().is_empty()
    }

    /// Whether a mark may follow a call.
    pub(super) fn ends(&self, mark: Mark) -> bool {
        self.each_close.contains(&mark) || self.form.tail().contains(&mark)
    }

    /// Whether calls may begin with a mark.
    pub(super) fn opens(&self, mark: Mark) -> bool {
        self.open.contains(&mark) || self.each_open.contains(&mark)
    }
}

fn all(marks: &mut Marks, texts: &[String]) -> Vec<Mark> {
    texts.iter().map(|text| marks.add(text)).collect()
}

fn maybe(marks: &mut Marks, text: Option<&String>) -> Option<Mark> {
    text.map(|text| marks.add(text))
}
