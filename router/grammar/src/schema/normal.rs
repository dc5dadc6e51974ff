//! One form for all drafts, of keywords that the library keeps as the standard says. What has no such form is refused, with its place.
//!
//! Members of a normal form: `type`, `enum`, `const`, bounds, `pattern`, `format`, `properties`, `patternProperties`, `additionalProperties`,
//! `required`, `prefixItems`, `items`, `allOf`, `anyOf`, `oneOf`, and `$ref` to `#/$defs/N`. Other words of a schema say nothing about values.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{
    checks::{Steps, check_bound, check_exact, check_type, count, names},
    formats::{self, Format},
    members::{bounded, merged, named},
    places::{Document, Draft, escaped},
};
use crate::{
    GrammarError,
    regex::{self, Reading},
};

/// Schemas of a normal form at most: rewriting may repeat some.
const SCHEMAS_MAX: usize = 50_000;
/// Calls within each other at most, while schemas are rewritten: schemas that refer to each other may go deeper than they are written.
const LEVELS_MAX: usize = 128;

/// Makes normal forms of one document's schemas.
pub(super) struct Normal<'a> {
    document: Document<'a>,
    targets: Vec<String>, // places that are referred to: `#/$defs/N` is the N-th
    numbers: HashMap<String, usize>,
    made: HashMap<usize, Value>, // definitions that were looked into
    left: usize,
    levels: usize, // of calls within each other
    steps: Steps,
    names_at: Option<String>, // the place of a schema of an object's names
}

/// The members of a schema on their way to a normal form.
struct Parts {
    plain: Map<String, Value>,   // keywords that the library reads together
    applied: Map<String, Value>, // those that it applies one after the other
    more: Vec<Value>,            // schemas that hold as well
    applied_first: bool,         // the order of members is that of the schema
}

pub(super) type Made<T> = Result<T, GrammarError>;

pub(super) fn wrong<T>(place: impl Into<String>, reason: impl Into<String>) -> Made<T> {
    Err(GrammarError { place: place.into(), reason: reason.into() })
}

impl<'a> Normal<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Self {
            document: Document::new(root),
            targets: Vec::new(),
            numbers: HashMap::new(),
            made: HashMap::new(),
            left: SCHEMAS_MAX,
            levels: 0,
            steps: Steps::default(),
            names_at: None,
        }
    }

    /// The normal form of the schema at a place, with what it refers to.
    pub(super) fn whole(mut self, place: &str) -> Made<Value> {
        let mut whole = match self.at(place)? {
            Value::Object(members) => members,
            Value::Bool(true) => Map::new(),
            _ => return wrong(place, "it is `false`, which nothing fits"),
        };
        let mut definitions = Map::new();
        while let Some(target) = self.targets.get(definitions.len()).cloned() {
            definitions.insert(definitions.len().to_string(), self.at(&target)?);
        }
        self.check_ends(&whole, &definitions)?;
        if !definitions.is_empty() {
            whole.insert("$defs".to_owned(), Value::Object(definitions));
        }
        Ok(Value::Object(whole))
    }

    /// A value has to be told by something at last, not by references alone.
    fn check_ends(&self, whole: &Map<String, Value>, definitions: &Map<String, Value>) -> Made<()> {
        let mut needs: Vec<Vec<usize>> = vec![Vec::new(); definitions.len()];
        for (needs, definition) in needs.iter_mut().zip(definitions.values()) {
            references(definition, needs);
        }
        let mut of_the_whole = Vec::new();
        whole.iter().for_each(|(keyword, value)| references_of(keyword, value, &mut of_the_whole));
        // Those that end, more of them each time.
        let mut ends = vec![false; definitions.len()];
        while let Some(next) = (0..ends.len()).find(|&at| !ends[at] && needs[at].iter().all(|&need| ends[need])) {
            ends[next] = true;
        }
        match of_the_whole.into_iter().chain(0..ends.len()).find(|&at| !ends[at]) {
            None => Ok(()),
            Some(at) => wrong(self.targets[at].clone(), "it refers to itself without end"),
        }
    }

    fn at(&mut self, place: &str) -> Made<Value> {
        let schema = self.document.at(place).expect("a place of the document");
        self.of(schema, place)
    }

    /// What a `$ref` of a normal form means.
    pub(super) fn definition(&mut self, reference: &str) -> Made<Value> {
        let number = number_of(reference);
        if let Some(made) = self.made.get(&number) {
            return Ok(made.clone());
        }
        let place = self.targets[number].clone();
        let made = self.at(&place)?;
        self.made.insert(number, made.clone());
        Ok(made)
    }

    /// The place of what a `$ref` of the document means.
    pub(super) fn target(&mut self, reference: &str, from: &str) -> Result<String, String> {
        self.document.target(reference, from)
    }

    pub(super) fn schema_at(&self, place: &str) -> Option<&'a Value> {
        self.document.at(place)
    }

    /// Does something with one more schema, a level deeper.
    pub(super) fn deeper<T>(&mut self, place: &str, then: impl FnOnce(&mut Self) -> Made<T>) -> Made<T> {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => return wrong(place, format!("with what it repeats it has more than {SCHEMAS_MAX} schemas")),
        }
        if self.levels == LEVELS_MAX {
            return wrong(place, "what it refers to goes too deep, or refers to itself without end");
        }
        self.levels += 1;
        let made = then(self);
        self.levels -= 1;
        made
    }

    pub(super) fn of(&mut self, schema: &'a Value, place: &str) -> Made<Value> {
        self.deeper(place, |this| this.rewritten(schema, place))
    }

    fn rewritten(&mut self, schema: &'a Value, place: &str) -> Made<Value> {
        let members = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(members) => members,
            _ => return wrong(place, "a schema is an object, `true` or `false`"),
        };
        if members.contains_key("$ref") && self.document.spot(place).draft < Draft::Later {
            self.check_alone(members, place)?;
        }
        let mut parts = Parts { plain: Map::new(), applied: Map::new(), more: Vec::new(), applied_first: false };
        for (keyword, value) in members {
            let before = parts.applied.len();
            self.keyword(&mut parts, members, keyword, value, place)?;
            parts.applied_first |= before < parts.applied.len() && !parts.plain.contains_key("properties");
        }
        let together = self.together(&mut parts.plain, members, place)?;
        parts.more.extend(together);
        Ok(parts.whole())
    }

    /// What is said of all members and of all items, once what is said of each is rewritten.
    fn together(
        &mut self,
        plain: &mut Map<String, Value>,
        members: &'a Map<String, Value>,
        place: &str,
    ) -> Made<Vec<Value>> {
        let mut more = Vec::new();
        if let Some(value) = members.get("propertyNames") {
            let below = format!("{place}/propertyNames");
            self.names_at = Some(below.clone());
            let names = self.of(value, &below);
            self.names_at = None;
            let names = names?;
            more.extend(named(plain, &names, &below)?);
        }
        more.extend(bounded(plain, place)?);
        if let Some(value) = members.get("uniqueItems") {
            more.extend(self.unique(plain, value, &format!("{place}/uniqueItems"))?);
        }
        if members.contains_key("contains") {
            more.extend(self.contains(plain, members, contained(members, place)?, place)?);
        }
        Ok(more)
    }

    /// In drafts up to 7 `$ref` overrides what stands beside it.
    fn check_alone(&self, members: &Map<String, Value>, place: &str) -> Made<()> {
        match members.keys().find(|keyword| *keyword != "$ref" && is_assertion(keyword)) {
            None => Ok(()),
            Some(keyword) => {
                wrong(format!("{place}/{keyword}"), "beside `$ref` it means nothing up to draft 7; `allOf` holds both")
            }
        }
    }

    fn keyword(
        &mut self,
        parts: &mut Parts,
        members: &'a Map<String, Value>,
        keyword: &str,
        value: &'a Value,
        place: &str,
    ) -> Made<()> {
        let below = format!("{place}/{}", escaped(keyword));
        match keyword {
            "type" => {
                check_type(value, &below)?;
                parts.plain.insert(keyword.to_owned(), value.clone());
            }
            "enum" | "const" => {
                let values = if keyword == "enum" {
                    value.as_array().map_or(&[][..], |v| v)
                } else {
                    std::slice::from_ref(value)
                };
                if values.is_empty() {
                    return wrong(below, "it is a list of one value at least");
                }
                // Names are written in one way, whatever they are.
                if self.names_at.as_deref() != Some(place) {
                    values.iter().try_for_each(|value| check_exact(value, &below))?;
                }
                parts.applied.insert(keyword.to_owned(), value.clone());
            }
            "$ref" | "$dynamicRef" | "$recursiveRef" => {
                let reference = self.reference(keyword, value, place, &below)?;
                match parts.applied.contains_key("$ref") {
                    true => parts.more.push(reference),
                    false => {
                        parts.applied.insert("$ref".to_owned(), reference["$ref"].clone());
                    }
                }
            }
            "allOf" | "anyOf" => {
                let options = self.list(value, &below)?;
                parts.applied.insert(keyword.to_owned(), Value::Array(options));
            }
            "oneOf" => {
                let options = self.list(value, &below)?;
                match self.one_of(options, &below)? {
                    (keyword, options) if !parts.applied.contains_key(keyword) && !members.contains_key(keyword) => {
                        parts.applied.insert(keyword.to_owned(), Value::Array(options));
                    }
                    (keyword, options) => parts.more.push(json!({ keyword: options })),
                }
            }
            "not" => {
                let schema = self.of(value, &below)?;
                let negation = self.negation(&schema, &below)?;
                parts.more.push(negation);
            }
            "if" => parts.more.extend(self.conditional(members, place)?),
            "properties" | "patternProperties" => {
                let Value::Object(inner) = value else { return wrong(below, "it is an object of schemas") };
                let mut schemas = Map::new();
                for (name, schema) in inner {
                    let place = format!("{below}/{}", escaped(name));
                    let name = match keyword {
                        "properties" => name.clone(),
                        _ => translated(name, &place)?,
                    };
                    schemas.insert(name, self.of(schema, &place)?);
                }
                let schemas = if keyword == "properties" { schemas } else { merged(schemas) };
                parts.plain.insert(keyword.to_owned(), Value::Object(schemas));
            }
            "additionalProperties" => {
                let schema = self.of(value, &below)?;
                parts.plain.insert(keyword.to_owned(), schema);
            }
            "unevaluatedProperties" | "unevaluatedItems" => {
                parts.more.extend(self.unevaluated(members, keyword, value, place)?);
            }
            "required" => {
                names(value, &below)?;
                parts.plain.insert(keyword.to_owned(), value.clone());
            }
            "dependentRequired" | "dependentSchemas" | "dependencies" => self.dependent(parts, value, &below)?,
            "items" | "prefixItems" if value.is_array() => {
                if parts.plain.contains_key("prefixItems") {
                    return wrong(below, "`prefixItems` beside a list of `items` has no meaning");
                }
                let schemas = self.list(value, &below)?;
                parts.plain.insert("prefixItems".to_owned(), Value::Array(schemas));
            }
            "prefixItems" => return wrong(below, "it is a list of schemas"),
            "items" => {
                let schema = self.of(value, &below)?;
                parts.plain.insert("items".to_owned(), schema);
            }
            // Without a list of items it says nothing.
            "additionalItems" if members.get("items").is_some_and(Value::is_array) => {
                let schema = self.of(value, &below)?;
                parts.plain.insert("items".to_owned(), schema);
            }
            "minItems" | "maxItems" | "minLength" | "maxLength" | "minProperties" | "maxProperties" => {
                parts.plain.insert(keyword.to_owned(), json!(count(value, &below)?));
            }
            "pattern" => {
                let Value::String(pattern) = value else { return wrong(below, "it is a text") };
                if members.get("format").and_then(Value::as_str).is_some_and(|name| formats::says(name, pattern)) {
                    return Ok(());
                }
                parts.plain.insert(keyword.to_owned(), Value::String(translated(pattern, &below)?));
            }
            "format" if may_be(members, "string") => {
                let Some(name) = value.as_str() else { return wrong(below, "it is a text") };
                match formats::format(name) {
                    // The pattern beside it says which texts there are: Zod names what it makes patterns of (`starts_with`, `e164`).
                    None if members.contains_key("pattern") => {}
                    None => {
                        return wrong(below, format!("the format {name:?} is not served; allowed: {}", formats::ALL));
                    }
                    Some(Format::OfTheLibrary) => {
                        parts.plain.insert(keyword.to_owned(), value.clone());
                    }
                    Some(Format::Remark) => {}
                    Some(Format::Pattern(pattern)) => parts.more.push(json!({ "pattern": pattern })),
                }
            }
            "exclusiveMinimum" | "exclusiveMaximum" if value.is_boolean() => {
                let bound = if keyword == "exclusiveMinimum" { "minimum" } else { "maximum" };
                if value == &Value::Bool(true)
                    && let Some(value) = members.get(bound)
                {
                    check_bound(value, &format!("{place}/{bound}"))?;
                    parts.plain.insert(keyword.to_owned(), value.clone());
                }
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                check_bound(value, &below)?;
                parts.plain.insert(keyword.to_owned(), value.clone());
            }
            "multipleOf" => {
                self.steps.add(value, &below)?;
                parts.plain.insert(keyword.to_owned(), value.clone());
            }
            "extends" | "disallow" | "divisibleBy" => {
                return wrong(below, "it is a keyword of draft 3, which is not served");
            }
            _ => {}
        }
        Ok(())
    }

    fn reference(&mut self, keyword: &str, value: &Value, place: &str, below: &str) -> Made<Value> {
        let Some(reference) = value.as_str() else { return wrong(below, "it is a text") };
        let target = match keyword {
            "$ref" => self.document.target(reference, place),
            "$dynamicRef" => self.document.dynamic_target(reference, place),
            _ => self.document.recursive_target(reference, place),
        };
        let target = target.or_else(|reason| wrong(below, reason))?;
        let number = *self.numbers.entry(target).or_insert_with_key(|target| {
            self.targets.push(target.clone());
            self.targets.len() - 1
        });
        Ok(json!({ "$ref": format!("#/$defs/{number}") }))
    }

    fn list(&mut self, value: &'a Value, below: &str) -> Made<Vec<Value>> {
        match value.as_array() {
            Some(schemas) if !schemas.is_empty() => {
                schemas.iter().enumerate().map(|(at, schema)| self.of(schema, &format!("{below}/{at}"))).collect()
            }
            _ => wrong(below, "it is a list of one schema at least"),
        }
    }

    /// `if`, `then` and `else`.
    fn conditional(&mut self, members: &'a Map<String, Value>, place: &str) -> Made<Option<Value>> {
        if !members.contains_key("then") && !members.contains_key("else") {
            return Ok(None);
        }
        let mut branch = |keyword: &str| match members.get(keyword) {
            None => Ok(Value::Bool(true)),
            Some(schema) => self.of(schema, &format!("{place}/{keyword}")),
        };
        let (condition, then, otherwise) = (branch("if")?, branch("then")?, branch("else")?);
        let negation = self.negation(&condition, &format!("{place}/if"))?;
        Ok(Some(json!({ "anyOf": [{ "allOf": [condition, then] }, { "allOf": [negation, otherwise] }] })))
    }

    /// `dependentRequired`, `dependentSchemas`, and `dependencies`, which is both: a name's absence, or what it brings with it.
    fn dependent(&mut self, parts: &mut Parts, value: &'a Value, below: &str) -> Made<()> {
        let Value::Object(dependent) = value else { return wrong(below, "it is an object") };
        for (name, needs) in dependent {
            let place = format!("{below}/{}", escaped(name));
            let needs = match needs {
                Value::Array(_) => {
                    names(needs, &place)?;
                    json!({ "required": needs })
                }
                schema => self.of(schema, &place)?,
            };
            if needs != Value::Bool(true) && needs != json!({ "required": [] }) {
                let absent = json!({ "properties": { name: false } });
                parts.more.push(json!({ "anyOf": [absent, { "allOf": [{ "required": [name] }, needs] }] }));
            }
        }
        Ok(())
    }
}

impl Parts {
    fn whole(self) -> Value {
        let (mut main, rest) = if self.applied_first { (self.applied, self.plain) } else { (self.plain, self.applied) };
        main.extend(rest);
        let mut all = self.more;
        if all.is_empty() {
            return Value::Object(main);
        }
        if !main.is_empty() {
            all.insert(0, Value::Object(main));
        }
        json!({ "allOf": all })
    }
}

/// References that a schema applies to the very value that it is applied to.
fn references(schema: &Value, found: &mut Vec<usize>) {
    if let Value::Object(members) = schema {
        members.iter().for_each(|(keyword, value)| references_of(keyword, value, found));
    }
}

fn references_of(keyword: &str, value: &Value, found: &mut Vec<usize>) {
    match (keyword, value) {
        ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
            schemas.iter().for_each(|schema| references(schema, found))
        }
        ("$ref", Value::String(reference)) => found.push(number_of(reference)),
        _ => {}
    }
}

/// The number of a definition.
fn number_of(reference: &str) -> usize {
    reference.rsplit('/').next().and_then(|number| number.parse().ok()).expect("a reference of our own")
}

/// Whether a keyword says something about values. Others are remarks.
pub(super) fn is_assertion(keyword: &str) -> bool {
    const BOUNDS: [&str; 8] = ["Length", "Items", "Properties", "imum", "Contains", "Minimum", "Maximum", "Of"];
    const OTHERS: [&str; 22] = [
        "type",
        "enum",
        "const",
        "not",
        "if",
        "properties",
        "patternProperties",
        "additionalProperties",
        "unevaluatedProperties",
        "unevaluatedItems",
        "required",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "items",
        "prefixItems",
        "additionalItems",
        "uniqueItems",
        "contains",
        "pattern",
        "format",
    ];
    OTHERS.contains(&keyword) || BOUNDS.iter().any(|end| keyword.ends_with(end))
}

/// Whether a schema's `type` has this one.
pub(super) fn may_be(members: &Map<String, Value>, kind: &str) -> bool {
    match members.get("type") {
        Some(Value::String(only)) => only == kind,
        Some(Value::Array(kinds)) => kinds.iter().any(|one| one == kind),
        _ => true,
    }
}

/// How many items are to fit `contains`, at least and at most.
fn contained(members: &Map<String, Value>, place: &str) -> Made<(usize, Option<usize>)> {
    let bound = |keyword: &str| {
        let bound = members.get(keyword).map(|value| count(value, &format!("{place}/{keyword}")));
        bound.transpose().map(|bound| bound.map(|bound| bound as usize))
    };
    Ok((bound("minContains")?.unwrap_or(1), bound("maxContains")?))
}

pub(super) fn translated(pattern: &str, place: &str) -> Made<String> {
    regex::read(pattern, Reading::Schema).or_else(|fault| wrong(place, fault.told(pattern)))
}
