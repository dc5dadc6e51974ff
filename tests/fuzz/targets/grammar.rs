//! Whatever a constraint says: it is refused, or there is a token to go on with until the end (or none can be told within the bounds of work), and
//! each that is allowed is taken.
//!
//! Input: a byte for the kind, one for what stands before it, four that choose tokens, then the texts that it is made of, with a byte of 0xFF
//! between them.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use pelton_grammar::{Arguments, BesideText, Body, Call, Calls, Constraint, Field, FieldValue, Fields, Form, Never, Part, Reasoning, Script, Spelling, Stuck, Tag, Times, TokenText, Vocabulary};
use serde_json::Value;

const END: u32 = 256;
const THINK: u32 = 257;
const LONGER: [&str; 9] = ["{\"", "\":", "null", "true", "\", \"", "  ", "abc", "</think>", "é"];
const TOKENS: u32 = 258 + LONGER.len() as u32;
/// Tokens of one answer.
const STEPS: usize = 48;

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let tokens = bytes.iter().map(|byte| TokenText::Bytes(byte)).chain(["<end>", "<think>"].map(TokenText::Special));
    Vocabulary::new(tokens.chain(LONGER.map(|text| TokenText::Bytes(text.as_bytes()))), &[END]).expect("it has an end")
});

/// The texts of an input, one after the other; empty ones behind the last.
struct Texts<'a>(std::slice::Split<'a, u8, fn(&u8) -> bool>);

impl Texts<'_> {
    fn text(&mut self) -> String {
        self.next().unwrap_or_default()
    }

    fn json(&mut self) -> Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    }

    /// A form, of which a text says what it is: a letter for each, in the order in which they stand.
    fn form(&mut self, kinds: &mut std::vec::IntoIter<u8>, level: usize) -> Form {
        let several = |texts: &mut Self, kinds: &mut _| (0..2).map(|_| texts.form(kinds, level + 1)).collect();
        let tags = |texts: &mut Self, kinds: &mut _| (0..2).map(|_| texts.tag(kinds, level + 1)).collect();
        let kind = kinds.next().unwrap_or(b't');
        let times = Times { at_least_one: kind & 32 == 0, stop_after_first: level % 2 == 1 };
        match kind.to_ascii_lowercase() {
            _ if level > 40 => Form::Anything,
            b'a' => Form::Anything,
            b'j' => Form::Schema { schema: self.json(), place: "/x".to_owned() },
            b'r' => Form::Regex { regex: self.text(), place: "/x".to_owned() },
            b'g' => Form::Grammar { text: self.text(), place: "/x".to_owned() },
            b's' => Form::Sequence(several(self, kinds)),
            b'e' => Form::Either(several(self, kinds)),
            b'b' => Form::Tag(self.tag(kinds, level)),
            b'f' => Form::Triggered { triggers: vec![self.text()], tags: tags(self, kinds), times },
            b'p' => Form::Separated { tags: tags(self, kinds), separator: self.text(), times },
            _ => Form::Exactly(self.text()),
        }
    }

    fn tag(&mut self, kinds: &mut std::vec::IntoIter<u8>, level: usize) -> Tag {
        let (begin, end) = (self.text(), self.text());
        Tag { begin, content: Box::new(self.form(kinds, level + 1)), end }
    }

    fn constraint(&mut self, kind: u8) -> Constraint {
        match kind % 6 {
            0 => Constraint::JsonSchema(self.json()),
            1 => Constraint::Regex(self.text()),
            2 => Constraint::Choice(self.by_ref().collect()),
            3 => Constraint::JsonObject,
            4 => {
                let kinds = self.text().into_bytes();
                Constraint::Tags(self.form(&mut kinds.into_iter(), 0))
            }
            _ => Constraint::Grammar(self.text()),
        }
    }

    fn fields(&mut self, how: u8) -> Fields {
        let fields = (0..3).map(|at| Field {
            open: vec![Part::Text(self.text())],
            value: match (how >> at) & 3 {
                0 => FieldValue::Json(self.json()),
                1 => FieldValue::Texts(vec![self.text(), self.text()]),
                _ => FieldValue::Text,
            },
            close: if at == 1 { vec![Part::Token(THINK)] } else { vec![Part::Text(self.text())] },
            is_required: how >> at & 4 == 4,
        });
        Fields { fields: fields.collect(), separator: (how & 16 == 16).then(|| self.text()) }
    }

    fn calls(&mut self, how: u8) -> Calls {
        let mark = |texts: &mut Self, bit: u8| (how >> bit & 1 == 1).then(|| vec![Part::Text(texts.text())]);
        let [open, close, each_open, each_close] = [4, 5, 6, 7].map(|bit| mark(self, bit));
        let tools = (0..2).map(|at| {
            let head = vec![Part::Text(self.text())];
            let arguments = if at == 0 { Arguments::Json(self.json()) } else { Arguments::Fields(self.fields(how)) };
            Call { head, arguments, tail: Vec::new() }
        });
        let between = if how & 3 == 3 { vec![Part::Text(", ".to_owned())] } else { Vec::new() };
        Calls { open, close, each_open, each_close, between, tools: tools.collect(), are_many: how & 8 == 8 }
    }

    fn beside(&mut self, how: u8) -> BesideText {
        let never = Never { marks: vec![self.text(), self.text()], before: vec![self.text()] };
        match how % 3 {
            0 => BesideText::Marked { never },
            1 => BesideText::Begun { with: vec![self.text()], never },
            _ => {
                let headers = vec![vec![Part::Text(self.text())], vec![Part::Token(THINK)]];
                BesideText::Messages { is_open: how & 64 == 64, headers, between: vec![Part::Text(self.text())], never }
            }
        }
    }
}

impl Iterator for Texts<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        self.0.next().map(|text| String::from_utf8_lossy(text).into_owned())
    }
}

fn script(kind: u8, how: u8, texts: &mut Texts) -> Script {
    let text = |text: &str| vec![Part::Text(text.to_owned())];
    let reasoning = match how & 3 {
        0 | 1 => None,
        2 => Some(Reasoning { is_open: how & 4 == 4, open: text("<think>"), close: text("</think>"), behind: Vec::new(), never: Vec::new() }),
        _ => Some(Reasoning { is_open: how & 4 == 4, open: vec![Part::Token(THINK)], close: text(&texts.text()), behind: Vec::new(), never: vec![texts.text()] }),
    };
    let body = match kind / 6 % 6 {
        0..=2 => Body::Text(texts.constraint(kind)),
        3 => Body::Calls(texts.calls(how)),
        4 => Body::Either(texts.calls(how), texts.constraint(kind)),
        _ => Body::Free(texts.calls(how), texts.beside(how)),
    };
    Script { reasoning, mark: Vec::new(), body }
}

fuzz_target!(|input: &[u8]| {
    let &[kind, how, a, b, c, d, ref texts @ ..] = input else { return };
    let is_between: fn(&u8) -> bool = |&byte| byte == 0xFF;
    let script = script(kind, how, &mut Texts(texts.split(is_between)));
    let grammar = match VOCABULARY.compile(&script, Spelling::Usual) {
        Ok(grammar) => grammar,
        Err(error) => {
            assert!(!error.reason.is_empty());
            return;
        }
    };
    let mut random = u32::from_le_bytes([a, b, c, d]) | 1;
    let mut state = grammar.begin();
    for _ in 0..STEPS {
        let mask = match state.mask() {
            Ok(mask) => mask,
            Err(Stuck::TooCostly { .. }) => return, // a bound, which ends that answer alone
            Err(stuck) => panic!("{stuck}: {script:?}"),
        };
        let allowed: Vec<u32> = (0..TOKENS).filter(|&token| mask.allows(token)).collect();
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        let token = allowed[random as usize % allowed.len()];
        if token == END {
            break;
        }
        state.take(&[token]).expect("it was allowed");
    }
});
