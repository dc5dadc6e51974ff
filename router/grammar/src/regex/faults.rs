//! What is wrong with an expression of Rust's, in our own words.

use regex_syntax::{Error, ast, hir};

/// The byte where, and what.
pub(super) fn told(error: &Error) -> (usize, &'static str) {
    match error {
        Error::Parse(error) => (error.span().start.offset, syntax_fault(error.kind())),
        Error::Translate(error) => (error.span().start.offset, meaning_fault(error.kind())),
        _ => (0, "it cannot be read"),
    }
}

fn syntax_fault(kind: &ast::ErrorKind) -> &'static str {
    use ast::ErrorKind as Kind;
    match kind {
        Kind::ClassUnclosed => "the class `[` is not closed",
        Kind::ClassRangeInvalid => "a range of characters ends before it begins",
        Kind::ClassRangeLiteral => "a range of characters goes from one character to one",
        Kind::ClassEscapeInvalid => "this escape stands for no character of a class",
        Kind::EscapeUnexpectedEof => "a `\\` at the end escapes nothing",
        Kind::EscapeUnrecognized => "this escape means nothing",
        Kind::EscapeHexEmpty | Kind::EscapeHexInvalid | Kind::EscapeHexInvalidDigit => {
            "an escape by number takes the hexadecimal number of a character"
        }
        Kind::FlagDanglingNegation
        | Kind::FlagDuplicate { .. }
        | Kind::FlagRepeatedNegation { .. }
        | Kind::FlagUnexpectedEof
        | Kind::FlagUnrecognized => "flags are some of i, m, s, U, u and x, each once",
        Kind::GroupNameDuplicate { .. }
        | Kind::GroupNameEmpty
        | Kind::GroupNameInvalid
        | Kind::GroupNameUnexpectedEof => "the name of a group is a word that no other group has",
        Kind::GroupUnclosed => "the group `(` is not closed",
        Kind::GroupUnopened => "a `)` closes no group",
        Kind::NestLimitExceeded(_) | Kind::CaptureLimitExceeded => {
            "there are too many groups, or too many in each other"
        }
        Kind::RepetitionMissing => "nothing stands before this repetition",
        Kind::RepetitionCountInvalid => "a repetition ends before it begins",
        Kind::DecimalEmpty
        | Kind::DecimalInvalid
        | Kind::RepetitionCountDecimalEmpty
        | Kind::RepetitionCountUnclosed => "a repetition is `{2}`, `{2,}` or `{2,5}`",
        Kind::UnicodeClassInvalid => "a class of characters is `\\pL` or `\\p{Greek}`",
        Kind::UnsupportedBackreference => "back references are not served",
        Kind::UnsupportedLookAround => "looking ahead or behind is not served",
        _ => "it cannot be read",
    }
}

fn meaning_fault(kind: &hir::ErrorKind) -> &'static str {
    use hir::ErrorKind as Kind;
    match kind {
        Kind::UnicodePropertyNotFound | Kind::UnicodePropertyValueNotFound => "there is no such class of characters",
        _ => "it cannot be read",
    }
}
