//! What stands between two tokens of JSON.

use regex_syntax::hir::{Class, Hir, HirKind};

use super::normal::{Made, wrong};
use crate::GrammarError;

/// Between two tokens of JSON: as much as indented JSON has, so that no model writes spaces for ever.
const USUAL: &str = r"[\x20\x0A\x0D\x09]{1,40}";

/// What stands between two tokens of JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spaces {
    /// A few spaces and line ends, as the model likes.
    Usual,
    /// Nothing.
    None,
    /// Nothing, or what this regular expression matches: white space of JSON and nothing else.
    Matching(String),
}

impl Spaces {
    /// Refuses a pattern of anything else than white space.
    pub fn check(&self) -> Result<(), GrammarError> {
        self.pattern().map(drop)
    }

    /// As the library takes it: a pattern of at least one character, or none.
    pub(super) fn pattern(&self) -> Made<Option<String>> {
        let pattern = match self {
            Self::Usual => return Ok(Some(USUAL.to_owned())),
            Self::None => return Ok(None),
            Self::Matching(pattern) => pattern,
        };
        let allowed = "a regular expression of white space alone, such as \" ?\" or \"[ \\n\\t]{0,8}\"";
        let Ok(parsed) = regex_syntax::parse(pattern) else {
            return wrong("", format!("it is no regular expression; allowed: {allowed}"));
        };
        match parsed.kind() {
            _ if !is_space(&parsed) => wrong("", format!("it matches more than white space; allowed: {allowed}")),
            HirKind::Empty => Ok(None),
            // Nothing is allowed in any case, and the library wants none of it told.
            HirKind::Repetition(many) if many.min == 0 && many.sub.properties().minimum_len() >= Some(1) => {
                match many.max {
                    Some(0) => Ok(None),
                    Some(most) => Ok(Some(format!("(?:{}){{1,{most}}}", many.sub))),
                    None => Ok(Some(format!("(?:{})+", many.sub))),
                }
            }
            _ if parsed.properties().minimum_len() >= Some(1) => Ok(Some(pattern.clone())),
            _ => wrong(
                "",
                format!(
                    "whether it matches something has to be told by one repetition around all of it; allowed: {allowed}"
                ),
            ),
        }
    }
}

/// Whether nothing but white space of JSON matches.
fn is_space(regex: &Hir) -> bool {
    let is_blank = |c: char| matches!(c, ' ' | '\n' | '\r' | '\t');
    match regex.kind() {
        HirKind::Empty => true,
        HirKind::Literal(literal) => literal.0.iter().all(|&byte| is_blank(byte.into())),
        HirKind::Class(Class::Unicode(class)) => {
            class.iter().all(|range| (range.start()..=range.end()).take(5).all(is_blank))
        }
        HirKind::Class(Class::Bytes(class)) => {
            class.iter().all(|range| (range.start()..=range.end()).all(|byte| is_blank(byte.into())))
        }
        HirKind::Look(_) => false,
        HirKind::Repetition(many) => is_space(&many.sub),
        HirKind::Capture(group) => is_space(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().all(is_space),
    }
}
