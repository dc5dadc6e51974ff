//! What grammars cost over a vocabulary of 150,000 tokens: making its tree, compiling, and each mask of an answer.
//!
//!     cargo run --release -p pelton-grammar --example bench_grammar
//!
//! The vocabulary is made of random words and numbers, with and without a space before them, and all single bytes. Answers are
//! drawn evenly from what each mask allows, so they are wilder than a model's.

use std::time::Instant;

use pelton_grammar::{
    Arguments, BesideText, Body, Call, Calls, Constraint, Mark, Never, Part, Script, Spelling, TokenText, Vocabulary,
};
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

/// Free text, and calls behind a mark.
fn beside(mark: Part, marks: &[&str]) -> Script {
    let never = Never { marks: marks.iter().map(|&mark| mark.to_owned()).collect(), before: Vec::new() };
    let tools = vec![Call {
        head: Mark::new(),
        arguments: Arguments::Json(json!({ "type": "object", "properties": {}, "additionalProperties": false })),
        tail: Mark::new(),
    }];
    let (open, close, each_close, between) = (None, None, None, Mark::new());
    let calls = Calls { open, close, each_open: Some(vec![mark]), each_close, between, tools, are_many: true };
    Script { reasoning: None, mark: Mark::new(), body: Body::Free(calls, BesideText::Marked { never }) }
}

fn main() {
    let mut random = Random(7);
    let words = words(&mut random);
    let end = 256;
    let tokens = words.iter().enumerate().map(|(id, word)| match id {
        256 => TokenText::Special("<end>"),
        257 => TokenText::Special("<call>"),
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
    const CALL: &str = "<tool_call>";
    for (name, script) in [
        ("any JSON object", Script::of(Constraint::JsonSchema(json!({ "type": "object" })))),
        ("a schema with recursion", Script::of(Constraint::JsonSchema(person))),
        ("a regex", Script::of(Constraint::Regex(r"[A-Z][a-z]+( [a-z]+){3,40}\.".to_owned()))),
        ("text, a mark of letters", beside(Part::Text(CALL.to_owned()), &[CALL, "functools"])),
        ("text, a mark's token", beside(Part::Token(257), &[CALL, "functools"])),
        ("the same, all letters", beside(Part::Token(257), &[])),
    ] {
        let begin = Instant::now();
        let grammar = vocabulary.compile(&script, Spelling::Usual).expect("a good constraint");
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
