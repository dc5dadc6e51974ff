//! Schemas of tools' arguments, so that they stand alone or within others: of an object always, and what they refer to is where it was.

use serde_json::{Map, Value, json};

/// The schema of a tool's arguments: always of objects, as calls have no others. A function without a schema has no arguments.
pub(super) fn parameters(tool: &Value) -> Value {
    match tool["function"].get("parameters") {
        None | Some(Value::Null) => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        Some(Value::Object(members)) => of_objects(members.clone()),
        Some(Value::Bool(true)) => json!({ "type": "object" }),
        Some(_) => Value::Bool(false),
    }
}

fn of_objects(mut members: Map<String, Value>) -> Value {
    let is_object = |kind: &Value| kind == "object";
    let has_objects = match members.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(is_object),
        Some(kind) => is_object(kind),
    };
    if !has_objects {
        return Value::Bool(false);
    }
    if let Some(target) = members.remove("$ref") {
        if is_before_2019(&members) {
            // What stands beside a reference counts for nothing there.
            members.retain(|name, _| ["$schema", "$defs", "definitions"].contains(&name.as_str()));
        }
        let reference = json!({ "$ref": target });
        match members.get_mut("allOf").and_then(Value::as_array_mut) {
            Some(all) => all.push(reference),
            None => drop(members.insert("allOf".to_owned(), json!([reference]))),
        }
    }
    members.insert("type".to_owned(), "object".into());
    Value::Object(members)
}

fn draft(members: &Map<String, Value>) -> &str {
    members.get("$schema").and_then(Value::as_str).unwrap_or_default()
}

/// Whether it says that it is of a draft up to the seventh.
fn is_before_2019(members: &Map<String, Value>) -> bool {
    draft(members).contains("://json-schema.org/draft-0")
}

/// A schema that may stand within another one: its references are relative to itself. `name`: which nothing else there has.
pub(super) fn resource(schema: Value, name: &str) -> Value {
    let Value::Object(mut members) = schema else { return schema };
    let keyword = if draft(&members).contains("draft-04") { "id" } else { "$id" };
    let own = members.get(keyword).and_then(Value::as_str).unwrap_or_default();
    // A fragment is an anchor, and no name of a whole.
    let anchor = own.strip_prefix('#').map(str::to_owned);
    if own.is_empty() || anchor.is_some() {
        members.insert(keyword.to_owned(), format!("urn:pelton:{name}").into());
    }
    if let Some(anchor) = anchor.filter(|anchor| !anchor.is_empty()) {
        members.insert("$anchor".to_owned(), anchor.into());
    }
    Value::Object(members)
}

/// A parameter's schema that stands alone: all that it may refer to comes with it.
pub(super) fn alone(whole: &Value, key: &str, part: &Value) -> Value {
    if !refers(part) {
        return part.clone();
    }
    // As a step of a JSON pointer in a URI.
    let step = key.replace('~', "~0").replace('/', "~1").replace('%', "%25");
    json!({ "$ref": format!("#/$defs/whole/properties/{step}"), "$defs": { "whole": resource(whole.clone(), "whole") } })
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
        let seventh = "http://json-schema.org/draft-07/schema#";
        for (schema, expected) in [
            (json!({}), json!({ "type": "object" })),
            (json!(true), json!({ "type": "object" })),
            (json!({ "type": ["object", "null"] }), json!({ "type": "object" })),
            (json!({ "type": "string" }), json!(false)),
            (json!({ "type": ["array", "null"] }), json!(false)),
            (json!(false), json!(false)),
            (json!(null), json!({ "type": "object", "properties": {}, "additionalProperties": false })),
            (
                json!({ "$ref": "#/$defs/x", "minProperties": 1 }),
                json!({ "minProperties": 1, "allOf": [{ "$ref": "#/$defs/x" }], "type": "object" }),
            ),
            (
                json!({ "$schema": seventh, "$ref": "#/definitions/x", "definitions": {}, "minProperties": 1 }),
                json!({ "$schema": seventh, "definitions": {}, "allOf": [{ "$ref": "#/definitions/x" }], "type": "object" }),
            ),
        ] {
            assert_eq!(of(schema), expected);
        }
    }
}
