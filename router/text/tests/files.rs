//! What is read from a checkpoint's folder, and from which file first.

use std::path::{Path, PathBuf};

use pelton_text::{ChatInput, ChatTemplate, Checkpoint, CheckpointError, GenerationDefaults, TemplateError, Tokenizer};
use serde_json::{Value, json};

/// A fresh folder with these files.
fn folder(name: &str, files: &[(&str, Value)]) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pelton-text").join(name);
    drop(std::fs::remove_dir_all(&dir)); // of the last run, if there was one
    for (file, content) in files {
        let path = dir.join(file);
        std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder is ours");
        let text = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
        std::fs::write(path, text).expect("the folder is ours");
    }
    dir
}

/// A checkpoint in this folder, with a tokenizer that says nothing if it has none.
fn opened(dir: &Path) -> Result<Checkpoint, CheckpointError> {
    let json = std::fs::read(dir.join("tokenizer.json")).unwrap_or_else(|_| b"{}".to_vec());
    Checkpoint::open(dir, &json)
}

fn open(name: &str, files: &[(&str, Value)]) -> Checkpoint {
    opened(&folder(name, files)).expect("a checkpoint")
}

#[test]
fn every_file_adds_what_it_knows() {
    let checkpoint = open(
        "models--org--tiny-model/snapshots/abc123",
        &[
            (
                "config.json",
                json!({"architectures": ["LlamaForCausalLM"], "vocab_size": 512, "max_position_embeddings": 4096, "eos_token_id": [7, 3]}),
            ),
            (
                "generation_config.json",
                json!({"eos_token_id": 9, "temperature": 0.5, "top_k": 20, "top_p": 1, "do_sample": true}),
            ),
            (
                "tokenizer_config.json",
                json!({"eos_token": {"content": "<|end|>"}, "bos_token": "<s>", "pad_token": null, "model_max_length": 1e30}),
            ),
            (
                "special_tokens_map.json",
                json!({"bos_token": "<old>", "unk_token": "<unk>", "additional_special_tokens": ["<x>"]}),
            ),
            (
                "tokenizer.json",
                json!({"added_tokens": [{"id": 1, "content": "<s>"}, {"id": 5, "content": "<|end|>", "special": true}], "model": {}}),
            ),
        ],
    );
    assert_eq!(checkpoint.name, "org/tiny-model");
    assert_eq!(checkpoint.architectures, ["LlamaForCausalLM"]);
    assert_eq!((checkpoint.vocab_size, checkpoint.max_model_len), (Some(512), Some(4096)));
    assert_eq!((checkpoint.eos_ids, checkpoint.bos_id), (vec![3, 5, 7, 9], Some(1)));
    let defaults =
        GenerationDefaults { temperature: Some(0.5), top_k: Some(20), top_p: Some(1.0), ..Default::default() };
    assert_eq!(checkpoint.defaults, defaults);
    let tokens = json!({"bos_token": "<s>", "unk_token": "<unk>", "eos_token": "<|end|>"});
    assert_eq!(Value::Object(checkpoint.special_tokens), tokens);
}

#[test]
fn a_made_tokenizer_names_the_special_tokens_that_no_file_names() {
    let token = |id: u32, content: &str, names: &[&str]| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true, "names": names});
    let added = [
        token(1, "<s>", &["bos_token", "cls_token"]),
        token(2, "</s>", &["eos_token"]),
        token(9, "<x>", &["mask_token"]),
    ];
    let made = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "<s>": 1, "</s>": 2}, "unk_token": "a"},
    });
    Tokenizer::from_json(made.to_string().as_bytes()).expect("names do not stand in the way");
    let config = ("config.json", json!({"vocab_size": 9}));
    let template = ("chat_template.jinja", json!("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"));
    let files = [config, template, ("tokenizer.json", made)];
    let dir = folder("made", &files);
    let checkpoint = opened(&dir).expect("a checkpoint");
    assert_eq!((checkpoint.bos_id, checkpoint.eos_ids.as_slice()), (Some(1), &[2][..]));
    let tokens = json!({"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>"});
    assert_eq!(Value::Object(checkpoint.special_tokens.clone()), tokens, "the model has no token 9");
    let template = ChatTemplate::open(&dir, &checkpoint).expect("it parses").expect("it is there");
    let input = ChatInput { messages: vec![json!({"role": "user", "content": "x"})], ..ChatInput::default() };
    assert_eq!(template.render(&input).as_deref(), Ok("<s>x</s>"));

    let said = ("special_tokens_map.json", json!({"eos_token": "<end>"}));
    let checkpoint = open("made", &[&files[..], &[said]].concat());
    assert_eq!(checkpoint.special_tokens["eos_token"], "<end>", "the checkpoint's own files come first");
}

#[test]
fn a_configuration_alone_is_enough() {
    let checkpoint = open("alone", &[("config.json", json!({}))]);
    assert_eq!(checkpoint.name, "alone");
    assert_eq!((checkpoint.max_model_len, checkpoint.vocab_size, checkpoint.bos_id), (None, None, None));
    assert!(checkpoint.eos_ids.is_empty() && checkpoint.special_tokens.is_empty());
}

#[test]
fn the_length_is_that_after_stretching() {
    let cases = [
        (json!({"max_position_embeddings": 2048, "rope_scaling": null}), Some(2048)),
        (json!({"max_position_embeddings": 2048, "rope_scaling": {"type": "dynamic", "factor": 4}}), Some(8192)),
        (json!({"max_position_embeddings": 2048, "rope_scaling": {"type": "linear", "factor": 4}}), Some(2048)),
        (json!({"max_position_embeddings": 2048, "rope_scaling": {"rope_type": "dynamic", "factor": 2.5}}), Some(5120)),
        (
            json!({"max_position_embeddings": 40960, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}),
            Some(131_072),
        ),
        (
            json!({"max_position_embeddings": 4096, "original_max_position_embeddings": 2048, "rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}}),
            Some(16_384),
        ),
        (
            json!({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
            Some(131_072),
        ),
        (json!({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default"}}), Some(4096)),
        (json!({"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 1e30}}), Some(4096)),
        (json!({"max_position_embeddings": -1}), None),
        (json!({"n_positions": 1024}), Some(1024)),
        (
            json!({"max_position_embeddings": 512, "rope_scaling": {}, "rope_parameters": {"rope_type": "dynamic", "factor": 2}}),
            Some(1024),
        ),
        (
            json!({"max_position_embeddings": 512, "rope_scaling": {"type": "dynamic", "factor": 4}, "rope_parameters": {"rope_type": "default"}}),
            Some(2048),
        ),
        (json!({"text_config": {"vocab_size": 5, "max_position_embeddings": 77}}), Some(77)),
    ];
    for (config, expected) in cases {
        assert_eq!(open("length", &[("config.json", config.clone())]).max_model_len, expected, "{config}");
    }
}

#[test]
fn a_malformed_file_is_refused_by_name() {
    let config = ("config.json", json!({}));
    let cases = [
        (vec![], "config.json"),
        (vec![("config.json", json!("{"))], "config.json"),
        (vec![("config.json", json!([]))], "config.json"),
        (vec![("config.json", json!({"eos_token_id": "two"}))], "config.json"),
        (vec![config.clone(), ("generation_config.json", json!({"temperature": "hot"}))], "generation_config.json"),
        (vec![config.clone(), ("tokenizer_config.json", json!(" "))], "tokenizer_config.json"),
        (vec![config, ("tokenizer.json", json!({"added_tokens": [5]}))], "tokenizer.json"),
    ];
    for (files, culprit) in cases {
        let error = opened(&folder("malformed", &files)).expect_err("it is malformed");
        assert!(error.file.ends_with(culprit), "{error}");
    }
}

#[test]
fn a_value_that_does_not_fit_is_told_with_its_key_and_what_is_allowed() {
    let cases = [
        (
            "config.json",
            json!({"vocab_size": 10, "eos_token_id": 10}),
            "`eos_token_id` is 10; allowed: token ids below `vocab_size`, which is 10",
        ),
        (
            "config.json",
            json!({"vocab_size": 10, "eos_token_id": [2, 99999]}),
            "`eos_token_id` is [2,99999]; allowed: token ids below",
        ),
        (
            "config.json",
            json!({"vocab_size": 10, "bos_token_id": 11}),
            "`bos_token_id` is 11; allowed: token ids below",
        ),
        (
            "config.json",
            json!({"eos_token_id": -1}),
            "`eos_token_id` is -1; allowed: a token id, a list of them, or null",
        ),
        ("generation_config.json", json!({"eos_token_id": 10}), "`eos_token_id` is 10; allowed: token ids below"),
        ("generation_config.json", json!({"eos_token_id": "two"}), "`eos_token_id` is \"two\"; allowed: a token id"),
        ("generation_config.json", json!({"temperature": "hot"}), "`temperature` is \"hot\"; allowed: a number"),
        (
            "generation_config.json",
            json!({"max_new_tokens": -3}),
            "`max_new_tokens` is -3; allowed: a whole number from 0",
        ),
    ];
    for (file, content, expected) in cases {
        let config = ("config.json", json!({"vocab_size": 10}));
        let files = if file == "config.json" { vec![(file, content)] } else { vec![config, (file, content)] };
        let error = opened(&folder("unfit", &files)).expect_err("it does not fit");
        assert!(error.file.ends_with(file) && error.reason.starts_with(expected), "{error}");
    }
}

#[test]
fn templates_are_read_from_the_first_place_that_has_any() {
    let config = ("config.json", json!({}));
    let in_files = ("chat_template.jinja", json!("of a file"));
    let named = ("additional_chat_templates/rag.jinja", json!("rag of a file"));
    let no_template = ("additional_chat_templates/notes.txt", json!("{{"));
    let in_config =
        ("tokenizer_config.json", json!({"chat_template": "{{ bos_token }} of the tokenizer", "bos_token": "<s>"}));
    let in_list = (
        "tokenizer_config.json",
        json!({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}),
    );
    let of_processor = ("chat_template.json", json!({"chat_template": "of the processor"}));

    let render = |files: &[&(&str, Value)], name: Option<&str>| {
        let files: Vec<_> = files.iter().copied().chain([&config]).cloned().collect();
        let dir = folder("templates", &files);
        let checkpoint = opened(&dir).expect("a checkpoint");
        let template = ChatTemplate::open(&dir, &checkpoint).expect("templates that parse")?;
        let messages = vec![json!({"role": "user", "content": "x"})];
        Some(
            template
                .render(&ChatInput { messages, template: name.map(str::to_owned), ..ChatInput::default() })
                .expect("it renders"),
        )
    };
    assert_eq!(render(&[], None), None);
    assert_eq!(render(&[&of_processor], None).as_deref(), Some("of the processor"));
    assert_eq!(render(&[&of_processor, &in_config], None).as_deref(), Some("<s> of the tokenizer"));
    assert_eq!(render(&[&in_list], Some("tool_use")).as_deref(), Some("t"));
    assert_eq!(render(&[&in_config, &in_files, &no_template], None).as_deref(), Some("of a file"));
    assert_eq!(render(&[&in_files, &named], Some("rag")).as_deref(), Some("rag of a file"));
}

#[test]
fn a_template_that_does_not_parse_is_refused_by_name() {
    let dir = folder("bad-template", &[("config.json", json!({})), ("chat_template.jinja", json!("{% if %}"))]);
    let checkpoint = opened(&dir).expect("a checkpoint");
    let error = ChatTemplate::open(&dir, &checkpoint).expect_err("it does not parse");
    assert!(matches!(&error, TemplateError::Invalid { file, .. } if file.contains("default")), "{error}");
}
