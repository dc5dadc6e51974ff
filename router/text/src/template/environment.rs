//! The Jinja environment of `transformers`, in minijinja: settings, `raise_exception`, `tojson`, Python's ideas of types.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, escape_formatter, filters,
};

use super::{bounds, json, python};

/// Without templates.
pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_auto_escape_callback(|_| AutoEscape::None); // prompts are no HTML
    environment.set_undefined_behavior(UndefinedBehavior::Lenient); // Jinja's default
    environment.set_debug(false); // errors go to clients: without variables and source
    environment.set_unknown_method_callback(python::method);
    environment.set_formatter(print);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.to_vec()));
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    bounds::apply(&mut environment);
    environment.add_filter("tojson", tojson);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_test("divisibleby", is_divisible);
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_iterable); // of what JSON and Jinja know, the same things have an order
    environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment
}

fn syntax() -> SyntaxConfig {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    builder.build().expect("the default delimiters are valid")
}

/// What `raise_exception` was told, if that is why rendering ended.
pub(super) fn raised(error: &Error) -> Option<String> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        cause = error.source();
    }
    None
}

#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// As minijinja's, but for a divisor of zero, on which that panics.
fn is_divisible(value: &Value, by: &Value) -> Result<bool, Error> {
    if by.is_integer() && value.is_integer() {
        let whole = |value: &Value| i128::try_from(value.clone());
        let left = whole(value)?.checked_rem(whole(by)?);
        return left.map(|left| left == 0).ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, "nothing is divided by zero, nor the smallest number by -1")
        });
    }
    match (f64::try_from(value.clone()), f64::try_from(by.clone())) {
        (Ok(value), Ok(by)) => Ok(value % by == 0.0),
        _ => Ok(false),
    }
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let said = message.to_string();
    let said = if said.is_empty() { "(no reason)".to_owned() } else { said }; // of a variable that is not there
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(Raised(said)))
}

/// `json.dumps` with the arguments that `transformers` passes on.
fn tojson(state: &mut State, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let style = json::Style {
        is_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent: json::indent(kwargs.get("indent")?)?,
        separators: json::separators(kwargs.get("separators")?)?,
        is_sorted: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    bounds::made(state, json::dumps(value, &style)?.into())
}

/// As Python prints; minijinja writes large and small numbers without an exponent.
fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    bounds::printed(state, value)?;
    match f64::try_from(value.clone()) {
        Ok(float) if value.is_number() && !value.is_integer() && float.is_finite() => {
            Ok(out.write_str(&json::repr(float))?)
        }
        _ => escape_formatter(out, state, value),
    }
}

/// What is undefined is empty.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

/// What is no number is the default.
fn int(value: &Value, default: Option<Value>, base: Option<u32>) -> Value {
    let default = default.unwrap_or_else(|| Value::from(0));
    let number = match value.as_str().map(str::trim) {
        Some(text) => {
            let base = base.unwrap_or(10);
            let digits = match base {
                2 => text.trim_start_matches("0b"),
                8 => text.trim_start_matches("0o"),
                16 => text.trim_start_matches("0x"),
                _ => text,
            };
            let whole = if (2..=36).contains(&base) { i64::from_str_radix(digits, base).ok() } else { None };
            whole.or_else(|| text.parse().ok().and_then(truncated))
        }
        None if value.kind() == ValueKind::Bool => Some(i64::from(value.is_true())),
        None if value.is_integer() => return value.clone(),
        None => f64::try_from(value.clone()).ok().and_then(truncated),
    };
    number.map_or(default, Value::from)
}

fn truncated(float: f64) -> Option<i64> {
    // Up to 2^63, where the conversion is exact but for the fraction.
    (float.abs() < 9.2e18).then_some(float as i64)
}

/// What is no number is the default.
fn float(value: &Value, default: Option<Value>) -> Value {
    let number = match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    };
    number.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from)
}

fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Bytes, Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Bytes | Iterable | Map | Seq | String | Undefined)
}
