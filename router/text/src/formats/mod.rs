//! Splits an answer into reasoning, content and tool calls as it comes, whatever form its model writes them in.
//!
//! A *format* is data: a table of marks and one of a few syntaxes (`declaration`); `known` holds those that Pelton knows, and says
//! which a checkpoint uses. One machine reads them all (`parser`), but for messages on channels (`channels`). Both go over
//! characters, so that where the stream is cut makes no difference, and a whole answer is the sum of its pieces.
//!
//! A call that goes wrong, or is not complete when the model ends, is content, every character of it, from its mark on. If its
//! beginning has been told, that cannot be taken back: it stays without its `CallEnd`, and all of its text is content beside it, since
//! half of it would be none that one can read. Of an answer that was cut, such a call is no content: it could have gone on. So a call
//! that ended is valid JSON, and nothing that a model writes is an error.

mod channels;
mod constrained;
mod declaration;
mod known;
mod marks;
mod parser;
mod sink;
mod syntax;
mod table;
mod tools;

use std::sync::Arc;

use crate::tokenizer::Tokenizer;
pub use constrained::{Begin, Beside, CallForm, CallShape, ParameterMarks, Written};
use declaration::Declaration;
pub use declaration::Ids;
use table::Table;
pub use tools::Tools;

/// Part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// What the model thought.
    Reasoning(String),
    /// Text for the reader.
    Content(String),
    /// A call begins. Calls are numbered from 0.
    CallStart {
        /// Which call.
        index: usize,
        /// What the model calls it, if it does: its template wants to see that again.
        id: Option<String>,
        /// The tool's name.
        name: String,
    },
    /// The next part of a call's arguments, as JSON text.
    CallArguments {
        /// Which call.
        index: usize,
        /// What is added.
        delta: String,
    },
    /// The arguments are complete: together they are one JSON object.
    CallEnd {
        /// Which call.
        index: usize,
    },
}

/// Why there is no such format. The operator's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// No format of that name is known.
    #[error("there is no format {name:?}; there are: {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A declaration cannot be used.
    #[error("the declaration of a format cannot be used: {reason}")]
    Invalid {
        /// What is wrong with it.
        reason: String,
    },
}

/// The form of one checkpoint's answers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Format {
    name: Arc<str>,
    table: Arc<Table>,
    /// Special tokens that are marks or parts of marks, ascending: to be found, they must be shown.
    special_ids: Arc<[u32]>,
}

/// What one answer is read for.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// The prompt ends within the reasoning.
    pub starts_in_reasoning: bool,
    /// It ends within a text of the answer.
    pub is_continued: bool,
    /// The tools that were offered; `None`: what looks like a call is content.
    pub tools: Option<Arc<Tools>>,
    /// Special tokens that mean nothing where they stand are shown.
    pub shows_special: bool,
    /// Which beginnings can be those of calls alone.
    pub certain: Certain,
    /// What is neither thoughts nor a call is a text that a grammar draws, all of it: marks within it mean nothing.
    pub has_form: bool,
}

impl Reading {
    /// Whether a grammar draws the arguments of calls.
    fn draws_arguments(&self) -> bool {
        self.certain != Certain::Nothing || self.has_form
    }
}

/// What a grammar lets be nothing but the beginning of a call. If such an answer is cut there, nobody is shown the beginning: it is
/// no text, and no call yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Certain {
    /// Nothing: what looks like a call may become a text.
    #[default]
    Nothing,
    /// The mark of a call, if it is what the answer begins with; then all of the answer.
    First,
    /// Each mark of a call, and whatever begins like a call where no mark does.
    Marked,
    /// All that is no thought.
    All,
}

/// Splits one answer.
#[derive(Debug, Clone)]
pub struct AnswerParser {
    machine: Machine,
}

#[derive(Debug, Clone)]
enum Machine {
    Plain(parser::Parser),
    Channels(channels::Parser),
}

impl Format {
    /// The format of a checkpoint, by its chat templates and its vocabulary. `None`: none that is known.
    pub fn detect(templates: &str, tokenizer: &Tokenizer) -> Option<Self> {
        let declaration = known::detect(templates, &|token| tokenizer.token_to_id(token).is_some())?;
        Some(Self::new(&declaration, tokenizer))
    }

    /// A known format, by its name.
    pub fn named(name: &str, tokenizer: &Tokenizer) -> Result<Self, FormatError> {
        let unknown = || FormatError::Unknown { name: name.to_owned(), known: known::names().join(", ") };
        known::named(name).map(|declaration| Self::new(declaration, tokenizer)).ok_or_else(unknown)
    }

    /// A format that is declared in TOML.
    pub fn declared(text: &str, tokenizer: &Tokenizer) -> Result<Self, FormatError> {
        let declaration = Declaration::parse(text).map_err(|reason| FormatError::Invalid { reason })?;
        Ok(Self::new(&declaration, tokenizer))
    }

    fn new(declaration: &Declaration, tokenizer: &Tokenizer) -> Self {
        let specials = (0..tokenizer.vocab_size())
            .filter(|&id| tokenizer.is_special(id))
            .filter_map(|id| Some((id, tokenizer.id_to_token(id).filter(|token| !token.is_empty())?)));
        Self::bound(declaration, &specials.collect::<Vec<_>>())
    }

    /// With these special tokens.
    fn bound(declaration: &Declaration, specials: &[(u32, String)]) -> Self {
        let mut table = Table::new(declaration);
        let special_ids = table.marks.bind(specials).into();
        Self { name: declaration.name.as_str().into(), table: Arc::new(table), special_ids }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has calls.
    pub fn has_calls(&self) -> bool {
        self.table.calls.is_some() || self.table.channels.is_some()
    }

    /// Whether it tells reasoning from content.
    pub fn has_reasoning(&self) -> bool {
        self.table.reasoning.is_some() || self.table.channels.is_some()
    }

    /// What ids of its calls look like where the model gives none.
    pub fn ids(&self) -> Ids {
        self.table.calls.as_ref().map_or_else(Ids::default, |calls| calls.ids)
    }

    /// Special tokens that a parser must see, ascending.
    pub fn special_ids(&self) -> &Arc<[u32]> {
        &self.special_ids
    }

    /// Whether a rendered chat ends within the reasoning: the template has opened it, or the answer that is continued has.
    /// `continued`: the content of that answer.
    pub fn starts_in_reasoning(&self, prompt: &str, continued: Option<&str>) -> bool {
        let Some(reasoning) = &self.table.reasoning else { return false };
        let marks = |each: &'_ [marks::Mark]| each.iter().map(|&mark| self.table.marks.text(mark)).collect::<Vec<_>>();
        let (open, close) = (marks(&reasoning.open), marks(&reasoning.close));
        let last = |text: &str, each: &[&str]| each.iter().filter_map(|mark| text.rfind(mark)).max();
        match continued {
            Some(text) if last(text, &open).is_some() => last(text, &open) > last(text, &close),
            _ => open.iter().any(|mark| prompt.trim_end().ends_with(mark.trim_end())),
        }
    }

    /// Whether a rendered chat ends right behind the reasoning, as templates say that there is none.
    pub fn ends_behind_reasoning(&self, prompt: &str) -> bool {
        let Some(reasoning) = &self.table.reasoning else { return false };
        let prompt = prompt.trim_end();
        reasoning.close.iter().any(|&mark| prompt.ends_with(self.table.marks.text(mark).trim_end()))
    }

    /// A parser for one answer.
    pub fn parser(&self, reading: Reading) -> AnswerParser {
        let table = Arc::clone(&self.table);
        let machine = match table.channels {
            Some(_) => Machine::Channels(channels::Parser::new(table, reading)),
            None => Machine::Plain(parser::Parser::new(table, reading)),
        };
        AnswerParser { machine }
    }
}

impl AnswerParser {
    /// Takes the next text of the answer.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        match &mut self.machine {
            Machine::Plain(parser) => parser.push(text),
            Machine::Channels(parser) => parser.push(text),
        }
    }

    /// Ends the answer; gives what was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        match &mut self.machine {
            Machine::Plain(parser) => parser.finish(),
            Machine::Channels(parser) => parser.finish(),
        }
    }

    /// Ends an answer that was cut off; gives what was held back, but for the beginning of what can be a call alone.
    pub fn cut(&mut self) -> Vec<Piece> {
        match &mut self.machine {
            Machine::Plain(parser) => parser.cut(),
            Machine::Channels(parser) => parser.cut(),
        }
    }

    /// What the text ends with of a mark that ends reasoning is one for certain, since nothing else could come: it is dropped. Before [`Self::cut`].
    pub fn drop_close(&mut self) {
        match &mut self.machine {
            Machine::Plain(parser) => parser.drop_close(),
            Machine::Channels(parser) => parser.drop_close(),
        }
    }

    /// Whether what comes now is a thought: reasoning, and no mark that begins it.
    pub fn is_thinking(&self) -> bool {
        match &self.machine {
            Machine::Plain(parser) => parser.is_reasoning(),
            Machine::Channels(parser) => parser.is_thinking(),
        }
    }

    /// Characters at the end of what has come that may be part of a mark with which reasoning begins; `None`: none can begin here.
    pub fn undecided(&self) -> Option<usize> {
        match &self.machine {
            Machine::Plain(parser) => parser.undecided(),
            Machine::Channels(parser) => parser.undecided(),
        }
    }

    /// Whether some of the text that has come is held back and may still come out, as whatever it is. Not what was given out (also if a
    /// call goes wrong, and all of it is content besides), nor what is dropped for good: marks, and white space next to them.
    pub fn is_holding(&self) -> bool {
        match &self.machine {
            Machine::Plain(parser) => parser.is_holding(),
            Machine::Channels(parser) => parser.is_holding(),
        }
    }

    /// Whether what comes now is reasoning.
    pub fn is_reasoning(&self) -> bool {
        match &self.machine {
            Machine::Plain(parser) => parser.is_reasoning(),
            Machine::Channels(parser) => parser.is_reasoning(),
        }
    }
}

#[cfg(test)]
mod tests;
