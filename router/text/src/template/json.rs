//! Python's `json.dumps`, character for character: prompts were rendered with it in training.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Deeper values are refused: writing them recurses.
const DEPTH_MAX: usize = 200;

/// The arguments of `json.dumps`.
pub(super) struct Style {
    /// Everything beyond ASCII as `\u....`.
    pub(super) is_ascii: bool,
    /// What one level is indented by; `None`: all on one line.
    pub(super) indent: Option<String>,
    /// Between items, and after a key. `None`: `", "` and `": "`, the first without its space before a line end.
    pub(super) separators: Option<(String, String)>,
    pub(super) is_sorted: bool,
}

/// `indent`: a number of spaces, a text, or none.
pub(super) fn indent(value: Option<Value>) -> Result<Option<String>, Error> {
    const WIDTH_MAX: i64 = 64;
    let Some(value) = value.filter(|value| !value.is_none() && !value.is_undefined()) else { return Ok(None) };
    if let Some(text) = value.as_str() {
        return Ok(Some(text.to_owned()));
    }
    // Python's booleans are numbers.
    let width = if value.kind() == ValueKind::Bool { Some(i64::from(value.is_true())) } else { value.as_i64() };
    match width {
        Some(width @ ..=WIDTH_MAX) => Ok(Some(" ".repeat(usize::try_from(width).unwrap_or(0)))),
        _ => Err(refuse(format!("tojson: `indent` is {value}; allowed: a text, or at most {WIDTH_MAX}"))),
    }
}

/// `separators`: a pair of texts, or none.
pub(super) fn separators(value: Option<Value>) -> Result<Option<(String, String)>, Error> {
    let Some(value) = value.filter(|value| !value.is_none() && !value.is_undefined()) else { return Ok(None) };
    let texts: Vec<String> = value.try_iter()?.filter_map(|text| text.as_str().map(str::to_owned)).collect();
    match <[String; 2]>::try_from(texts) {
        Ok([item, key]) => Ok(Some((item, key))),
        Err(_) => Err(refuse("tojson: `separators` is a pair of texts".into())),
    }
}

/// The value as JSON text.
pub(super) fn dumps(value: &Value, style: &Style) -> Result<String, Error> {
    let mut writer = Writer { style, text: String::new() };
    writer.value(value, 0)?;
    Ok(writer.text)
}

struct Writer<'a> {
    style: &'a Style,
    text: String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(refuse("tojson: the value is nested too deeply".into()));
        }
        if self.text.len() > super::OUTPUT_BYTES_MAX {
            return Err(refuse("tojson: the text is longer than any chat".into()));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            kind => return Err(refuse(format!("tojson: {kind} has no JSON form"))),
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.text.push('[');
        let mut is_empty = true;
        for item in value.try_iter()? {
            self.before_item(std::mem::take(&mut is_empty), depth + 1);
            self.value(&item, depth + 1)?;
        }
        self.close(']', is_empty, depth);
        Ok(())
    }

    fn object(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut members = Vec::new();
        for key in value.try_iter()? {
            let member = value.get_item(&key)?;
            members.push((name(&key)?, member));
        }
        if self.style.is_sorted {
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        self.text.push('{');
        let is_empty = members.is_empty();
        for (at, (key, member)) in members.into_iter().enumerate() {
            self.before_item(at == 0, depth + 1);
            self.string(&key);
            self.text.push_str(self.style.separators.as_ref().map_or(": ", |(_, after_key)| after_key));
            self.value(&member, depth + 1)?;
        }
        self.close('}', is_empty, depth);
        Ok(())
    }

    fn before_item(&mut self, is_first: bool, depth: usize) {
        if !is_first {
            let default = if self.style.indent.is_some() { "," } else { ", " };
            self.text.push_str(self.style.separators.as_ref().map_or(default, |(between, _)| between));
        }
        self.line(depth);
    }

    fn close(&mut self, bracket: char, is_empty: bool, depth: usize) {
        if !is_empty {
            self.line(depth);
        }
        self.text.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn string(&mut self, string: &str) {
        self.text.push('"');
        for c in string.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                '\0'..='\x1F' => self.escape(c),
                '\u{7f}'.. if self.style.is_ascii => self.escape(c),
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            write!(self.text, "\\u{unit:04x}").expect("writing to a String does not fail");
        }
    }
}

/// A key as Python writes it: numbers, booleans and none become texts.
fn name(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => Ok(number(key)),
        kind => Err(refuse(format!("tojson: {kind} cannot be a key"))),
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) if float.is_nan() => "NaN".into(),
        Ok(float) if float.is_infinite() => if float > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        Ok(float) => repr(float),
        Err(_) => value.to_string(),
    }
}

/// Python's `repr` of a finite float: the shortest digits that read back, with an exponent below 1e-4 and from 1e16.
pub(super) fn repr(float: f64) -> String {
    let scientific = format!("{float:e}"); // like -1.25e-7: the shortest digits, too
    let (digits, exponent) = scientific.split_once('e').expect("`{:e}` writes an exponent");
    let exponent: i32 = exponent.parse().expect("`{:e}` writes a whole exponent");
    if (-4..16).contains(&exponent) {
        let plain = float.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn refuse(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}
