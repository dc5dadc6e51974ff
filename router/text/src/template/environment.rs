//! The Jinja environment of `transformers`, in minijinja: settings, `raise_exception`, `tojson`, Python's ideas of types.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};

use super::{json, python};

/// Without templates.
pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_auto_escape_callback(|_| AutoEscape::None); // prompts are no HTML
    environment.set_undefined_behavior(UndefinedBehavior::Lenient); // Jinja's default
    environment.set_debug(false); // errors go to clients: without variables and source
    environment.set_unknown_method_callback(python::method);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("cycler", minijinja_contrib::globals::cycler);
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_filter("tojson", tojson);
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

fn raise_exception(message: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(Raised(message.to_string())))
}

/// `json.dumps` with the arguments that `transformers` passes on.
fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let style = json::Style {
        is_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent: json::indent(kwargs.get("indent")?)?,
        separators: json::separators(kwargs.get("separators")?)?,
        is_sorted: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    json::dumps(value, &style).map(Value::from)
}

fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Bytes, Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Bytes | Iterable | Map | Seq | String | Undefined)
}
