//! What is said of an object's members together: how many there are, what their names are like.
//!
//! Members that are listed stand in the order of the schema, each once. So how many of them there are can be told by listing which; of
//! others a name may be drawn twice, and counts once.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{
    checks::check_least_members,
    lists::{BYTES_MAX, choices, of_other_types},
    normal::{Made, may_be, wrong},
};

/// Ways to choose among members that may be left out, at most.
const WAYS_MAX: usize = 128;

/// `minProperties` and `maxProperties` beside members that may be left out: a schema that says the same. `None`: the library keeps them as
/// they are. `plain`: the schema with its parts in normal form.
pub(super) fn bounded(plain: &mut Map<String, Value>, place: &str) -> Made<Option<Value>> {
    if !may_be(plain, "object") {
        return Ok(None);
    }
    let bound = |keyword: &str| plain.get(keyword).and_then(Value::as_u64).map(|bound| bound as usize);
    let (least, most) = (bound("minProperties").unwrap_or(0), bound("maxProperties"));
    let required: BTreeSet<String> = plain
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect();
    let listed = plain.get("properties").and_then(Value::as_object).into_iter().flatten();
    let optional: Vec<String> = listed
        .filter(|(name, schema)| *schema != &Value::Bool(false) && !required.contains(*name))
        .map(|(name, _)| name.clone())
        .collect();
    let has_patterns = plain.get("patternProperties").and_then(Value::as_object).is_some_and(|all| !all.is_empty());
    let is_closed = plain.get("additionalProperties") == Some(&Value::Bool(false)) && !has_patterns;
    let (at_least, at_most) = ([place, "/minProperties"].concat(), [place, "/maxProperties"].concat());
    let is_object = !["null", "boolean", "number", "integer", "string", "array"].iter().any(|kind| may_be(plain, kind));
    if is_object && most.is_some_and(|most| most < required.len()) {
        return wrong(at_most, format!("{} members are `required`", required.len()));
    }
    if is_object && most.is_some_and(|most| most < least) {
        return wrong(at_least, "it is above `maxProperties`");
    }
    match is_closed {
        true if is_object && least > required.len() + optional.len() => {
            return wrong(at_least, format!("there are {} members, and no others", required.len() + optional.len()));
        }
        true => {}
        false => check_least_members(least as u64, required.len() as u64, &at_least)?,
    }
    let least = least.saturating_sub(required.len());
    let says_something = |most: &usize| !is_closed || *most < required.len() + optional.len();
    let most = most.filter(says_something).map(|most| most.saturating_sub(required.len()));
    if most.is_none() {
        // The library would look at it all the same.
        plain.shift_remove("maxProperties");
    }
    let says_nothing = least == 0 && most.is_none();
    let is_of_the_library = is_closed && least <= 1 && most.is_none_or(|most| most == 1);
    if optional.is_empty() || says_nothing || is_of_the_library {
        return Ok(None);
    }
    let bytes: usize = optional.iter().map(|name| name.len()).sum();
    let sizes = match most {
        // So many of them, and perhaps more.
        None => least..=least,
        Some(most) if is_closed => least..=most.min(optional.len()),
        Some(most) => 0..=most.min(optional.len()),
    };
    let ways = sizes.map(|size| choices(optional.len(), size, WAYS_MAX)).collect::<Option<Vec<_>>>();
    let Some(ways) =
        ways.map(|ways| ways.concat()).filter(|ways| ways.len() <= WAYS_MAX && ways.len() * bytes <= BYTES_MAX)
    else {
        let reason =
            format!("among {} members that may be left out there are more than {WAYS_MAX} ways", optional.len());
        return wrong(if most.is_some() { at_most } else { at_least }, reason);
    };
    let way = |chosen: Vec<usize>| {
        let names: Vec<&String> = chosen.iter().map(|&at| &optional[at]).collect();
        let mut way = json!({ "type": "object", "required": names });
        if most.is_some() {
            way["properties"] = without(optional.iter().filter(|name| !names.contains(name)));
        }
        way
    };
    let mut ways: Vec<Value> = ways.into_iter().map(way).collect();
    if most.is_none() && !is_closed {
        // Or none of them, and one that is not listed.
        ways.push(json!({ "type": "object", "properties": without(optional.iter()) }));
    }
    ways.extend(of_other_types(plain, "object"));
    Ok(Some(json!({ "anyOf": ways })))
}

fn without<'a>(names: impl Iterator<Item = &'a String>) -> Value {
    names.map(|name| (name.clone(), Value::Bool(false))).collect::<Map<String, Value>>().into()
}

/// `patternProperties` of which several say the same: one pattern for each of these. A name may then fit several of them, which the library
/// has in no other way.
pub(super) fn merged(patterns: Map<String, Value>) -> Map<String, Value> {
    let mut said: Vec<(Vec<String>, Value)> = Vec::new();
    for (pattern, schema) in patterns {
        match said.iter_mut().find(|(_, other)| *other == schema) {
            Some((patterns, _)) => patterns.push(pattern),
            None => said.push((vec![pattern], schema)),
        }
    }
    let one = |(mut patterns, schema): (Vec<String>, Value)| match patterns.len() {
        1 => (patterns.remove(0), schema),
        _ => (patterns.iter().map(|pattern| format!("(?:{pattern})")).collect::<Vec<_>>().join("|"), schema),
    };
    said.into_iter().map(one).collect()
}

/// `propertyNames`, as what it means for members: said of `plain`, or by a schema of its own.
pub(super) fn named(plain: &mut Map<String, Value>, names: &Value, place: &str) -> Made<Option<Value>> {
    let by_pattern = |pattern: String| json!({ "patternProperties": { pattern: true }, "additionalProperties": false });
    let members = match names {
        Value::Bool(true) => return Ok(None),
        Value::Object(members) if may_be(members, "string") => members,
        _ => return Ok(only(plain, &[])),
    };
    let said: Vec<&str> = members.keys().map(String::as_str).filter(|keyword| *keyword != "type").collect();
    let length = |keyword: &str| members.get(keyword).map(Value::to_string).unwrap_or_default();
    match said[..] {
        [] => Ok(None),
        ["enum"] => Ok(only(plain, members["enum"].as_array().map_or(&[], Vec::as_slice))),
        ["const"] => Ok(only(plain, std::slice::from_ref(&members["const"]))),
        ["pattern"] => Ok(members["pattern"].as_str().map(|pattern| by_pattern(pattern.to_owned()))),
        ["minLength"] | ["maxLength"] | ["minLength", "maxLength"] | ["maxLength", "minLength"] => {
            let least = if members.contains_key("minLength") { length("minLength") } else { "0".to_owned() };
            Ok(Some(by_pattern(format!("^(?s:.{{{least},{}}})$", length("maxLength")))))
        }
        _ => wrong(place, "names are kept by one of `enum`, `const`, `pattern`, or a length"),
    }
}

/// Members of these names alone: `plain` lists them, so that they can be counted. Where patterns choose their schemas, too, another one says it.
fn only(plain: &mut Map<String, Value>, names: &[Value]) -> Option<Value> {
    let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
    let listed = |schema: &Value| names.iter().map(|name| ((*name).to_owned(), schema.clone())).collect::<Map<_, _>>();
    if plain.contains_key("patternProperties") {
        return Some(json!({ "properties": listed(&Value::Bool(true)), "additionalProperties": false }));
    }
    let others = plain.insert("additionalProperties".to_owned(), Value::Bool(false)).unwrap_or(Value::Bool(true));
    let mut properties = match plain.shift_remove("properties") {
        Some(Value::Object(properties)) => properties,
        _ => Map::new(),
    };
    properties.retain(|name, _| names.contains(&name.as_str()));
    for (name, schema) in listed(&others) {
        properties.entry(name).or_insert(schema);
    }
    plain.insert("properties".to_owned(), Value::Object(properties));
    None
}
