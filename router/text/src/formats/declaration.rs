//! What a format is: a table of marks and one of a few syntaxes, written in TOML. The formats that Pelton knows (`known/`) are
//! such tables, and an operator can write another one.

use serde::Deserialize;

/// A format, as it is declared. Of marks that stand in a list, each does.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Declaration {
    pub(super) name: String,
    /// By what a checkpoint is known to use it.
    #[serde(default)]
    pub(super) detect: Detect,
    pub(super) reasoning: Option<Reasoning>,
    #[serde(default)]
    pub(super) answer: Answer,
    pub(super) calls: Option<Calls>,
    /// Whether answers are messages on channels; then nothing else is declared.
    #[serde(default)]
    pub(super) channels: bool,
}

/// By what a checkpoint is known to use a format. Without any text: by nothing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Detect {
    /// Texts that its chat template has, all of them.
    pub(super) template: Vec<String>,
    /// Texts that its chat template has none of.
    pub(super) without: Vec<String>,
    /// Tokens of its vocabulary, all of them.
    pub(super) tokens: Vec<String>,
}

/// How thinking is marked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reasoning {
    pub(super) open: Vec<String>,
    pub(super) close: Vec<String>,
    /// Whether thinking may begin after content has.
    #[serde(default)]
    pub(super) anywhere: bool,
    /// Whether the mark of a call ends it, too.
    #[serde(default)]
    pub(super) ended_by_calls: bool,
    /// Marks within it that are not shown.
    #[serde(default)]
    pub(super) hidden: Vec<String>,
}

/// What is put around content.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Answer {
    pub(super) open: Vec<String>,
    pub(super) close: Vec<String>,
}

/// How calls are written: `open (each_open CALL each_close)* close`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Calls {
    #[serde(default)]
    pub(super) open: Vec<String>,
    #[serde(default)]
    pub(super) close: Vec<String>,
    #[serde(default)]
    pub(super) each_open: Vec<String>,
    #[serde(default)]
    pub(super) each_close: Vec<String>,
    /// Characters between calls that have no mark of their own.
    #[serde(default)]
    pub(super) separators: String,
    /// Whether an answer that begins like a call is one, without any mark. Only calls of offered tools count then.
    #[serde(default)]
    pub(super) bare: bool,
    #[serde(default)]
    pub(super) ids: Ids,
    pub(super) form: Form,
}

/// What ids of calls look like where the model gives none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ids {
    /// As OpenAI's.
    #[default]
    Long,
    /// Nine letters and digits; some templates refuse all others.
    Nine,
}

/// How one call says its name and its arguments.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "syntax", rename_all = "kebab-case")]
pub(super) enum Form {
    /// `{"name": NAME, "arguments": {...}}`, or a list of such objects.
    Object(Object),
    /// `NAME {...}`
    Named(Named),
    /// `<NAME><KEY>VALUE</KEY>`: values as plain text, typed by the tool's schema.
    Parameters(Parameters),
    /// `NAME(key=VALUE, ...)` with values as Python writes them, or a list of such calls.
    Pythonic,
    /// `call:NAME{key:VALUE}`, texts between two of a mark.
    Quoted(Quoted),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Object {
    /// What the members are called. Both words for arguments are common in prompts, and models mix them up, whatever theirs said.
    #[serde(default = "Object::name")]
    pub(super) name: Vec<String>,
    #[serde(default = "Object::arguments")]
    pub(super) arguments: Vec<String>,
}

impl Object {
    fn name() -> Vec<String> {
        vec!["name".to_owned()]
    }

    fn arguments() -> Vec<String> {
        vec!["arguments".to_owned(), "parameters".to_owned()]
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    /// Between name and arguments; the brace of the arguments ends a name as well.
    #[serde(default)]
    pub(super) name_end: Vec<String>,
    /// Between name and id, if there is one.
    #[serde(default)]
    pub(super) id_open: Vec<String>,
    /// After the arguments.
    #[serde(default)]
    pub(super) tail: Vec<String>,
    /// What stands before names, and is not part of them.
    #[serde(default)]
    pub(super) prefix: String,
    /// `PREFIX NAME:NUMBER` is the call's id.
    #[serde(default)]
    pub(super) name_is_id: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    pub(super) name_open: Option<String>,
    /// `None`: the end of the line, or the next mark.
    pub(super) name_end: Option<String>,
    pub(super) key_open: String,
    pub(super) key_end: String,
    /// In place of `key_end`, where the model says that the value is a text, or JSON.
    pub(super) key_end_text: Option<String>,
    pub(super) key_end_json: Option<String>,
    pub(super) value_open: Option<String>,
    pub(super) value_end: String,
    /// After the last value; `None`: the call's closing mark.
    pub(super) end: Option<String>,
    /// Whether values stand on lines of their own.
    #[serde(default)]
    pub(super) lines: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Quoted {
    /// Before the name.
    pub(super) prefix: String,
    /// Before and after a text.
    pub(super) quote: String,
}

impl Declaration {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let declaration: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        declaration.check().map(|()| declaration)
    }

    fn check(&self) -> Result<(), String> {
        let reasoning = self.reasoning.iter().flat_map(|part| [&part.open, &part.close, &part.hidden]);
        let calls = self.calls.iter().flat_map(|part| [&part.open, &part.close, &part.each_open, &part.each_close]);
        let lists = reasoning.chain(calls).chain([&self.answer.open, &self.answer.close]).flatten();
        if lists.chain(self.calls.iter().flat_map(|calls| calls.form.marks())).any(String::is_empty) {
            return Err("an empty text is no mark".to_owned());
        }
        if self.channels && (self.reasoning.is_some() || self.calls.is_some()) {
            return Err("`channels` stand alone".to_owned());
        }
        if let Some(calls) = &self.calls
            && calls.open.is_empty()
            && calls.each_open.is_empty()
            && !calls.bare
        {
            return Err("`calls` need `open`, `each_open` or `bare`".to_owned());
        }
        match &self.reasoning {
            Some(reasoning) if reasoning.open.is_empty() || reasoning.close.is_empty() => {
                Err("`reasoning` needs `open` and `close`".to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl Form {
    /// The marks of the syntax itself.
    fn marks(&self) -> Vec<&String> {
        match self {
            Self::Object(_) | Self::Pythonic => Vec::new(),
            Self::Named(named) => named.name_end.iter().chain(&named.id_open).chain(&named.tail).collect(),
            Self::Parameters(form) => {
                let each = [&form.name_open, &form.name_end, &form.key_end_text, &form.key_end_json, &form.value_open];
                let each = each.into_iter().chain([&form.end]).flatten();
                each.chain([&form.key_open, &form.key_end, &form.value_end]).collect()
            }
            Self::Quoted(quoted) => vec![&quoted.quote],
        }
    }
}
