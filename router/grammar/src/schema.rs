//! JSON schemas before they are compiled: bounds, and which part of a schema is at fault.

use serde_json::{Map, Value, json};

use crate::GrammarError;

/// Levels of a schema at most.
const DEPTH_MAX: usize = 64;
/// Parts of a schema that are tried alone, to find the one at fault.
const TRIES_MAX: usize = 64;
/// Between two tokens of JSON: as much as indented JSON has, so that no model writes spaces for ever.
const SPACES: &str = r"[\x20\x0A\x0D\x09]{1,40}";

/// The schema with our own settings in place of any that came with it.
pub(crate) fn prepared(schema: &Value) -> Result<Value, GrammarError> {
    let mut prepared = match schema {
        Value::Object(members) => members.clone(),
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(GrammarError::new("it is `false`, which nothing fits")),
        _ => return Err(GrammarError::new("a schema is an object, or `true`")),
    };
    if depth(schema) > DEPTH_MAX {
        return Err(GrammarError::new(format!("it has more than {DEPTH_MAX} levels")));
    }
    prepared.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": SPACES }));
    Ok(Value::Object(prepared))
}

fn depth(value: &Value) -> usize {
    // Not recursive by depth alone: whoever parsed the value has bounded its nesting already.
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The smallest part of a schema that `fails` alone, as a JSON pointer, and how.
pub(crate) fn place_of_fault(schema: &Value, fails: impl Fn(&Value) -> Option<String>) -> (String, Option<String>) {
    let (mut place, mut part, mut reason, mut tries) = (String::new(), schema.clone(), None, 0);
    loop {
        let next = parts(&part).into_iter().find_map(|(below, value)| {
            tries += 1;
            if tries > TRIES_MAX {
                return None;
            }
            let mut alone = value.clone();
            // What it refers to stays where it was.
            if let Value::Object(members) = &mut alone {
                for definitions in ["$defs", "definitions"] {
                    if let Some(value) = schema.get(definitions) {
                        members.entry(definitions).or_insert_with(|| value.clone());
                    }
                }
            }
            fails(&alone).map(|reason| (below, value, reason))
        });
        let Some((below, value, why)) = next else { return (place, reason) };
        place += &below;
        (part, reason) = (value, Some(why));
    }
}

/// The schemas within a schema, each with its way down from it.
fn parts(schema: &Value) -> Vec<(String, Value)> {
    let Value::Object(members) = schema else { return Vec::new() };
    let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
    let mut parts = Vec::new();
    for (name, value) in members {
        match (name.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(inner)) => {
                parts.extend(inner.iter().map(|(key, value)| (format!("/{name}/{}", escaped(key)), value.clone())));
            }
            ("anyOf" | "allOf" | "oneOf" | "prefixItems", Value::Array(inner)) => {
                parts.extend(inner.iter().enumerate().map(|(at, value)| (format!("/{name}/{at}"), value.clone())));
            }
            ("items" | "additionalProperties" | "additionalItems" | "not", Value::Object(_)) => {
                parts.push((format!("/{name}"), value.clone()));
            }
            _ => {}
        }
    }
    parts
}
