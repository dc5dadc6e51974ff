//! What a text in JSON says, character by character. That it is one, somebody else sees to (`json`).

#[derive(Debug, Clone, Default)]
pub(super) struct Unescape {
    place: Place,
    /// The first half of a pair (UTF-16); the second has to follow.
    high: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
enum Place {
    #[default]
    Plain,
    Backslash,
    Hex {
        digits: u8,
        code: u32,
    },
}

/// Half of a pair stands alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoUnicode;

impl Unescape {
    /// Takes the next character between the quotes. Returns the one that is complete with it.
    pub(super) fn step(&mut self, c: char) -> Result<Option<char>, NoUnicode> {
        let said = match (self.place, c) {
            (Place::Plain, '\\') => return Ok(self.at(Place::Backslash)),
            (Place::Backslash, 'u') => return Ok(self.at(Place::Hex { digits: 0, code: 0 })),
            (Place::Hex { digits, code }, c) => {
                let code = code << 4 | c.to_digit(16).ok_or(NoUnicode)?;
                if digits < 3 {
                    return Ok(self.at(Place::Hex { digits: digits + 1, code }));
                }
                return self.unit(code);
            }
            (Place::Backslash, 'b') => '\u{8}',
            (Place::Backslash, 'f') => '\u{c}',
            (Place::Backslash, 'n') => '\n',
            (Place::Backslash, 'r') => '\r',
            (Place::Backslash, 't') => '\t',
            (Place::Plain | Place::Backslash, c) => c,
        };
        self.place = Place::Plain;
        if self.high.is_some() { Err(NoUnicode) } else { Ok(Some(said)) }
    }

    /// Whether a character has begun and is not complete.
    pub(super) fn is_within(&self) -> bool {
        self.high.is_some() || !matches!(self.place, Place::Plain)
    }

    fn at(&mut self, place: Place) -> Option<char> {
        self.place = place;
        None
    }

    fn unit(&mut self, code: u32) -> Result<Option<char>, NoUnicode> {
        self.place = Place::Plain;
        match (self.high.take(), code) {
            (None, 0xD800..=0xDBFF) => {
                self.high = Some(code);
                Ok(None)
            }
            (Some(high), 0xDC00..=0xDFFF) => Ok(char::from_u32(0x1_0000 + ((high - 0xD800) << 10) + (code - 0xDC00))),
            (None, code) => char::from_u32(code).map(Some).ok_or(NoUnicode),
            (Some(_), _) => Err(NoUnicode),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(text: &str) -> Option<String> {
        let mut unescape = Unescape::default();
        let chars: Result<Vec<_>, _> = text.chars().map(|c| unescape.step(c)).collect();
        chars.ok().filter(|_| unescape.high.is_none()).map(|chars| chars.into_iter().flatten().collect())
    }

    #[test]
    fn escapes_say_what_they_say_in_json() {
        for (text, expected) in [
            (r#"\"a\\\/\b\f\n\r\t"#, Some("\"a\\/\u{8}\u{c}\n\r\t")),
            (r"\u00e9é\uFFFF", Some("éé\u{ffff}")),
            (r"\ud83d\ude00", Some("😀")),
            (r"\ud83d", None),
            (r"\ud83dx", None),
            (r"\ud83d\n", None),
            (r"\ud83d\ud83d", None),
            (r"\ude00", None),
        ] {
            assert_eq!(said(text).as_deref(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_serde_json(text in r#"(\\u00[0-9a-f]{2}|\\ud83[cd]|\\ude0[0-9]|\\[nrt"\\/bf]|[^"\\\x00-\x1f]){0,8}"#) {
            let expected = serde_json::from_str::<String>(&format!("\"{text}\"")).ok();
            prop_assert_eq!(said(&text), expected, "{}", text);
        }
    }
}
