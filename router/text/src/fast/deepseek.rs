//! DeepSeek V3's three patterns, each of which splits what the one before it left: digits, then Chinese characters and
//! kana, then words. A part is split as if it were alone, so that it has an end of its own for `\s+(?!\S)`.

use super::classes::{END, LETTER, MARK, NUMBER, REST, SIGN, SPACE};
use super::split::Scan;

/// Gives all words of a text, in order.
pub(super) fn words<'a>(scan: Scan<'a>, mut word: impl FnMut(&'a [u8])) {
    let mut at = 0;
    while at < scan.len() {
        let (class, after) = scan.class(at);
        let end;
        if class == NUMBER {
            end = scan.digits(3, after);
            word(scan.slice(at, end)); // no other pattern has digits, so that they stay together
        } else {
            end = scan.run(!NUMBER, at);
            by_script(scan.until(end), at, &mut word);
        }
        at = end;
    }
}

/// By the second pattern, a part without digits that begins at `at`.
fn by_script<'a>(scan: Scan<'a>, mut at: usize, word: &mut impl FnMut(&'a [u8])) {
    while at < scan.len() {
        let (is_east_asian, mut end) = script(&scan, at);
        while end < scan.len() {
            let (is_same, after) = script(&scan, end);
            if is_same != is_east_asian {
                break;
            }
            end = after;
        }
        by_word(scan.until(end), at, word);
        at = end;
    }
}

/// Whether the second pattern has the character at `at`, and where the next one is.
#[inline]
fn script(scan: &Scan<'_>, at: usize) -> (bool, usize) {
    if scan.byte(at).is_ascii() {
        return (false, at + 1);
    }
    let (code, after) = scan.decode(at);
    (matches!(code, 0x4E00..=0x9FA5 | 0x3040..=0x30FF), after)
}

/// By the third pattern. What it does not have (format characters, unassigned ones) stays together between its words.
fn by_word<'a>(scan: Scan<'a>, mut at: usize, word: &mut impl FnMut(&'a [u8])) {
    let mut gap = at;
    while at < scan.len() {
        match end_of_word(&scan, at) {
            Ok(end) => {
                if gap < at {
                    word(scan.slice(gap, at));
                }
                word(scan.slice(at, end));
                (at, gap) = (end, end);
            }
            Err(after) => at = after,
        }
    }
    if gap < at {
        word(scan.slice(gap, at));
    }
}

/// The end of the third pattern's word at `at`; if there is none, where the next character is.
#[inline]
fn end_of_word(scan: &Scan<'_>, at: usize) -> Result<usize, usize> {
    let (class, after) = scan.class(at);
    if class & (LETTER | MARK) != 0 {
        return Ok(scan.run(LETTER | MARK, after)); // a mark may also stand before a word, which is then as long
    }
    if scan.byte(at).is_ascii_punctuation() && after < scan.len() && scan.byte(after).is_ascii_alphabetic() {
        return Ok(scan.run_while(u8::is_ascii_alphabetic, after));
    }
    let (next, after_next) = scan.class(after);
    if class & (SPACE | REST | NUMBER) != 0 && next & (LETTER | MARK) != 0 && !scan.is_newline(at) {
        return Ok(scan.run(LETTER | MARK, after_next));
    }
    match (class, next) {
        (SIGN, _) => Ok(scan.newlines(scan.run(SIGN, after))),
        (SPACE, SIGN) if scan.byte(at) == b' ' => Ok(scan.newlines(scan.run(SIGN, after_next))),
        (SPACE, _) => Ok(scan.spaces_by_line(at)),
        (END, _) => unreachable!("the word begins before the end"),
        _ => Err(after),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{classes::Classes, published::DEEPSEEK3};
    use super::*;
    use tokenizers::utils::SysRegex;

    #[test]
    fn the_second_pattern_has_the_characters_that_the_engine_gives_it() {
        let everything: String = (0..=0x10_FFFF).filter_map(char::from_u32).collect();
        let scan = Scan::new(&everything, Classes::get());
        let engine = SysRegex::new(DEEPSEEK3[1].trim_end_matches('+')).expect("a class");
        let expected: Vec<usize> = engine.find_iter(&everything).map(|(start, _)| start).collect();
        let ours: Vec<usize> = everything.char_indices().map(|(at, _)| at).filter(|at| script(&scan, *at).0).collect();
        assert!(ours == expected);
    }
}
