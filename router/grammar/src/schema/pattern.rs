//! Regular expressions as JSON Schema has them (ECMAScript's), in the language of the library (Rust's).

use std::{iter::Peekable, str::Chars};

/// White space as `\s` means it.
const SPACE: &str = r"\t\n\x0B\x0C\r\x20\xA0\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}";

/// Why a text is refused that has such a character.
pub(super) const NOT_DRAWN: &str = "of control characters only \\b, \\f, \\n, \\r and \\t can be drawn";

/// Control characters that JSON has no short escape for. Others would have two, by which a name passes for another one.
pub(super) fn cannot_be_drawn(c: char) -> bool {
    c < ' ' && !matches!(c, '\x08' | '\t' | '\n' | '\x0C' | '\r') || c == '\x7F'
}

/// The same expression, or why there is none. What the two languages read differently is written out or refused.
pub(super) fn translated(pattern: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = pattern.chars().peekable();
    let (mut is_in_class, mut is_set) = (false, false); // `is_set`: more than one character fits the class
    while let Some(c) = rest.next() {
        match c {
            c if cannot_be_drawn(c) => return Err(NOT_DRAWN.to_owned()),
            '\\' => {
                let escaped = rest.next().ok_or("the pattern ends in a backslash")?;
                match escaped {
                    'd' => out += "[0-9]",
                    'D' => out += "[^0-9]",
                    'w' => out += "[0-9A-Za-z_]",
                    'W' => out += "[^0-9A-Za-z_]",
                    's' => out += &format!("[{SPACE}]"),
                    'S' => out += &format!("[^{SPACE}]"),
                    't' | 'n' | 'r' | 'f' | 'p' | 'P' => out.extend(['\\', escaped]),
                    'v' | '0' | 'u' | 'x' | 'c' => {
                        let c = character(escaped, &mut rest)?;
                        let is_range = out.ends_with('-') || rest.peek() == Some(&'-');
                        if cannot_be_drawn(c) && !(is_in_class && (is_set || is_range)) {
                            return Err(NOT_DRAWN.to_owned());
                        }
                        out += &literal(c);
                    }
                    'b' if is_in_class => out += "\\x08",
                    'b' | 'B' => return Err("word boundaries (`\\b`) are not served".to_owned()),
                    '1'..='9' | 'k' => return Err("back references are not served".to_owned()),
                    // Any one may be escaped in Rust, too.
                    c if c.is_ascii_punctuation() => out.extend(['\\', c]),
                    c => return Err(format!("`\\{c}` has no meaning in a pattern of JSON Schema")),
                }
            }
            '[' if is_in_class => out += "\\[",
            '&' | '~' if is_in_class => out.extend(['\\', c]),
            '-' if is_in_class && rest.peek() == Some(&'-') => {
                return Err("`--` within a class is not served; `\\-` stands for the character".to_owned());
            }
            '[' => {
                let is_negated = rest.next_if_eq(&'^').is_some();
                if rest.next_if_eq(&']').is_some() {
                    match is_negated {
                        true => out += "(?s:.)",
                        false => return Err("`[]` matches nothing".to_owned()),
                    }
                    continue;
                }
                out += if is_negated { "[^" } else { "[" };
                (is_in_class, is_set) = (true, is_negated);
            }
            ']' if is_in_class => {
                out.push(']');
                is_in_class = false;
            }
            ']' => out += "\\]",
            '.' if !is_in_class => out += r"[^\n\r\u{2028}\u{2029}]",
            '(' if !is_in_class => {
                out.push('(');
                if rest.next_if_eq(&'?').is_some() {
                    let ahead: String = rest.clone().take(2).collect();
                    match ahead.as_bytes() {
                        [b':', ..] | [b'P', b'<'] => out.push('?'),
                        [b'<', next] if !b"=!".contains(next) => out.push('?'),
                        [b'=' | b'!' | b'<', ..] => return Err("looking ahead or behind is not served".to_owned()),
                        _ => return Err(format!("`(?{ahead}` has no meaning in a pattern of JSON Schema")),
                    }
                }
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

/// The character that an escape stands for.
fn character(kind: char, rest: &mut Peekable<Chars>) -> Result<char, String> {
    let mut digits = |count: usize| -> Option<u32> {
        let ahead = rest.clone();
        let text: String = match rest.next_if_eq(&'{') {
            Some(_) => rest.by_ref().take_while(|c| *c != '}').collect(),
            None => rest.by_ref().take(count).collect(),
        };
        let value = u32::from_str_radix(&text, 16).ok();
        if value.is_none() {
            *rest = ahead;
        }
        value
    };
    let code = match kind {
        'v' => Some(0x0B),
        '0' => Some(0),
        'x' => digits(2),
        'u' => match digits(4) {
            // A pair of surrogates is one character.
            Some(high @ 0xD800..=0xDBFF) if rest.next() == Some('\\') && rest.next() == Some('u') => {
                let low = rest.by_ref().take(4).collect::<String>();
                u32::from_str_radix(&low, 16)
                    .ok()
                    .filter(|low| (0xDC00..0xE000).contains(low))
                    .map(|low| 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
            }
            code => code,
        },
        _ => rest.next().filter(char::is_ascii_alphabetic).map(|letter| letter as u32 % 32),
    };
    code.and_then(char::from_u32).ok_or_else(|| format!("`\\{kind}` is followed by the code of a character"))
}

/// A pattern of all texts but these.
pub(super) fn anything_but(texts: &[&str]) -> String {
    format!("^(?:{})$", others(texts))
}

fn others(texts: &[&str]) -> String {
    let mut firsts: Vec<char> = texts.iter().filter_map(|text| text.chars().next()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let mut ways: Vec<String> = Vec::new();
    if !texts.contains(&"") {
        ways.push(String::new());
    }
    let class: String = firsts.iter().map(|&first| literal(first)).collect();
    ways.push(if class.is_empty() { "(?s:.+)".to_owned() } else { format!("[^{class}](?s:.*)") });
    for first in firsts {
        let rests: Vec<&str> = texts.iter().filter_map(|text| text.strip_prefix(first)).collect();
        ways.push(format!("{}(?:{})", literal(first), others(&rests)));
    }
    ways.join("|")
}

fn literal(c: char) -> String {
    format!("\\u{{{:X}}}", c as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_differently_is_written_out() {
        for (pattern, written) in [
            ("^a/b$", "^a/b$"),
            (r"\d[\w-]\.", r"[0-9][[0-9A-Za-z_]-]\."),
            ("[[&&b]", r"[\[\&\&b]"),
            ("a]", r"a\]"),
            ("[^]", "(?s:.)"),
            (r"\cJ[\b]", r"\u{A}[\x08]"),
            (r"\u0041\x42\u{1F600}\uD83D\uDE00", r"\u{41}\u{42}\u{1F600}\u{1F600}"),
            (r"[\x00-\x1F][^\0]", r"[\u{0}-\u{1F}][^\u{0}]"),
            ("(?:a)(?<x>b)(c)", "(?:a)(?<x>b)(c)"),
            ("[.]", "[.]"),
        ] {
            assert_eq!(translated(pattern).as_deref(), Ok(written));
        }
        for refused in [
            r"\bx", "(?=a)", "(?<!a)", r"(a)\1", "[]", "[+--]", r"\a", r"\Z", "(?i)a", "a\\", r"\v", r"[\0]", r"\cA",
            "\u{1}", r"\xg",
        ] {
            assert!(translated(refused).is_err(), "{refused}");
        }
    }
}
