//! The tools that a request offers, as far as reading calls of them needs it: their names, and what kinds of values their
//! parameters take.

use std::collections::HashMap;

use serde_json::Value;

/// The tools of a request.
#[derive(Debug, Clone, Default)]
pub struct Tools {
    each: HashMap<String, HashMap<String, Kinds>>,
}

impl Tools {
    /// From tools in OpenAI's form.
    pub fn new(tools: &[Value]) -> Self {
        let one = |tool: &Value| {
            let function = tool.get("function")?;
            let schema = function.get("parameters");
            let properties = schema.and_then(|schema| schema.get("properties")).and_then(Value::as_object);
            let kinds = properties.into_iter().flatten().map(|(key, schema)| (key.clone(), Kinds::of(schema)));
            Some((function.get("name")?.as_str()?.to_owned(), kinds.collect()))
        };
        Self { each: tools.iter().filter_map(one).collect() }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.each.contains_key(name)
    }

    /// What a parameter may be; of one that nobody knows, anything.
    pub(super) fn kinds(&self, tool: &str, parameter: &str) -> Kinds {
        self.each.get(tool).and_then(|parameters| parameters.get(parameter)).copied().unwrap_or(Kinds::ANY)
    }
}

/// The kinds of JSON values that a parameter takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    const NULL: Self = Self(1);
    const BOOLEAN: Self = Self(2);
    const NUMBER: Self = Self(4);
    pub(super) const TEXT: Self = Self(8);
    const ARRAY: Self = Self(16);
    const OBJECT: Self = Self(32);
    pub(super) const ANY: Self = Self(63);

    /// Whether all values are numbers, truth values or nothing.
    pub(super) fn is_scalar(self) -> bool {
        self.0 & !(Self::NULL.0 | Self::BOOLEAN.0 | Self::NUMBER.0) == 0
    }

    pub(super) fn of(schema: &Value) -> Self {
        let named = |kind: &Value| match kind.as_str() {
            Some("null") => Self::NULL,
            Some("boolean") => Self::BOOLEAN,
            Some("integer" | "number") => Self::NUMBER,
            Some("string") => Self::TEXT,
            Some("array") => Self::ARRAY,
            Some("object") => Self::OBJECT,
            _ => Self::ANY,
        };
        let all = |kinds: &mut dyn Iterator<Item = Self>| kinds.fold(Self(0), |all, kind| Self(all.0 | kind.0));
        if let Some(kind) = schema.get("type") {
            return kind.as_array().map_or_else(|| named(kind), |kinds| all(&mut kinds.iter().map(named)));
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            return all(&mut values.iter().map(Self::of_value));
        }
        let either = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(key)?.as_array());
        either.map_or(Self::ANY, |schemas| all(&mut schemas.iter().map(Self::of)))
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(_) => Self::NUMBER,
            Value::String(_) => Self::TEXT,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// A plain text as a JSON text: the value that it spells, if the parameter takes such a value, and else the text itself.
    pub(super) fn read(self, text: &str) -> String {
        let spelled = match text.trim() {
            // As Python spells them; models mix the two up.
            "True" => Ok(Value::Bool(true)),
            "False" => Ok(Value::Bool(false)),
            "None" => Ok(Value::Null),
            json => serde_json::from_str::<Value>(json),
        };
        match spelled {
            // A text in quotes is one of a parameter that takes texts among others: its quotes are JSON's.
            Ok(value) if Self::of_value(&value).0 & self.0 != 0 => match text.trim().parse::<f64>() {
                Ok(_) => text.trim().to_owned(), // a number stays as it was written
                Err(_) => value.to_string(),
            },
            _ => Value::from(text).to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_read_as_its_schema_says() {
        let properties = json!({
            "text": { "type": "string" }, "number": { "type": "integer" }, "either": { "type": ["string", "null"] },
            "choice": { "enum": ["1", "2"] }, "any": {}, "union": { "anyOf": [{ "type": "array" }, { "type": "boolean" }] },
        });
        let function = json!({ "name": "f", "parameters": { "type": "object", "properties": properties } });
        let tools = Tools::new(&[json!({ "type": "function", "function": function })]);
        for (parameter, text, read) in [
            ("number", "5", "5"),
            ("number", " 1e2 ", "1e2"),
            ("number", "five", "\"five\""),
            ("either", "null", "null"),
            ("either", "5", "\"5\""),
            ("choice", "1", "\"1\""),
            ("any", "[1, \"a\"]", "[1,\"a\"]"),
            ("any", "12345678901234567890123", "12345678901234567890123"),
            ("any", "nan", "\"nan\""),
            ("any", "plain", "\"plain\""),
            ("union", "True", "true"),
            ("union", "{}", "\"{}\""),
            ("unknown", "None", "null"),
        ] {
            assert_eq!(tools.kinds("f", parameter).read(text), read, "{parameter}: {text}");
        }
        assert_eq!(tools.kinds("f", "text"), Kinds::TEXT);
        assert_eq!(tools.kinds("g", "text"), Kinds::ANY);
        assert!(tools.has("f") && !tools.has("g"));
    }
}
