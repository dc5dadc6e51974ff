//! `truncation`: what becomes of a conversation that does not fit the model's context.

use crate::{
    api::{
        fields::Fields,
        shape::{Field, Kind, with_default},
    },
    error::ApiError,
};

const NAME: &str = "truncation";
const WORDS: &[&str] = &["auto", "disabled"];

/// What [`Truncation::read`] reads.
pub(super) const TRUNCATION: Field = with_default(
    NAME,
    Kind::Word(WORDS),
    "\"disabled\"",
    "Whether the oldest turns of a conversation that is too long are left out (`auto`), or it is refused.",
);

/// See the top of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Truncation {
    /// Its oldest turns are left out.
    Auto,
    /// It is refused.
    Disabled,
}

impl Truncation {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let word = fields.one_of(NAME, WORDS, "\"auto\" or \"disabled\"")?;
        Ok(if word == Some("auto") { Self::Auto } else { Self::Disabled })
    }

    /// As responses repeat it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Disabled => "disabled",
        }
    }
}
