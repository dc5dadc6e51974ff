//! What one step through a lexeme may take, told before it is compiled. The library bounds how many parts of expressions it makes, and not what
//! a single one of them takes: behind each letter of `a?a?a?...` there is a rest for each of the others.
//!
//! Invariant: what passes `check` is compiled within some 100 MB, and each of its steps takes some 30 MB at most.

use llguidance::api::TopLevelGrammar;
use regex_syntax::hir::{Hir, HirKind};
use serde_json::{Map, Value};

use crate::{faults::Fault, lark};

/// Parts of an expression, its references written out.
const SIZE_MAX: u64 = 16_384;
/// Parts that the rests behind one letter have together.
const RESTS_MAX: u64 = 4 << 20;
/// Values within the schemas of a grammar.
const VALUES_MAX: usize = 1 << 15;
/// Members of one object that may be left out: with more, each of them would have to be told from too many others.
const OPTIONAL_MAX: usize = 1024;
/// Members of any object.
const MEMBERS_MAX: usize = 4096;
/// Patterns of an object's names: each is compared with each.
const PATTERNS_MAX: usize = 64;
/// Bytes of a text that are one part.
const BYTES_PER_PART: u64 = 16;

/// An expression: its parts, and what its first letter, and the worst one within it, leaves over.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    parts: u64,
    /// Those that stand one behind the other: of a choice and of a repetition there is one.
    length: u64,
    first: Rests,
    worst: Rests,
    may_be_empty: bool,
}

/// How many rests there are, and their parts together.
#[derive(Debug, Clone, Copy, Default)]
struct Rests {
    count: u64,
    parts: u64,
}

impl Rests {
    fn and(self, other: Self) -> Self {
        Self { count: self.count.saturating_add(other.count), parts: self.parts.saturating_add(other.parts) }
    }

    /// Each of them goes on so.
    fn before(self, parts: u64) -> Self {
        Self { parts: self.parts.saturating_add(self.count.saturating_mul(parts)), ..self }
    }
}

impl Cost {
    /// A text; of no bytes: nothing.
    pub(crate) fn of_text(bytes: usize) -> Self {
        let parts = 1 + bytes as u64 / BYTES_PER_PART;
        let rests = Rests { count: 1, parts };
        Self { parts, length: parts, first: rests, worst: rests, may_be_empty: bytes == 0 }
    }

    /// One after the other.
    pub(crate) fn sequence(all: &[Self]) -> Self {
        let mut whole = Self { may_be_empty: true, ..Self::default() };
        for one in all.iter().rev() {
            // What begins behind `one`, if nothing stands between.
            let behind = whole.first;
            whole.worst = whole.worst.max(one.worst.before(whole.length).and(behind));
            let first = one.first.before(whole.length);
            whole.first = if one.may_be_empty { first.and(behind) } else { first };
            whole.may_be_empty &= one.may_be_empty;
            whole.parts = whole.parts.saturating_add(one.parts);
            whole.length = whole.length.saturating_add(one.length);
        }
        whole
    }

    /// One of them, or what fits all: both go through them side by side.
    pub(crate) fn together(all: &[Self]) -> Self {
        all.iter().fold(Self::default(), |whole, one| Self {
            parts: whole.parts.saturating_add(one.parts),
            length: 1,
            first: whole.first.and(one.first),
            worst: whole.worst.and(one.worst),
            may_be_empty: whole.may_be_empty || one.may_be_empty,
        })
    }

    /// Again and again: how often makes no difference, as a repetition is one part.
    pub(crate) fn repeated(self, may_be_none: bool) -> Self {
        let parts = self.parts.saturating_add(1);
        let worst = self.worst.and(self.first).before(1);
        Self { parts, length: 1, first: self.first.before(1), worst, may_be_empty: self.may_be_empty || may_be_none }
    }

    pub(crate) fn of_regex(regex: &str) -> Option<Self> {
        let parsed = regex_syntax::ParserBuilder::new().utf8(false).build().parse(regex);
        parsed.ok().map(|parsed| Self::of_hir(&parsed)) // what cannot be read is told by the compiler
    }

    fn of_hir(hir: &Hir) -> Self {
        let all = |parts: &[Hir]| parts.iter().map(Self::of_hir).collect::<Vec<_>>();
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => Self::of_text(0),
            HirKind::Literal(text) => Self::of_text(text.0.len()),
            HirKind::Class(_) => Self::of_text(1),
            HirKind::Repetition(repeated) => Self::of_hir(&repeated.sub).repeated(repeated.min == 0),
            HirKind::Capture(group) => Self::of_hir(&group.sub),
            HirKind::Concat(parts) => Self::sequence(&all(parts)),
            HirKind::Alternation(parts) => Self::together(&all(parts)),
        }
    }

    pub(crate) fn check(self) -> Result<(), Fault> {
        if self.parts > SIZE_MAX || self.worst.parts > RESTS_MAX { Err(Fault::Costly) } else { Ok(()) }
    }
}

impl Rests {
    fn max(self, other: Self) -> Self {
        Self { count: self.count.max(other.count), parts: self.parts.max(other.parts) }
    }
}

/// Whether a grammar may be compiled.
pub(crate) fn check(grammar: &TopLevelGrammar) -> Result<(), Fault> {
    let mut values = 0;
    for part in &grammar.grammars {
        if let Some(text) = &part.lark_grammar {
            lark::check(text, &mut values)?;
        }
        if let Some(schema) = &part.json_schema {
            check_schema(schema, &mut values)?;
        }
    }
    Ok(())
}

/// `values`: how many there were before.
pub(crate) fn check_schema(schema: &Value, values: &mut usize) -> Result<(), Fault> {
    let mut left = vec![schema];
    while let Some(value) = left.pop() {
        *values += 1;
        if *values > VALUES_MAX {
            return Err(Fault::Costly);
        }
        match value {
            Value::Array(items) => left.extend(items),
            Value::Object(members) => {
                check_object(members)?;
                left.extend(members.values());
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_object(schema: &Map<String, Value>) -> Result<(), Fault> {
    let members = |name: &str| schema.get(name).and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array).map_or(0, Vec::len);
    let optional = members("properties").map_or(0, Map::len).saturating_sub(required);
    let of_names = members("patternProperties");
    if schema.len() > MEMBERS_MAX
        || optional > OPTIONAL_MAX
        || of_names.is_some_and(|patterns| patterns.len() > PATTERNS_MAX)
    {
        return Err(Fault::Costly);
    }
    let own = schema.get("pattern").and_then(Value::as_str);
    let patterns = of_names.into_iter().flat_map(Map::keys).map(String::as_str).chain(own);
    patterns.filter_map(Cost::of_regex).try_for_each(Cost::check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_what_may_be_left_out_are_costly_and_long_lists_are_not() {
        let words: Vec<String> = (0..5000).map(|nth| format!("word{nth}")).collect();
        for (regex, is_costly) in [
            ("a?".repeat(2000), false),
            ("a?".repeat(4000), true),
            (format!("x{}", "a?".repeat(4000)), true),
            (format!("({0})({0})", "(b|a?)".repeat(2000)), true),
            (format!("({0})(,({0}))*", words.join("|")), false),
            ("(a?b?c?){1000}".to_owned(), false),
            ("[a-z]".repeat(16_000), false),
            ("[a-z]".repeat(17_000), true),
            ("a".repeat(100_000), false),
            (words.join("|"), false),
            (format!("({})*", words.join("|")), false),
        ] {
            let cost = Cost::of_regex(&regex).expect("it can be read");
            assert_eq!(cost.check().is_err(), is_costly, "{} {cost:?}", &regex[..20.min(regex.len())]);
        }
    }

    #[test]
    fn wide_schemas_are_costly() {
        let object = |count: usize| {
            let members = (0..count).map(|nth| (format!("m{nth}"), Value::Bool(true)));
            Value::Object(members.collect())
        };
        let is_costly = |schema: Value| check_schema(&schema, &mut 0).is_err();
        assert!(!is_costly(serde_json::json!({ "properties": object(1000) })));
        assert!(is_costly(serde_json::json!({ "properties": object(1100) })));
        assert!(is_costly(serde_json::json!({ "patternProperties": object(65) })));
        assert!(is_costly(serde_json::json!({ "const": object(9000) })));
        assert!(is_costly(serde_json::json!({ "pattern": "a?".repeat(5000) })));
        let required: Vec<String> = (0..4000).map(|nth| format!("m{nth}")).collect();
        assert!(!is_costly(serde_json::json!({ "properties": object(4000), "required": required })));
    }
}
