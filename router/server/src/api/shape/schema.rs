//! Shapes as JSON schemas of OpenAPI 3.1.

use serde_json::{Map, Value, json};

use super::{Field, Kind, Most, Shape};
use crate::api::unserved::Unserved;

/// What the server's configuration and its model say of bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) answers: u32,
    pub(crate) logprobs: u32,
    pub(crate) stop_texts: usize,
    /// Tokens; `None` as long as nobody knows.
    pub(crate) context: Option<u32>,
    /// Tokens of the vocabulary; `None` as long as nobody knows.
    pub(crate) vocabulary: Option<u32>,
    /// Whether fields that nobody knows are not refused.
    pub(crate) passes_unknown: bool,
}

/// Schemas, and the components that they refer to.
pub(crate) struct Schemas {
    bounds: Bounds,
    pub(crate) components: Map<String, Value>,
}

impl Schemas {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, components: Map::new() }
    }

    /// One of several objects.
    pub(crate) fn of_any(&mut self, shapes: &[&'static Shape]) -> Value {
        match shapes {
            [shape] => self.of_shape(shape),
            shapes => json!({ "anyOf": shapes.iter().map(|shape| self.of_shape(shape)).collect::<Vec<_>>() }),
        }
    }

    /// A reference to the component that is made of it.
    fn of_shape(&mut self, shape: &'static Shape) -> Value {
        if !self.components.contains_key(shape.name) {
            self.components.insert(shape.name.to_owned(), Value::Null); // its place, before those that it refers to
            let properties = self.properties(shape);
            let needed: Vec<&str> = shape.fields().filter(|field| field.is_needed).map(|field| field.name).collect();
            let mut schema = json!({ "type": "object", "description": shape.about, "properties": properties });
            if !needed.is_empty() {
                schema["required"] = needed.into();
            }
            schema["additionalProperties"] = self.bounds.passes_unknown.into();
            self.components.insert(shape.name.to_owned(), schema);
        }
        json!({ "$ref": format!("#/components/schemas/{}", shape.name) })
    }

    fn properties(&mut self, shape: &'static Shape) -> Map<String, Value> {
        let mut properties: Map<String, Value> =
            shape.fields().map(|field| (field.name.to_owned(), self.of_field(field))).collect();
        properties.extend(shape.unserved().map(|unserved| (unserved.0.to_owned(), of_unserved(unserved))));
        properties
    }

    fn of_field(&mut self, field: &'static Field) -> Value {
        let schema = self.of(&field.kind);
        let mut schema = if field.is_needed { schema } else { or_null(schema) };
        schema["description"] = field.about.into();
        if let Some(default) = field.default {
            schema["default"] = serde_json::from_str(default).expect("defaults are JSON");
        }
        schema
    }

    fn of(&mut self, kind: &'static Kind) -> Value {
        match kind {
            Kind::Flag => json!({ "type": "boolean" }),
            Kind::Text(length) => text(*length.start(), *length.end(), None),
            Kind::Id(length) => text(*length.start(), *length.end(), Some("^[!-~]+$")),
            Kind::FunctionName(most) => text(1, *most as u64, Some("^[a-zA-Z0-9_-]+$")),
            Kind::Integer(least, most) => self.integer(*least, *most),
            Kind::Number(range) => json!({ "type": "number", "minimum": range.start(), "maximum": range.end() }),
            Kind::Word(words) => json!({ "type": "string", "enum": words }),
            Kind::TokenIds(least, most) => {
                let item = self.integer(0, Most::Token);
                self.list(item, *least, *most)
            }
            Kind::List(item, least, most) => {
                let item = self.of(item);
                self.list(item, *least, *most)
            }
            Kind::Object(shape) => self.of_shape(shape),
            Kind::Map(value, names, length) => json!({
                "type": "object",
                "propertyNames": { "maxLength": length },
                "additionalProperties": self.of(value),
                "maxProperties": names,
            }),
            Kind::ByToken(range, most) => json!({
                "type": "object",
                "propertyNames": { "pattern": format!("^0*({})$", up_to(self.most(Most::Token).unwrap_or(u32::MAX.into()))) },
                "additionalProperties": { "type": "number", "minimum": range.start(), "maximum": range.end() },
                "maxProperties": self.most(*most),
            }),
            Kind::AnyObject | Kind::Schema => json!({ "type": "object" }),
            Kind::Absent => json!({ "type": "null" }),
            Kind::Anything => json!({}),
            Kind::Either(kinds) => {
                json!({ "anyOf": kinds.iter().map(|kind| self.of(kind)).collect::<Vec<_>>() })
            }
        }
    }

    fn integer(&self, least: i64, most: Most) -> Value {
        let mut schema = json!({ "type": "integer", "minimum": least });
        if let Some(most) = self.most(most) {
            schema["maximum"] = most.into();
        }
        schema
    }

    fn list(&self, item: Value, least: u64, most: Most) -> Value {
        let mut schema = json!({ "type": "array", "items": item });
        if least > 0 {
            schema["minItems"] = least.into();
        }
        if let Some(most) = self.most(most).filter(|most| *most < i64::MAX) {
            schema["maxItems"] = most.into();
        }
        schema
    }

    fn most(&self, most: Most) -> Option<i64> {
        let Bounds { answers, logprobs, stop_texts, context, vocabulary, .. } = self.bounds;
        match most {
            Most::Is(number) => Some(number),
            Most::Answers => Some(answers.into()),
            Most::Logprobs => Some(logprobs.into()),
            Most::StopTexts => i64::try_from(stop_texts).ok(),
            Most::Context => context.map(i64::from),
            Most::Token => vocabulary.map(|tokens| i64::from(tokens) - 1),
        }
    }
}

/// A pattern of the integers from 0 to one, without zeros before them.
fn up_to(most: i64) -> String {
    let digits = most.to_string();
    let shorter = (1..digits.len()).map(|length| match length {
        1 => "[0-9]".to_owned(),
        length => format!("[1-9][0-9]{{{}}}", length - 1),
    });
    // As long as it: equal up to some digit, and less there; or equal.
    let less = digits.char_indices().filter_map(|(at, digit)| {
        let least = if at == 0 && digits.len() > 1 { '1' } else { '0' };
        let below = char::from_u32(u32::from(digit) - 1).filter(|below| *below >= least)?;
        Some(format!("{}[{least}-{below}][0-9]{{{}}}", &digits[..at], digits.len() - at - 1))
    });
    let mut all: Vec<String> = shorter.chain(less).collect();
    all.push(digits.clone());
    all.join("|")
}

fn text(least: u64, most: u64, pattern: Option<&str>) -> Value {
    let mut schema = json!({ "type": "string" });
    if least > 0 {
        schema["minLength"] = least.into();
    }
    if most < u64::MAX {
        schema["maxLength"] = most.into();
    }
    if let Some(pattern) = pattern {
        schema["pattern"] = pattern.into();
    }
    schema
}

/// Known, and refused unless it asks for nothing.
fn of_unserved((_, without_effect, what): &Unserved) -> Value {
    let value = |text: &&str| -> Value { serde_json::from_str(text).expect("values without effect are JSON") };
    let values: Vec<Value> = without_effect.iter().map(value).chain([Value::Null]).collect();
    json!({ "enum": values, "description": format!("Not served yet: {what}. Any other value is refused.") })
}

/// The same, or `null`, which says that a field is left out.
fn or_null(mut schema: Value) -> Value {
    if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        words.push(Value::Null);
    }
    if let Some(kind) = schema["type"].as_str().filter(|kind| *kind != "null") {
        schema["type"] = json!([kind, "null"]);
    } else if let Some(kinds) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        kinds.push(json!({ "type": "null" }));
    } else if schema.get("$ref").is_some() {
        schema = json!({ "anyOf": [schema, { "type": "null" }] });
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::super::{needed, optional, with_default};
    use super::*;

    const INNER: Shape = Shape::new("Inner", "Within.", &[&[needed("type", Kind::Word(&["a", "b"]), "Which.")]]);
    const OUTER: Shape = Shape {
        name: "Outer",
        about: "Around.",
        fields: &[&[
            needed("ids", Kind::TokenIds(1, Most::ANY), "Tokens."),
            with_default("n", Kind::Integer(1, Most::Answers), "1", "Answers."),
            optional("inner", Kind::Object(&INNER), "More."),
            optional("word", Kind::Word(&["x"]), "A word."),
            optional("max", Kind::Integer(1, Most::Context), "Tokens."),
            optional("either", Kind::Either(&[Kind::TEXT, Kind::Flag]), "One of two."),
        ]],
        unserved: &[&[("suffix", &["\"\""], "filling in")]],
    };

    #[test]
    fn a_shape_becomes_a_schema_with_the_servers_bounds() {
        let mut schemas = Schemas::new(Bounds {
            answers: 7,
            logprobs: 5,
            stop_texts: 4,
            context: None,
            vocabulary: Some(100),
            passes_unknown: false,
        });
        assert_eq!(schemas.of_any(&[&OUTER]), json!({ "$ref": "#/components/schemas/Outer" }));
        let expected = json!({
            "Outer": {
                "type": "object",
                "description": "Around.",
                "properties": {
                    "ids": {
                        "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 99 }, "minItems": 1,
                        "description": "Tokens."
                    },
                    "n": { "type": ["integer", "null"], "minimum": 1, "maximum": 7, "description": "Answers.", "default": 1 },
                    "inner": {
                        "anyOf": [{ "$ref": "#/components/schemas/Inner" }, { "type": "null" }], "description": "More."
                    },
                    "word": { "type": ["string", "null"], "enum": ["x", null], "description": "A word." },
                    "max": { "type": ["integer", "null"], "minimum": 1, "description": "Tokens." },
                    "either": {
                        "anyOf": [{ "type": "string" }, { "type": "boolean" }, { "type": "null" }],
                        "description": "One of two."
                    },
                    "suffix": { "enum": ["", null], "description": "Not served yet: filling in. Any other value is refused." },
                },
                "required": ["ids"],
                "additionalProperties": false,
            },
            "Inner": {
                "type": "object",
                "description": "Within.",
                "properties": { "type": { "type": "string", "enum": ["a", "b"], "description": "Which." } },
                "required": ["type"],
                "additionalProperties": false,
            },
        });
        assert_eq!(Value::Object(schemas.components), expected);
    }
}
