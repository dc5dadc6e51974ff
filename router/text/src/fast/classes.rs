//! What kind of character each code point is: the classes that split patterns speak of, and nothing finer.
//!
//! The kinds are those of the regular expressions' engine (Oniguruma, by way of the `tokenizers` crate), whose Unicode
//! is not always Rust's: so they are kept in `classes.txt` and a test holds them against the engine, code point by
//! code point. When an update of the crate brings a newer Unicode, the ignored test `writes_classes` writes the file anew.

use std::collections::HashMap;
use std::sync::LazyLock;

/// `\p{Lu}` and `\p{Lt}`.
pub(super) const UPPER: u8 = 1;
/// `\p{Ll}`.
pub(super) const LOWER: u8 = 2;
/// `\p{Lm}` and `\p{Lo}`: letters that split patterns count among both the upper and the lower ones.
pub(super) const CASELESS: u8 = 4;
/// `\p{M}`.
pub(super) const MARK: u8 = 8;
/// `\p{N}`.
pub(super) const NUMBER: u8 = 16;
/// `\s`.
pub(super) const SPACE: u8 = 32;
/// `\p{P}` and `\p{S}`.
pub(super) const SIGN: u8 = 64;
/// What is left: controls, formats, unassigned code points.
pub(super) const REST: u8 = 128;
/// No character: the text ends here. It is in no class, not even in a negated one.
pub(super) const END: u8 = 0;

/// `\p{L}`.
pub(super) const LETTER: u8 = UPPER | LOWER | CASELESS;
/// `[^\s\p{L}\p{N}]`.
pub(super) const OTHER: u8 = MARK | SIGN | REST;

/// One value for each code point, in blocks of 256 of which equal ones are kept once.
pub(super) struct Table {
    block_of: Vec<u16>, // by the upper bits of a code point
    cells: Vec<u8>,     // 256 for each block
}

impl Table {
    /// From runs, each a sign and how often it comes (once if there is no number), as in `U26p6l26`. Ends of lines mean nothing.
    pub(super) fn from_runs(runs: &str, value_of: impl Fn(u8) -> u8) -> Self {
        let mut values: Vec<u8> = Vec::with_capacity(CODE_POINTS);
        let mut rest = runs.bytes().filter(|byte| !byte.is_ascii_whitespace()).peekable();
        while let Some(sign) = rest.next() {
            let mut count = 0;
            while let Some(digit) = rest.next_if(u8::is_ascii_digit) {
                count = count * 10 + usize::from(digit - b'0');
            }
            values.resize(values.len() + count.max(1), value_of(sign));
        }
        assert_eq!(values.len(), CODE_POINTS, "every code point has a value");

        let (mut block_of, mut cells, mut known) = (Vec::new(), Vec::new(), HashMap::new());
        for block in values.chunks_exact(256) {
            let next = u16::try_from(known.len()).expect("there are 4,352 blocks");
            block_of.push(*known.entry(block).or_insert_with(|| {
                cells.extend_from_slice(block);
                next
            }));
        }
        Self { block_of, cells }
    }

    /// `code` is a code point.
    #[inline]
    pub(super) fn of(&self, code: u32) -> u8 {
        let block = self.block_of[(code >> 8) as usize];
        self.cells[usize::from(block) << 8 | (code & 0xFF) as usize]
    }
}

/// 17 planes.
const CODE_POINTS: usize = 0x11_0000;

/// The classes of all characters.
pub(super) struct Classes {
    /// By byte: the class of an ASCII character, and 0 of bytes that are only a part of one.
    narrow: [u8; 256],
    wide: Table,
}

impl Classes {
    /// The table, made at first use and then shared.
    pub(super) fn get() -> &'static Self {
        static CLASSES: LazyLock<Classes> = LazyLock::new(|| {
            let wide = Table::from_runs(include_str!("classes.txt"), class_of_sign);
            let narrow = std::array::from_fn(|byte| if byte < 0x80 { wide.of(byte as u32) } else { END });
            Classes { narrow, wide }
        });
        &CLASSES
    }

    /// By the byte that a character begins with: the class of an ASCII character, 0 if it is none.
    #[inline]
    pub(super) fn narrow(&self, byte: u8) -> u8 {
        self.narrow[usize::from(byte)]
    }

    /// By code point.
    #[inline]
    pub(super) fn of(&self, code: u32) -> u8 {
        self.wide.of(code)
    }
}

/// The signs that `classes.txt` is written in.
const SIGNS: [(u8, u8); 8] = [
    (b'U', UPPER),
    (b'l', LOWER),
    (b'o', CASELESS),
    (b'M', MARK),
    (b'N', NUMBER),
    (b's', SPACE),
    (b'p', SIGN),
    (b'-', REST),
];

fn class_of_sign(sign: u8) -> u8 {
    SIGNS.iter().find(|(known, _)| *known == sign).expect("classes.txt has these signs alone").1
}

/// The character that begins at `at`, as a code point, and where the next one begins. `bytes` are UTF-8.
#[inline]
pub(super) fn decode(bytes: &[u8], at: usize) -> (u32, usize) {
    let lead = u32::from(bytes[at]);
    let tail = |offset: usize| u32::from(bytes[at + offset] & 0x3F);
    match lead {
        0..=0x7F => (lead, at + 1),
        0x80..=0xDF => ((lead & 0x1F) << 6 | tail(1), at + 2),
        0xE0..=0xEF => ((lead & 0x0F) << 12 | tail(1) << 6 | tail(2), at + 3),
        _ => ((lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), at + 4),
    }
}

/// Values as runs, in lines that fit a screen: what `Table::from_runs` reads.
#[cfg(test)]
pub(super) fn as_runs(signs: &[u8]) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for run in signs.chunk_by(|a, b| a == b) {
        line.push(char::from(run[0]));
        if run.len() > 1 {
            line.push_str(&run.len().to_string());
        }
        if line.len() > 110 {
            lines.push_str(&line);
            lines.push('\n');
            line.clear();
        }
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::utils::SysRegex;

    /// Each code point's sign, asked of the engine. Surrogates are no characters.
    fn signs_of_engine() -> Vec<u8> {
        let everything: String = (0..=0x10_FFFF).filter_map(char::from_u32).collect();
        let mut signs = vec![b'-'; CODE_POINTS];
        for (class, sign) in [
            (r"[\p{Lu}\p{Lt}]", b'U'),
            (r"\p{Ll}", b'l'),
            (r"[\p{Lm}\p{Lo}]", b'o'),
            (r"\p{M}", b'M'),
            (r"\p{N}", b'N'),
            (r"\s", b's'),
            (r"[\p{P}\p{S}]", b'p'),
        ] {
            for (start, _) in SysRegex::new(class).expect("a class").find_iter(&everything) {
                let (code, _) = decode(everything.as_bytes(), start);
                let was = std::mem::replace(&mut signs[code as usize], sign);
                assert_eq!(was, b'-', "U+{code:04X} is in two classes");
            }
        }
        signs
    }

    #[test]
    fn every_code_point_has_the_class_that_the_engine_gives_it() {
        let engine = signs_of_engine();
        for (code, sign) in (0..).zip(engine) {
            assert_eq!(Classes::get().of(code), class_of_sign(sign), "U+{code:04X}");
        }
    }

    #[test]
    fn negated_classes_and_letters_are_what_is_left() {
        let everything: String = (0..=0x10_FFFF).filter_map(char::from_u32).collect();
        for (class, mask) in [
            (r"\p{L}", LETTER),
            (r"[^\s\p{L}\p{N}]", OTHER),
            (r"\S", !SPACE),
            (r"[^\r\n\p{L}\p{P}\p{S}]", !(LETTER | SIGN)),
        ] {
            let expected: Vec<usize> =
                SysRegex::new(class).expect("a class").find_iter(&everything).map(|(start, _)| start).collect();
            let is_in = |c: &char| {
                Classes::get().of(u32::from(*c)) & mask != 0 && !(class.contains("\\r") && "\r\n".contains(*c))
            };
            let ours: Vec<usize> = everything.char_indices().filter(|(_, c)| is_in(c)).map(|(at, _)| at).collect();
            assert!(ours == expected, "{class}");
        }
    }

    #[test]
    fn characters_are_decoded_as_std_does() {
        let everything: String = (0..=0x10_FFFF).filter_map(char::from_u32).collect();
        for (at, c) in everything.char_indices() {
            assert_eq!(decode(everything.as_bytes(), at), (u32::from(c), at + c.len_utf8()));
        }
    }

    #[test]
    #[ignore = "writes classes.txt anew"]
    fn writes_classes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/fast/classes.txt");
        std::fs::write(path, as_runs(&signs_of_engine())).expect("it can be written");
    }
}
