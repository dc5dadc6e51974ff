//! An expression as the library reads it: what its language, Rust's, reads differently is written out or refused.
//!
//! A class has characters, ranges and the like, and nothing else: Rust's `&&`, `--`, `~~` and classes within classes are characters of it.

use super::{Reading, Wrong};

/// White space as ECMAScript means it.
const SPACE: &str = r"\t\n\x0B\x0C\r\x20\xA0\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}";
/// White space of ASCII.
const PLAIN_SPACE: &str = r"\t\n\x0B\x0C\r\x20";

/// Why a pattern is refused that has such a character.
pub(crate) const NOT_DRAWN: &str = "of control characters only \\b, \\f, \\n, \\r and \\t can be drawn";

/// Control characters that JSON has no short escape for. Others would have two, by which a name passes for another one.
pub(crate) fn cannot_be_drawn(c: char) -> bool {
    c < ' ' && !matches!(c, '\x08' | '\t' | '\n' | '\x0C' | '\r') || c == '\x7F'
}

/// A character as the library reads it anywhere.
pub(crate) fn literal(c: char) -> String {
    format!("\\u{{{:X}}}", c as u32)
}

/// An expression, and where its parts stand in what the client has written.
pub(super) struct Written {
    pub(super) text: String,
    places: Vec<(usize, usize)>, // of each part: the byte here, and there
}

impl Written {
    pub(super) fn of(source: &str, reading: Reading) -> Result<Self, Wrong> {
        let mut writer = Writer { source, reading, at: 0, text: String::new(), places: Vec::new() };
        writer.all()?;
        Ok(Self { text: writer.text, places: writer.places })
    }

    /// The byte in what the client has written.
    pub(super) fn origin(&self, at: usize) -> usize {
        let behind = self.places.partition_point(|&(here, _)| here <= at);
        behind.checked_sub(1).map_or(0, |last| self.places[last].1)
    }
}

struct Writer<'a> {
    source: &'a str,
    reading: Reading,
    at: usize, // bytes that are read
    text: String,
    places: Vec<(usize, usize)>,
}

/// A part of a class.
enum Item {
    One(char),
    /// As the library reads it.
    Set(String),
}

impl Writer<'_> {
    fn all(&mut self) -> Result<(), Wrong> {
        loop {
            let at = self.at;
            self.places.push((self.text.len(), at));
            let Some(c) = self.next() else { return Ok(()) };
            match c {
                '\\' => self.escape(at)?,
                '[' => self.class(at)?,
                // A `/` would end the expression in Lark.
                ']' | '/' => self.text.extend(['\\', c]),
                '.' if self.reading == Reading::Schema => self.text += r"[^\n\r\u{2028}\u{2029}]",
                '(' if self.reading == Reading::Schema => self.group(at)?,
                c => {
                    self.check_drawn(c, at)?;
                    self.text.push(c);
                }
            }
        }
    }

    /// Behind a `(`: flags would change what is written out.
    fn group(&mut self, at: usize) -> Result<(), Wrong> {
        self.text.push('(');
        let Some(behind) = self.source[self.at..].strip_prefix('?') else { return Ok(()) };
        let ahead: String = behind.chars().take(2).collect();
        match ahead.as_bytes() {
            [b':', ..] | [b'P', b'<'] => Ok(()),
            [b'<', next] if !b"=!".contains(next) => Ok(()),
            [b'=' | b'!' | b'<', ..] => wrong(at, "looking ahead or behind is not served"),
            _ => wrong(at, format!("`(?{ahead}` has no meaning in a pattern of JSON Schema")),
        }
    }

    /// Behind a `\` outside of classes.
    fn escape(&mut self, at: usize) -> Result<(), Wrong> {
        let Some(c) = self.next() else { return wrong(at, "a `\\` at the end escapes nothing") };
        if let Some(set) = self.set(c, at)? {
            self.text += &set;
        } else if let Some(c) = self.character(c, at)? {
            self.check_drawn(c, at)?;
            self.text += &literal(c);
        } else {
            match c {
                '1'..='9' | 'k' => return wrong(at, "back references are not served"),
                'b' | 'B' if self.reading == Reading::Schema => {
                    return wrong(at, "word boundaries (`\\b`) are not served");
                }
                c if c.is_ascii_alphanumeric() && self.reading == Reading::Schema => {
                    return wrong(at, format!("`\\{c}` has no meaning in a pattern of JSON Schema"));
                }
                // Rust's own, or it says that there is none.
                c if c.is_ascii_alphanumeric() => self.text.extend(['\\', c]),
                // Rust has `\<` and `\>` for something else, and others escaped only if they are ASCII.
                c if c.is_ascii_punctuation() && !matches!(c, '<' | '>') => self.text.extend(['\\', c]),
                c => {
                    self.check_drawn(c, at)?;
                    self.text += &literal(c);
                }
            }
        }
        Ok(())
    }

    /// Behind a `[`.
    fn class(&mut self, at: usize) -> Result<(), Wrong> {
        let is_negated = self.next_is('^');
        if self.reading == Reading::Schema && self.next_is(']') {
            match is_negated {
                true => self.text += "(?s:.)",
                false => return wrong(at, "`[]` matches nothing"),
            }
            return Ok(());
        }
        self.text += if is_negated { "[^" } else { "[" };
        let mut is_first = true;
        loop {
            let item_at = self.at;
            self.places.push((self.text.len(), item_at));
            match self.next() {
                None => return wrong(at, "the class `[` is not closed"),
                Some(']') if !is_first => break,
                Some(c) => self.items(c, item_at, is_negated)?,
            }
            is_first = false;
        }
        self.text.push(']');
        Ok(())
    }

    /// A part of a class, or a range of them, that begins with a character.
    fn items(&mut self, c: char, at: usize, is_negated: bool) -> Result<(), Wrong> {
        let first = self.item(c, at)?;
        let ahead = &self.source[self.at..];
        if !ahead.starts_with('-') || ahead[1..].starts_with(']') || ahead.len() == 1 {
            if let Item::One(c) = first
                && !is_negated
            {
                self.check_drawn(c, at)?;
            }
            self.text += &first.written();
            return Ok(());
        }
        self.next();
        let last_at = self.at;
        let c = self.next().expect("looked at above");
        let last = self.item(c, last_at)?;
        match (&first, &last) {
            (Item::One(first), Item::One(last)) if first > last => {
                return wrong(at, "a range of characters ends before it begins");
            }
            (Item::One(_), Item::One(_)) => self.text += &format!("{}-{}", first.written(), last.written()),
            // What stands beside a set is no range.
            _ => self.text += &format!("{}\\-{}", first.written(), last.written()),
        }
        Ok(())
    }

    fn item(&mut self, c: char, at: usize) -> Result<Item, Wrong> {
        if c != '\\' {
            return Ok(Item::One(c));
        }
        let Some(c) = self.next() else { return wrong(at, "a `\\` at the end escapes nothing") };
        if let Some(set) = self.set(c, at)? {
            return Ok(Item::Set(set));
        }
        match self.character(c, at)? {
            Some(c) => Ok(Item::One(c)),
            None if c == 'b' => Ok(Item::One('\x08')),
            None if c.is_ascii_alphanumeric() => wrong(at, "this escape stands for no character of a class"),
            None => Ok(Item::One(c)),
        }
    }

    /// Many characters that an escape stands for.
    fn set(&mut self, kind: char, at: usize) -> Result<Option<String>, Wrong> {
        let space = if self.reading == Reading::Schema { SPACE } else { PLAIN_SPACE };
        Ok(Some(match kind {
            'd' => "[0-9]".to_owned(),
            'D' => "[^0-9]".to_owned(),
            'w' => "[0-9A-Za-z_]".to_owned(),
            'W' => "[^0-9A-Za-z_]".to_owned(),
            's' => format!("[{space}]"),
            'S' => format!("[^{space}]"),
            'p' | 'P' => {
                let rest = &self.source[self.at..];
                let length = match rest.chars().next() {
                    Some('{') => rest.find('}').map(|end| end + 1),
                    first => first.map(char::len_utf8),
                };
                let name = length.map(|length| &rest[..length]);
                let Some(name) = name else { return wrong(at, "a class of characters is `\\pL` or `\\p{Greek}`") };
                self.at += name.len();
                format!("\\{kind}{name}")
            }
            _ => return Ok(None),
        }))
    }

    /// The one character that an escape of letters and digits stands for.
    fn character(&mut self, kind: char, at: usize) -> Result<Option<char>, Wrong> {
        let code = match kind {
            't' => Some(0x09),
            'n' => Some(0x0A),
            'v' => Some(0x0B),
            'f' => Some(0x0C),
            'r' => Some(0x0D),
            '0' if !self.source[self.at..].starts_with(|c: char| c.is_ascii_digit()) => Some(0),
            'c' => self.next().filter(char::is_ascii_alphabetic).map(|letter| letter as u32 % 32),
            'x' => self.number(2),
            'u' => self.number(4).and_then(|code| self.with_low_half(code)),
            'a' if self.reading == Reading::Text => Some(0x07),
            'U' if self.reading == Reading::Text => self.number(8),
            _ => return Ok(None),
        };
        match code.and_then(char::from_u32) {
            None => wrong(at, format!("`\\{kind}` is followed by the code of a character")),
            found => Ok(found),
        }
    }

    /// So many hexadecimal digits, or any in braces.
    fn number(&mut self, count: usize) -> Option<u32> {
        let rest = &self.source[self.at..];
        let (digits, length) = match rest.strip_prefix('{') {
            Some(inner) => inner.split_once('}').map(|(digits, _)| (digits, digits.len() + 2))?,
            None => rest.get(..count).map(|digits| (digits, count))?,
        };
        self.at += length;
        u32::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
    }

    /// A pair of surrogates is one character.
    fn with_low_half(&mut self, code: u32) -> Option<u32> {
        if !(0xD800..0xDC00).contains(&code) {
            return Some(code);
        }
        self.next_is('\\').then_some(())?;
        self.next_is('u').then_some(())?;
        let low = self.number(4).filter(|low| (0xDC00..0xE000).contains(low))?;
        Some(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
    }

    fn check_drawn(&self, c: char, at: usize) -> Result<(), Wrong> {
        if self.reading == Reading::Schema && cannot_be_drawn(c) { wrong(at, NOT_DRAWN) } else { Ok(()) }
    }

    fn next(&mut self) -> Option<char> {
        let next = self.source[self.at..].chars().next()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn next_is(&mut self, c: char) -> bool {
        let is_next = self.source[self.at..].starts_with(c);
        self.at += if is_next { c.len_utf8() } else { 0 };
        is_next
    }
}

impl Item {
    fn written(&self) -> String {
        match self {
            Self::Set(set) => set.clone(),
            Self::One(c) if c.is_control() => literal(*c),
            Self::One(c @ ('[' | ']' | '^' | '-' | '&' | '~' | '\\' | '/')) => format!("\\{c}"),
            Self::One(c) => c.to_string(),
        }
    }
}

fn wrong<T>(at: usize, reason: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { at, reason: reason.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reading: Reading, cases: &[(&str, &str)]) {
        for (source, written) in cases {
            let got = Written::of(source, reading).map(|written| written.text);
            assert_eq!(got.as_deref().map_err(|wrong| &wrong.reason), Ok(*written), "{source}");
        }
    }

    #[test]
    fn patterns_of_schemas_are_ecmascripts() {
        check(
            Reading::Schema,
            &[
                ("^a/b$", r"^a\/b$"),
                (r"\d[\w-]\.", r"[0-9][[0-9A-Za-z_]\-]\."),
                ("[[&&b]", r"[\[\&\&b]"),
                ("a]", r"a\]"),
                ("[^]", "(?s:.)"),
                (r"\cJ[\b]", r"\u{A}[\u{8}]"),
                (r"\u0041\x42\u{1F600}\uD83D\uDE00", r"\u{41}\u{42}\u{1F600}\u{1F600}"),
                (r"[\x00-\x1F][^\0]", r"[\u{0}-\u{1F}][^\u{0}]"),
                ("(?:a)(?<x>b)(c)", "(?:a)(?<x>b)(c)"),
                ("[.]", "[.]"),
                ("[+--]", r"[+-\-]"),
                (r"\<a\>", r"\u{3C}a\u{3E}"),
            ],
        );
        for refused in [
            r"\bx", "(?=a)", "(?<!a)", r"(a)\1", "[]", r"\a", r"\Z", "(?i)a", "a\\", r"\v", r"[\0]", r"\cA", "\u{1}",
            r"\xg",
        ] {
            assert!(Written::of(refused, Reading::Schema).is_err(), "{refused}");
        }
    }

    #[test]
    fn classes_have_no_signs_of_rusts() {
        check(
            Reading::Text,
            &[
                ("[x~~y]", r"[x\~\~y]"),
                ("[a-c--b]", r"[a-c\--b]"),
                ("[a-c&&x]", r"[a-c\&\&x]"),
                (r"[^[\]]", r"[^\[\]]"),
                ("[[]", r"[\[]"),
                ("[]a][^]a]", r"[\]a][^\]a]"),
                (r"[a-][-a][\w-z][\w--b]", r"[a\-][\-a][[0-9A-Za-z_]\-z][[0-9A-Za-z_]\-\-b]"),
                ("[[:alpha:]_][[:^digit:]][[:a]", r"[\[:alpha:]_\][\[:\^digit:]\][\[:a]"),
                (r"[\p{L}\pN-]", r"[\p{L}\pN\-]"),
                (r"(?i).\D\s", r"(?i).[^0-9][\t\n\x0B\x0C\r\x20]"),
                (r"https?:\/\/a", r"https?:\/\/a"),
                ("\\\n\\ \\é", r"\u{A}\u{20}\u{E9}"),
                (r"\U0001F600[\U0001F600]", r"\u{1F600}[😀]"),
                (r"\bA\A", r"\bA\A"),
            ],
        );
    }

    #[test]
    fn parts_know_where_they_were_written() {
        let written = Written::of(r"\d[é-ü]\w(", Reading::Text).expect("it can be written");
        let at = |part: &str| written.origin(written.text.find(part).expect("a part of it"));
        assert_eq!((at("[0-9]"), at("é-ü"), at("[0-9A"), at("(")), (0, 3, 9, 11));
    }
}
