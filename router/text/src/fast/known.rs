//! Whether a `tokenizer.json` is of the kind that is encoded here: each of its steps is known, word for word. Anything
//! else is left to the `tokenizers` crate; so when in doubt, it is not known.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokenizers::models::bpe::BPE;
use tokenizers::{AddedToken, Encoding, ModelWrapper, PostProcessorWrapper, Tokenizer};

use super::added::Added;
use super::bpe::Bpe;
use super::pattern::Pattern;
use super::{Around, Fast, Normalization};
use crate::decoding::byte_of_char;

/// The tokenizer's own way to encode, if all of it is known. `json` is what `tokenizer` was made from.
pub(super) fn known(json: &[u8], tokenizer: &Tokenizer) -> Option<Fast> {
    let pattern = Pattern::of(&serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?)?;
    let normalization = match serde_json::to_value(tokenizer.get_normalizer()).ok()? {
        serde_json::Value::Null => Normalization::None,
        step if step == serde_json::json!({"type": "Sequence", "normalizers": []}) => Normalization::None, // DeepSeek's
        step if step == serde_json::json!({"type": "NFC"}) => Normalization::Nfc,
        _ => return None,
    };
    let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
    let bpe = bpe(json, model)?;
    let (raw, normalized) = added(tokenizer, normalization)?;
    let around = around(tokenizer)?;
    Some(Fast { raw, normalization, normalized, pattern, bpe, around })
}

/// The vocabulary is that of bytes, and merges are all that happens to them. What is done with characters that are not in
/// it (`unk_token`, `byte_fallback`) does not matter, since all are: `Bpe::new` sees to it.
fn bpe(json: &[u8], model: &BPE) -> Option<Bpe> {
    let is_empty = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    if model.dropout.is_some() || !is_empty(&model.continuing_subword_prefix) || !is_empty(&model.end_of_word_suffix) {
        return None;
    }
    let vocab = model.get_vocab();
    let merges = merges(json, &vocab)?;
    // A token with a character that stands for no byte is never met.
    let bytes_of = |name: &str| name.chars().map(byte_of_char).collect::<Option<Vec<u8>>>();
    let tokens: Vec<_> = vocab.iter().filter_map(|(name, id)| Some((bytes_of(name)?, *id))).collect();
    Bpe::new(&tokens, &merges, model.ignore_merges)
}

/// The part of the file that the `tokenizers` crate does not give out.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(borrow)]
    merges: &'a RawValue,
}

/// By rank: the ids of two tokens, and of both in one.
fn merges(json: &[u8], vocab: &HashMap<String, u32>) -> Option<Vec<[u32; 3]>> {
    let text = serde_json::from_slice::<File<'_>>(json).ok()?.model.merges.get();
    let pairs: Vec<(String, String)> = match serde_json::from_str(text) {
        Ok(pairs) => pairs,
        Err(_) => {
            // Older files have lines, as in `merges.txt` with its heading.
            let lines: Vec<String> = serde_json::from_str(text).ok()?;
            let lines = lines.iter().filter(|line| !line.starts_with("#version"));
            let halves = lines.map(|line| line.split_once(' ').filter(|(_, right)| !right.contains(' ')));
            halves
                .map(|halves| halves.map(|(left, right)| (left.to_owned(), right.to_owned())))
                .collect::<Option<_>>()?
        }
    };
    let ids = |(left, right): (String, String)| {
        let both = vocab.get(&format!("{left}{right}"))?;
        Some([*vocab.get(&left)?, *vocab.get(&right)?, *both])
    };
    pairs.into_iter().map(ids).collect()
}

/// The added tokens that are found in the text as it came, and those that are found in it once it is normalized.
fn added(tokenizer: &Tokenizer, normalization: Normalization) -> Option<(Added, Added)> {
    let tokens = tokenizer.get_added_tokens_decoder();
    let contents: Vec<(String, u32, &AddedToken)> = tokens
        .iter()
        .map(|(id, token)| {
            let content =
                if token.normalized { normalization.of(&token.content) } else { token.content.as_str().into() };
            (content.into_owned(), *id, token)
        })
        .collect();
    let those = |is_normalized: bool| {
        let tokens = contents.iter().filter(move |(_, _, token)| token.normalized == is_normalized);
        Added::new(tokens.map(|(content, id, token)| (content.as_str(), *id, *token)))
    };
    Some((those(false)?, those(true)?))
}

/// What comes before and behind every text, found out with a text of one token that no vocabulary has.
fn around(tokenizer: &Tokenizer) -> Option<Around> {
    const TEXT: u32 = u32::MAX;
    match tokenizer.get_post_processor() {
        // None of these looks at what the tokens are.
        None
        | Some(
            PostProcessorWrapper::Roberta(_)
            | PostProcessorWrapper::Bert(_)
            | PostProcessorWrapper::ByteLevel(_)
            | PostProcessorWrapper::Template(_)
            | PostProcessorWrapper::Sequence(_),
        ) => {}
    }
    let processed = |add_special| {
        let encoding = tokenizer.post_process(encoding(vec![TEXT]), None, add_special).ok()?;
        Some(encoding.get_ids().to_vec())
    };
    let with = processed(true)?;
    let at = with.iter().position(|id| *id == TEXT)?;
    let (before, behind) = (with[..at].to_vec(), with[at + 1..].to_vec());
    let is_once = !behind.contains(&TEXT) && processed(false)? == [TEXT];
    is_once.then_some(Around { before, behind })
}

/// Tokens as the `tokenizers` crate passes them on, without the texts and offsets that nobody asks for.
pub(super) fn encoding(ids: Vec<u32>) -> Encoding {
    let count = ids.len();
    let (type_ids, special, attention) = (vec![0; count], vec![0; count], vec![1; count]);
    let (tokens, words, offsets) = (vec![String::new(); count], vec![None; count], vec![(0, 0); count]);
    Encoding::new(ids, type_ids, tokens, words, offsets, special, attention, Vec::new(), Default::default())
}
