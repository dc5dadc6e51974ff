//! Free text beside calls: which text it is, so that whoever reads the answer finds calls in it where the grammar has some, and nowhere else.
//!
//! ```text
//!   marked    = (text mark call)* text           a mark begins calls, wherever it stands
//!   begun     = calls | text                     an answer that begins like a call is one
//!   messages  = (header text end)* (header text | calls)     the first header may be there already
//!   text      = any, but for what it never has
//! ```

use crate::{
    Calls, GrammarError, Mark, Part,
    script::{piece, quoted},
};

/// What is free beside calls, and how these are told from it.
#[derive(Debug, Clone, PartialEq)]
pub enum BesideText {
    /// Any text, up to the mark before a call.
    Marked {
        /// What it does not have.
        never: Never,
    },
    /// An answer is calls, or a text that begins otherwise than they do.
    Begun {
        /// What calls begin with, and what may stand before that, all behind any spaces.
        with: Vec<String>,
        /// What the text does not have.
        never: Never,
    },
    /// Messages with a text each; calls, if there are some, stand where the last one would.
    Messages {
        /// Whether the answer goes on within a message.
        is_open: bool,
        /// Before a text, one of them.
        headers: Vec<Mark>,
        /// Between a text and the next message.
        between: Mark,
        /// What texts do not have.
        never: Never,
    },
}

/// Texts that begin calls where they stand in free text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Never {
    /// Marks: control tokens by their names, too, since a name can be spelled by other tokens.
    pub marks: Vec<String>,
    /// With what a call goes on behind such a mark and any spaces; of no texts: a mark is enough.
    pub before: Vec<String>,
}

impl BesideText {
    /// The rules `free` and what it needs, beside those of `calls`.
    pub(crate) fn rules(&self, calls: &Calls) -> Result<String, GrammarError> {
        match self {
            Self::Marked { never } => {
                let (mark, rest) = match (&calls.open, &calls.each_open) {
                    (Some(open), _) => (open, "rest_of_calls"),
                    (None, Some(each)) => (each, "rest_of_each"),
                    (None, None) => {
                        return Err(GrammarError::new("calls that no mark begins cannot be told from text"));
                    }
                };
                // Where nothing ends them, what comes next might be one more.
                let free = match (&calls.open, &calls.close, &calls.each_open) {
                    (Some(_), None, None) => format!("FREE | text {rest}"),
                    (open, ..) if calls.are_many || open.is_some() => format!("(text {rest})* FREE"),
                    _ => format!("(text {rest})? FREE"),
                };
                Ok(format!("free: {free}\n{}FREE: {}\n", up_to("text", mark), never.free_text()))
            }
            Self::Begun { with, never } => {
                let begins = format!(r"~(/\s*/ {} /(?s:.*)/)", any_of(with));
                let begins = if with.is_empty() { String::new() } else { format!(" & {begins}") };
                Ok(format!("free: FREE | GAP calls GAP\nFREE: {}{begins}\n", never.free_text()))
            }
            Self::Messages { is_open, headers, between, never } => {
                let headers: Vec<String> = headers.iter().map(|header| piece(header)).collect();
                let (text, free) = (up_to("text", between), never.free_text());
                let first = if *is_open { "FREE | text " } else { "" };
                Ok(format!(
                    "free: {first}(header text)* (header FREE | calls)\nheader: {}\n{text}FREE: {free}\n",
                    headers.join(" | ")
                ))
            }
        }
    }
}

impl Never {
    fn free_text(&self) -> String {
        free_text(&self.marks, &self.before)
    }
}

/// The rule `name`: free text up to a mark, the first that comes.
fn up_to(name: &str, mark: &[Part]) -> String {
    match mark {
        [Part::Text(mark)] => format!("{name}[suffix={}]: FREE\n", quoted(mark)),
        _ => format!("{name}: FREE {}\n", piece(mark)),
    }
}

/// A terminal: any text that has none of `marks`, at least not with one of `before` behind it. An empty mark is none.
pub(crate) fn free_text(marks: &[String], before: &[String]) -> String {
    const ANY: &str = "/(?s:.*)/";
    let marks: Vec<&String> = marks.iter().filter(|mark| !mark.is_empty()).collect();
    if marks.is_empty() {
        return ANY.to_owned();
    }
    let before = if before.is_empty() { String::new() } else { format!(r" /\s*/ {}", any_of(before)) };
    format!("{ANY} & ~({ANY} {}{before} {ANY})", any_of(&marks))
}

fn any_of(texts: &[impl AsRef<str>]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| quoted(text.as_ref())).collect();
    format!("({})", texts.join(" | "))
}
