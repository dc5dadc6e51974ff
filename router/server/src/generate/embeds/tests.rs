//! Files that are read, and files that are refused by what is wrong with them.

use pelton_engine::Budget;
use serde_json::{Value, json};

use super::*;

fn model() -> ModelReport {
    ModelReport {
        family: "llama".to_owned(),
        dtype: "float32".to_owned(),
        device: "cpu".to_owned(),
        device_name: "a processor".to_owned(),
        vocab_size: 100,
        max_model_len: 8,
        block_size: 16,
        blocks: 8,
        kinds: vec![pelton_engine::LayerKind::Full],
        numerics_id: "plain".to_owned(),
        invariant: true,
        budget: Budget::default(),
        pooling: None,
        embed_width: 2,
    }
}

fn file(header: &str, data: &[u8]) -> String {
    let length = (header.len() as u64).to_le_bytes();
    BASE64_STANDARD.encode([&length[..], header.as_bytes(), data].concat())
}

fn tensor(dtype: &str, shape: &[u64], data: &[u8]) -> String {
    let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [0, data.len()]});
    file(&json!({"__metadata__": {"format": "pt"}, "any name": entry}).to_string(), data)
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn words(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn given(base64: &str) -> Result<String, ApiError> {
    let room = Room::new(1 << 20);
    read("prompt_embeds", base64, &model(), &room).map(|embeds| format!("{:?}", embeds.values()))
}

#[test]
fn numbers_are_read_exactly_in_every_format() {
    let all = "[1.5, -2.0, 0.25, -0.0]";
    assert_eq!(given(&tensor("F32", &[2, 2], &floats(&[1.5, -2.0, 0.25, -0.0]))).as_deref(), Ok(all));
    assert_eq!(given(&tensor("BF16", &[2, 2], &words(&[0x3fc0, 0xc000, 0x3e80, 0x8000]))).as_deref(), Ok(all));
    assert_eq!(given(&tensor("F16", &[2, 2], &words(&[0x3e00, 0xc000, 0x3400, 0x8000]))).as_deref(), Ok(all));
}

#[test]
fn every_half_is_its_float() {
    assert_eq!([0x7bff, 0x0001, 0x0400, 0x3c01].map(of_half), [65504.0, 5.960_464_5e-8, 6.103_515_6e-5, 1.000_976_6]);
    assert!(of_half(0x7c00) == f32::INFINITY && of_half(0xfc00) == f32::NEG_INFINITY && of_half(0x7e00).is_nan());
    let increasing = (0..0x7c00_u16).map(of_half).collect::<Vec<_>>();
    assert!(increasing.windows(2).all(|pair| pair[0] < pair[1]));
}

#[test]
fn what_is_wrong_is_named_with_what_is_allowed() {
    let good = floats(&[1.0; 4]);
    let entry = |entry: Value| file(&json!({"a": entry}).to_string(), &good);
    let two = json!({"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]});
    for (sent, expected) in [
        ("no base64!".to_owned(), "no base64 (the character after 2 bytes is none of it)"),
        (String::new(), "a file that ends within its header"),
        (BASE64_STANDARD.encode([9, 0, 0, 0, 0, 0, 0, 0, b'{']), "a file that ends within its header"),
        (BASE64_STANDARD.encode([0xff; 20]), "a file that ends within its header"),
        (file("[1]", &good), "a file whose header is no JSON object ("),
        (file("{\"a\": ", &good), "a file whose header is no JSON object ("),
        (file("{}", &good), "a file of 0 tensors"),
        (file(&json!({"a": two, "b": two}).to_string(), &good), "a file of 2 tensors"),
        (entry(json!({"dtype": "F32"})), "a file whose header does not give `dtype`, `shape` and `data_offsets`"),
        (
            entry(json!({"dtype": "F32", "shape": [-1, 2], "data_offsets": [0, 16]})),
            "a file whose header does not give `dtype`",
        ),
        (tensor("I64", &[1, 2], &good), "a tensor of I64"),
        (tensor("F32", &[4], &good), "a tensor of shape [4]"),
        (tensor("F32", &[1, 2, 2], &good), "a tensor of shape [1, 2, 2]"),
        (tensor("F32", &[0, 2], &[]), "a tensor of shape [0, 2]"),
        (tensor("F32", &[1, 4], &good), "a tensor of shape [1, 4]"),
        (tensor("F32", &[3, 2], &good), "a tensor of 6 numbers at bytes [0, 16] of 16"),
        (tensor("BF16", &[2, 2], &good), "a tensor of 4 numbers at bytes [0, 16] of 16"),
        (
            entry(json!({"dtype": "F32", "shape": [1, 2], "data_offsets": [8, 16]})),
            "a tensor of 2 numbers at bytes [8, 16] of 16",
        ),
    ] {
        let error = given(&sent).expect_err("it is wrong").to_string();
        assert!(error.starts_with(&format!("`prompt_embeds` is {expected}")), "{error}\nshould say: {expected}");
        assert!(error.ends_with("one tensor of shape [tokens, 2] in F32, BF16 or F16"), "{error}");
    }
}

#[test]
fn a_pickle_is_never_read_and_its_sender_is_told_what_to_send() {
    for pickle in [&b"PK\x03\x04 a zip"[..], b"\x80\x02}q\x00."] {
        let error = given(&BASE64_STANDARD.encode(pickle)).expect_err("it is a program").to_string();
        assert!(error.contains("safetensors.torch.save({\"embeds\": tensor})"), "{error}");
    }
}

#[test]
fn numbers_that_no_model_makes_are_refused() {
    for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf"), (65505.0, "65505")] {
        let error = given(&tensor("F32", &[2, 2], &floats(&[1.0, -65504.0, 0.0, value]))).expect_err("no number");
        let expected =
            format!("`prompt_embeds` is a tensor with {shown} in row 1; allowed: numbers from -65504 to 65504");
        assert_eq!(error.to_string(), expected);
    }
    let infinite_half = given(&tensor("F16", &[1, 2], &words(&[0, 0x7c00]))).expect_err("no number");
    assert!(infinite_half.to_string().contains("inf in row 0"), "{infinite_half}");
}

#[test]
fn a_prompt_leaves_room_for_an_answer() {
    assert!(given(&tensor("F32", &[7, 2], &floats(&[0.5; 14]))).is_ok());
    let error = given(&tensor("F32", &[8, 2], &floats(&[0.5; 16]))).expect_err("the context is full");
    assert_eq!(error, ApiError::PromptTooLong { param: "prompt_embeds".to_owned(), prompt: 8, limit: 8 });
    // Whatever is claimed: nothing is allocated for it.
    let claim = json!({"a": {"dtype": "F32", "shape": [7, 2], "data_offsets": [0, 1_u64 << 60]}}).to_string();
    assert!(given(&file(&claim, &[])).expect_err("nothing is there").to_string().contains("a tensor of 14 numbers"));
}

#[test]
fn what_waits_and_runs_is_bounded_and_what_ends_makes_room() {
    let room = Room::new(16 << 10);
    let sent = tensor("F32", &[1, 2], &floats(&[1.0, 2.0]));
    let mut held: Vec<_> = (0..16).map(|_| read("a", &sent, &model(), &room).expect("there is room")).collect();
    let error = read("a", &sent, &model(), &room).expect_err("there is none");
    assert!(error.to_string().contains("leave 0 of 16384"), "{error}");
    held.pop();
    assert!(read("a", &sent, &model(), &room).is_ok());
}
