//! What grammars cost over a vocabulary of 150,000 tokens: making its tree, compiling, and each mask of an answer.
//!
//!     cargo run --release -p pelton-grammar --example bench_grammar
//!
//! The vocabulary is made of random words and numbers, with and without a space before them, and all single bytes. Answers are
//! drawn evenly from what each mask allows, so they are wilder than a model's.

use std::time::Instant;

use pelton_grammar::{Constraint, Script, Spelling, TokenText, Vocabulary};
use serde_json::json;

const TOKENS: u32 = 150_000;
const ANSWERS: u32 = 40;
const ANSWER_MAX: usize = 200;

/// Xorshift, so that every run draws the same.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).expect("below a usize")
    }
}

fn words(random: &mut Random) -> Vec<Vec<u8>> {
    const LETTERS: &[u8] = b"etaoinshrdlucmfwypvbgkjqxz";
    let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    words.push(b"<end>".to_vec());
    while words.len() < TOKENS as usize {
        let mut word = if random.below(2) == 0 { b" ".to_vec() } else { Vec::new() };
        let from = if random.below(20) == 0 { b"0123456789" } else { LETTERS };
        for _ in 0..2 + random.below(8) {
            word.push(from[random.below(from.len())]);
        }
        words.push(word);
    }
    words
}

fn main() {
    let mut random = Random(7);
    let words = words(&mut random);
    let end = 256;
    let tokens = words.iter().enumerate().map(|(id, word)| match id {
        256 => TokenText::Special("<end>"),
        _ => TokenText::Bytes(word),
    });
    let begin = Instant::now();
    let vocabulary = Vocabulary::new(tokens, &[end]).expect("it has an end");
    println!("the vocabulary's tree: {:.0} ms", begin.elapsed().as_secs_f64() * 1e3);

    let person = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 40 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "mail": { "type": "string", "format": "email" },
            "tags": { "type": "array", "items": { "enum": ["a", "b", "c"] }, "maxItems": 5 },
            "friend": { "anyOf": [{ "type": "null" }, { "$ref": "#" }] },
        },
        "required": ["name", "age", "friend"],
        "additionalProperties": false,
    });
    for (name, constraint) in [
        ("any JSON object", Constraint::JsonSchema(json!({ "type": "object" }))),
        ("a schema with recursion", Constraint::JsonSchema(person)),
        ("a regex", Constraint::Regex(r"[A-Z][a-z]+( [a-z]+){3,40}\.".to_owned())),
    ] {
        let begin = Instant::now();
        let grammar = vocabulary.compile(&Script::of(constraint), Spelling::Usual).expect("a good constraint");
        let compiling = begin.elapsed().as_secs_f64() * 1e3;
        let mut took = Vec::new();
        for _ in 0..ANSWERS {
            let mut state = grammar.begin();
            for _ in 0..ANSWER_MAX {
                let begin = Instant::now();
                let mask = state.mask().expect("it can go on");
                took.push(begin.elapsed().as_secs_f64() * 1e6);
                let allowed: Vec<u32> = (0..TOKENS).filter(|&id| mask.allows(id)).collect();
                let token = allowed[random.below(allowed.len())];
                if token == end {
                    break;
                }
                state.take(&[token]).expect("its mask allowed it");
            }
        }
        took.sort_by(f64::total_cmp);
        let at = |share: usize| took[(took.len() - 1) * share / 100];
        println!(
            "{name:<24} compiled in {compiling:>6.1} ms; {} masks: median {:.0} us, 99 of 100 {:.0} us, longest {:.0} us",
            took.len(),
            at(50),
            at(99),
            at(100)
        );
    }
}
