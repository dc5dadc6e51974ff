//! Schemas of tools' arguments, so that they stand alone or within others: of an object always, and what they refer to is where it was.

use pelton_grammar::embedded;
use serde_json::{Map, Value, json};

/// The schema of a tool's arguments: always of objects, as calls have no others. A function without a schema has no arguments.
pub(super) fn parameters(tool: &Value) -> Value {
    match tool["function"].get("parameters") {
        None | Some(Value::Null) => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        Some(Value::Object(members)) => of_objects(members),
        Some(Value::Bool(true)) => json!({ "type": "object" }),
        Some(other) => other.clone(),
    }
}

fn of_objects(members: &Map<String, Value>) -> Value {
    let whole = Value::Object(members.clone());
    match (members.get("type"), members.get("$ref").and_then(Value::as_str)) {
        (None, Some(target)) => {
            let target = target.strip_prefix('#').and_then(|place| whole.pointer(place));
            match target.is_some_and(|target| target["type"] == "object") {
                true => whole,
                false => json!({ "type": "object", "allOf": [embedded(whole)] }),
            }
        }
        (Some(Value::Array(kinds)), _) if kinds.contains(&OBJECT.into()) && kinds.iter().all(is_type) => {
            with(members, "type", OBJECT.into())
        }
        (None, None) => with(members, "type", OBJECT.into()),
        // It is one of objects, or refused as it is.
        (Some(_), _) => whole,
    }
}

const OBJECT: &str = "object";

fn is_type(kind: &Value) -> bool {
    let types = ["null", "boolean", "integer", "number", "string", "array", OBJECT];
    kind.as_str().is_some_and(|kind| types.contains(&kind))
}

fn with(members: &Map<String, Value>, name: &str, value: Value) -> Value {
    let mut members = members.clone();
    members.insert(name.to_owned(), value);
    Value::Object(members)
}

/// A parameter's schema that stands alone: what it may refer to comes with it.
pub(super) fn alone(whole: &Value, key: &str, part: &Value) -> Value {
    if !refers(part) {
        return part.clone();
    }
    let definitions = DEFINITIONS.into_iter().filter_map(|name| Some((name, whole.get(name)?)));
    let definitions: Map<String, Value> = definitions.map(|(name, value)| (name.to_owned(), value.clone())).collect();
    let has_its_own = DEFINITIONS.iter().any(|name| part.get(*name).is_some());
    if let Value::Object(members) = part
        && !has_its_own
        && whole.get("$id").is_none()
        && refers_to_definitions(part)
        && definitions.values().all(refers_to_definitions)
    {
        let draft = whole.get("$schema").map(|draft| ("$schema".to_owned(), draft.clone()));
        return Value::Object(members.clone().into_iter().chain(definitions).chain(draft).collect());
    }
    // As a step of a JSON pointer in a URI.
    let step = key.replace('~', "~0").replace('/', "~1").replace('%', "%25");
    let place = format!("#/$defs/whole/properties/{step}");
    json!({ "$ref": place, "$defs": { "whole": embedded(whole.clone()) } })
}

const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Whether all references in a schema are to definitions by their places.
fn refers_to_definitions(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => members.iter().all(|(name, value)| match (name.as_str(), value) {
            ("$ref", Value::String(to)) => to.starts_with("#/$defs/") || to.starts_with("#/definitions/"),
            ("$id" | "id" | "$dynamicRef" | "$recursiveRef", Value::String(_)) => false,
            (_, value) => refers_to_definitions(value),
        }),
        Value::Array(items) => items.iter().all(refers_to_definitions),
        _ => true,
    }
}

/// Whether a schema refers to another one.
pub(super) fn refers(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => {
            ["$ref", "$dynamicRef", "$recursiveRef"].iter().any(|name| members.contains_key(*name))
                || members.values().any(refers)
        }
        Value::Array(items) => items.iter().any(refers),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(schema: Value) -> Value {
        parameters(&json!({ "function": { "name": "f", "parameters": schema } }))
    }

    #[test]
    fn arguments_are_an_object_whatever_their_schema_says() {
        let node = json!({ "$ref": "#/$defs/x", "$defs": { "x": { "type": "object" } } });
        let open = json!({ "$ref": "#/$defs/x", "$defs": { "x": {} } });
        for (schema, expected) in [
            (json!({}), json!({ "type": "object" })),
            (json!(true), json!({ "type": "object" })),
            (json!({ "type": ["object", "null"] }), json!({ "type": "object" })),
            (json!({ "type": ["object", "foo"] }), json!({ "type": ["object", "foo"] })),
            (json!({ "type": "OBJECT" }), json!({ "type": "OBJECT" })),
            (json!(false), json!(false)),
            (json!(null), json!({ "type": "object", "properties": {}, "additionalProperties": false })),
            (node.clone(), node),
            (open.clone(), json!({ "type": "object", "allOf": [embedded(open)] })),
        ] {
            assert_eq!(of(schema), expected);
        }
    }
}
