//! Methods of Python's `str`, `list` and `dict` that templates call: those of `minijinja_contrib::pycompat`, the ones
//! it has not, and the one where it differs (`splitlines`).

use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::bounds;

/// Widths beyond this are refused: a template prints no such columns, a mistake would fill the memory.
const WIDTH_MAX: usize = 1 << 16;

/// For `Environment::set_unknown_method_callback`.
pub(super) fn method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    // Python calls it on the separator, Jinja on the list.
    let on_first = [std::slice::from_ref(value), args].concat();
    let on_list = [args, std::slice::from_ref(value)].concat();
    bounds::before(state, method, true, if method == "join" { &on_list } else { &on_first })?;
    let own = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => of_text(text, method, args)?,
        (ValueKind::Seq, _) => of_list(value, method, args)?,
        (ValueKind::Map, _) if method == "copy" => Some(value.clone()),
        _ => None,
    };
    let result = match own {
        Some(result) => result,
        None => pycompat::unknown_method_callback(state, value, method, args)?,
    };
    bounds::made(state, result)
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let result = match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts = text.split_once(non_empty(separator)?).map(|(before, after)| [before, separator, after]);
            Value::from(Tuple::from(parts.unwrap_or([text, "", ""]).map(Value::from)))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts = text.rsplit_once(non_empty(separator)?).map(|(before, after)| [before, separator, after]);
            Value::from(Tuple::from(parts.unwrap_or(["", "", text]).map(Value::from)))
        }
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
            Value::from_iter(rsplit(text, separator, most)?)
        }
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            Value::from_iter(splitlines(text, keep_ends.unwrap_or(false)))
        }
        "index" => {
            let (part,): (&str,) = from_args(args)?;
            let at = text.find(part).ok_or_else(|| refuse("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "casefold" => {
            let () = from_args(args)?;
            text.to_lowercase().into()
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swapped =
                |c: char| if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() };
            text.chars().map(swapped).collect::<String>().into()
        }
        "title" => {
            let () = from_args(args)?;
            title(text).into()
        }
        "ljust" | "rjust" | "center" | "zfill" => padded(text, method, args)?.into(),
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn of_list(list: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" => Ok(Some(list.clone())),
        "index" => {
            let (item,): (&Value,) = from_args(args)?;
            let at = list.try_iter()?.position(|candidate| candidate == *item);
            at.map(|at| Some(Value::from(at))).ok_or_else(|| refuse("the item is not in the list"))
        }
        _ => Ok(None),
    }
}

fn rsplit<'a>(text: &'a str, separator: Option<&str>, most: Option<i64>) -> Result<Vec<&'a str>, Error> {
    let most = usize::try_from(most.unwrap_or(-1)).unwrap_or(usize::MAX - 1); // negative: all
    let mut parts: Vec<&str> = match separator {
        Some(separator) => text.rsplitn(most.saturating_add(1), non_empty(separator)?).collect(),
        None => {
            let mut rest = text.trim_end();
            let mut parts = Vec::new();
            while !rest.is_empty() && parts.len() < most {
                let Some(at) = rest.rfind(char::is_whitespace) else { break };
                let after = at + rest[at..].chars().next().map_or(0, char::len_utf8);
                parts.push(&rest[after..]);
                rest = rest[..at].trim_end();
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
            parts
        }
    };
    parts.reverse();
    Ok(parts)
}

/// Every letter after something that is no letter is large, an apostrophe included.
fn title(text: &str) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut is_inside = false;
    for c in text.chars() {
        if is_inside {
            titled.extend(c.to_lowercase())
        } else {
            titled.extend(c.to_uppercase())
        }
        is_inside = c.is_alphabetic();
    }
    titled
}

/// At every line end that Python knows; Rust's `lines` knows two of them.
fn splitlines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let end = if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(0, char::len_utf8) };
        lines.push(&rest[..if keep_ends { at + end } else { at }]);
        rest = &rest[at + end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn padded(text: &str, method: &str, args: &[Value]) -> Result<String, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let width = usize::try_from(width).unwrap_or(0);
    if width > WIDTH_MAX {
        return Err(refuse("a width of more than 65536"));
    }
    let fill = match (method, fill) {
        ("zfill", _) => "0",
        (_, None) => " ",
        (_, Some(fill)) if fill.chars().count() == 1 => fill,
        (_, Some(_)) => return Err(refuse("the fill character must be exactly one character long")),
    };
    let length = text.chars().count();
    let missing = width.saturating_sub(length);
    Ok(match method {
        "ljust" => text.to_owned() + &fill.repeat(missing),
        "rjust" => fill.repeat(missing) + text,
        "center" => {
            let left = missing / 2 + (missing & width & 1); // CPython's rounding
            format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left))
        }
        _ => {
            let sign = if text.starts_with(['+', '-']) { 1 } else { 0 };
            format!("{}{}{}", &text[..sign], fill.repeat(missing), &text[sign..])
        }
    })
}

fn non_empty(separator: &str) -> Result<&str, Error> {
    if separator.is_empty() { Err(refuse("empty separator")) } else { Ok(separator) }
}

fn refuse(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}
