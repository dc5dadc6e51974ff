//! NFC, for texts most of which are composed already.
//!
//! Nearly every character is *settled*: alone it is its own NFC, and what stands before it never composes or changes
//! places with it. A text of such characters is its own NFC, and of any text that of the parts between them can be
//! worked out part by part. The parts that may change go through the `tokenizers` crate's own NFC. Which characters are
//! settled is in `compose.txt`, which a test holds against that NFC; the ignored test `writes_settled` writes it anew.

use std::borrow::Cow;
use std::sync::LazyLock;

use tokenizers::NormalizedString;

use super::classes::Table;

/// All characters below U+0300 are settled, and begin with a lower byte than this.
const FIRST_UNSETTLED_LEAD: u8 = 0xCC;

/// The text in NFC.
pub(super) fn composed(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| byte < FIRST_UNSETTLED_LEAD) {
        return Cow::Borrowed(text);
    }
    let settled = settled();
    let mut composed = String::new();
    let (mut done, mut last) = (0, 0); // up to where it is composed; where the character before this one begins
    let mut rest = text.char_indices().peekable();
    while let Some((at, c)) = rest.next() {
        if is_settled(settled, c) {
            last = at;
            continue;
        }
        // With the character before, with which this one may compose, up to one that looks back at nothing.
        let start = last.max(done);
        while rest.next_if(|(_, c)| !is_settled(settled, *c)).is_some() {}
        let end = rest.peek().map_or(text.len(), |(at, _)| *at);
        composed.push_str(&text[done..start]);
        composed.push_str(&nfc(&text[start..end]));
        (done, last) = (end, end);
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    composed.push_str(&text[done..]);
    Cow::Owned(composed)
}

fn nfc(text: &str) -> String {
    let mut text = NormalizedString::from(text);
    text.nfc();
    text.get().to_owned()
}

fn settled() -> &'static Table {
    static SETTLED: LazyLock<Table> =
        LazyLock::new(|| Table::from_runs(include_str!("compose.txt"), |sign| u8::from(sign == b'=')));
    &SETTLED
}

#[inline]
fn is_settled(settled: &Table, c: char) -> bool {
    c < '\u{300}' || settled.of(u32::from(c)) == 1
}

#[cfg(test)]
mod tests {
    use super::super::classes::as_runs;
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn nfd(text: &str) -> String {
        let mut text = NormalizedString::from(text);
        text.nfd();
        text.get().to_owned()
    }

    /// By definition: its own NFC, of no combining class, and nothing that a composition has at another place than the first.
    fn signs_by_definition() -> Vec<u8> {
        let characters = || (0..=0x10_FFFF).filter_map(char::from_u32);
        let later: HashSet<char> =
            characters().flat_map(|c| nfd(&c.to_string()).chars().skip(1).collect::<Vec<_>>()).collect();
        // A character of a combining class changes places with one of a higher class before it or of a lower one behind it.
        let (low, high) = ("\u{334}", "\u{345}"); // of class 1 and 240
        let mut signs = vec![b'='; 0x11_0000];
        for c in characters() {
            let (alone, text) = (nfd(&c.to_string()), c.to_string());
            let is_moved = nfd(&format!("{high}{c}")) != format!("{high}{alone}")
                || nfd(&format!("{c}{low}")) != format!("{alone}{low}");
            let looks_back = alone.chars().next().is_some_and(|first| later.contains(&first));
            if nfc(&text) != text || is_moved && alone.chars().count() == 1 || looks_back {
                signs[c as usize] = b'x';
            }
        }
        signs
    }

    #[test]
    fn settled_characters_are_those_of_the_definition() {
        for (code, sign) in (0..).zip(signs_by_definition()) {
            let Some(c) = char::from_u32(code) else { continue };
            assert_eq!(is_settled(settled(), c), sign == b'=', "U+{code:04X}");
            assert!(sign == b'=' || c.to_string().as_bytes()[0] >= FIRST_UNSETTLED_LEAD, "U+{code:04X}");
        }
    }

    #[test]
    #[ignore = "writes compose.txt anew"]
    fn writes_settled() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/fast/compose.txt");
        std::fs::write(path, as_runs(&signs_by_definition())).expect("it can be written");
    }

    /// Letters, marks of several classes, Hangul in parts and whole, what only looks like another character.
    fn composing() -> impl Strategy<Value = String> {
        let c = prop_oneof![
            prop::sample::select("aeoAEOns qQ\u{3a9}\u{212b}\u{1e9b}\u{344}\u{958}\u{2126}\u{f900}\u{fb1d}\u{1d15e}".chars().collect::<Vec<_>>()),
            prop::sample::select("\u{300}\u{301}\u{302}\u{323}\u{327}\u{328}\u{334}\u{345}\u{338}\u{5b0}\u{93c}\u{9be}\u{3099}\u{309a}\u{1d165}\u{e38}\u{e48}".chars().collect::<Vec<_>>()),
            prop::char::range('\u{1100}', '\u{11ff}'),
            prop::char::range('\u{ac00}', '\u{ac40}'),
            any::<char>(),
        ];
        prop::collection::vec(c, 0..12).prop_map(String::from_iter)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn any_text_is_composed_as_the_crate_does(text in composing()) {
            prop_assert_eq!(composed(&text), nfc(&text));
        }
    }
}
