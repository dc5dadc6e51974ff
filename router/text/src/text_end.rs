//! The token that ends a text, where a checkpoint says that there is one (`add_eos_token`) and its `tokenizer.json` adds none: models that
//! give the vector of a text's last token were trained on that one. For answers nothing is added, as with `transformers` 5.

use serde_json::{Map, Value, json};

/// The same `tokenizer.json`, whose texts end with this token. None: something ends them already, or the token is none of its own.
pub fn with_text_end(tokenizer_json: &[u8], token: &str) -> Option<Vec<u8>> {
    let mut all: Map<String, Value> = serde_json::from_slice(tokenizer_json).ok()?;
    let id = id_of(&all, token)?;
    let processor = all.entry("post_processor").or_insert(Value::Null);
    end(processor, token, id)?;
    serde_json::to_vec(&all).ok()
}

fn id_of(all: &Map<String, Value>, token: &str) -> Option<u64> {
    let added = all.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
    let named = added.filter(|one| one["content"] == token).find_map(|one| one["id"].as_u64());
    named.or_else(|| all.get("model")?.get("vocab")?.get(token)?.as_u64())
}

fn end(processor: &mut Value, token: &str, id: u64) -> Option<()> {
    match processor["type"].as_str() {
        None => *processor = template(token, id),
        Some("ByteLevel") => {
            *processor = json!({"type": "Sequence", "processors": [processor.take(), template(token, id)]})
        }
        Some("Sequence") => {
            let parts = processor["processors"].as_array_mut()?;
            match parts.iter_mut().find(|part| part["type"] == "TemplateProcessing") {
                Some(part) => return end(part, token, id),
                None => parts.push(template(token, id)),
            }
        }
        Some("TemplateProcessing") => {
            processor["single"].as_array()?.last()?.get("Sequence")?; // a text, which nothing ends
            for pieces in ["single", "pair"] {
                let pieces = processor[pieces].as_array_mut()?;
                *pieces = std::mem::take(pieces).into_iter().flat_map(|piece| ended(piece, token)).collect();
            }
            processor["special_tokens"][token] = special(token, id);
        }
        Some(_) => return None, // BERT's and RoBERTa's, which end every text
    }
    Some(())
}

/// A piece of a template; a text of it, with the token behind.
fn ended(piece: Value, token: &str) -> Vec<Value> {
    let Some(text) = piece.get("Sequence") else { return vec![piece] };
    let end = json!({"SpecialToken": {"id": token, "type_id": text["type_id"]}});
    vec![piece, end]
}

fn template(token: &str, id: u64) -> Value {
    let text = |name, segment| ended(json!({"Sequence": {"id": name, "type_id": segment}}), token);
    let pair = [text("A", 0), text("B", 1)].concat();
    let mut special_tokens = Map::new();
    special_tokens.insert(token.to_owned(), special(token, id));
    json!({
        "type": "TemplateProcessing", "single": text("A", 0), "pair": pair,
        "special_tokens": special_tokens,
    })
}

fn special(token: &str, id: u64) -> Value {
    json!({"id": token, "ids": [id], "tokens": [token]})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Texts, TokenBounds, Tokenizer};

    const BEGIN: u32 = 2;
    const END: u32 = 3;

    fn file(post_processor: &Value) -> Vec<u8> {
        let added = [(BEGIN, "<s>"), (END, "</s>")].map(|(id, content)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
        });
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": {"type": "Whitespace"}, "post_processor": post_processor, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<s>": BEGIN, "</s>": END}, "unk_token": "a"},
        });
        serde_json::to_vec(&file).expect("plain data")
    }

    fn begins() -> Value {
        let piece = |kind: &str, id: &str, segment: u32| json!({kind: {"id": id, "type_id": segment}});
        let begin = |segment| piece("SpecialToken", "<s>", segment);
        json!({
            "type": "TemplateProcessing", "single": [begin(0), piece("Sequence", "A", 0)],
            "pair": [begin(0), piece("Sequence", "A", 0), begin(1), piece("Sequence", "B", 1)],
            "special_tokens": {"<s>": special("<s>", BEGIN.into())},
        })
    }

    #[test]
    fn texts_end_with_the_token_whatever_else_is_put_around_them() {
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        for (processor, before) in [
            (Value::Null, vec![]),
            (bytes.clone(), vec![]),
            (begins(), vec![BEGIN]),
            (json!({"type": "Sequence", "processors": [bytes.clone()]}), vec![]),
            (json!({"type": "Sequence", "processors": [bytes, begins()]}), vec![BEGIN]),
        ] {
            let json = with_text_end(&file(&processor), "</s>").expect("nothing ends them yet");
            let tokenizer = Tokenizer::from_json(&json).expect("a tokenizer");
            let one = [before.clone(), vec![0, 1, END]].concat();
            assert_eq!(tokenizer.encode("a b", true), Ok(one.clone()), "{processor}");
            assert_eq!(tokenizer.encode("a b", false), Ok(vec![0, 1]), "{processor}");
            let pair = tokenizer.encode_within(Texts::Pair("a b", "b"), true, TokenBounds::default());
            assert_eq!(pair, Ok([one, before.clone(), vec![1, END]].concat()), "{processor}");
            let cut = TokenBounds { all: Some(before.len() + 2), ..TokenBounds::default() };
            assert_eq!(tokenizer.encode_within(Texts::One("a b"), true, cut), Ok([before, vec![0, END]].concat()));
            assert_eq!(with_text_end(&json, "</s>"), None, "it is there now");
        }
    }

    #[test]
    fn what_ends_texts_already_or_has_no_such_token_stays() {
        let bert = json!({"type": "BertProcessing", "sep": ["</s>", END], "cls": ["<s>", BEGIN]});
        assert_eq!(with_text_end(&file(&bert), "</s>"), None);
        assert_eq!(with_text_end(&file(&begins()), "<end>"), None);
        assert_eq!(with_text_end(b"no JSON", "</s>"), None);
    }
}
