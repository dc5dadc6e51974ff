//! The pieces that a GBNF grammar is made of, each with its place.

use crate::{
    GrammarError,
    faults::fault,
    regex::{self, Reading},
};

/// A piece of a grammar, and the byte where it begins.
#[derive(Debug, PartialEq)]
pub(super) struct Token<'a> {
    pub(super) piece: Piece<'a>,
    pub(super) at: usize,
}

#[derive(Debug, PartialEq)]
pub(super) enum Piece<'a> {
    Name(&'a str),
    /// `::=`
    Is,
    /// What it means.
    Text(String),
    /// As the library reads it.
    Class(String),
    /// Any character.
    Any,
    Open,
    Close,
    Or,
    /// How often, as Lark writes it; `{0}`: never.
    Repeat(String),
}

pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, GrammarError> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let at = text.len() - rest.len();
        let inner = |end| {
            let unclosed = || fault(text, at, &format!("a {first:?} is not closed by {end:?}"));
            inner(rest, end).ok_or_else(unclosed)
        };
        let (piece, length) = match first {
            '#' => {
                rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
                continue;
            }
            '"' => {
                let inner = inner('"')?;
                let meant = meaning(inner).map_err(|(before, reason)| fault(text, at + 1 + before, reason))?;
                (Piece::Text(meant), inner.len() + 2)
            }
            '[' => {
                let length = inner(']')?.len() + 2;
                let class = class(&rest[..length]).map_err(|(before, reason)| fault(text, at + before, &reason))?;
                (Piece::Class(class), length)
            }
            '{' => {
                let inner = inner('}')?;
                (Piece::Repeat(times(inner).map_err(|reason| fault(text, at, reason))?), inner.len() + 2)
            }
            ':' if rest.starts_with("::=") => (Piece::Is, 3),
            '|' => (Piece::Or, 1),
            '(' => (Piece::Open, 1),
            ')' => (Piece::Close, 1),
            '*' | '+' | '?' => (Piece::Repeat(first.to_string()), 1),
            '.' => (Piece::Any, 1),
            c if c.is_ascii_alphanumeric() || c == '_' => {
                let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                let length = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
                (Piece::Name(&rest[..length]), length)
            }
            c => return Err(fault(text, at, &format!("{c:?} begins nothing that a GBNF grammar has"))),
        };
        tokens.push(Token { piece, at });
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// What stands between the first character and the one that closes it, past those that are escaped.
fn inner(text: &str, end: char) -> Option<&str> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == end => return Some(&text[1..at]),
            _ => {}
        }
    }
    None
}

/// What a text means that stands between two `"`; or what is wrong, and the byte where.
fn meaning(text: &str) -> Result<String, (usize, &'static str)> {
    const NUMBERS: &str = "`\\x`, `\\u` and `\\U` stand before the 2, 4 and 8 hexadecimal digits of a character";
    let mut meant = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('\\') {
        meant += before;
        let at = text.len() - behind.len() - 1;
        let kind = behind.chars().next().expect("what is behind it closed nothing");
        let (c, length) = match kind {
            '"' | '\\' | '/' | '[' | ']' => (Some(kind), 0),
            'n' => (Some('\n'), 0),
            'r' => (Some('\r'), 0),
            't' => (Some('\t'), 0),
            'b' => (Some('\x08'), 0),
            'f' => (Some('\x0C'), 0),
            'x' => (number(&behind[1..], 2).and_then(char::from_u32), 2),
            'U' => (number(&behind[1..], 8).and_then(char::from_u32), 8),
            'u' => match number(&behind[1..], 4) {
                // A pair of surrogates is one character.
                Some(high @ 0xD800..0xDC00) => {
                    let low = behind[5..].strip_prefix("\\u").and_then(|low| number(low, 4));
                    let low = low.filter(|low| (0xDC00..0xE000).contains(low));
                    (low.and_then(|low| char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))), 10)
                }
                code => (code.and_then(char::from_u32), 4),
            },
            _ => return Err((at, "this escape means nothing; a text has `\\n`, `\\r`, `\\t`, `\\x41` and the like")),
        };
        meant.push(c.ok_or((at, NUMBERS))?);
        rest = &behind[1 + length..];
    }
    Ok(meant + rest)
}

fn number(text: &str, digits: usize) -> Option<u32> {
    let digits = text.get(..digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

/// A class as the library reads it; or what is wrong, and the byte where.
fn class(class: &str) -> Result<String, (usize, String)> {
    if matches!(class, "[]" | "[^]") {
        return Err((0, "a class has a character at least".to_owned()));
    }
    match regex::read_matching(class, Reading::Text) {
        Ok(Some(written)) => Ok(written),
        Ok(None) => Err((0, "no character fits this class".to_owned())),
        Err(wrong) => Err((wrong.at, wrong.reason)),
    }
}

/// How often, by what stands between two braces.
fn times(bounds: &str) -> Result<String, &'static str> {
    const FORMS: &str = "a repetition is `{2}`, `{2,}` or `{2,5}`, of numbers below 2147483647";
    // The library's number for no bound is the greatest of 31 bits.
    let bound =
        |text: &str| text.trim().parse().ok().filter(|&bound: &i32| (0..i32::MAX).contains(&bound)).ok_or(FORMS);
    let (least, most) = bounds.split_once(',').unwrap_or((bounds, bounds));
    let least = if least.trim().is_empty() && bounds.contains(',') { 0 } else { bound(least)? };
    if most.trim().is_empty() {
        return Ok(format!("{{{least},}}"));
    }
    match bound(most)? {
        most if most < least => Err("a repetition ends before it begins"),
        0 => Ok("{0}".to_owned()),
        most => Ok(format!("{{{least},{most}}}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_mean_what_llama_cpp_takes() {
        for (text, meant) in [
            (r#""\U0001F600\u00e9\x41""#, "😀éA"),
            (r#""\[a\]\\\"""#, "[a]\\\""),
            ("\"a\tb\nc\r\"", "a\tb\nc\r"),
            (r#""\t\n\r\b\f\/""#, "\t\n\r\x08\x0C/"),
            (r#""\ud83d\uDE00!""#, "😀!"),
            (r#""""#, ""),
        ] {
            let got = tokens(text).map(|mut tokens| tokens.pop().map(|token| token.piece));
            assert_eq!(got, Ok(Some(Piece::Text(meant.to_owned()))), "{text}");
        }
    }

    #[test]
    fn repetitions_are_bounded() {
        for (bounds, times) in
            [("{3}", "{3,3}"), ("{ 1 , 2 }", "{1,2}"), ("{2,}", "{2,}"), ("{,4}", "{0,4}"), ("{0,0}", "{0}")]
        {
            let got = tokens(bounds).map(|mut tokens| tokens.pop().map(|token| token.piece));
            assert_eq!(got, Ok(Some(Piece::Repeat(times.to_owned()))), "{bounds}");
        }
    }

    #[test]
    fn what_is_no_piece_is_told_with_its_place() {
        for (text, expected) in [
            ("\"b\"{3,1}", "line 1, column 4: a repetition ends before it begins"),
            ("\"b\"\n {x}", "line 2, column 2: a repetition is `{2}`, `{2,}` or `{2,5}`, of numbers below 2147483647"),
            ("{}", "line 1, column 1: a repetition is `{2}`, `{2,}` or `{2,5}`, of numbers below 2147483647"),
            ("{2147483647}", "line 1, column 1: a repetition is `{2}`, `{2,}` or `{2,5}`, of numbers below 2147483647"),
            ("[z-a]", "line 1, column 2: a range of characters ends before it begins"),
            ("[é\\q]", "line 1, column 3: this escape stands for no character of a class"),
            ("\n []", "line 2, column 2: a class has a character at least"),
            ("[^]", "line 1, column 1: a class has a character at least"),
            (r"[^\d\D]", "line 1, column 1: no character fits this class"),
            (
                "\"é\\q\"",
                "line 1, column 3: this escape means nothing; a text has `\\n`, `\\r`, `\\t`, `\\x41` and the like",
            ),
            (
                "\"a\n\\uD83D\"",
                "line 2, column 1: `\\x`, `\\u` and `\\U` stand before the 2, 4 and 8 hexadecimal digits of a character",
            ),
        ] {
            assert_eq!(tokens(text).map_err(|error| error.reason), Err(expected.to_owned()), "{text}");
        }
    }
}
