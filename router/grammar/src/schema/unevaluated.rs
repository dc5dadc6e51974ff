//! `unevaluatedProperties` and `unevaluatedItems`: what no other keyword has looked at. Served where that is the same for all values.

use serde_json::{Map, Value, json};

use super::{
    members::merged,
    normal::{Made, Normal, translated, wrong},
};

/// References that are followed one after the other.
const STEPS_MAX: usize = 8;
/// Keywords that look at other members, or at other items, of one value than of another.
const CHOOSING: [&str; 10] = [
    "anyOf",
    "oneOf",
    "if",
    "not",
    "dependentSchemas",
    "dependencies",
    "contains",
    "$dynamicRef",
    "$recursiveRef",
    "propertyNames",
];

/// Members that are looked at.
#[derive(Default)]
struct Seen {
    names: Map<String, Value>,    // each with `true`
    patterns: Map<String, Value>, // the same
    is_all: bool,
}

impl<'a> Normal<'a> {
    /// The schema that says the same about a value. None: it says nothing.
    pub(super) fn unevaluated(
        &mut self,
        members: &'a Map<String, Value>,
        keyword: &str,
        value: &'a Value,
        place: &str,
    ) -> Made<Option<Value>> {
        let below = format!("{place}/{keyword}");
        let schema = self.of(value, &below)?;
        if keyword == "unevaluatedItems" {
            return self.items(members, schema, &below);
        }
        let mut seen = Seen::default();
        self.look(members, place, &mut seen, STEPS_MAX)
            .or_else(|reason| wrong(&below, format!("{reason}; `additionalProperties` in each part is served")))?;
        let Seen { names, patterns, is_all } = seen;
        let more =
            json!({ "properties": names, "patternProperties": merged(patterns), "additionalProperties": schema });
        Ok((!is_all).then_some(more))
    }

    fn items(&mut self, members: &Map<String, Value>, schema: Value, place: &str) -> Made<Option<Value>> {
        let first = match (members.get("prefixItems"), members.get("items")) {
            (_, Some(Value::Array(first))) if !members.contains_key("additionalItems") => first.len(),
            (_, Some(_)) => return Ok(None),
            (Some(Value::Array(first)), None) => first.len(),
            (_, None) => 0,
        };
        if let Some(other) = ["$ref", "allOf"].iter().chain(&CHOOSING).find(|other| members.contains_key(**other)) {
            return wrong(place, format!("beside `{other}` it is not served; `items` in each part is"));
        }
        Ok(Some(json!({ "prefixItems": vec![Value::Bool(true); first], "items": schema })))
    }

    fn look(
        &mut self,
        members: &'a Map<String, Value>,
        place: &str,
        seen: &mut Seen,
        steps: usize,
    ) -> Result<(), String> {
        if let Some(choosing) = CHOOSING.iter().find(|keyword| members.contains_key(**keyword)) {
            return Err(format!("with `{choosing}` it is not served"));
        }
        let names = |keyword: &str| members.get(keyword).and_then(Value::as_object).into_iter().flat_map(Map::keys);
        seen.names.extend(names("properties").map(|name| (name.clone(), Value::Bool(true))));
        for pattern in names("patternProperties") {
            let pattern = translated(pattern, place).map_err(|error| error.reason)?;
            seen.patterns.insert(pattern, Value::Bool(true));
        }
        // At the place itself, the word asked about is not one that looks.
        let is_inner = steps < STEPS_MAX;
        seen.is_all |= members.contains_key("additionalProperties");
        seen.is_all |= is_inner && members.contains_key("unevaluatedProperties");
        let steps = steps.checked_sub(1).ok_or("behind so many references it is not served")?;
        if let Some(Value::String(reference)) = members.get("$ref") {
            let target = self.target(reference, place)?;
            if let Some(Value::Object(members)) = self.schema_at(&target) {
                self.look(members, &target, seen, steps)?;
            }
        }
        for (at, schema) in members.get("allOf").and_then(Value::as_array).into_iter().flatten().enumerate() {
            if let Value::Object(members) = schema {
                self.look(members, &format!("{place}/allOf/{at}"), seen, steps)?;
            }
        }
        Ok(())
    }
}
