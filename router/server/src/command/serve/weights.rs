//! What can be known of a checkpoint's weights before a worker is started, which takes seconds to import PyTorch: the
//! architecture, that the files are there and whole, and that the sizes of config.json are sizes of theirs.
//!
//! Only headers are read. The worker checks all of it again, tensor by tensor: it may look at another machine's disk.
//! Never here: what the tensors are for.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Map, Value};

use crate::config::ModelBackend;

/// The families of `pelton.models`, by the names that checkpoints give them.
const ARCHITECTURES: [&str; 18] = [
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MinistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "SmolLM3ForCausalLM",
    "GraniteForCausalLM",
    "Olmo2ForCausalLM",
    "Phi3ForCausalLM",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "BloomForCausalLM",
    "Starcoder2ForCausalLM",
    "CohereForCausalLM",
    "Cohere2ForCausalLM",
];
const MORE_THAN_TEXT: &str = "ForConditionalGeneration";
/// The methods of `pelton.quantization`, whose details the worker reads.
const QUANTISED: [&str; 3] = ["gptq", "awq", "compressed-tensors"];
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const ENDING: &str = ".safetensors";
/// The format's own bound.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// What the settings allow beside the models of `ARCHITECTURES`.
#[derive(Clone, Copy)]
pub(super) struct Allowed {
    pub(super) backend: ModelBackend,
    /// Python code of the model's folder.
    pub(super) foreign_code: bool,
}

/// Refuses what no worker could load; the message says which file, what stands there, and what would do.
pub(super) fn check(folder: &Path, allowed: Allowed) -> Result<(), String> {
    let path = folder.join("config.json");
    let config = object(&path)?;
    let says = |key: &str| config.get(key).filter(|value| !value.is_null());
    if says("auto_map").is_some() && !allowed.foreign_code {
        // B:A7: code from a repository is not run unasked, whatever else the config says
        return Err(format!(
            "{}: `auto_map`: the model brings Python code of its own, and Pelton runs none unless told so: read it, then set \
             --trust-remote-code",
            path.display()
        ));
    }
    if let Some(quantised) = says("quantization_config").or_else(|| says("compression_config")) {
        let is_old = quantised.get("config_groups").is_some(); // compressed-tensors, before it named itself
        let method =
            quantised["quant_method"].as_str().unwrap_or(if is_old { QUANTISED[2] } else { "in an unnamed way" });
        if !QUANTISED.contains(&method) {
            let supported = QUANTISED.join(", ");
            return Err(format!(
                "{}: the checkpoint is quantised ({method}); supported: {supported} with integers of 4 and 8 bits, and bfloat16, \
                 float16 and float32 weights, which --quantize rounds when they are loaded",
                path.display()
            ));
        }
    }
    let named: Vec<&str> = config
        .get("architectures")
        .and_then(Value::as_array)
        .map_or(Vec::new(), |names| names.iter().filter_map(Value::as_str).collect());
    let is_native = named.iter().any(|name| ARCHITECTURES.contains(name));
    let may_be_native = is_native || named.iter().any(|name| !draws(name));
    if named.is_empty() || !may_be_native && allowed.backend == ModelBackend::Native {
        let got = if named.is_empty() { "none".to_owned() } else { named.join(", ") };
        let supported = ARCHITECTURES.join(", ");
        return Err(format!("{}: `architectures`: {got}; supported: {supported}", path.display()));
    }
    let mut seen = Seen::default();
    for name in files(folder)? {
        seen.take(&folder.join(name))?;
    }
    if !is_native || allowed.backend == ModelBackend::Transformers {
        return Ok(()); // whose fields and tensors may have any names; the worker knows them
    }
    // Of models that take more than text, their text is served, whose sizes stand within.
    let (place, sizes) = match config.get("text_config").and_then(Value::as_object) {
        Some(text) if named.iter().any(|name| name.ends_with(MORE_THAN_TEXT)) => ("text_config.", text),
        _ => ("", &config),
    };
    seen.compare(place, sizes).map_err(|reason| format!("{}: {reason}", path.display()))
}

/// Whether a model is named as one that draws tokens. Which native ones give vectors the worker knows: they have many names.
fn draws(name: &str) -> bool {
    ["ForCausalLM", "LMHeadModel", MORE_THAN_TEXT].iter().any(|end| name.ends_with(end))
}

/// What the headers say, as far as it is compared.
#[derive(Default)]
struct Seen {
    layers: BTreeSet<u64>,
    largest_side: u64,
}

impl Seen {
    fn take(&mut self, path: &Path) -> Result<(), String> {
        let mut end = 0;
        let (header, data_bytes) = header(path)?;
        for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
            self.layers.extend(layer(name));
            let numbers =
                |key| entry.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_u64);
            self.largest_side = numbers("shape").fold(self.largest_side, u64::max);
            end = numbers("data_offsets").fold(end, u64::max);
        }
        if end != data_bytes {
            return Err(damaged(
                path,
                &format!("its tensors take {end} bytes and {data_bytes} are there: was it cut off while copied?"),
            ));
        }
        Ok(())
    }

    /// `place`: where in config.json these sizes stand.
    fn compare(&self, place: &str, sizes: &Map<String, Value>) -> Result<(), String> {
        let stated = |key| sizes.get(key).and_then(Value::as_f64);
        let layers = self.layers.len();
        for key in ["num_hidden_layers", "n_layer"] {
            if stated(key).is_some_and(|stated| stated > layers as f64) {
                return Err(format!("`{place}{key}` is {}; the weights have {layers}", sizes[key]));
            }
        }
        for key in ["vocab_size", "hidden_size", "intermediate_size", "n_embd", "n_inner"] {
            if stated(key).is_some_and(|stated| stated > self.largest_side as f64) {
                let largest = self.largest_side;
                return Err(format!("`{place}{key}` is {}; the largest side of a tensor is {largest}", sizes[key]));
            }
        }
        Ok(())
    }
}

/// `model.layers.7.mlp.up_proj.weight` is 7, and so is `h.7.mlp.c_fc.weight`.
fn layer(name: &str) -> Option<u64> {
    let mut words = name.split('.');
    words.find(|word| matches!(*word, "layers" | "h"))?;
    words.next()?.parse().ok()
}

/// The files of the weights, in the order in which the worker looks for them.
fn files(folder: &Path) -> Result<Vec<String>, String> {
    if folder.join(SINGLE).exists() {
        return Ok(vec![SINGLE.to_owned()]);
    }
    let index = folder.join(INDEX);
    if index.exists() {
        let places = object(&index)?;
        let names: BTreeSet<&str> = places
            .get("weight_map")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(_, name)| name.as_str())
            .collect();
        if names.is_empty() {
            return Err(format!("{} has no `weight_map`", index.display()));
        }
        let is_ours = |name: &str| Path::new(name).file_name() == Some(name.as_ref()) && name.ends_with(ENDING);
        if let Some(name) = names.iter().find(|name| !is_ours(name)) {
            return Err(format!("{} names `{name}`, which is not a {ENDING} file of its folder", index.display()));
        }
        return Ok(names.into_iter().map(str::to_owned).collect());
    }
    let all = std::fs::read_dir(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut names: Vec<String> = all.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort_unstable();
    let ending = |endings: &[&str]| {
        let ends =
            |name: &&String| Path::new(name).extension().is_some_and(|end| endings.iter().any(|one| end == *one));
        names.iter().filter(ends).cloned().collect::<Vec<_>>()
    };
    match ending(&["safetensors"]).as_slice() {
        [one] => Ok(vec![one.clone()]),
        _ => Err(match ending(&["bin", "pt", "pth", "gguf"]).first() {
            Some(other) => format!(
                "{} has neither {SINGLE} nor {INDEX}. There is {other}, but only safetensors files are read: convert it",
                folder.display()
            ),
            None => format!("{} has neither {SINGLE} nor {INDEX}", folder.display()),
        }),
    }
}

/// A file's header, and how many bytes follow it.
fn header(path: &Path) -> Result<(Map<String, Value>, u64), String> {
    let unread = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let mut file = File::open(path).map_err(unread)?;
    let size = file.metadata().map_err(unread)?.len();
    let mut length = [0; 8];
    if size < 8 {
        return Err(damaged(path, &format!("it has {size} bytes")));
    }
    file.read_exact(&mut length).map_err(unread)?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_BYTES_MAX.min(size - 8) {
        return Err(damaged(path, &format!("its header would have {length} bytes; the file has {size}")));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).map_err(unread)?;
    let header = serde_json::from_slice(&text).map_err(|_| damaged(path, "its header is no JSON object"))?;
    Ok((header, size - 8 - length))
}

fn object(path: &Path) -> Result<Map<String, Value>, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{} is no JSON object: {error}", path.display()))
}

fn damaged(path: &Path, why: &str) -> String {
    format!("{} is no intact safetensors file: {why}", path.display())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn safetensors(header: &Value, data_bytes: usize) -> Vec<u8> {
        let text = header.to_string().into_bytes();
        [&(text.len() as u64).to_le_bytes()[..], &text, &vec![0; data_bytes]].concat()
    }

    fn whole() -> Vec<u8> {
        let tensor = |begin: u64| json!({ "dtype": "F32", "shape": [2, 3], "data_offsets": [begin, begin + 24] });
        let header = json!({
            "__metadata__": { "format": "pt" },
            "model.layers.0.mlp.up_proj.weight": tensor(0),
            "model.layers.1.mlp.up_proj.weight": tensor(24),
        });
        safetensors(&header, 48)
    }

    fn config(change: &Value) -> Vec<u8> {
        let mut config = json!({ "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 3 });
        for (key, value) in change.as_object().expect("fields") {
            config[key] = value.clone();
        }
        config.to_string().into_bytes()
    }

    fn beside_images(text: &Value) -> Vec<u8> {
        config(&json!({ "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text }))
    }

    const CAUTIOUS: Allowed = Allowed { backend: ModelBackend::Auto, foreign_code: false };

    fn refusal(files: &[(&str, Vec<u8>)], allowed: Allowed) -> Option<String> {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).expect("written");
        }
        check(folder.path(), allowed).err()
    }

    #[test]
    fn what_no_worker_could_load_is_refused_before_one_is_started() {
        let index = |place: &str| json!({ "weight_map": { "a": place } }).to_string().into_bytes();
        let ok = || ("config.json", config(&json!({})));
        let cut = || whole()[..whole().len() - 1].to_vec();
        for (files, expected) in [
            (vec![ok(), (SINGLE, whole())], None),
            (vec![ok(), ("other.safetensors", whole())], None),
            (vec![ok(), (INDEX, index("part.safetensors")), ("part.safetensors", whole())], None),
            (
                vec![("config.json", config(&json!({ "auto_map": { "AutoModelForCausalLM": "modeling_own.Own" } })))],
                Some(
                    "brings Python code of its own, and Pelton runs none unless told so: read it, then set --trust-remote-code",
                ),
            ),
            (
                vec![("config.json", config(&json!({ "quantization_config": { "quant_method": "fp8" } })))],
                Some("quantised (fp8); supported: gptq, awq, compressed-tensors with integers"),
            ),
            (
                vec![
                    ("config.json", config(&json!({ "quantization_config": { "quant_method": "gptq" } }))),
                    (SINGLE, whole()),
                ],
                None,
            ),
            (
                vec![
                    ("config.json", config(&json!({ "compression_config": { "config_groups": {} } }))),
                    (SINGLE, whole()),
                ],
                None,
            ),
            (
                vec![("config.json", config(&json!({ "compression_config": { "bits": 4 } })))],
                Some("quantised (in an unnamed way); supported"),
            ),
            (
                vec![("config.json", config(&json!({ "architectures": null })))],
                Some("`architectures`: none; supported"),
            ),
            (vec![("config.json", b"{".to_vec())], Some("config.json is no JSON object")),
            (vec![ok()], Some("has neither model.safetensors nor model.safetensors.index.json")),
            (vec![ok(), ("model.gguf", Vec::new())], Some("There is model.gguf, but only safetensors files are read")),
            (vec![ok(), (INDEX, b"{}".to_vec())], Some("has no `weight_map`")),
            (
                vec![ok(), (INDEX, index("../other.safetensors"))],
                Some("names `../other.safetensors`, which is not a .safetensors file of its folder"),
            ),
            (vec![ok(), (INDEX, index("weights.st"))], Some("names `weights.st`, which is not a .safetensors file")),
            (vec![ok(), (INDEX, index("part.safetensors"))], Some("part.safetensors: No such file")),
            (vec![ok(), (SINGLE, Vec::new())], Some("it has 0 bytes")),
            (vec![ok(), (SINGLE, vec![255; 16])], Some("its header would have")),
            (vec![ok(), (SINGLE, cut())], Some("its tensors take 48 bytes and 47 are there")),
            (
                vec![("config.json", config(&json!({ "num_hidden_layers": 100_000_000 }))), (SINGLE, whole())],
                Some("`num_hidden_layers` is 100000000; the weights have 2"),
            ),
            (
                vec![("config.json", config(&json!({ "n_layer": 3 }))), (SINGLE, whole())],
                Some("`n_layer` is 3; the weights have 2"),
            ),
            (
                vec![("config.json", config(&json!({ "vocab_size": 1e12 }))), (SINGLE, whole())],
                Some("`vocab_size` is 1000000000000.0; the largest side of a tensor is 3"),
            ),
            (vec![("config.json", beside_images(&json!({ "num_hidden_layers": 2 }))), (SINGLE, whole())], None),
            (
                vec![("config.json", beside_images(&json!({ "num_hidden_layers": 3 }))), (SINGLE, whole())],
                Some("`text_config.num_hidden_layers` is 3; the weights have 2"),
            ),
            (
                vec![("config.json", beside_images(&json!({ "hidden_size": 4 }))), (SINGLE, whole())],
                Some("`text_config.hidden_size` is 4; the largest side of a tensor is 3"),
            ),
        ] {
            let refusal = refusal(&files, CAUTIOUS);
            match expected {
                None => assert_eq!(refusal, None),
                Some(words) => {
                    assert!(refusal.as_ref().is_some_and(|said| said.contains(words)), "{refusal:?}: {words}")
                }
            }
        }
    }

    #[test]
    fn a_tensors_layer_is_found_in_its_name() {
        for (name, expected) in [
            ("model.layers.7.mlp.up_proj.weight", Some(7)),
            ("transformer.h.11.ln_1.bias", Some(11)),
            ("h.0.attn.c_attn.weight", Some(0)),
            ("transformer.wte.weight", None),
            ("model.layers", None),
        ] {
            assert_eq!(layer(name), expected, "{name}");
        }
    }

    #[test]
    fn what_may_run_decides_which_architectures_and_whose_code_are_let_through() {
        let foreign = json!({ "architectures": ["OPTForCausalLM"], "num_hidden_layers": 9 });
        let coded = json!({ "auto_map": { "AutoModelForCausalLM": "modeling_own.Own" } });
        for (change, backend, foreign_code, expected) in [
            (&foreign, ModelBackend::Auto, false, None),
            (&foreign, ModelBackend::Transformers, false, None),
            (
                &foreign,
                ModelBackend::Native,
                false,
                Some("`architectures`: OPTForCausalLM; supported: LlamaForCausalLM, "),
            ),
            (&json!({ "architectures": ["BertModel"] }), ModelBackend::Native, false, None),
            (&coded, ModelBackend::Transformers, false, Some("brings Python code of its own")),
            (&coded, ModelBackend::Auto, true, None),
        ] {
            let files = [("config.json", config(change)), (SINGLE, whole())];
            let refusal = refusal(&files, Allowed { backend, foreign_code });
            match expected {
                None => assert_eq!(refusal, None),
                Some(words) => assert!(refusal.is_some_and(|said| said.contains(words)), "{words}"),
            }
        }
    }

    #[test]
    fn the_architectures_are_those_of_the_worker() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pyworker/pelton/models/__init__.py");
        let text = std::fs::read_to_string(models).expect("the worker's source");
        let table = text.lines().skip_while(|line| !line.starts_with("ARCHITECTURES")).skip(1);
        let lines = table.take_while(|line| *line != "}");
        let names: Vec<&str> = lines.filter_map(|line| line.split('"').nth(1)).collect();
        assert_eq!(names, ARCHITECTURES);
    }

    #[test]
    fn the_methods_of_quantisation_are_those_of_the_worker() {
        let choice = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pyworker/pelton/quantization/choice.py");
        let text = std::fs::read_to_string(choice).expect("the worker's source");
        let table =
            text.lines().skip_while(|line| !line.starts_with("METHODS")).skip(1).take_while(|line| *line != "}");
        let names: Vec<&str> = table.filter_map(|line| line.split('"').nth(1)).collect();
        assert_eq!(names, QUANTISED);
    }
}
