//! Grammars: what a constraint allows next, over the vocabulary of one tokenizer.
//!
//! In: a [`Script`] (a JSON schema, a regex, choices, a Lark or GBNF grammar, structural tags, and what may stand around it), a
//! [`Budget`] of thoughts and [`Words`] to use or not to use, once per request; then the request's tokens. Out: masks, a bit per token, and runs of tokens that are certain. Pure: the same tokens give the same mask, whoever asks when.
//! Never here: requests, threads, sampling, HTTP. Whatever comes from a client is bounded, and wrong is a value.
#![forbid(unsafe_code)]

mod beside;
mod compiler;
mod cost;
mod ends;
mod faults;
mod fields;
mod gbnf;
mod lark;
mod regex;
mod schema;
mod script;
mod state;
mod tags;
mod thinking;
mod vocabulary;
mod words;

pub use beside::{BesideText, Never};
pub use compiler::{Compiler, Grammar};
pub use fields::{Field, FieldValue, Fields};
pub use schema::{Spaces, embedded};
pub use script::{Arguments, Body, Call, Calls, Constraint, Mark, Part, Reasoning, Script};
pub use state::{Mask, State, Stuck};
pub use tags::{Form, Tag, Times};
pub use thinking::{Budget, Thinking, Watch};
pub use vocabulary::{Spell, Spelling, TokenText, Vocabulary};
pub use words::Words;

/// Why there is no grammar for a constraint. The client's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct GrammarError {
    /// Where in a JSON schema, as a JSON pointer; empty: the whole of it, or there is no schema.
    pub place: String,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

impl GrammarError {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { place: String::new(), reason: reason.into() }
    }

    /// The same of a schema that stands at a place.
    pub(crate) fn within(self, place: &str) -> Self {
        Self { place: format!("{place}{}", self.place), ..self }
    }
}
