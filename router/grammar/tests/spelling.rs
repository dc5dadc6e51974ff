//! Texts without a choice are drawn as their tokenizer spells them, and then they are certain.

use pelton_grammar::{Constraint, Mask, Script, Spelling, State, TokenText, Vocabulary};
use proptest::prelude::*;
use serde_json::{Value, json};

const END: u32 = 256;
const LONGER: [&str; 10] = ["{\"", "\":", " \"", "name", "na", "me\"", "colour", "lo", "\", \"", "<end>"];

/// All single bytes, the end, and longer tokens, of which the tokenizer takes the longest that fits.
fn vocabulary() -> Vocabulary {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let single = bytes.iter().map(|byte| TokenText::Bytes(byte));
    let longer = LONGER[..9].iter().map(|text| TokenText::Bytes(text.as_bytes()));
    let tokens = single.chain([TokenText::Special("<end>")]).chain(longer);
    Vocabulary::spelled(tokens, &[END], Box::new(|text| Some(spell(text)))).expect("it has an end")
}

fn spell(mut text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    while let Some(&byte) = text.as_bytes().first() {
        let fits = (257..).zip(&LONGER[..9]).filter(|(_, longer)| text.starts_with(**longer));
        let (token, length) =
            fits.map(|(token, longer)| (token, longer.len())).max_by_key(|fit| fit.1).unwrap_or((byte.into(), 1));
        tokens.push(token);
        text = text.get(length..).unwrap_or_default();
    }
    tokens
}

fn text_of(tokens: &[u32]) -> String {
    let bytes = |&token: &u32| match token {
        0..256 => vec![u8::try_from(token).expect("a byte")],
        _ => LONGER[token as usize - 257].as_bytes().to_vec(),
    };
    String::from_utf8(tokens.iter().flat_map(bytes).collect()).expect("the texts are ASCII")
}

fn begin(schema: Value, spelling: Spelling) -> State {
    vocabulary().compile(&Script::of(Constraint::JsonSchema(schema)), spelling).expect("a schema").begin()
}

fn allowed(state: &mut State) -> Vec<u32> {
    let mask = state.mask().expect("it goes on");
    (0..257 + 9).filter(|&token| mask.allows(token)).collect()
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": { "name": { "type": "boolean" }, "colour": { "const": "name" } },
        "required": ["name", "colour"],
        "additionalProperties": false,
    })
}

#[test]
fn a_text_without_a_choice_is_a_run_of_the_tokenizers_own_tokens() {
    let mut state = begin(person(), Spelling::Usual);
    state.take(&spell("{\"name\": ")).expect("it fits");
    assert!(allowed(&mut state).len() > 1, "true or false");
    assert_eq!(state.run().len(), 0);
    state.take(&spell("t")).expect("it fits");
    assert_eq!(allowed(&mut state), [u32::from(b'r')]);
    assert!(state.begins_run());
    let run: Vec<u32> = state.run().collect();
    assert_eq!(text_of(&run), "rue");
    // Each token of it is what its own mask would have left, and the run goes on where it is.
    for (at, token) in run.iter().enumerate() {
        assert_eq!(allowed(&mut state), [*token]);
        assert_eq!((state.run().len(), state.begins_run()), (run.len() - at, at == 0));
        state.take(&[*token]).expect("it is certain");
    }
}

#[test]
fn any_spelling_will_do_where_that_is_asked_for() {
    let mut state = begin(json!({ "const": "colour" }), Spelling::Any);
    state.take(&spell("\"")).expect("it fits");
    assert_eq!(allowed(&mut state), [u32::from(b'c'), 257 + 6]);
    assert_eq!(state.run().len(), 0);
    let mut state = begin(json!({ "const": "colour" }), Spelling::Usual);
    assert_eq!(allowed(&mut state), [u32::from(b'"')]);
    assert_eq!(text_of(&state.run().collect::<Vec<_>>()), "\"colour\"");
}

#[test]
fn the_name_of_a_control_token_is_a_text_as_any_other() {
    let mut state = begin(json!({ "const": "<end>" }), Spelling::Usual);
    state.mask().expect("it begins");
    let run: Vec<u32> = state.run().collect();
    assert!(run.iter().all(|&token| token < 256), "{run:?}");
    assert_eq!(text_of(&run), "\"<end>\"");
    state.take(&run).expect("it is certain");
    assert!(matches!(state.mask(), Ok(Mask::Of(_))));
    assert_eq!(allowed(&mut state), [END]);
}

proptest! {
    /// The same tokens make the same state, whether each came with a mask or many came at once, as after the loss of a state.
    #[test]
    fn what_is_certain_depends_on_the_tokens_alone(choices in prop::collection::vec(any::<u32>(), 40), cut in 0_usize..40) {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": { "enum": ["name", "colour", "<end>", "na\"me", "x"] },
                "colour": { "type": "array", "items": { "const": { "name": [true, "me"] } }, "maxItems": 3 },
            },
            "required": ["name", "colour"],
        });
        let (mut state, mut drawn) = (begin(schema.clone(), Spelling::Usual), Vec::new());
        let mut seen = Vec::new();
        for choice in choices {
            let allowed = allowed(&mut state);
            let run: Vec<u32> = state.run().collect();
            prop_assert!(run.first().is_none_or(|first| allowed == [*first]));
            seen.push((allowed.clone(), run));
            let token = allowed[choice as usize % allowed.len()];
            if token == END {
                break;
            }
            state.take(&[token]).expect("it was allowed");
            drawn.push(token);
        }
        let cut = cut.min(drawn.len());
        let mut anew = begin(schema, Spelling::Usual);
        anew.take(&drawn[..cut]).expect("it fits");
        if let Some((allowed_then, run)) = seen.get(cut) {
            prop_assert_eq!(&allowed(&mut anew), allowed_then);
            prop_assert_eq!(&anew.run().collect::<Vec<_>>(), run);
        }
    }
}
