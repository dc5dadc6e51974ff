//! Values that do not fit a schema, as a schema; and whether a value may fit two of them.

use serde_json::{Map, Value, json};

use super::{
    checks::check_least_members,
    normal::{Made, Normal, wrong},
    pattern,
};

/// References that are followed one after the other.
const STEPS_MAX: usize = 8;
/// Options of one `oneOf`.
const OPTIONS_MAX: usize = 1_000;
const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

impl Normal<'_> {
    /// What fits exactly where a schema in normal form does not.
    pub(super) fn negation(&mut self, schema: &Value, place: &str) -> Made<Value> {
        self.negation_within(schema, place, STEPS_MAX)
    }

    fn negation_within(&mut self, schema: &Value, place: &str, steps: usize) -> Made<Value> {
        self.deeper(place, |this| this.negated(schema, place, steps))
    }

    fn negated(&mut self, schema: &Value, place: &str, steps: usize) -> Made<Value> {
        let members = match schema {
            Value::Bool(fits) => return Ok(Value::Bool(!fits)),
            Value::Object(members) => members,
            _ => unreachable!("a normal form is an object or a boolean"),
        };
        let mut ways = Vec::new();
        for (keyword, value) in members {
            match (keyword.as_str(), value) {
                ("type", value) => ways.push(other_types(value, place)?),
                ("const", value) => ways.extend(other_values(std::slice::from_ref(value), place)?),
                ("enum", Value::Array(values)) => ways.extend(other_values(values, place)?),
                ("required", Value::Array(names)) => {
                    ways.extend(names.iter().filter_map(Value::as_str).map(|name| without(name, [])));
                }
                ("properties", Value::Object(properties)) => {
                    for (name, schema) in properties {
                        let other = self.negation_within(schema, place, steps)?;
                        ways.push(json!({ "type": "object", "required": [name], "properties": { name: other } }));
                    }
                }
                ("prefixItems", Value::Array(items)) => {
                    for (at, schema) in items.iter().enumerate() {
                        let mut first = vec![Value::Bool(true); at];
                        first.push(self.negation_within(schema, place, steps)?);
                        ways.push(json!({ "type": "array", "minItems": at + 1, "prefixItems": first }));
                    }
                }
                ("items" | "additionalProperties", Value::Bool(true)) => {}
                ("items", Value::Bool(false)) => {
                    let first = members.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
                    ways.push(json!({ "type": "array", "minItems": first + 1 }));
                }
                ("minimum", bound) => ways.push(json!({ "type": "number", "exclusiveMaximum": bound })),
                ("maximum", bound) => ways.push(json!({ "type": "number", "exclusiveMinimum": bound })),
                ("exclusiveMinimum", bound) => ways.push(json!({ "type": "number", "maximum": bound })),
                ("exclusiveMaximum", bound) => ways.push(json!({ "type": "number", "minimum": bound })),
                ("minLength" | "minItems" | "minProperties", least) => {
                    if let Some(most) = least.as_u64().and_then(|least| least.checked_sub(1)) {
                        ways.push(json!({ "type": counted(keyword), format!("max{}", &keyword[3..]): most }));
                    }
                }
                ("maxLength" | "maxItems" | "maxProperties", most) => {
                    let least = most.as_u64().unwrap_or_default() + 1;
                    if keyword == "maxProperties" {
                        check_least_members(least, 0, place)?;
                    }
                    ways.push(json!({ "type": counted(keyword), format!("min{}", &keyword[3..]): least }));
                }
                ("allOf", Value::Array(schemas)) => {
                    for schema in schemas {
                        ways.push(self.negation_within(schema, place, steps)?);
                    }
                }
                ("anyOf", Value::Array(schemas)) => {
                    let none: Made<Vec<Value>> =
                        schemas.iter().map(|schema| self.negation_within(schema, place, steps)).collect();
                    ways.push(json!({ "allOf": none? }));
                }
                ("$ref", Value::String(reference)) if steps > 0 => {
                    let schema = self.definition(reference)?;
                    ways.push(self.negation_within(&schema, place, steps - 1)?);
                }
                (keyword, _) => {
                    return wrong(place, format!("what does not fit `{keyword}` cannot be told by a grammar"));
                }
            }
        }
        Ok(match ways.len() {
            0 => Value::Bool(false),
            1 => ways.remove(0),
            _ => json!({ "anyOf": ways }),
        })
    }

    /// One of the options and no other: a keyword, and the options that it takes.
    pub(super) fn one_of(&mut self, options: Vec<Value>, place: &str) -> Made<(&'static str, Vec<Value>)> {
        if options.len() > OPTIONS_MAX {
            return wrong(
                place,
                format!("it has {} options; allowed: {OPTIONS_MAX}, since each is compared with each", options.len()),
            );
        }
        let mut overlaps = vec![Vec::new(); options.len()]; // of each option, those that may fit the same value
        for (at, option) in options.iter().enumerate() {
            for (other_at, other) in options.iter().enumerate().skip(at + 1) {
                if !self.are_apart(option, other, STEPS_MAX)? {
                    overlaps[at].push(other_at);
                    overlaps[other_at].push(at);
                }
            }
        }
        let mut alone = Vec::new();
        for (option, overlaps) in options.iter().zip(overlaps) {
            let mut all = vec![option.clone()];
            for other in overlaps {
                match self.negation(&beside(option, &options[other]), place) {
                    Ok(negation) => all.push(negation),
                    // Beside what else the schema says, the library may still find them apart.
                    Err(_) => return Ok(("oneOf", self.inlined(options)?)),
                }
            }
            alone.push(if all.len() == 1 { option.clone() } else { json!({ "allOf": all }) });
        }
        Ok(("anyOf", alone))
    }

    /// The library looks at options themselves, not at what they refer to.
    fn inlined(&mut self, options: Vec<Value>) -> Made<Vec<Value>> {
        let inlined = |option: Value| match option
            .as_object()
            .filter(|members| members.len() == 1)
            .and_then(|members| members.get("$ref"))
        {
            Some(Value::String(reference)) => self.definition(reference),
            _ => Ok(option),
        };
        options.into_iter().map(inlined).collect()
    }

    /// Whether surely no value fits both.
    fn are_apart(&mut self, one: &Value, other: &Value, steps: usize) -> Made<bool> {
        if let (Value::Object(a), Value::Object(b)) = (one, other)
            && values_are_apart(a, b)
        {
            return Ok(true);
        }
        self.deeper("", |this| this.have_nothing_in_common(one, other, steps))
    }

    fn have_nothing_in_common(&mut self, one: &Value, other: &Value, steps: usize) -> Made<bool> {
        let (Value::Object(a), Value::Object(b)) = (one, other) else {
            return Ok(one == &Value::Bool(false) || other == &Value::Bool(false));
        };
        for (one, other) in [(a, other), (b, one)] {
            if let Some(Value::String(reference)) = one.get("$ref") {
                let schema = if steps == 0 { Value::Bool(true) } else { self.definition(reference)? };
                if self.are_apart(&schema, other, steps.saturating_sub(1))? {
                    return Ok(true);
                }
            }
            if let Some(Value::Array(all)) = one.get("allOf") {
                for schema in all {
                    if self.are_apart(schema, other, steps)? {
                        return Ok(true);
                    }
                }
            }
            if let Some(Value::Array(any)) = one.get("anyOf") {
                let mut all_are = true;
                for schema in any {
                    all_are = all_are && self.are_apart(schema, other, steps)?;
                }
                if all_are {
                    return Ok(true);
                }
            }
        }
        let common: Vec<&str> = types(a).into_iter().filter(|kind| types(b).contains(kind)).collect();
        if common.is_empty() {
            return Ok(true);
        }
        match common[..] {
            ["object"] => self.members_are_apart(a, b, steps),
            ["number"] => Ok(ranges_are_apart(a, b)),
            _ => Ok(false),
        }
    }

    /// Whether a member that one of them needs surely fits one of them alone.
    fn members_are_apart(&mut self, a: &Map<String, Value>, b: &Map<String, Value>, steps: usize) -> Made<bool> {
        let needed = [a, b].into_iter().filter_map(|schema| schema.get("required").and_then(Value::as_array)).flatten();
        let names: Vec<&str> = needed.filter_map(Value::as_str).collect();
        for name in names {
            if self.are_apart(&member(a, name), &member(b, name), steps)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// An option, as it is among what fits another one: where that has whole numbers alone, an integer is any number.
fn beside(one: &Value, other: &Value) -> Value {
    let mut told = other.clone();
    if let (Value::Object(one), Some(kind)) = (one, told.get_mut("type"))
        && has_whole_numbers_alone(one)
    {
        let names = type_names(kind).into_iter().map(|name| if name == "integer" { "number" } else { name });
        *kind = names.collect();
    }
    told
}

/// The schema of a member, or one that more fits.
fn member(schema: &Map<String, Value>, name: &str) -> Value {
    match (schema.get("properties").and_then(|properties| properties.get(name)), schema.get("additionalProperties")) {
        (Some(schema), _) => schema.clone(),
        (None, Some(Value::Bool(false))) if !schema.contains_key("patternProperties") => Value::Bool(false),
        _ => Value::Bool(true),
    }
}

fn counted(keyword: &str) -> &'static str {
    match &keyword[3..] {
        "Length" => "string",
        "Items" => "array",
        _ => "object",
    }
}

/// An object that has some members, and not this one.
fn without<const N: usize>(name: &str, with: [&str; N]) -> Value {
    json!({ "type": "object", "required": with.to_vec(), "properties": { name: false } })
}

fn type_names(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .map_or_else(|| value.as_str().into_iter().collect(), |names| names.iter().filter_map(Value::as_str).collect())
}

fn other_types(value: &Value, place: &str) -> Made<Value> {
    let named = type_names(value);
    if named.contains(&"integer") && !named.contains(&"number") {
        return wrong(place, "numbers that are not whole cannot be told by a grammar");
    }
    let others: Vec<&str> = TYPES.into_iter().filter(|kind| !named.contains(kind)).collect();
    Ok(if others.is_empty() { Value::Bool(false) } else { json!({ "type": others }) })
}

/// Each type's values but these.
fn other_values(values: &[Value], place: &str) -> Made<Vec<Value>> {
    if values.iter().any(|value| value.is_array() || value.is_object()) {
        return wrong(place, "a list or an object that is not a certain one cannot be told by a grammar");
    }
    let mut ways = vec![json!({ "type": ["array", "object"] })];
    if !values.contains(&Value::Null) {
        ways.push(json!({ "type": "null" }));
    }
    ways.extend(
        [true, false]
            .map(Value::Bool)
            .into_iter()
            .filter(|value| !values.contains(value))
            .map(|value| json!({ "const": value })),
    );
    let texts: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
    ways.push(match texts[..] {
        [] => json!({ "type": "string" }),
        _ => json!({ "type": "string", "pattern": pattern::anything_but(&texts) }),
    });
    let mut numbers: Vec<&Value> = values.iter().filter(|value| value.is_number()).collect();
    numbers.sort_by(|a, b| a.as_f64().unwrap_or_default().total_cmp(&b.as_f64().unwrap_or_default()));
    numbers.dedup_by(|a, b| a.as_f64() == b.as_f64());
    for (at, number) in numbers.iter().enumerate() {
        let mut below = json!({ "type": "number", "exclusiveMaximum": number });
        if at > 0 {
            below["exclusiveMinimum"] = numbers[at - 1].clone();
        }
        ways.push(below);
    }
    ways.push(match numbers.last() {
        None => json!({ "type": "number" }),
        Some(last) => json!({ "type": "number", "exclusiveMinimum": last }),
    });
    Ok(ways)
}

/// Types that a schema's values may have: `integer` counts as `number`.
fn types(schema: &Map<String, Value>) -> Vec<&'static str> {
    let of_values = values(schema).map(|values| values.iter().map(|value| type_of(value)).collect::<Vec<_>>());
    let named = schema.get("type").map(type_names);
    let has = |kind: &str| {
        let is_named =
            named.as_ref().is_none_or(|names| names.contains(&kind) || kind == "number" && names.contains(&"integer"));
        is_named && of_values.as_ref().is_none_or(|kinds| kinds.contains(&kind))
    };
    TYPES.into_iter().filter(|kind| has(kind)).collect()
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn values(schema: &Map<String, Value>) -> Option<&[Value]> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(values))) => Some(values),
        _ => None,
    }
}

/// Whether both name their values, and none is in both. Lists and objects count as the same: numbers in them are written in several ways.
fn values_are_apart(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    let (Some(a), Some(b)) = (values(a), values(b)) else { return false };
    let are_same = |a: &Value, b: &Value| match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => a == b,
    };
    !a.iter().any(|a| b.iter().any(|b| are_same(a, b)))
}

fn ranges_are_apart(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    // What fits both is whole if one of them has nothing else. Then a bound that is left out is the number before, or behind.
    let are_whole = has_whole_numbers_alone(a) || has_whole_numbers_alone(b);
    let bound = |schema: &Map<String, Value>, keyword: &str| schema.get(keyword).and_then(Value::as_f64);
    let ends_before = |a: &Map<String, Value>, b: &Map<String, Value>| {
        let tops = [("maximum", true), ("exclusiveMaximum", false)];
        let bottoms = [("minimum", true), ("exclusiveMinimum", false)];
        tops.iter().any(|(top, has_top)| {
            bottoms.iter().any(|(bottom, has_bottom)| match (bound(a, top), bound(b, bottom)) {
                (Some(top), Some(bottom)) if are_whole => {
                    let last = if *has_top { top.floor() } else { top.ceil() - 1.0 };
                    let first = if *has_bottom { bottom.ceil() } else { bottom.floor() + 1.0 };
                    last < first
                }
                (Some(top), Some(bottom)) => top < bottom || top == bottom && !(*has_top && *has_bottom),
                _ => false,
            })
        })
    };
    ends_before(a, b) || ends_before(b, a)
}

/// Whether no number fits that is not whole.
fn has_whole_numbers_alone(schema: &Map<String, Value>) -> bool {
    schema.get("type").is_some_and(|kind| !type_names(kind).contains(&"number"))
}
