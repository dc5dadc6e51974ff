//! What is wrong with a constraint, in our own words. The grammar library's name its own parts, which nobody knows who sends one; places
//! and names that the client has written are kept.

use llguidance::Matcher;

use crate::{
    Constraint, GrammarError, gbnf,
    regex::{has_anchors, nothing_matches},
};

/// Why a grammar was not compiled.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The library says so.
    Said(String),
    /// No text fits it.
    Empty,
    /// To compute what may follow takes too much, in the midst of a text.
    Costly,
    /// We say so.
    Ours(GrammarError),
}

/// Characters of a client's name or regex that are repeated.
const SHOWN_MAX: usize = 60;

/// Of what the library says, a part that tells what it means; in our words.
type Words = &'static [(&'static str, &'static str)];

const COST: &str = "it is too large, or takes too much to compute; allowed: a smaller one";

const OF_SIZE: Words = &[
    ("fuel", COST),
    ("precomputation", COST),
    ("too big", COST),
    ("too large", COST),
    ("Too many", COST),
    ("limit", COST),
    ("states", COST),
];

const OF_SCHEMAS: Words = &[
    ("coerce_one_of", "a value may fit several options of its `oneOf`, as far as can be told; `anyOf` allows that"),
    ("Regex is empty", "no text fits its `pattern`, `format` and lengths together"),
    ("if regex is empty", "whether a text fits its `pattern`, `format` and lengths takes too much to tell"),
    ("invalid regex", "its `pattern` cannot be read"),
    ("regex parse error", "its `pattern` cannot be read"),
    ("minLength (", "its `minLength` is above its `maxLength`"),
    ("length constraints", "its `const` does not have the length that is asked for"),
    ("minItems (", "its `minItems` is above its `maxItems`"),
    (
        "min/maxProperties",
        "how many members it has cannot be kept beside what else it says of them; allowed: `properties` and `propertyNames` of a list",
    ),
    ("minProperties (", "its `minProperties` asks for more members than it has"),
    ("Definition not found", "it refers to a schema that is not there"),
    ("multipleOf", "its `multipleOf` cannot be kept; allowed: a number above 0 of few digits"),
    ("nvalid range", "no number is within its bounds"),
    ("Empty range", "no number is within its bounds"),
    ("numeric", "no number is within its bounds"),
    ("Infinite", "its bounds cannot be kept; allowed: numbers below 2^53"),
    ("Overflow", "its bounds cannot be kept; allowed: numbers below 2^53"),
    ("Failed to parse", "its bounds cannot be kept; allowed: numbers below 2^53"),
    ("Unknown format", "its `format` is not served"),
    ("nsatisfiable", "no value fits it"),
    ("is empty", "no value fits it"),
];

/// What the library says of a schema behind `%json`.
const SCHEMA_WITHIN: &str = "JSON schema";

const OF_GRAMMARS: Words = &[
    ("no start rule", "there is no rule `start`, with which a text begins"),
    ("circular reference", "the terminal NAME refers to itself"),
    ("unknown name", "NAME is not defined"),
    ("not found", "NAME is not defined"),
    ("duplicate", "NAME is defined twice"),
    (SCHEMA_WITHIN, "the schema behind `%json` cannot be kept"),
    ("failed to parse", "what stands behind `%json` or `%regex` is no JSON of the kind that is read there"),
    ("lexer error", "nothing that a grammar has begins here"),
    ("too deeply nested", "there are too many brackets within each other"),
    ("& is only supported", "`&` stands between the parts of a terminal alone, which is a name in capital letters"),
    ("cannot be used in terminals", "a terminal holds texts, regular expressions and other terminals alone"),
    (
        "invalid regex",
        "a regular expression is wrong, or has what is not served: looking around, word boundaries, back references",
    ),
    ("lookaround", "a regular expression looks around or has an anchor within, which is not served"),
    ("common regex", "`%import` knows no such name"),
    ("special_token", "there is no such special token"),
    ("special token", "there is no such special token"),
    ("range", "a range or a repetition ends before it begins"),
    (
        "not supported",
        "it has a part of Lark that is not served: a template, a priority, `%override`, `%declare` or the like",
    ),
    ("no longer supported", "it refers to a grammar by a number, which is not served"),
    ("at EOF", "it ends within a rule"),
    ("xpected", "a rule cannot go on like this"),
];

impl Fault {
    /// Of a matcher that has just been made.
    pub(crate) fn of(matcher: &Matcher) -> Option<Self> {
        matcher.get_error().map(Self::Said)
    }

    /// Whether the library says where.
    pub(crate) fn has_place(&self) -> bool {
        matches!(self, Self::Said(said) if place(said).is_some())
    }

    /// The line of a schema within a grammar, if that is what is wrong.
    pub(crate) fn line_of_schema(&self) -> Option<usize> {
        let Self::Said(said) = self else { return None };
        place(said).filter(|_| said.contains(SCHEMA_WITHIN)).map(|(line, _)| line as usize)
    }

    /// Of a schema.
    pub(crate) fn of_schema(self) -> GrammarError {
        self.told(|said| found(said, OF_SCHEMAS).unwrap_or("it cannot be made into a grammar").to_owned())
    }

    /// Of calls, or of several things: which one it is, the caller finds out.
    pub(crate) fn of_parts(self) -> GrammarError {
        self.told(|_| "a part of it cannot be made into a grammar".to_owned())
    }

    /// Of what a text has to fit.
    pub(crate) fn of_constraint(self, constraint: &Constraint) -> GrammarError {
        match constraint {
            Constraint::JsonSchema(_) | Constraint::Spaced(..) | Constraint::JsonObject => self.of_schema(),
            Constraint::Regex(regex) => self.of_regex(regex),
            Constraint::Grammar(text) => {
                let is_gbnf = gbnf::is_gbnf(text);
                self.told(|said| of_grammar(said, is_gbnf))
            }
            Constraint::Tags(_) | Constraint::Choice(_) => self.of_parts(),
        }
    }

    fn of_regex(self, regex: &str) -> GrammarError {
        let shown = shortened(regex);
        match self {
            Self::Empty => nothing_matches(regex),
            fault => fault.told(|_| {
                let has_anchors = has_anchors(regex);
                let fault = if has_anchors {
                    "anchors within it and word boundaries are not served"
                } else {
                    "it cannot be kept"
                };
                format!("{fault}, in {shown:?}")
            }),
        }
    }

    fn told(self, words: impl FnOnce(&str) -> String) -> GrammarError {
        match self {
            Self::Ours(error) => error,
            Self::Empty => GrammarError::new("no text fits it"),
            Self::Costly => GrammarError::new(COST),
            Self::Said(said) => match found(&said, OF_SIZE) {
                // The library's bounds are spoken of where it says nothing of a place.
                Some(cost) if place(&said).is_none() => GrammarError::new(cost),
                _ => GrammarError::new(words(&said)),
            },
        }
    }
}

fn found(said: &str, words: Words) -> Option<&'static str> {
    words.iter().find(|(part, _)| said.contains(part)).map(|(_, ours)| *ours)
}

/// `is_rewritten`: the library has seen other names and places than the client's, as of GBNF.
fn of_grammar(said: &str, is_rewritten: bool) -> String {
    let ours = found(said, OF_GRAMMARS).unwrap_or("this cannot be read");
    let name = said.split('"').nth(1).filter(|_| !is_rewritten);
    let ours = ours.replace("NAME", &name.map_or_else(|| "a name".to_owned(), |name| format!("`{}`", shortened(name))));
    match place(said).filter(|_| !is_rewritten) {
        Some((line, column)) => format!("line {line}, column {column}: {ours}"),
        None => ours,
    }
}

/// Where in a grammar: the library begins with `LINE(COLUMN): `, or `at` and this.
fn place(said: &str) -> Option<(u32, u32)> {
    let (line, behind) = said.strip_prefix("at ").unwrap_or(said).split_once('(')?;
    let (column, _) = behind.split_once("):")?;
    let (line, column) = (line.parse().ok()?, column.parse().ok()?);
    (line > 0).then_some((line, column))
}

/// What is wrong with a grammar, behind the line and column of a byte.
pub(crate) fn fault(grammar: &str, at: usize, reason: &str) -> GrammarError {
    let before = &grammar[..at];
    let (line, begin) = (before.matches('\n').count() + 1, before.rfind('\n').map_or(0, |end| end + 1));
    GrammarError::new(format!("line {line}, column {}: {reason}", before[begin..].chars().count() + 1))
}

pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_the_library_are_read() {
        assert_eq!(place("at 3(14): what\n"), Some((3, 14)));
        assert_eq!(place("3(14): what (at \"x\")"), Some((3, 14)));
        for none in ["", "at EOF: x", "what (that): is", "0(0): x", "5"] {
            assert_eq!(place(none), None, "{none}");
        }
    }
}
