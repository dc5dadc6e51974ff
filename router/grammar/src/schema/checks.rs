//! What the value of a keyword has to be, and which values cannot be kept.

use serde_json::Value;

use super::normal::{Made, wrong};
use crate::regex;

/// Whole numbers below have one reading as a float.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

pub(super) fn check_type(value: &Value, place: &str) -> Made<()> {
    const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let is_right = value.as_array().map_or(is_type(value), |types| !types.is_empty() && types.iter().all(is_type));
    if is_right { Ok(()) } else { wrong(place, format!("the type {value} is none; allowed: {}", TYPES.join(", "))) }
}

pub(super) fn names<'v>(value: &'v Value, place: &str) -> Made<Vec<&'v str>> {
    let names = value.as_array().map(|names| names.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    names.flatten().map_or_else(|| wrong(place, "it is a list of names"), Ok)
}

pub(super) fn count(value: &Value, place: &str) -> Made<u64> {
    let whole = |float: f64| (float.fract() == 0.0 && (0.0..=WHOLE_MAX).contains(&float)).then_some(float as u64);
    let count = value.as_u64().or_else(|| value.as_f64().and_then(whole));
    count.map_or_else(|| wrong(place, format!("{value} is no number of things")), Ok)
}

pub(super) fn check_bound(value: &Value, place: &str) -> Made<()> {
    match value.as_f64() {
        None => wrong(place, "it is a number"),
        Some(bound) if bound.abs() >= WHOLE_MAX => wrong(place, format!("numbers below {WHOLE_MAX} are kept exactly")),
        Some(_) => Ok(()),
    }
}

/// A value that stands in a schema: what cannot be drawn exactly is refused.
pub(super) fn check_exact(value: &Value, place: &str) -> Made<()> {
    match value {
        Value::Number(_) => check_bound(value, place),
        Value::String(text) if text.contains(regex::cannot_be_drawn) => wrong(place, regex::NOT_DRAWN),
        Value::Array(items) => items.iter().try_for_each(|item| check_exact(item, place)),
        // Names are written in one way, whatever they are: no other name of the object has such a character.
        Value::Object(members) => members.values().try_for_each(|member| check_exact(member, place)),
        _ => Ok(()),
    }
}

/// The values of `multipleOf` of a document. Where several of them meet, the library multiplies with 32 bits.
#[derive(Default)]
pub(super) struct Steps(Vec<(u64, u32)>); // a whole number, and by how many digits it is moved

impl Steps {
    /// Adds one, if all of them may meet.
    pub(super) fn add(&mut self, value: &Value, place: &str) -> Made<()> {
        const DIGITS_MAX: u32 = 15;
        let Some(mut step) = value.as_f64().filter(|step| *step > 0.0) else {
            return wrong(place, "it is a number above 0");
        };
        let mut digits = 0;
        while step.fract() != 0.0 && digits < DIGITS_MAX {
            step *= 10.0;
            digits += 1;
        }
        self.0.push((step as u64, digits));
        self.0.dedup();
        if step.fract() != 0.0 || step >= f64::from(u32::MAX) || !self.may_meet() {
            return wrong(place, "with so many digits, together with other values of `multipleOf`, it cannot be kept");
        }
        Ok(())
    }

    fn may_meet(&self) -> bool {
        let digits = self.0.iter().map(|step| step.1).max().unwrap_or(0);
        let mut common = 1_u64;
        self.0.iter().all(|&(whole, moved)| {
            let scaled = whole.checked_mul(10_u64.pow(digits - moved));
            let product = scaled.and_then(|scaled| Some((scaled, common.checked_mul(scaled)?)));
            let Some((scaled, product)) = product else { return false };
            common = product / greatest_divisor(common, scaled);
            // It may meet itself, and all that is made of it.
            common.checked_mul(scaled).is_some_and(|product| product <= u64::from(u32::MAX))
        })
    }
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// A name may be drawn twice, and counts once. Names that are required are drawn once, so that one more is another one.
pub(super) fn check_least_members(least: u64, required: u64, place: &str) -> Made<()> {
    if least <= required + 1 {
        return Ok(());
    }
    wrong(place, format!("{least} members of which {required} are `required`: that they differ cannot be kept"))
}
