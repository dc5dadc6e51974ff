//! Whether a tool can be called at all: arguments are objects, so a schema that no object fits is of no tool.
//!
//! Told by what schemas say at their top; one whose fault lies deeper, the grammar's compiler finds where it is needed.

use serde_json::Value;

use crate::error::{ApiError, shortened};

/// Schemas that are looked at, at most: references may go in circles.
const SCHEMAS_MAX: usize = 256;
/// Types of values that are no objects, as JSON Schema calls them. Other words are left to the model, which may know them.
const OTHER_TYPES: [&str; 6] = ["string", "number", "integer", "boolean", "array", "null"];

/// Refuses parameters that no object fits. `param`: where they stand.
pub(super) fn check_parameters(param: impl FnOnce() -> String, schema: &Value) -> Result<(), ApiError> {
    let mut left = SCHEMAS_MAX;
    match excludes_objects(schema, schema, &mut left) {
        None => Ok(()),
        Some(got) => Err(ApiError::invalid(param(), got, "a schema that objects fit: a call's arguments are one")),
    }
}

/// What of a schema says that no object fits. `left`: schemas that may still be looked at.
fn excludes_objects(whole: &Value, schema: &Value, left: &mut usize) -> Option<String> {
    *left = left.checked_sub(1)?;
    if schema == &Value::Bool(false) {
        return Some("`false`, which nothing fits".to_owned());
    }
    let shown = |value: &Value| shortened(&value.to_string());
    let all = |keyword: &str| schema.get(keyword).and_then(Value::as_array).filter(|all| !all.is_empty());
    let is_other = |kind: &Value| kind.as_str().is_some_and(|kind| OTHER_TYPES.contains(&kind));
    if let Some(kind) = schema.get("type").filter(|kind| is_other(kind)) {
        return Some(format!("a schema of the type {}", shown(kind)));
    }
    if all("type").is_some_and(|kinds| kinds.iter().all(is_other)) {
        return Some(format!("a schema of the types {}", shown(&schema["type"])));
    }
    if let Some(only) = schema.get("const").filter(|only| !only.is_object()) {
        return Some(format!("a schema with the `const` {}", shown(only)));
    }
    if all("enum").is_some_and(|values| !values.iter().any(Value::is_object)) {
        return Some(format!("a schema with the `enum` {}", shown(&schema["enum"])));
    }
    let referred = schema.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'));
    if let Some(got) = referred.and_then(|place| excludes_objects(whole, whole.pointer(place)?, left)) {
        return Some(format!("a reference to {got}"));
    }
    if let Some(got) = all("allOf").and_then(|all| all.iter().find_map(|part| excludes_objects(whole, part, left))) {
        return Some(format!("`allOf` with {got}"));
    }
    ["anyOf", "oneOf"].into_iter().find_map(|keyword| {
        let options: Option<Vec<_>> =
            all(keyword)?.iter().map(|option| excludes_objects(whole, option, left)).collect();
        let first = options?.into_iter().next()?;
        Some(format!("`{keyword}` of schemas that no object fits, such as {first}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_that_no_object_fits_are_refused() {
        for (schema, got) in [
            (json!({ "type": "string" }), "a schema of the type \"string\""),
            (json!({ "type": ["array", "null"] }), "a schema of the types [\"array\",\"null\"]"),
            (json!({ "enum": [1] }), "a schema with the `enum` [1]"),
            (json!({ "const": null }), "a schema with the `const` null"),
            (
                json!({ "$ref": "#/$defs/a", "$defs": { "a": { "type": "null" } } }),
                "a reference to a schema of the type \"null\"",
            ),
            (json!({ "allOf": [{}, { "type": "integer" }] }), "`allOf` with a schema of the type \"integer\""),
            (
                json!({ "anyOf": [{ "const": 1 }, false] }),
                "`anyOf` of schemas that no object fits, such as a schema with the `const` 1",
            ),
        ] {
            let error = check_parameters(|| "p".to_owned(), &schema).expect_err("no object fits").to_string();
            assert!(error.starts_with(&format!("`p` is {got}; allowed: a schema that objects fit")), "{error}");
        }
    }

    #[test]
    fn others_stay() {
        for schema in [
            json!({}),
            json!({ "type": "object" }),
            json!({ "type": ["object", "null"] }),
            json!({ "type": "dict" }),
            json!({ "enum": [1, {}] }),
            json!({ "enum": [] }),
            json!({ "anyOf": [{ "type": "null" }, { "properties": {} }] }),
            json!({ "anyOf": [] }),
            json!({ "$ref": "#" }),
            json!({ "$ref": "other#/a" }),
        ] {
            assert_eq!(check_parameters(|| "p".to_owned(), &schema), Ok(()), "{schema}");
        }
        // Two references to itself at each level.
        let many = json!({ "allOf": [{ "$ref": "#" }, { "$ref": "#" }] });
        assert_eq!(check_parameters(|| "p".to_owned(), &many), Ok(()));
    }
}
