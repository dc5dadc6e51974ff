//! What is said of a list's items together: that they differ, that some of them fit. A grammar remembers nothing that was drawn, so this is
//! told by listing the ways, where there are few.

use serde_json::{Map, Value, json};

use super::normal::{Made, Normal, may_be, wrong};

/// Lists of items that differ, at most.
const LISTS_MAX: usize = 1_000;
/// Lists that are begun on the way to these, at most: where many items are asked for, most come to nothing.
const BEGUN_MAX: usize = 20_000;
/// Ways to say which items fit, at most.
const WAYS_MAX: usize = 128;
/// Bytes of all that is listed, at most: a schema is repeated in each way.
pub(super) const BYTES_MAX: usize = 1 << 20;
/// References that are followed one after the other.
const STEPS_MAX: usize = 8;

impl<'a> Normal<'a> {
    /// `uniqueItems`. `plain`: the schema with its parts in normal form. `None`: it says nothing.
    pub(super) fn unique(&mut self, plain: &Map<String, Value>, value: &Value, place: &str) -> Made<Option<Value>> {
        match value {
            Value::Bool(false) => return Ok(None),
            Value::Bool(true) => {}
            _ => return wrong(place, "it is `true` or `false`"),
        }
        let most = lengths(plain).1;
        if !may_be(plain, "array") || most.is_some_and(|most| most <= 1) {
            return Ok(None);
        }
        let empty = Vec::new();
        let first = plain.get("prefixItems").and_then(Value::as_array).unwrap_or(&empty);
        // Behind as many items as there are values, none is new.
        let domains: Option<Vec<_>> = first.iter().map(|item| self.values_of(item, STEPS_MAX).transpose()).collect();
        let domains = domains.map(|domains| domains.into_iter().collect::<Made<Vec<_>>>()).transpose()?;
        let rest = match (most, plain.get("items")) {
            (Some(most), _) if most <= first.len() => Some(Vec::new()),
            (_, None) => None,
            (_, Some(items)) => self.values_of(items, STEPS_MAX)?,
        };
        let (Some(domains), Some(rest)) = (domains, rest) else {
            let reason = "that items differ cannot be kept while they are drawn, unless they are of a few values (`enum`, `const`, truth values, `null`)";
            return wrong(place, reason);
        };
        let mut lists = Lists { domains, rest, lengths: lengths(plain), found: Vec::new(), begun: 0, bytes: 0 };
        if !lists.grow(&mut Vec::new()) {
            return wrong(
                place,
                format!("more than {LISTS_MAX} lists of items that differ, or too long ones, cannot be told"),
            );
        }
        let mut ways = Vec::from_iter(of_other_types(plain, "array"));
        if !lists.found.is_empty() {
            ways.insert(0, json!({ "enum": lists.found }));
        }
        match ways.is_empty() {
            true => wrong(place, "there are not so many items that differ"),
            false => Ok(Some(json!({ "anyOf": ways }))),
        }
    }

    /// All values that fit a schema in normal form, if they are few and named.
    fn values_of(&mut self, schema: &Value, steps: usize) -> Made<Option<Vec<Value>>> {
        let members = match schema {
            Value::Bool(false) => return Ok(Some(Vec::new())),
            Value::Object(members) => members,
            _ => return Ok(None),
        };
        let said: Vec<&str> = members.keys().map(String::as_str).filter(|keyword| *keyword != "type").collect();
        let named = match said[..] {
            [] => [("boolean", vec![json!(false), json!(true)]), ("null", vec![Value::Null])]
                .into_iter()
                .filter(|(kind, _)| may_be(members, kind))
                .flat_map(|(_, values)| values)
                .collect(),
            ["const"] => vec![members["const"].clone()],
            ["enum"] => members["enum"].as_array().cloned().unwrap_or_default(),
            ["anyOf"] => {
                let mut all = Vec::new();
                for option in members["anyOf"].as_array().into_iter().flatten() {
                    match self.deeper("", |this| this.values_of(option, steps))? {
                        Some(values) => all.extend(values),
                        None => return Ok(None),
                    }
                }
                all
            }
            ["$ref"] if steps > 0 => {
                let schema = self.definition(members["$ref"].as_str().unwrap_or_default())?;
                match self.deeper("", |this| this.values_of(&schema, steps - 1))? {
                    Some(values) => values,
                    None => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        let has_others = said.is_empty()
            && (!members.contains_key("type")
                || ["number", "integer", "string", "array", "object"].iter().any(|kind| may_be(members, kind)));
        if named.len() > LISTS_MAX {
            return Ok(None); // each is compared with each
        }
        let mut values: Vec<Value> = Vec::new();
        for value in named.into_iter().filter(|value| is_of_types(value, members)) {
            if !values.iter().any(|other| are_same(other, &value)) {
                values.push(value);
            }
        }
        Ok((!has_others).then_some(values))
    }

    /// `contains`, with `minContains` and `maxContains`. `None`: it says nothing.
    pub(super) fn contains(
        &mut self,
        plain: &Map<String, Value>,
        members: &'a Map<String, Value>,
        counts: (usize, Option<usize>),
        place: &str,
    ) -> Made<Option<Value>> {
        let (least, most) = counts;
        let below = format!("{place}/contains");
        let schema = self.of(&members["contains"], &below)?;
        if schema == Value::Bool(true) || schema == json!({}) {
            let mut bounds = json!({ "minItems": least });
            if let Some(most) = most {
                bounds["maxItems"] = most.into();
            }
            return Ok(Some(bounds));
        }
        if !may_be(plain, "array") || (least == 0 && most.is_none()) {
            return Ok(None);
        }
        let (shortest, longest) = lengths(plain);
        let Some(longest) = longest else {
            let reason = "in a list of any length, that some item fits cannot be kept while items are drawn; a small `maxItems` allows it";
            return wrong(below, reason);
        };
        let too_many = || {
            wrong(
                below.as_str(),
                format!(
                    "in lists of up to {longest} items there are more than {WAYS_MAX} ways; allowed: a smaller `maxItems`"
                ),
            )
        };
        let other = match most.filter(|most| *most < longest) {
            None => None,
            Some(_) => Some(self.negation(&schema, &below)?),
        };
        if longest > LISTS_MAX {
            return too_many();
        }
        let bytes = schema.to_string().len() + other.as_ref().map_or(0, |other| other.to_string().len());
        let (mut ways, mut listed) = (Vec::new(), 0);
        match other {
            // Which of them fit at least.
            None => {
                let Some(all) = choices(longest, least, WAYS_MAX) else { return too_many() };
                if all.len() * least * bytes > BYTES_MAX {
                    return too_many();
                }
                for fitting in all {
                    let length = fitting.last().map_or(0, |last| last + 1);
                    let items: Vec<Value> = (0..length)
                        .map(|at| if fitting.contains(&at) { schema.clone() } else { true.into() })
                        .collect();
                    ways.push(json!({ "type": "array", "minItems": length, "prefixItems": items }));
                }
            }
            // Which of them fit, and no others.
            Some(other) => {
                for length in shortest..=longest {
                    for count in least..=most.unwrap_or(length).min(length) {
                        let Some(all) = choices(length, count, WAYS_MAX - ways.len()) else { return too_many() };
                        listed += all.len() * length * bytes;
                        if listed > BYTES_MAX {
                            return too_many();
                        }
                        ways.extend(all.into_iter().map(|fitting| {
                            let item = |at| if fitting.contains(&at) { schema.clone() } else { other.clone() };
                            let items: Vec<Value> = (0..length).map(item).collect();
                            json!({ "type": "array", "minItems": length, "maxItems": length, "prefixItems": items })
                        }));
                    }
                }
            }
        }
        ways.extend(of_other_types(plain, "array"));
        match ways.is_empty() {
            true => wrong(below, "no list is so short and has so many items that fit"),
            false => Ok(Some(json!({ "anyOf": ways }))),
        }
    }
}

/// How many items there are at least and at most.
fn lengths(plain: &Map<String, Value>) -> (usize, Option<usize>) {
    let bound = |keyword: &str| plain.get(keyword).and_then(Value::as_u64).map(|bound| bound as usize);
    let first = plain.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
    let closed = (plain.get("items") == Some(&Value::Bool(false))).then_some(first);
    (bound("minItems").unwrap_or(0), bound("maxItems").into_iter().chain(closed).min())
}

/// Lists of items that differ.
struct Lists {
    /// What the first items may be.
    domains: Vec<Vec<Value>>,
    /// And all others.
    rest: Vec<Value>,
    lengths: (usize, Option<usize>),
    found: Vec<Vec<Value>>,
    begun: usize,
    bytes: usize,
}

impl Lists {
    /// Finds all that begin so. False: there are too many.
    fn grow(&mut self, list: &mut Vec<Value>) -> bool {
        let (least, most) = self.lengths;
        self.begun += 1;
        if list.len() >= least {
            self.bytes += list.iter().map(|value| value.to_string().len()).sum::<usize>();
            self.found.push(list.clone());
        }
        if self.found.len() > LISTS_MAX || self.begun > BEGUN_MAX || self.bytes > BYTES_MAX {
            return false;
        }
        if most.is_some_and(|most| list.len() >= most) {
            return true;
        }
        let next = self.domains.get(list.len()).unwrap_or(&self.rest).clone();
        next.into_iter().all(|value| {
            if list.iter().any(|other| are_same(other, &value)) {
                return true;
            }
            list.push(value);
            let is_told = self.grow(list);
            list.pop();
            is_told
        })
    }
}

/// Whether JSON Schema takes two values for the same: 1.0 is 1.
fn are_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| are_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, value)| other.get(name).is_some_and(|other| are_same(value, other)))
        }
        _ => one == other,
    }
}

fn is_of_types(value: &Value, members: &Map<String, Value>) -> bool {
    match value {
        Value::Null => may_be(members, "null"),
        Value::Bool(_) => may_be(members, "boolean"),
        Value::Number(number) => {
            let is_whole = number.as_f64().is_some_and(|number| number.fract() == 0.0);
            may_be(members, "number") || (is_whole && may_be(members, "integer"))
        }
        Value::String(_) => may_be(members, "string"),
        Value::Array(_) => may_be(members, "array"),
        Value::Object(_) => may_be(members, "object"),
    }
}

/// What else than this type a schema's values may be: they are not looked at.
pub(super) fn of_other_types(plain: &Map<String, Value>, kind: &str) -> Option<Value> {
    let others = ["null", "boolean", "number", "string", "array", "object"].into_iter().filter(|other| *other != kind);
    let others: Vec<&str> =
        others.filter(|other| may_be(plain, other) || (*other == "number" && may_be(plain, "integer"))).collect();
    (!others.is_empty()).then(|| json!({ "type": others }))
}

/// All ways to choose so many of `count` things, each ascending; `None`: there are more than `most`.
pub(super) fn choices(count: usize, size: usize, most: usize) -> Option<Vec<Vec<usize>>> {
    if size > count {
        return Some(Vec::new());
    }
    if size > most {
        return None; // they may be few, but each is long
    }
    let mut ways: Vec<Vec<usize>> = vec![Vec::new()];
    for step in 0..size {
        // What is chosen leaves enough behind it for the rest.
        let longer = ways.iter().flat_map(|way| {
            let from = way.last().map_or(0, |last| last + 1);
            (from..=count - (size - step)).map(move |next| [way.as_slice(), &[next]].concat())
        });
        // Each of these has a whole one that begins so.
        ways = longer.take(most + 1).collect();
        if ways.len() > most {
            return None;
        }
    }
    (ways.len() <= most).then_some(ways)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_to_choose_are_found_or_none() {
        assert_eq!(choices(3, 0, 9), Some(vec![vec![]]));
        assert_eq!(choices(3, 2, 9), Some(vec![vec![0, 1], vec![0, 2], vec![1, 2]]));
        assert_eq!(choices(2, 3, 9), Some(vec![]));
        assert_eq!(choices(6, 3, 20).map(|ways| ways.len()), Some(20));
        assert_eq!(choices(6, 3, 19), None);
        assert_eq!(choices(1 << 40, 2, 9), None);
    }
}
