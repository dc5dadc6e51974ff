//! How large the values of a template grow: fuel counts instructions, and one may make a gigabyte.
//!
//! A value is looked at where it is kept (`{% set %}`, which `rewrite` has call [`KEEP`] or [`KEEP_IN`]), printed, or made by a filter or
//! a method; those that make much of little are looked at before they run. What is between, such as `'a' * 1000`, is bounded by
//! minijinja: 100 MB each. Templates are the operator's; this is against mistakes and strange chats, and no sandbox.

use std::collections::BTreeMap;

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, filters};

/// Bytes of a text at most: no longer one can be shown.
const TEXT_MAX: usize = super::OUTPUT_BYTES_MAX;
/// Items of a list at most.
const ITEMS_MAX: usize = 1 << 20;
/// Values within values at most; a chat of JSON has 128. Who prints, compares or drops one recurses.
const LEVELS_MAX: usize = 150;
/// Bytes that one rendering makes in all: 512 MiB, so that a text of 4 MB may be put together in 250 steps.
const MADE_MAX: u64 = 512 << 20;
/// What an item or a part of a value counts.
const ITEM_BYTES: usize = 16;
/// Columns, parts and spaces: no template means more.
const NUMBER_MAX: i64 = 1 << 16;
/// Parts that are looked at for their levels, for each value that is kept: long lists are wide and not deep.
const LOOKED_AT_MAX: usize = 4096;

/// The function that `{% set x = ... %}` calls.
pub(super) const KEEP: &str = "__keep";
/// The one that `{% set x.y = ... %}` calls.
pub(super) const KEEP_IN: &str = "__keep_in";

/// Bytes that a rendering has made.
struct Made(u64);

/// Puts bounds on all that `environment` has.
pub(super) fn apply(environment: &mut Environment<'static>) {
    environment.add_function(KEEP, |state: &mut State, value: Value| {
        look_at(state, &value, true)?;
        made(state, value)
    });
    environment.add_function(KEEP_IN, |state: &mut State, value: Value| {
        look_at(state, &value, false)?;
        made(state, value)
    });
    for (name, filter) in filters() {
        let bounded = move |state: &mut State, mut args: Rest<Value>, named: Kwargs| {
            if named.args().next().is_some() {
                args.push(named.into());
            }
            before(state, name, false, &args)?;
            let value = filter.call(state, &args)?;
            made(state, value)
        };
        environment.add_filter(name, bounded);
    }
}

/// Those of minijinja whose work or result may be larger than what they are given.
fn filters() -> [(&'static str, Value); 29] {
    [
        ("batch", Value::from_function(filters::batch)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("chain", Value::from_function(chain)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("format", Value::from_function(filters::format)),
        ("groupby", Value::from_function(filters::groupby)),
        ("indent", Value::from_function(filters::indent)),
        ("items", Value::from_function(filters::items)),
        ("join", Value::from_function(filters::join)),
        ("lines", Value::from_function(filters::lines)),
        ("list", Value::from_function(filters::list)),
        ("lower", Value::from_function(filters::lower)),
        ("map", Value::from_function(filters::map)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("pprint", Value::from_function(filters::pprint)),
        ("reject", Value::from_function(filters::reject)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("replace", Value::from_function(filters::replace)),
        ("reverse", Value::from_function(filters::reverse)),
        ("round", Value::from_function(filters::round)),
        ("select", Value::from_function(filters::select)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("slice", Value::from_function(filters::slice)),
        ("sort", Value::from_function(filters::sort)),
        ("string", Value::from_function(filters::string)),
        ("title", Value::from_function(filters::title)),
        ("trim", Value::from_function(filters::trim)),
        ("unique", Value::from_function(filters::unique)),
    ]
}

/// All values in one. minijinja's own keeps them within each other, as deep as it is called often.
fn chain(first: Value, others: Rest<Value>) -> Result<Value, Error> {
    let all = || std::iter::once(&first).chain(others.iter());
    if all().all(|value| value.kind() == ValueKind::Map) {
        let mut members = BTreeMap::new();
        for value in all() {
            for key in value.try_iter()? {
                members.insert(key.clone(), value.get_item(&key)?); // the last one counts
            }
        }
        return Ok(members.into());
    }
    let mut items = Vec::new();
    for value in all() {
        items.extend(value.try_iter()?);
    }
    Ok(items.into_iter().collect())
}

/// What a filter or a method is about to do with `args`, the first of which it is called on.
pub(super) fn before(state: &mut State, name: &str, is_method: bool, args: &[Value]) -> Result<(), Error> {
    let Some(value) = args.first() else { return Ok(()) };
    let items = items(value)?;
    let text = |at: usize| args.get(at).and_then(Value::as_str).unwrap_or_default();
    let bytes = match name {
        "join" => text_bytes(value)?.saturating_add(items.saturating_mul(text(1).len())),
        "replace" => {
            let bytes = text_bytes(value)?;
            let times = value.as_str().map_or(bytes, |value| value.matches(text(1)).count());
            bytes.saturating_add(times.saturating_mul(text(2).len()))
        }
        "indent" => {
            let width = check_numbers(&args[1..])?.max(4);
            let bytes = text_bytes(value)?;
            bytes.saturating_add(value.as_str().map_or(bytes, |value| value.lines().count()).saturating_mul(width))
        }
        "format" => {
            check_format(text(0), is_method)?;
            args.iter().try_fold(0_usize, |bytes, value| text_bytes(value).map(|more| bytes.saturating_add(more)))?
        }
        "batch" | "slice" | "round" => {
            check_numbers(&args[1..])?;
            items * ITEM_BYTES
        }
        "capitalize" | "lines" | "lower" | "pprint" | "string" | "title" | "trim" | "upper" => text_bytes(value)?,
        _ => items * ITEM_BYTES,
    };
    if bytes > TEXT_MAX.max(ITEMS_MAX * ITEM_BYTES) {
        return Err(too_long());
    }
    charge(state, bytes)
}

/// A value that was made, if it is within the bounds.
pub(super) fn made(state: &mut State, value: Value) -> Result<Value, Error> {
    let text = value.as_str().map_or(0, str::len);
    if text > TEXT_MAX {
        return Err(too_long());
    }
    let bytes = text + items(&value)? * ITEM_BYTES;
    charge(state, bytes)?;
    Ok(value)
}

/// A value that is about to be written as text.
pub(super) fn printed(state: &mut State, value: &Value) -> Result<(), Error> {
    let bytes = match value.as_str() {
        Some(text) => text.len(), // whoever takes it knows how much there may be
        None => text_bytes(value)?,
    };
    charge(state, bytes)
}

fn charge(state: &mut State, bytes: usize) -> Result<(), Error> {
    let made = state.get_or_insert_extension_with(|| Made(0));
    made.0 = made.0.saturating_add(bytes as u64);
    if made.0 > MADE_MAX { Err(refuse(format!("it makes more than {MADE_MAX} bytes of values"))) } else { Ok(()) }
}

/// How many items a list or a map has.
fn items(value: &Value) -> Result<usize, Error> {
    if !is_container(value) {
        return Ok(0);
    }
    match value.len() {
        Some(items) if items > ITEMS_MAX => Err(refuse(format!("a list has {items} items; allowed: {ITEMS_MAX}"))),
        items => Ok(items.unwrap_or(0)),
    }
}

fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map)
}

/// Bytes of a value that is written as text, about, and of that work.
fn text_bytes(value: &Value) -> Result<usize, Error> {
    let mut bytes = 0;
    count_text(value, &mut bytes, 0)?;
    Ok(bytes)
}

fn count_text(value: &Value, bytes: &mut usize, level: usize) -> Result<(), Error> {
    *bytes += value.as_str().map_or(ITEM_BYTES, str::len);
    if *bytes > TEXT_MAX {
        return Err(too_long());
    }
    if is_container(value) {
        check_level(level)?;
        for item in value.try_iter()? {
            if value.kind() == ValueKind::Map {
                count_text(&value.get_item(&item)?, bytes, level + 1)?;
            }
            count_text(&item, bytes, level + 1)?;
        }
    }
    Ok(())
}

/// Looks for values that are too deep, or for ever: a namespace that is kept in one may hold itself.
struct Levels {
    left: usize,
    takes_namespaces: bool,
}

impl Levels {
    fn look(&mut self, value: &Value, level: usize) -> Result<(), Error> {
        if !is_container(value) {
            return Ok(());
        }
        check_level(level)?;
        if !self.takes_namespaces && value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
        {
            return Err(refuse("a namespace is kept in a namespace".to_owned()));
        }
        for item in value.try_iter()? {
            if self.left == 0 {
                return Ok(());
            }
            self.left -= 1;
            let item = if value.kind() == ValueKind::Map { value.get_item(&item)? } else { item };
            self.look(&item, level + 1)?;
        }
        Ok(())
    }
}

/// Looks at a value that is to be kept, and at what it costs to look.
fn look_at(state: &mut State, value: &Value, takes_namespaces: bool) -> Result<(), Error> {
    let mut levels = Levels { left: LOOKED_AT_MAX, takes_namespaces };
    levels.look(value, 0)?;
    charge(state, (LOOKED_AT_MAX - levels.left) * ITEM_BYTES)
}

fn check_level(level: usize) -> Result<(), Error> {
    let reason = || format!("a value has more than {LEVELS_MAX} values within each other");
    if level > LEVELS_MAX { Err(refuse(reason())) } else { Ok(()) }
}

/// The largest number among arguments, named ones too.
fn check_numbers(args: &[Value]) -> Result<usize, Error> {
    let mut largest = 0;
    for arg in args {
        let named = if arg.is_kwargs() {
            arg.try_iter()?.filter_map(|name| arg.get_item(&name).ok()).collect()
        } else {
            vec![arg.clone()]
        };
        largest = named.iter().map(number).fold(largest, i64::max);
    }
    if largest > NUMBER_MAX {
        return Err(refuse(format!("a number is {largest}; allowed: {NUMBER_MAX}")));
    }
    Ok(largest as usize) // from 0 to 65536
}

/// A number, the nearest there is if it is none of 64 bits; of what is no number 0.
fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| f64::try_from(value.clone()).ok().map(|number| number as i64)).unwrap_or(0)
}

/// Widths, precisions and names in a format, `%10d` of the filter or `{:10}` of the method; `%*d`, whose width is an argument, is not served.
fn check_format(format: &str, is_method: bool) -> Result<(), Error> {
    let too_large = |digits: &str| digits.parse::<i64>().map_or(!digits.is_empty(), |number| number > NUMBER_MAX);
    for (at, begin) in format.match_indices(['%', '{']) {
        let directive = &format[at + 1..];
        // minijinja reads names byte by byte, and panics within a character.
        let name = match directive.strip_prefix('(') {
            Some(name) if begin == "%" && !is_method => name.split(')').next(),
            _ if begin == "{" && is_method => directive.split('}').next(),
            _ => None,
        };
        if name.is_some_and(|name| !name.is_ascii()) {
            return Err(refuse("a name in a format is not ASCII".to_owned()));
        }
        let directive = directive.split(|c: char| c.is_alphabetic() || c == '}').next().unwrap_or_default();
        if directive.contains('*') || directive.split(|c: char| !c.is_ascii_digit()).any(too_large) {
            return Err(refuse(format!("a width is more than {NUMBER_MAX}, or not written out")));
        }
    }
    Ok(())
}

fn too_long() -> Error {
    refuse(format!("a text of more than {TEXT_MAX} bytes"))
}

fn refuse(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}
