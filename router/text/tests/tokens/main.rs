//! Tokenizers of every style, against the `tokenizers` crate: what a stream shows is what decoding the whole shows.

mod styles;

use pelton_text::{Detokenizer, TextError, Texts, TokenBounds, Tokenizer};
use proptest::prelude::*;
use styles::{Style, all, byte_fallback, byte_level};

/// What a stream shows, and after each token what it has shown so far.
fn stream(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> (String, Vec<usize>) {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), skip_special);
    let mut shown = String::new();
    let mut lengths = Vec::new();
    for id in ids {
        shown.push_str(&detokenizer.push(*id));
        lengths.push(shown.len());
    }
    shown.push_str(&detokenizer.finish());
    assert_eq!(detokenizer.finish(), "", "nothing is left");
    (shown, lengths)
}

/// Where byte tokens that are no UTF-8 are decoded otherwise by us, on purpose: the good characters beside bad bytes
/// stay. The rule, anew and without streams.
fn expected(style: &Style, ids: &[u32], skip_special: bool) -> String {
    let reference = style.reference.decode(ids, skip_special).expect("the reference decodes everything");
    if !style.is_byte_fallback {
        return reference;
    }
    let mut text = String::new();
    let mut run = Vec::new();
    let end_run = |run: &mut Vec<u8>, text: &mut String| {
        for chunk in run.utf8_chunks() {
            text.push_str(chunk.valid());
            text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
        }
        run.clear();
    };
    let special = style.reference.get_added_tokens_decoder();
    for id in ids {
        let Some(name) = style.reference.id_to_token(*id) else { continue };
        if skip_special && special.get(id).is_some_and(|token| token.special) {
            continue;
        }
        let byte = name.strip_prefix("<0x").and_then(|name| u8::from_str_radix(name.strip_suffix('>')?, 16).ok());
        match byte {
            Some(byte) => run.push(byte),
            None => {
                end_run(&mut run, &mut text);
                text.push_str(&name.replace('▁', " "));
            }
        }
    }
    end_run(&mut run, &mut text);
    if style.strips_first_space { text.strip_prefix(' ').unwrap_or(&text).to_owned() } else { text }
}

proptest! {
    #[test]
    fn a_stream_of_any_ids_shows_what_decoding_shows(
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        skip_special: bool,
    ) {
        for style in all() {
            let size = style.tokenizer.vocab_size() as usize + 2; // two that do not exist
            let ids: Vec<u32> = picks.iter().map(|pick| pick.index(size) as u32).collect();
            let (shown, _) = stream(&style.tokenizer, &ids, skip_special);
            prop_assert_eq!(&shown, &style.tokenizer.decode(&ids, skip_special), "{}", style.name);
            prop_assert_eq!(&shown, &expected(style, &ids, skip_special), "{}: {:?}", style.name, ids);
        }
    }

    #[test]
    fn a_stream_of_any_text_shows_what_the_reference_decodes(text in "\\PC{0,24}|[a-z ▁é€😀\\n]{0,40}") {
        for style in all() {
            let ids = style.tokenizer.encode(&text, true).expect("any text has tokens");
            for skip_special in [true, false] {
                let decoded = style.reference.decode(&ids, skip_special).expect("the reference decodes everything");
                prop_assert_eq!(&stream(&style.tokenizer, &ids, skip_special).0, &decoded, "{}", style.name);
            }
        }
    }

    #[test]
    fn only_an_unfinished_character_is_held_back(picks in prop::collection::vec(any::<prop::sample::Index>(), 0..30)) {
        for style in all().iter().filter(|style| style.streams) {
            let size = style.tokenizer.vocab_size() as usize;
            let ids: Vec<u32> = picks.iter().map(|pick| pick.index(size) as u32).collect();
            let (shown, lengths) = stream(&style.tokenizer, &ids, false);
            for (count, length) in lengths.into_iter().enumerate() {
                let so_far = style.tokenizer.decode(&ids[..=count], false);
                let held = so_far.strip_prefix(&shown[..length]).expect("what is shown is never taken back");
                prop_assert!(held.chars().count() <= 3 && held.chars().all(|c| c == char::REPLACEMENT_CHARACTER), "{held:?}");
            }
        }
    }

    #[test]
    fn the_bytes_of_the_tokens_are_the_bytes_of_the_text(text in "\\PC{0,24}|[a-z ▁é€😀\\n]{0,40}") {
        prop_assume!(!text.contains("<s>") && !text.contains("</s>")); // tokens themselves, with no space before them
        for style in [byte_level(), byte_fallback()] {
            let ids = style.tokenizer.encode(&text, false).expect("any text has tokens");
            let bytes: Vec<u8> = ids.iter().flat_map(|id| style.tokenizer.token_bytes(*id).expect("it exists")).copied().collect();
            let space = if style.strips_first_space && !text.is_empty() { " " } else { "" };
            let text = if style.is_byte_fallback { text.replace('▁', " ") } else { text.clone() }; // its sign for a space
            prop_assert_eq!(String::from_utf8(bytes), Ok(format!("{space}{text}")), "{}", style.name);
        }
    }
}

#[test]
fn half_a_character_is_never_shown() {
    for (style, tokens) in
        [(byte_level(), ["ð", "Ł", "ĺ", "Ģ"]), (byte_fallback(), ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"])]
    {
        let ids = tokens.map(|token| style.tokenizer.token_to_id(token).expect("every byte has a token"));
        let mut detokenizer = Detokenizer::new(style.tokenizer.clone(), true);
        assert_eq!(ids.map(|id| detokenizer.push(id)), ["", "", "", "😀"], "{}", style.name);
        assert_eq!(detokenizer.finish(), "");
        assert_eq!(detokenizer.push(ids[0]), "");
        assert_eq!(detokenizer.finish(), "\u{FFFD}", "an answer may end within a character");
    }
}

#[test]
fn characters_show_at_once_even_in_a_long_run_of_byte_tokens() {
    let style = byte_fallback();
    let mut detokenizer = Detokenizer::new(style.tokenizer.clone(), true);
    let ids = style.tokenizer.encode("日本語", false).expect("any text has tokens");
    let shown: Vec<String> = ids.iter().map(|id| detokenizer.push(*id)).collect();
    assert_eq!(shown, ["", "", "", "日", "", "", "本", "", "", "語"]);
}

#[test]
fn the_first_space_goes_where_the_reference_takes_it_off() {
    for style in all() {
        let ids = style.tokenizer.encode("the the", false).expect("any text has tokens");
        let (shown, _) = stream(&style.tokenizer, &ids, true);
        assert_eq!(
            shown,
            style.reference.decode(&ids, true).expect("the reference decodes everything"),
            "{}",
            style.name
        );
        assert_eq!(style.tokenizer.decode(&[], true), "");
    }
}

#[test]
fn a_text_that_goes_on_is_no_beginning() {
    for style in all().iter().filter(|style| style.streams) {
        let ids = style.tokenizer.encode("the the the 😀", false).expect("any text has tokens");
        for cut in 1..ids.len() {
            let (prompt, answer) = ids.split_at(cut);
            let mut before = Detokenizer::new(style.tokenizer.clone(), true);
            let told: String = prompt.iter().map(|id| before.push(*id)).collect();
            let mut detokenizer = Detokenizer::new(style.tokenizer.clone(), true).behind(prompt);
            let text: String = answer.iter().map(|id| detokenizer.push(*id)).collect();
            assert_eq!(
                told + &text + &detokenizer.finish(),
                style.tokenizer.decode(&ids, true),
                "{} {cut}",
                style.name
            );
        }
    }
}

#[test]
fn special_tokens_are_known_and_skipped() {
    for style in [byte_level(), byte_fallback()] {
        let end = style.tokenizer.token_to_id("<|end|>").expect("added");
        let tool = style.tokenizer.token_to_id("<tool call>").expect("added");
        assert!(style.tokenizer.is_special(end) && !style.tokenizer.is_special(tool));
        assert_eq!(style.tokenizer.token_bytes(end), Some("<|end|>".as_bytes()));
        assert_eq!(style.tokenizer.token_bytes(tool), Some("<tool call>".as_bytes()));
        assert_eq!(style.tokenizer.decode(&[end, tool, end], true), "<tool call>");
        assert_eq!(style.tokenizer.decode(&[end, tool], false), "<|end|><tool call>");
        let ids = style.tokenizer.encode("a<|end|>", false).expect("any text has tokens");
        assert_eq!(ids.last(), Some(&end));
        assert_eq!(style.tokenizer.token_bytes(style.tokenizer.vocab_size()), None);
        assert_eq!(style.tokenizer.id_to_token(u32::MAX), None);
        assert!(!style.tokenizer.is_special(u32::MAX));
    }
}

#[test]
fn a_skipped_token_does_not_break_a_character() {
    let style = byte_fallback();
    let id = |token| style.tokenizer.token_to_id(token).expect("it exists");
    let ids = [id("<0xC3>"), id("<|end|>"), id("<0xA9>")];
    assert_eq!(stream(&style.tokenizer, &ids, true).0, "é");
    assert_eq!(stream(&style.tokenizer, &ids, false).0, "\u{FFFD}<|end|>\u{FFFD}");
}

#[test]
fn a_bad_byte_does_not_take_good_characters_with_it() {
    let style = byte_fallback();
    let ids: Vec<u32> = ["<0xC3>", "<0xA9>", "<0xFF>", "<0x41>", "<0xE2>", "<0x82>"]
        .iter()
        .map(|token| style.tokenizer.token_to_id(token).expect("every byte has a token"))
        .collect();
    assert_eq!(stream(&style.tokenizer, &ids, true).0, "é\u{FFFD}A\u{FFFD}\u{FFFD}");
}

#[test]
fn a_decoder_without_pieces_shows_everything_at_the_end() {
    for style in all().iter().filter(|style| !style.streams) {
        let ids = style.tokenizer.encode("the the", false).expect("any text has tokens");
        let (shown, lengths) = stream(&style.tokenizer, &ids, true);
        assert!(!shown.is_empty() && lengths.iter().all(|length| *length == 0), "{}", style.name);
        assert_eq!(style.tokenizer.token_bytes(ids[0]), None);
    }
}

#[test]
fn truncation_and_padding_of_the_file_are_not_applied() {
    let mut json: serde_json::Value = serde_json::from_str(&byte_level().json).expect("a tokenizer.json");
    json["truncation"] =
        serde_json::json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = serde_json::json!({
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"
    });
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).expect("opens");
    let text = "the quick brown fox";
    assert_eq!(tokenizer.encode(text, false), byte_level().tokenizer.encode(text, false));
}

#[test]
fn a_file_that_is_no_tokenizer_is_refused() {
    for json in ["", "{}", "[]", r#"{"model": 5}"#, r#"{"version": "1.0", "model": {"type": "Nonsense"}}"#] {
        assert!(matches!(Tokenizer::from_json(json.as_bytes()), Err(TextError::Tokenizer { .. })), "{json}");
    }
    for decoder in [
        serde_json::json!(5),
        serde_json::json!({"type": "Nonsense"}),
        serde_json::json!({"type": "Strip", "content": " ", "start": 0, "stop": 1}),
    ] {
        let mut json: serde_json::Value = serde_json::from_str(&byte_level().json).expect("a tokenizer.json");
        json["decoder"] = decoder;
        assert!(matches!(Tokenizer::from_json(json.to_string().as_bytes()), Err(TextError::Tokenizer { .. })));
    }
    let missing = Tokenizer::open(std::path::Path::new("/nonexistent"));
    assert!(matches!(missing, Err(TextError::Tokenizer { file, .. }) if file.ends_with("tokenizer.json")));
}

/// Words of one letter, between [CLS] and [SEP].
fn pairs() -> Tokenizer {
    let special = |id, content: &str| {
        serde_json::json!({ "id": id, "content": content, "special": true,
                            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false })
    };
    let token = |id: &str, type_id: u32| serde_json::json!({ "SpecialToken": { "id": id, "type_id": type_id } });
    let text = |id: &str, type_id: u32| serde_json::json!({ "Sequence": { "id": id, "type_id": type_id } });
    let ids = |name: &str, id: u32| serde_json::json!({ "id": name, "ids": [id], "tokens": [name] });
    let vocab: serde_json::Map<_, _> = ["[CLS]", "[SEP]", "a", "b", "c", "d"]
        .iter()
        .zip(0..)
        .map(|(word, id)| ((*word).to_owned(), id.into()))
        .collect();
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
        "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0)],
            "pair": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0), text("B", 1), token("[SEP]", 1)],
            "special_tokens": { "[CLS]": ids("[CLS]", 0), "[SEP]": ids("[SEP]", 1) },
        },
        "added_tokens": [special(0, "[CLS]"), special(1, "[SEP]")],
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "a" },
    });
    Tokenizer::from_json(file.to_string().as_bytes()).expect("a valid tokenizer")
}

#[test]
fn texts_and_pairs_are_cut_between_the_tokens_around_them() {
    let tokenizer = pairs();
    let within = |texts, add_special, last_text, all| {
        let bounds = TokenBounds { last_text, all };
        tokenizer.encode_within(texts, add_special, bounds).expect("plain words")
    };
    let (one, pair) = (Texts::One("a b c d"), Texts::Pair("a b", "a b c d"));
    for (texts, add_special, last_text, all, expected) in [
        (one, true, None, None, vec![0, 2, 3, 4, 5, 1]),
        (one, false, None, None, vec![2, 3, 4, 5]),
        (one, true, None, Some(6), vec![0, 2, 3, 4, 5, 1]),
        (one, true, None, Some(4), vec![0, 2, 3, 1]),
        (one, false, None, Some(3), vec![2, 3, 4]),
        (one, true, Some(1), None, vec![0, 2, 1]),
        (one, true, None, Some(1), vec![0, 1]), // what the model expects stays: the caller sees that it is too much
        (pair, true, None, None, vec![0, 2, 3, 1, 2, 3, 4, 5, 1]),
        (pair, true, Some(3), None, vec![0, 2, 3, 1, 2, 3, 4, 1]),
        (pair, true, None, Some(8), vec![0, 2, 3, 1, 2, 3, 4, 1]),
        (pair, true, None, Some(6), vec![0, 2, 1, 2, 3, 1]),
        (pair, true, Some(1), Some(6), vec![0, 2, 3, 1, 2, 1]),
    ] {
        assert_eq!(
            within(texts, add_special, last_text, all),
            expected,
            "{texts:?} {add_special} {last_text:?} {all:?}"
        );
    }
    assert_eq!(within(one, true, None, None), tokenizer.encode("a b c d", true).expect("plain words"));
    // What is cut off is not kept: in pieces of two, paired with each other, it would be a thousand million encodings.
    let long = "a ".repeat(60_000);
    assert_eq!(within(Texts::Pair(&long, &long), true, None, Some(7)), [0, 2, 2, 1, 2, 2, 1]);
}
