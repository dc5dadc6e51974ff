//! Regular expressions as clients write them, in the language of the library: Rust's.
//!
//! Never here: what an expression constrains.

mod faults;
mod written;

use regex_syntax::hir::{Class, Hir, HirKind};
use written::Written;
pub(crate) use written::{NOT_DRAWN, cannot_be_drawn, literal};

use crate::{GrammarError, faults::shortened};

/// Whose language an expression is in. Digits, letters of words and classes are the same in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// ECMAScript's, of a text in JSON.
    Schema,
    /// What Python's, ECMAScript's and Rust's have in common, and Rust's beyond that. White space is that of ASCII.
    Text,
}

/// What is wrong with an expression.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// The byte where.
    pub(crate) at: usize,
    /// In our words.
    pub(crate) reason: String,
}

impl Wrong {
    /// With the place in `source`.
    pub(crate) fn told(&self, source: &str) -> String {
        format!("at character {}: {}", source[..self.at].chars().count() + 1, self.reason)
    }
}

/// An expression as the library reads it, fit to stand between the `/` of Lark if it is not empty.
pub(crate) fn read(source: &str, reading: Reading) -> Result<String, Wrong> {
    parsed(source, reading).map(|(written, _)| written)
}

/// The same of one that something matches: behind other things the compiler would take what nothing matches, and nobody could go on once
/// they are written.
pub(crate) fn read_matching(source: &str, reading: Reading) -> Result<Option<String>, Wrong> {
    parsed(source, reading).map(|(written, parsed)| Some(written).filter(|_| !is_empty(&parsed)))
}

/// A terminal of Lark that an expression matches from end to end.
pub(crate) fn terminal(regex: &str) -> Result<String, GrammarError> {
    let (begin, bare) = unanchored(regex);
    let in_it = || format!("in {:?}", shortened(regex));
    match read_matching(bare, Reading::Text) {
        Ok(Some(written)) if written.is_empty() => Ok("\"\"".to_owned()),
        Ok(Some(written)) => Ok(format!("/{written}/")),
        Ok(None) => Err(nothing_matches(regex)),
        Err(Wrong { at, reason }) => {
            let wrong = Wrong { at: at + begin, reason };
            Err(GrammarError::new(format!("{}, {}", wrong.told(regex), in_it())))
        }
    }
}

pub(crate) fn nothing_matches(regex: &str) -> GrammarError {
    GrammarError::new(format!("no text matches {:?}; allowed: one that some text matches", shortened(regex)))
}

/// Whether an expression has anchors or boundaries of words.
pub(crate) fn has_anchors(regex: &str) -> bool {
    parsed(regex, Reading::Text).is_ok_and(|(_, parsed)| !parsed.properties().look_set().is_empty())
}

/// An expression without its anchors, which say what holds anyway, as it matches all of a text; and where it begins.
fn unanchored(regex: &str) -> (usize, &str) {
    let bare = regex.strip_prefix('^').unwrap_or(regex);
    let begin = regex.len() - bare.len();
    match bare.strip_suffix('$') {
        Some(before) if (before.len() - before.trim_end_matches('\\').len()).is_multiple_of(2) => (begin, before),
        _ => (begin, bare),
    }
}

fn parsed(source: &str, reading: Reading) -> Result<(String, Hir), Wrong> {
    let written = Written::of(source, reading)?;
    match regex_syntax::ParserBuilder::new().utf8(false).build().parse(&written.text) {
        Ok(parsed) => Ok((written.text, parsed)),
        Err(error) => {
            let (at, reason) = faults::told(&error);
            Err(Wrong { at: written.origin(at), reason: reason.to_owned() })
        }
    }
}

/// Whether nothing matches. Groups nest within the bounds of what has parsed it.
fn is_empty(regex: &Hir) -> bool {
    match regex.kind() {
        HirKind::Class(Class::Unicode(class)) => class.ranges().is_empty(),
        HirKind::Class(Class::Bytes(class)) => class.ranges().is_empty(),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Look(_) => false,
        HirKind::Repetition(repeated) => repeated.min > 0 && is_empty(&repeated.sub),
        HirKind::Capture(group) => is_empty(&group.sub),
        HirKind::Concat(parts) => parts.iter().any(is_empty),
        HirKind::Alternation(parts) => parts.iter().all(is_empty),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_regex_is_told_where_it_is_wrong() {
        for (regex, fault) in [
            ("a(b", "at character 2: the group `(` is not closed"),
            ("é)", "at character 2: a `)` closes no group"),
            ("[a", "at character 1: the class `[` is not closed"),
            ("[b-a]", "at character 2: a range of characters ends before it begins"),
            ("*", "at character 1: nothing stands before this repetition"),
            ("a{3,2}", "at character 2: a repetition ends before it begins"),
            ("(?=a)", "at character 1: looking ahead or behind is not served"),
            (r"(a)\1", "at character 4: back references are not served"),
            (r"\pX", "at character 1: there is no such class of characters"),
            (r"\d\w[\d/](", "at character 10: the group `(` is not closed"),
            (r"\d\Z", "at character 3: this escape means nothing"),
            (r"a\", r"at character 2: a `\` at the end escapes nothing"),
        ] {
            let told = read(regex, Reading::Text).map_err(|wrong| wrong.told(regex));
            assert_eq!(told, Err(fault.to_owned()), "{regex}");
        }
        assert!(!has_anchors("a|b") && has_anchors(r"\bword"));
    }

    proptest! {
        /// Faults have places that are there, in any text.
        #[test]
        fn any_expression_is_read(source in r"[\[\]\\^$&~:\-(){}?<>|*+.,/dwsuUxcpb0-9a-fé\x00\n]{0,24}") {
            for reading in [Reading::Schema, Reading::Text] {
                if let Err(wrong) = read_matching(&source, reading) {
                    prop_assert!(wrong.told(&source).starts_with("at character "));
                }
            }
            if let Err(error) = terminal(&source) {
                prop_assert!(error.reason.contains("in \"") || error.reason.starts_with("no text matches"));
            }
        }
    }

    #[test]
    fn anchors_of_the_whole_are_taken_off() {
        for (regex, begin, bare) in
            [("^a$", 1, "a"), (r"a\$", 0, r"a\$"), (r"a\\$", 0, r"a\\"), ("^", 1, ""), ("$", 0, "")]
        {
            assert_eq!(unanchored(regex), (begin, bare), "{regex}");
        }
    }
}
