//! Where the published split patterns cut a text into words, without a regular expression.
//!
//! Each function here is one pattern: from where a word begins it tells where it ends. A pattern is a list of
//! alternatives of which the first that fits wins, and within it greedy parts give back only what they must; beside each
//! function stands its pattern and what follows from that. All of them cover every text without gaps and look at no
//! character more than a few times. They are tested against the engine.

use super::classes::{CASELESS, Classes, END, LETTER, LOWER, MARK, NUMBER, OTHER, SPACE, UPPER, decode};

/// A text, or a part of one that is split as if it were alone.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a> {
    bytes: &'a [u8], // UTF-8
    classes: &'a Classes,
}

impl<'a> Scan<'a> {
    pub(super) fn new(text: &'a str, classes: &'a Classes) -> Self {
        Self { bytes: text.as_bytes(), classes }
    }

    /// The same text as if it ended at `end`, between two characters.
    pub(super) fn until(self, end: usize) -> Self {
        Self { bytes: &self.bytes[..end], ..self }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    pub(super) fn byte(&self, at: usize) -> u8 {
        self.bytes[at]
    }

    pub(super) fn slice(&self, start: usize, end: usize) -> &'a [u8] {
        &self.bytes[start..end]
    }

    /// The character at `at` as a code point, and where the next one is.
    pub(super) fn decode(&self, at: usize) -> (u32, usize) {
        decode(self.bytes, at)
    }

    /// The class of the character at `at`, and where the next one is.
    #[inline]
    pub(super) fn class(&self, at: usize) -> (u8, usize) {
        let Some(&byte) = self.bytes.get(at) else { return (END, at) };
        match self.classes.narrow(byte) {
            END => self.wide(at),
            class => (class, at + 1),
        }
    }

    fn wide(&self, at: usize) -> (u8, usize) {
        let (code, after) = decode(self.bytes, at);
        (self.classes.of(code), after)
    }

    /// The end of the characters of these classes.
    #[inline]
    pub(super) fn run(&self, classes: u8, mut at: usize) -> usize {
        loop {
            let Some(&byte) = self.bytes.get(at) else { return at };
            let (class, after) = match self.classes.narrow(byte) {
                END => self.wide(at),
                class => (class, at + 1),
            };
            if class & classes == 0 {
                return at;
            }
            at = after;
        }
    }

    /// The end of the bytes, all ASCII, that are as asked.
    #[inline]
    pub(super) fn run_while(&self, is_in: impl Fn(&u8) -> bool, at: usize) -> usize {
        self.bytes[at..].iter().position(|byte| !is_in(byte)).map_or(self.bytes.len(), |length| at + length)
    }

    /// `[\r\n]*`.
    #[inline]
    pub(super) fn newlines(&self, at: usize) -> usize {
        self.run_while(|byte| matches!(byte, b'\r' | b'\n'), at)
    }

    /// `[\r\n/]*`.
    #[inline]
    fn newlines_and_slashes(&self, at: usize) -> usize {
        self.run_while(|byte| matches!(byte, b'\r' | b'\n' | b'/'), at)
    }

    #[inline]
    pub(super) fn is_newline(&self, at: usize) -> bool {
        matches!(self.bytes[at], b'\r' | b'\n')
    }

    /// `\p{N}{1,most}`, of which the first is there.
    #[inline]
    pub(super) fn digits(&self, most: usize, after_first: usize) -> usize {
        let mut end = after_first;
        for _ in 1..most {
            match self.class(end) {
                (NUMBER, after) => end = after,
                _ => break,
            }
        }
        end
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`, where whitespace begins at `at`: up to the last end of line of the run; else the run
    /// without its last character, which the next word may want, unless the text ends or the character is alone.
    pub(super) fn spaces_by_line(&self, at: usize) -> usize {
        let (mut end, mut last, mut after_newline) = (at, at, None);
        while let (SPACE, after) = self.class(end) {
            if self.is_newline(end) {
                after_newline = Some(after);
            }
            (last, end) = (end, after);
        }
        after_newline.unwrap_or_else(|| self.but_the_last(at, last, end))
    }

    /// `\s+(?!\S)|\s+`, where whitespace begins at `at`.
    fn spaces(&self, at: usize) -> usize {
        let (mut end, mut last) = (at, at);
        while let (SPACE, after) = self.class(end) {
            (last, end) = (end, after);
        }
        self.but_the_last(at, last, end)
    }

    #[inline]
    fn but_the_last(&self, start: usize, last: usize, end: usize) -> usize {
        if end == self.bytes.len() || last == start { end } else { last }
    }

    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)`. The engine knows that `ſ` is a small `s`.
    #[inline]
    fn contraction(&self, at: usize) -> Option<usize> {
        let rest = &self.bytes[at..];
        if rest.first() != Some(&b'\'') {
            return None;
        }
        match (rest.get(1)?.to_ascii_lowercase(), rest.get(2).map(u8::to_ascii_lowercase)) {
            (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
            (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(at + 3),
            (0xC5, Some(0xBF)) => Some(at + 3),
            _ => None,
        }
    }

    /// `'s|'t|'re|'ve|'m|'ll|'d`.
    fn plain_contraction(&self, at: usize) -> Option<usize> {
        match self.bytes[at..] {
            [b'\'', b's' | b't' | b'm' | b'd', ..] => Some(at + 2),
            [b'\'', b'r' | b'v', b'e', ..] | [b'\'', b'l', b'l', ..] => Some(at + 3),
            _ => None,
        }
    }
}

/// The end of GPT-2's word at `at`.
#[inline]
pub(super) fn gpt2(scan: &Scan<'_>, at: usize) -> usize {
    if let Some(end) = scan.plain_contraction(at) {
        return end;
    }
    let (mut class, mut after) = scan.class(at);
    if scan.bytes[at] == b' ' {
        match scan.class(after) {
            (SPACE | END, _) => {}
            (next, after_next) => (class, after) = (next, after_next),
        }
    }
    match class {
        SPACE => scan.spaces(at),
        NUMBER => scan.run(NUMBER, after),
        class if class & LETTER != 0 => scan.run(LETTER, after),
        _ => scan.run(OTHER, after),
    }
}

/// The end of Llama 3's word at `at`, which has up to `DIGITS` digits; `WITH_MARKS`: marks are letters (Qwen 3.5).
///
/// In `[^\r\n\p{L}\p{N}]?\p{L}+` the first part takes what is no letter, and no letter is lost if it does not: so a word begins with a letter,
/// or with anything but a digit or an end of line that stands before one. That a mark may be either changes nothing where marks are letters.
#[inline]
pub(super) fn words<const DIGITS: usize, const WITH_MARKS: bool>(scan: &Scan<'_>, at: usize) -> usize {
    let (letters, others) = if WITH_MARKS { (LETTER | MARK, OTHER & !MARK) } else { (LETTER, OTHER) };
    let (class, after) = scan.class(at);
    if class & letters != 0 {
        return scan.run(letters, after);
    }
    if class == NUMBER {
        return scan.digits(DIGITS, after);
    }
    if let Some(end) = scan.contraction(at) {
        return end;
    }
    let (next, after_next) = scan.class(after);
    if next & letters != 0 && !scan.is_newline(at) {
        return scan.run(letters, after_next);
    }
    if class != SPACE {
        return scan.newlines(scan.run(others, after));
    }
    if next & others != 0 && scan.bytes[at] == b' ' {
        return scan.newlines(scan.run(others, after_next));
    }
    scan.spaces_by_line(at)
}

/// The end of the word at `at` by `o200k`'s pattern, which ends words where upper case follows lower.
#[inline]
pub(super) fn cased<const DIGITS: usize, const CONTRACTIONS: bool>(scan: &Scan<'_>, at: usize) -> usize {
    let (class, after) = scan.class(at);
    if class == NUMBER {
        return scan.digits(DIGITS, after);
    }
    let (next, after_next) = scan.class(after);
    let begins = if class & (LETTER | MARK) != 0 {
        Some(at) // a mark may also stand before a word, which is then as long
    } else {
        (next & (LETTER | MARK) != 0 && !scan.is_newline(at)).then_some(after)
    };
    if let Some(begins) = begins {
        let end = cased_word(scan, begins);
        return if CONTRACTIONS { scan.contraction(end).unwrap_or(end) } else { end };
    }
    if class != SPACE {
        return scan.newlines_and_slashes(scan.run(OTHER, after));
    }
    if next & OTHER != 0 && scan.bytes[at] == b' ' {
        return scan.newlines_and_slashes(scan.run(OTHER, after_next));
    }
    scan.spaces_by_line(at)
}

/// `U*L+|U+L*`, where `U` is upper case, `L` lower case, and both have what is neither. A letter or mark is at `at`.
///
/// ```text
///   U* takes all it can       then           the end
///   ABCdef                    d is lower     ABCdef|      L+ goes on
///   ABつCD                    none is        ABつ|CD      U* gives back what L+ can have, which is つ
///   ABCD                      none, no つ    ABCD|        the second alternative
/// ```
#[inline]
fn cased_word(scan: &Scan<'_>, at: usize) -> usize {
    let (mut end, mut after_both) = (at, None);
    loop {
        match scan.class(end) {
            (UPPER, after) => end = after,
            (CASELESS | MARK, after) => {
                end = after;
                after_both = Some(after);
            }
            (LOWER, after) => return scan.run(LOWER | CASELESS | MARK, after),
            _ => return after_both.unwrap_or(end),
        }
    }
}
