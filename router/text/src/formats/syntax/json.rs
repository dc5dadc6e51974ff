//! Checks one JSON value (RFC 8259) as it comes, one character at a time, keeping nothing of it.

/// Deeper values are refused, as `serde_json` does: whoever reads the arguments may recurse.
const DEPTH_MAX: usize = 128;

/// What a character meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::formats) enum Scanned {
    /// The value goes on.
    Inside,
    /// This character was its last.
    Complete,
    /// It was a number, complete before this character.
    Before,
    /// No value begins like this.
    Bad,
}

#[derive(Debug, Clone, Default)]
pub(in crate::formats) struct Scanner {
    open: Vec<Container>,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Object,
    Array,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Value,
    FirstItem,
    FirstKey,
    Key,
    Colon,
    AfterItem,
    String {
        is_key: bool,
        escape: Escape,
    },
    Number(Number),
    /// What is left of `true`, `false`, `null`.
    Word(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escape {
    None,
    Backslash,
    /// Hexadecimal digits to come.
    Hex(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    E,
    ESign,
    Exponent,
}

impl Scanner {
    /// Whether a text has begun and not ended.
    pub(in crate::formats) fn is_in_text(&self) -> bool {
        matches!(self.place, Place::String { .. })
    }

    /// Takes the next character; none after `Complete`, `Before` or `Bad`.
    pub(in crate::formats) fn step(&mut self, c: char) -> Scanned {
        let is_space = matches!(c, ' ' | '\n' | '\r' | '\t');
        match self.place {
            Place::String { is_key, escape } => self.in_string(is_key, escape, c),
            Place::Number(number) => match number.step(c) {
                Some(next) => self.at(Place::Number(next)),
                None if !number.may_end() => Scanned::Bad,
                None if self.open.is_empty() => Scanned::Before,
                None => {
                    self.place = Place::AfterItem;
                    self.step(c)
                }
            },
            Place::Word(rest) => match rest.strip_prefix(c) {
                Some("") => self.ended(),
                Some(rest) => self.at(Place::Word(rest)),
                None => Scanned::Bad,
            },
            _ if is_space => Scanned::Inside,
            Place::FirstItem if c == ']' => self.close(Container::Array),
            Place::FirstKey if c == '}' => self.close(Container::Object),
            Place::FirstKey | Place::Key if c == '"' => self.at(Place::String { is_key: true, escape: Escape::None }),
            Place::Colon if c == ':' => self.at(Place::Value),
            Place::AfterItem => match (c, self.open.last()) {
                (',', Some(Container::Object)) => self.at(Place::Key),
                (',', Some(Container::Array)) => self.at(Place::Value),
                ('}', Some(Container::Object)) => self.close(Container::Object),
                (']', Some(Container::Array)) => self.close(Container::Array),
                _ => Scanned::Bad,
            },
            Place::Value | Place::FirstItem => self.value(c),
            Place::FirstKey | Place::Key | Place::Colon => Scanned::Bad,
        }
    }

    fn at(&mut self, place: Place) -> Scanned {
        self.place = place;
        Scanned::Inside
    }

    fn value(&mut self, c: char) -> Scanned {
        match c {
            '"' => self.at(Place::String { is_key: false, escape: Escape::None }),
            '{' | '[' if self.open.len() == DEPTH_MAX => Scanned::Bad,
            '{' => {
                self.open.push(Container::Object);
                self.at(Place::FirstKey)
            }
            '[' => {
                self.open.push(Container::Array);
                self.at(Place::FirstItem)
            }
            '-' => self.at(Place::Number(Number::Minus)),
            '0' => self.at(Place::Number(Number::Zero)),
            '1'..='9' => self.at(Place::Number(Number::Integer)),
            't' => self.at(Place::Word("rue")),
            'f' => self.at(Place::Word("alse")),
            'n' => self.at(Place::Word("ull")),
            _ => Scanned::Bad,
        }
    }

    fn in_string(&mut self, is_key: bool, escape: Escape, c: char) -> Scanned {
        let next = match (escape, c) {
            (Escape::None, '"') if is_key => return self.at(Place::Colon),
            (Escape::None, '"') => return self.ended(),
            (Escape::None, '\\') => Escape::Backslash,
            (Escape::None, '\0'..='\x1F') => return Scanned::Bad,
            (Escape::None, _) => Escape::None,
            (Escape::Backslash, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Escape::None,
            (Escape::Backslash, 'u') => Escape::Hex(4),
            (Escape::Hex(1), c) if c.is_ascii_hexdigit() => Escape::None,
            (Escape::Hex(left), c) if c.is_ascii_hexdigit() => Escape::Hex(left - 1),
            (Escape::Backslash | Escape::Hex(_), _) => return Scanned::Bad,
        };
        self.at(Place::String { is_key, escape: next })
    }

    fn close(&mut self, container: Container) -> Scanned {
        let closed = self.open.pop();
        assert_eq!(closed, Some(container), "callers looked at the innermost one");
        self.ended()
    }

    fn ended(&mut self) -> Scanned {
        self.place = Place::AfterItem;
        if self.open.is_empty() { Scanned::Complete } else { Scanned::Inside }
    }
}

impl Number {
    fn step(self, c: char) -> Option<Self> {
        match (self, c) {
            (Self::Minus, '0') => Some(Self::Zero),
            (Self::Minus, '1'..='9') | (Self::Integer, '0'..='9') => Some(Self::Integer),
            (Self::Zero | Self::Integer, '.') => Some(Self::Point),
            (Self::Point | Self::Fraction, '0'..='9') => Some(Self::Fraction),
            (Self::Zero | Self::Integer | Self::Fraction, 'e' | 'E') => Some(Self::E),
            (Self::E, '+' | '-') => Some(Self::ESign),
            (Self::E | Self::ESign | Self::Exponent, '0'..='9') => Some(Self::Exponent),
            _ => None,
        }
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Integer | Self::Fraction | Self::Exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether `text` is one whole value, by this scanner.
    fn accepts(text: &str) -> bool {
        let mut scanner = Scanner::default();
        let mut chars = text.trim_matches([' ', '\n', '\r', '\t']).chars().peekable();
        while let Some(c) = chars.next() {
            match scanner.step(c) {
                Scanned::Inside if chars.peek().is_none() => {
                    return scanner.step(' ') == Scanned::Before;
                }
                Scanned::Inside => {}
                Scanned::Complete => return chars.peek().is_none(),
                Scanned::Before | Scanned::Bad => return false,
            }
        }
        false
    }

    fn serde_accepts(text: &str) -> bool {
        serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
    }

    #[test]
    fn it_agrees_with_serde_json() {
        for text in [
            "{}",
            "[]",
            "0",
            "-0.5e+3",
            "01",
            "1.",
            ".5",
            "-",
            "1e",
            "1e5",
            "true",
            "nul",
            "nulll",
            "[1,]",
            "[,]",
            "{,}",
            "[1 2]",
            r#"{"a":1,}"#,
            r#"{"a" : [ {} , null ] }"#,
            r#"{"a"}"#,
            r#"{a:1}"#,
            r#""\u00e9\n""#,
            r#""\u00e""#,
            r#""\x""#,
            "\"\n\"",
            "{]",
            "[}",
            r#"{"a":1}}"#,
            "\"é€😀\"",
            "",
            "[[[]]]",
            "{\"\":\"\"}",
        ] {
            assert_eq!(accepts(text), serde_accepts(text), "{text}");
        }
    }

    #[test]
    fn too_deep_a_value_is_refused() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(accepts(&nested(DEPTH_MAX)));
        assert!(!accepts(&nested(DEPTH_MAX + 1)));
    }

    proptest! {
        #[test]
        fn it_agrees_with_serde_json_on_anything(text in r#"[\[\]{}:,"\\ue0-9.\-+ \ntrfalsn]{0,12}"#) {
            prop_assert_eq!(accepts(&text), serde_accepts(&text), "{:?}", text);
        }
    }
}
