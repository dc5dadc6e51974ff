//! Bounds of numbers that the library would draw itself.
//!
//! Of 1 and above up to 1.5, where 1 is excluded, it draws 1: it leaves the fraction out wherever that of the bound nearer to 0 is 0. So such
//! a bound, whole and excluded, becomes the next number, which is allowed. A bound farther from 0 is left to the library: that it
//! excludes, while below 0.9999999999999999 it would not draw 0.9. Parts of a schema that meet are joined by the library, so that each bound is
//! rewritten, whatever stands beside it.

use serde_json::{Map, Value, json};

/// From here on there is no number between a whole one and the next.
const FRACTIONS_END: f64 = 4_503_599_627_370_496.0; // 2^52
/// Digits of a number that tell it from all others.
const DIGITS: i32 = 16;

/// A schema without whole bounds that are excluded.
pub(crate) fn closed(mut schema: Value) -> Value {
    let exponent = least(&schema).log10().floor() as i32 - DIGITS;
    // With so few decimals as can be: it is written out as a regular expression. All that is nearer to 0 is refused, too.
    let tiny: f64 = format!("1e{exponent}").parse().expect("a number");
    close(&mut schema, tiny.max(f64::MIN_POSITIVE));
    schema
}

/// The number nearest to 0 that a document has, from 1 downwards.
fn least(document: &Value) -> f64 {
    let of_all = |values: &mut dyn Iterator<Item = &Value>| values.map(least).fold(1.0, f64::min);
    match document {
        Value::Number(number) => {
            number.as_f64().map(f64::abs).filter(|number| *number > 0.0).map_or(1.0, |n| n.min(1.0))
        }
        Value::Array(items) => of_all(&mut items.iter()),
        Value::Object(members) => of_all(&mut members.values()),
        _ => 1.0,
    }
}

/// `tiny`: the number above 0 that stands for the next one.
fn close(schema: &mut Value, tiny: f64) {
    let Value::Object(members) = schema else { return };
    // There the library counts, and is right.
    if members.get("type").is_none_or(|kind| kind != "integer") {
        let above = |bound: f64| match bound {
            0.0 => Some(tiny),
            bound => (bound > 0.0).then(|| bound.next_up()),
        };
        close_bound(members, "exclusiveMinimum", "minimum", above, f64::max);
        close_bound(members, "exclusiveMaximum", "maximum", |bound| above(-bound).map(|next| -next), f64::min);
    }
    for (keyword, value) in members {
        match (keyword.as_str(), value) {
            ("enum" | "const", _) => {}
            ("properties" | "patternProperties" | "$defs", Value::Object(schemas)) => {
                schemas.values_mut().for_each(|schema| close(schema, tiny));
            }
            (_, Value::Array(schemas)) => schemas.iter_mut().for_each(|schema| close(schema, tiny)),
            (_, schema) => close(schema, tiny),
        }
    }
}

fn close_bound(
    members: &mut Map<String, Value>,
    excluded: &str,
    allowed: &str,
    next: impl Fn(f64) -> Option<f64>,
    stricter: impl Fn(f64, f64) -> f64,
) {
    // In draft 4 it is said of the other bound that it is excluded. A normal form has none of that, a schema within Lark may.
    let is_said_of = if members.get(excluded) == Some(&Value::Bool(true)) { allowed } else { excluded };
    let bound = members.get(is_said_of).and_then(Value::as_f64);
    let Some(bound) = bound.filter(|bound| bound.fract() == 0.0 && bound.abs() < FRACTIONS_END) else { return };
    let Some(next) = next(bound) else { return };
    let beside = members.get(allowed).and_then(Value::as_f64);
    let next = beside.map_or(next, |beside| stricter(next, beside));
    members.shift_remove(excluded);
    members.insert(allowed.to_owned(), json!(next));
}
