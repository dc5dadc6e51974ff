//! What the grammar of a schema accepts, and what may be drawn from it. For `bench/grammar/suite.py`.
//!
//! In, a line of JSON per schema: `schema`, `texts` to try, `documents` to draw, `seed`. Out, a line each: either `place` and `reason` of
//! why it is refused, or `fits` (whether each text can be drawn and may end there) and `documents`, those that came to an end.

use std::io::{BufRead, Write, stdin, stdout};

use pelton_grammar::{Constraint, Grammar, Script, Spelling, TokenText, Vocabulary};
use serde_json::{Value, json};

const END: u32 = 256;
/// Tokens that end inside or across JSON's own tokens.
const LONGER: [&str; 8] = ["{\"", "\":", "null", "true", "\", \"", "],", "abc", "1.0"];
/// Tokens of a document that are drawn freely; then it is closed where that can be.
const FREE: usize = 60;
const TOKENS_MAX: usize = 400;

fn vocabulary() -> Vocabulary {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let single = bytes.iter().map(|byte| TokenText::Bytes(byte));
    let longer = LONGER.iter().map(|text| TokenText::Bytes(text.as_bytes()));
    Vocabulary::new(single.chain([TokenText::Special("<end>")]).chain(longer), &[END]).expect("it has an end")
}

/// Whether a text can be drawn, byte by byte, and may end there.
fn fits(grammar: &Grammar, text: &str) -> bool {
    let mut state = grammar.begin();
    let can_be_drawn = text
        .bytes()
        .map(u32::from)
        .all(|byte| state.mask().is_ok_and(|mask| mask.allows(byte)) && state.take(&[byte]).is_ok());
    can_be_drawn && state.mask().is_ok_and(|mask| mask.allows(END))
}

/// Xorshift, so that every run draws the same.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).expect("below a usize")
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// A document drawn within the masks, or none if it has no end for long.
fn drawn(grammar: &Grammar, likely: &[u32], random: &mut Random) -> Option<String> {
    let (mut state, mut text) = (grammar.begin(), Vec::new());
    for taken in 0..TOKENS_MAX {
        let mask = state.mask().ok()?;
        let allowed: Vec<u32> = (0..END + 1 + LONGER.len() as u32).filter(|&id| mask.allows(id)).collect();
        let among = |of: &[u32]| -> Vec<u32> { of.iter().copied().filter(|id| allowed.contains(id)).collect() };
        let closing = among(&b"}]\"".map(u32::from));
        let known = among(likely);
        if allowed.contains(&END) && (taken >= FREE || allowed.len() == 1 || random.below(3) == 0) {
            return String::from_utf8(text).ok();
        }
        let token = match random.below(10) {
            _ if taken >= FREE && !closing.is_empty() => closing[0],
            0..=2 if !closing.is_empty() => random.one(&closing),
            3..=8 if !known.is_empty() => random.one(&known),
            _ => random.one(&allowed),
        };
        match token {
            END => return String::from_utf8(text).ok(),
            0..END => text.push(token as u8),
            _ => text.extend(LONGER[(token - END - 1) as usize].as_bytes()),
        }
        state.take(&[token]).ok()?;
    }
    None
}

fn checked(vocabulary: &Vocabulary, case: &Value) -> Value {
    let schema = &case["schema"];
    let grammar = match vocabulary.compile(&Script::of(Constraint::JsonSchema(schema.clone())), Spelling::Usual) {
        Ok(grammar) => grammar,
        Err(error) => return json!({ "place": error.place, "reason": error.reason }),
    };
    let texts = case["texts"].as_array().expect("a list of texts");
    let fits: Vec<bool> = texts.iter().map(|text| fits(&grammar, text.as_str().expect("a text"))).collect();
    let mut likely: Vec<u32> = schema.to_string().bytes().chain(*b"019.-eE\\u").map(u32::from).collect();
    likely.extend(END + 1..END + 1 + LONGER.len() as u32);
    let mut random = Random(case["seed"].as_u64().expect("a seed") | 1);
    let count = case["documents"].as_u64().expect("a count");
    let documents: Vec<String> = (0..count).filter_map(|_| drawn(&grammar, &likely, &mut random)).collect();
    json!({ "fits": fits, "documents": documents })
}

fn main() {
    let vocabulary = vocabulary();
    let mut out = stdout().lock();
    for line in stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line.expect("lines of text")).expect("a line of JSON");
        writeln!(out, "{}", checked(&vocabulary, &case)).expect("somebody reads it");
    }
}
