//! Literals that are not JSON, read into JSON: Python's, and Gemma's, whose texts stand between marks.

use serde_json::{Map, Number, Value};

/// Deeper values are refused: whoever reads the arguments may recurse.
const DEPTH_MAX: usize = 64;

/// Whose literals.
#[derive(Debug, Clone, Copy)]
pub(super) enum Dialect<'a> {
    /// Texts in single or double quotes, with backslashes; keys of a dictionary are texts.
    Python,
    /// Texts between two of this mark; keys may stand bare.
    Quoted(&'a str),
}

/// The arguments of a call, all of `text`: `key=value, ...` in Python, `key:value, ...` between marks.
pub(super) fn arguments(text: &str, dialect: Dialect<'_>) -> Option<Map<String, Value>> {
    let separator = match dialect {
        Dialect::Python => '=',
        Dialect::Quoted(_) => ':',
    };
    let mut cursor = Cursor { rest: text, dialect };
    let members = cursor.members(separator, None, 0)?;
    cursor.rest.is_empty().then_some(members)
}

struct Cursor<'a> {
    rest: &'a str,
    dialect: Dialect<'a>,
}

impl<'a> Cursor<'a> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, c: char) -> bool {
        self.skip_space();
        let rest = self.rest.strip_prefix(c);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Up to `end`, or to the end of the text. A comma may follow the last member.
    fn members(&mut self, separator: char, end: Option<char>, depth: usize) -> Option<Map<String, Value>> {
        let mut members = Map::new();
        loop {
            self.skip_space();
            match end {
                None if self.rest.is_empty() => return Some(members),
                Some(end) if self.eat(end) => return Some(members),
                _ => {}
            }
            let key = self.key(separator)?;
            let value = self.value(depth)?;
            if members.insert(key, value).is_some() {
                return None; // said twice
            }
            if !self.eat(',') {
                return match end {
                    None => self.rest.is_empty().then_some(members),
                    Some(end) => self.eat(end).then_some(members),
                };
            }
        }
    }

    fn key(&mut self, separator: char) -> Option<String> {
        self.skip_space();
        let is_bare = separator == '=' || (matches!(self.dialect, Dialect::Quoted(_)) && !self.is_text());
        let key = if is_bare {
            let length = self.rest.find(|c: char| c == separator || c == ',' || c.is_whitespace())?;
            self.word(length)
        } else {
            self.text()?
        };
        (!key.is_empty() && self.eat(separator)).then_some(key)
    }

    fn is_text(&self) -> bool {
        match self.dialect {
            Dialect::Python => self.rest.starts_with(['"', '\'']),
            Dialect::Quoted(mark) => self.rest.starts_with(mark),
        }
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        self.skip_space();
        if depth == DEPTH_MAX {
            return None;
        }
        if self.is_text() {
            return self.text().map(Value::String);
        }
        if self.eat('{') {
            return self.members(':', Some('}'), depth + 1).map(Value::Object);
        }
        if self.eat('[') {
            return self.items(']', depth + 1);
        }
        if matches!(self.dialect, Dialect::Python) && self.eat('(') {
            return self.items(')', depth + 1);
        }
        let ends = |c: char| matches!(c, ',' | ']' | '}' | ')' | '{' | '[' | '(') || c.is_whitespace();
        let length = self.rest.find(ends).unwrap_or(self.rest.len());
        let word = self.word(length);
        match word.as_str() {
            "" => None,
            "True" | "true" => Some(Value::Bool(true)),
            "False" | "false" => Some(Value::Bool(false)),
            "None" | "null" => Some(Value::Null),
            word => number(word),
        }
    }

    fn items(&mut self, end: char, depth: usize) -> Option<Value> {
        let mut items = Vec::new();
        loop {
            if self.eat(end) {
                return Some(Value::Array(items));
            }
            items.push(self.value(depth)?);
            if !self.eat(',') {
                return self.eat(end).then_some(Value::Array(items));
            }
        }
    }

    fn word(&mut self, length: usize) -> String {
        let (word, rest) = self.rest.split_at(length);
        self.rest = rest;
        word.to_owned()
    }

    fn text(&mut self) -> Option<String> {
        match self.dialect {
            Dialect::Quoted(mark) => {
                let (text, rest) = self.rest.strip_prefix(mark)?.split_once(mark)?;
                self.rest = rest;
                Some(text.to_owned())
            }
            Dialect::Python => self.python_text(),
        }
    }

    fn python_text(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let mut chars = self.rest[1..].chars();
        let mut text = String::new();
        loop {
            match chars.next()? {
                '\\' => match chars.next()? {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{c}'),
                    '0' => text.push('\0'),
                    '\n' => {}
                    'x' => text.push(code(&mut chars, 2)?),
                    'u' => text.push(in_utf16(&mut chars)?),
                    '/' => text.push('/'), // JSON's
                    'U' => text.push(code(&mut chars, 8)?),
                    c @ ('\\' | '\'' | '"') => text.push(c),
                    // As Python does with what it does not know.
                    c => text.extend(['\\', c]),
                },
                c if c == quote => {
                    self.rest = chars.as_str();
                    return Some(text);
                }
                c => text.push(c),
            }
        }
    }
}

fn code(chars: &mut std::str::Chars<'_>, digits: usize) -> Option<char> {
    let digits: String = chars.take(digits).collect();
    u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32)
}

/// Four digits, or twice four for a character that UTF-16 has in two parts, as JSON writes it.
fn in_utf16(chars: &mut std::str::Chars<'_>) -> Option<char> {
    let unit = |chars: &mut std::str::Chars<'_>| u16::from_str_radix(&chars.take(4).collect::<String>(), 16).ok();
    let first = unit(chars)?;
    if let Some(alone) = char::from_u32(first.into()) {
        return Some(alone);
    }
    let is_next = chars.next() == Some('\\') && chars.next() == Some('u');
    let second = unit(chars).filter(|_| is_next)?;
    char::decode_utf16([first, second]).next()?.ok()
}

fn number(word: &str) -> Option<Value> {
    let digits = word.strip_prefix('+').unwrap_or(word);
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.'));
    if !is_number {
        return None; // "inf" and "nan" are none in JSON
    }
    let whole = digits.parse::<i64>().map(Number::from);
    whole.ok().or_else(|| Number::from_f64(digits.parse().ok()?)).map(Value::Number)
}

/// Where a call ends: counts brackets outside of texts.
#[derive(Debug, Clone, Default)]
pub(in crate::formats) struct Brackets {
    open: usize,
    quote: Option<char>,
    is_escaped: bool,
}

impl Brackets {
    /// Takes a character of Python. Returns whether it closed the bracket that was open before the first one.
    pub(super) fn python(&mut self, c: char) -> bool {
        match self.quote {
            Some(_) if std::mem::take(&mut self.is_escaped) => {}
            Some(_) if c == '\\' => self.is_escaped = true,
            Some(quote) if c == quote => self.quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') => self.quote = Some(c),
            None => return self.bracket(c),
        }
        false
    }

    /// Takes a character outside of texts.
    pub(super) fn bracket(&mut self, c: char) -> bool {
        match c {
            '(' | '[' | '{' => self.open += 1,
            ')' | ']' | '}' if self.open == 0 => return true,
            ')' | ']' | '}' => self.open -= 1,
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(dialect: Dialect<'_>, text: &str, expected: Option<Value>) {
        assert_eq!(arguments(text, dialect).map(Value::Object), expected, "{text}");
    }

    #[test]
    fn python_literals_become_json() {
        let python = |text, expected| check(Dialect::Python, text, expected);
        python("", Some(json!({})));
        python(r#"a=1, b = "x\n\"", c='it''"#, None);
        python(r#"a=-1.5, b="x\n\"é", c='it\'s',"#, Some(json!({ "a": -1.5, "b": "x\n\"é", "c": "it's" })));
        python(
            "a=[1, (2, 3), {'k': None, \"l\": [True, False]}], b=[]",
            Some(json!({ "a": [1, [2, 3], { "k": null, "l": [true, false] }], "b": [] })),
        );
        python(r"a='\x41\u00e9\q'", Some(json!({ "a": "Aé\\q" })));
        for wrong in
            ["a", "a=", "1", "a=b", "a=1 b=2", "a=1, a=2", "a='x", "a=nan", "a=[1", "=1", "a=f(1)", r"a='\u12'"]
        {
            python(wrong, None);
        }
        python(&format!("a={}{}", "[".repeat(DEPTH_MAX + 1), "]".repeat(DEPTH_MAX + 1)), None);
    }

    #[test]
    fn texts_may_stand_between_marks() {
        let quoted = |text, expected| check(Dialect::Quoted("<q>"), text, expected);
        quoted(
            "a:<q>x, {y}<q>,b:5,c:[<q>1<q>,true],<q>d e<q>:{f:null}",
            Some(json!({ "a": "x, {y}", "b": 5, "c": ["1", true], "d e": { "f": null } })),
        );
        quoted("a:<q>x", None);
        quoted("a:x", None);
    }
}
