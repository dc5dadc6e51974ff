//! Arguments of a call that stand one by one: between marks, or with a name before each. What a text holds is free up to the mark behind it.
//!
//! ```text
//!   fields = field0 separator field1 ...     in this order; those that are not required may be missing
//!   field  = open value close
//! ```

use serde_json::Value;

use crate::{
    GrammarError, Mark, Part, schema,
    script::{piece, quoted},
};

/// The arguments of one tool.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fields {
    /// Each at most once, in this order, but required ones first where there is a separator.
    pub fields: Vec<Field>,
    /// Between two of them. `None`: line ends and spaces, as the model likes.
    pub separator: Option<String>,
}

/// One argument.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Before its value: its name, too.
    pub open: Mark,
    /// Its value.
    pub value: FieldValue,
    /// After its value.
    pub close: Mark,
    /// Whether it must be there.
    pub is_required: bool,
}

/// What an argument may be.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue {
    /// Any text.
    Text,
    /// One of these texts.
    Texts(Vec<String>),
    /// JSON that is valid by a schema.
    Json(Value),
}

impl Fields {
    /// Bytes of all that is given.
    pub(crate) fn bytes(&self) -> usize {
        let of = |field: &Field| {
            let value = match &field.value {
                FieldValue::Text => 0,
                FieldValue::Texts(texts) => texts.iter().map(String::len).sum(),
                FieldValue::Json(schema) => schema.to_string().len(),
            };
            value + piece(&field.open).len() + piece(&field.close).len()
        };
        self.fields.iter().map(of).sum()
    }

    /// The rule `name`, and those that it needs.
    pub(crate) fn rules(&self, name: &str) -> Result<String, GrammarError> {
        let mut rules = String::new();
        for (at, field) in self.fields.iter().enumerate() {
            rules += &field.rule(&format!("{name}_{at}"))?;
        }
        let all = self.fields.iter().enumerate().map(|(at, field)| (format!("{name}_{at}"), field.is_required));
        Ok(match &self.separator {
            None => {
                let parts =
                    all.map(|(field, is_required)| format!("({field} GAP){}", if is_required { "" } else { "?" }));
                format!("{name}: {}\n{rules}", or_nothing(parts.collect::<Vec<_>>().join(" ")))
            }
            Some(separator) => {
                let (required, others): (Vec<_>, Vec<_>) = all.partition(|(_, is_required)| *is_required);
                let (required, others) = (names(required), names(others));
                rules + &separated(name, &required, &others, &quoted(separator))
            }
        })
    }
}

impl Field {
    fn rule(&self, name: &str) -> Result<String, GrammarError> {
        let (open, close) = (piece(&self.open), piece(&self.close));
        Ok(match &self.value {
            FieldValue::Text => match &self.close[..] {
                // Up to the first one: a text that has the mark has ended.
                [Part::Text(close)] => {
                    format!("{name}: {open} {name}_text\n{name}_text[suffix={}]: /(?s:.*)/\n", quoted(close))
                }
                _ => format!("{name}: {open} {name}_text {close}\n{name}_text: /(?s:.*)/\n"),
            },
            FieldValue::Texts(texts) if texts.is_empty() => return Err(GrammarError::new("a list of no texts")),
            FieldValue::Texts(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                format!("{name}: {open} ({}) {close}\n", texts.join(" | "))
            }
            FieldValue::Json(value) => {
                format!("{name}: {open} GAP {} GAP {close}\n", schema::piece(value)?)
            }
        })
    }
}

fn names(fields: Vec<(String, bool)>) -> Vec<String> {
    fields.into_iter().map(|(name, _)| name).collect()
}

fn or_nothing(rule: String) -> String {
    if rule.is_empty() { "\"\"".to_owned() } else { rule }
}

/// The rule `name`: all of `required`, then any of `others`, with something between each two. As long as they are, and no longer.
fn separated(name: &str, required: &[String], others: &[String], separator: &str) -> String {
    let mut rules = String::new();
    for (at, other) in others.iter().enumerate() {
        rules += &format!("{name}_rest{at}: ({separator} {other})? {name}_rest{}\n", at + 1);
    }
    rules += &format!("{name}_rest{}: \"\"\n", others.len());
    if !required.is_empty() {
        let required = required.join(&format!(" {separator} "));
        return format!("{name}: {required} {name}_rest0\n{rules}");
    }
    // Whichever comes first has nothing before it.
    let firsts = others.iter().enumerate().map(|(at, other)| format!("{other} {name}_rest{}", at + 1));
    let firsts: Vec<String> = firsts.chain(["\"\"".to_owned()]).collect();
    format!("{name}: {}\n{rules}", firsts.join(" | "))
}
