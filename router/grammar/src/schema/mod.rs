//! JSON schemas before they are compiled: bounds, their normal form, and which part of a schema is at fault.
//!
//! The library reads most keywords, and some of them not as the standard says. It gets what it keeps; the rest is refused.

mod checks;
mod formats;
mod lists;
mod members;
mod negation;
mod normal;
mod pattern;
mod places;
mod ranges;
mod spaces;
mod unevaluated;

use normal::Normal;
pub(crate) use ranges::closed;
use serde_json::{Map, Value, json};
pub use spaces::Spaces;

use crate::GrammarError;

/// Levels of a schema at most.
const DEPTH_MAX: usize = 64;
/// Levels of its normal form at most.
const NORMAL_DEPTH_MAX: usize = 200;
/// Parts of a schema that are tried alone, to find the one at fault.
const TRIES_MAX: usize = 64;
/// Not `\u....`: a name that may be written in two ways passes for another one.
const ESCAPES: &str = "nrbtf\\\"";

/// A schema that may stand within another one: what it refers to, and the names in it, are as if it stood alone.
pub fn embedded(mut schema: Value) -> Value {
    if let Value::Object(members) = &mut schema {
        members.insert(places::EMBEDDED.to_owned(), true.into());
    }
    schema
}

/// The schema as a piece of a rule of Lark.
pub(crate) fn piece(schema: &Value) -> Result<String, GrammarError> {
    let prepared = prepared(schema)?;
    Ok(if is_of_empty_objects(&prepared) { "\"{}\"".to_owned() } else { format!("%json {prepared}") })
}

/// Whether nothing but `{}` fits. The library would have spaces between its two signs, which nobody writes: no model has to choose there.
pub(crate) fn is_of_empty_objects(prepared: &Value) -> bool {
    prepared["type"] == "object"
        && prepared["additionalProperties"] == false
        && prepared.as_object().into_iter().flatten().all(|(keyword, value)| match keyword.as_str() {
            "type" | "additionalProperties" | "x-guidance" => true,
            "properties" => value.as_object().is_some_and(Map::is_empty),
            "required" => value.as_array().is_some_and(Vec::is_empty),
            _ => false,
        })
}

/// The schema as the library gets it, with our own settings in place of any that came with it.
pub(crate) fn prepared(schema: &Value) -> Result<Value, GrammarError> {
    prepared_part(schema, "", &Spaces::Usual)
}

/// The same of the part at a place, with all that it refers to.
pub(crate) fn prepared_part(schema: &Value, place: &str, spaces: &Spaces) -> Result<Value, GrammarError> {
    if depth(schema) > DEPTH_MAX {
        return Err(GrammarError::new(format!("it has more than {DEPTH_MAX} levels")));
    }
    let normal = Normal::new(schema).whole(place)?;
    if depth(&normal) > NORMAL_DEPTH_MAX {
        return Err(GrammarError::new(format!("written out it has more than {NORMAL_DEPTH_MAX} levels")));
    }
    let mut normal = ranges::closed(normal);
    let spaces = spaces.pattern()?;
    normal["x-guidance"] = json!({
        "whitespace_flexible": spaces.is_some(), "whitespace_pattern": spaces, "json_allowed_escapes": ESCAPES,
    });
    Ok(normal)
}

fn depth(value: &Value) -> usize {
    // Not recursive by depth alone: whoever parsed the value has bounded its nesting already.
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The smallest part of a schema that `fails` alone, as a JSON pointer, and how. `fails` is asked of a place in a document.
pub(crate) fn place_of_fault(
    schema: &Value,
    fails: impl Fn(&Value, &str) -> Option<String>,
) -> (String, Option<String>) {
    let (mut place, mut part, mut reason, mut tries) = (String::new(), schema, None, 0);
    loop {
        let next = places::parts(part).into_iter().find_map(|(below, value)| {
            tries += 1;
            if tries > TRIES_MAX || value == &Value::Bool(false) {
                return None;
            }
            fails(schema, &format!("{place}{below}")).map(|reason| (below, value, reason))
        });
        let Some((below, value, why)) = next else { break };
        place += &below;
        (part, reason) = (value, Some(why));
    }
    // Of its keywords, the one that is wrong whatever the others say. What several say together is the part's own fault.
    for keyword in part.as_object().into_iter().flat_map(Map::keys) {
        if keyword == "type" || !normal::is_assertion(keyword) {
            continue;
        }
        tries += 1;
        if tries > TRIES_MAX {
            break;
        }
        let mut alone = schema.clone();
        if let Some(Value::Object(members)) = alone.pointer_mut(&place) {
            let refers = |name: &str| ["$ref", "$dynamicRef", "$recursiveRef"].contains(&name);
            members
                .retain(|name, _| name == keyword || name == "type" || !(normal::is_assertion(name) || refers(name)));
        }
        if let Some(why) = fails(&alone, &place) {
            return (format!("{place}/{}", places::escaped(keyword)), Some(why));
        }
    }
    (place, reason)
}
