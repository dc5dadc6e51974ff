//! Texts that split patterns and merges may stumble over.

use proptest::prelude::*;

use super::files::ADDED;

/// A piece that some alternative of some pattern is about.
const PIECES: [&str; 64] = [
    "'s",
    "'S",
    "'\u{17f}",
    "'re",
    "'RE",
    "'vE",
    "'ll",
    "'lL",
    "'l",
    "'m",
    "'D",
    "'t",
    "'",
    "’s",
    "a",
    "b",
    "A",
    "B",
    "the",
    "The",
    "HTTPServer",
    "ab",
    "zebra",
    " zebra",
    " such",
    "\u{1c5}",
    "\u{2b0}",
    "\u{aa}",
    "つ",
    "日本語",
    "ー",
    "・",
    "\u{3099}",
    "\u{3097}",
    "\u{301}",
    "\u{93e}",
    "\u{20dd}",
    "é",
    "e\u{301}",
    "ß",
    "İ",
    "ſ",
    "1",
    "23",
    "4567",
    "٣",
    "½",
    "Ⅷ",
    "१",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\n \n",
    "\u{85}",
    "\u{a0}",
    "\u{2028}",
    "\u{3000}",
    "\u{200d}",
    "!",
    "?!",
    "/",
    "€",
];

/// Any characters, pieces, added tokens, and runs of them.
pub(super) fn any_text() -> impl Strategy<Value = String> {
    let piece = || {
        prop_oneof![
            6 => prop::sample::select(&PIECES[..]).prop_map(str::to_owned),
            1 => prop::sample::select(&ADDED[..]).prop_map(|token| token.0.to_owned()),
            1 => any::<char>().prop_map(String::from),
            1 => prop::char::range('\0', '\u{24f}').prop_map(String::from),
            1 => prop::char::range('\u{370}', '\u{1fff}').prop_map(String::from),
            2 => prop::char::range(' ', '~').prop_map(String::from),
            1 => "[abther ]{1,90}",
        ]
    };
    let run = (piece(), 2..40_usize).prop_map(|(piece, times)| piece.repeat(times));
    prop::collection::vec(prop_oneof![9 => piece(), 1 => run], 0..24).prop_map(|pieces| pieces.concat())
}
