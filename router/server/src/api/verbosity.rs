//! How long answers shall be, as a variable of the chat template. Whether the template knows it, only it can say: see `pelton_text::ChatInput`.

use super::{fields::Fields, shape::Kind};
use crate::error::ApiError;

/// What chats call it; responses have it in `text`.
pub(super) const VERBOSITY: &str = "verbosity";
/// What [`read_verbosity`] reads.
pub(super) const LENGTHS: Kind = Kind::Word(WORDS);
pub(super) const ABOUT: &str = "How long the answer shall be, for templates that know it; `medium` passes with any.";

const WORDS: &[&str] = &["low", "medium", "high"];

pub(super) fn read_verbosity(fields: &mut Fields<'_>) -> Result<Option<&'static str>, ApiError> {
    fields.one_of(VERBOSITY, WORDS, "\"low\", \"medium\" or \"high\"")
}
