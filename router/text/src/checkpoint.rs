//! What the small files of a checkpoint say: names, limits, special tokens, defaults. Weights are the worker's.
//!
//! `config.json` must be there. Of the others (`generation_config.json`, `tokenizer_config.json`,
//! `special_tokens_map.json`) each adds what it knows; a missing one adds nothing, a malformed one
//! is refused by name. Special tokens that none of them names have the names that a made `tokenizer.json` says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Why a checkpoint folder cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct CheckpointError {
    /// Which file.
    pub file: String,
    /// What is wrong with it.
    pub reason: String,
}

/// A folder in Hugging Face layout, as far as text is concerned.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// ORG/NAME in the hub's cache; the folder's name elsewhere.
    pub name: String,
    /// Where it lies.
    pub dir: PathBuf,
    /// `LlamaForCausalLM` ...
    pub architectures: Vec<String>,
    /// Prompt and output together, if the checkpoint says.
    pub max_model_len: Option<u32>,
    /// Rows of the embedding, if the checkpoint says; at least the tokenizer's ids.
    pub vocab_size: Option<u32>,
    /// Tokens that end an answer: those of the model, of its generation defaults and of its tokenizer. Ascending.
    pub eos_ids: Vec<u32>,
    /// Whether texts should end with `eos_token`, whatever `tokenizer.json` does.
    pub ends_texts: bool,
    /// The token that begins a text.
    pub bos_id: Option<u32>,
    /// Sampling, where a request says nothing.
    pub defaults: GenerationDefaults,
    /// `bos_token`, `eos_token` ... by name, as templates know them.
    pub special_tokens: Map<String, Value>,
}

/// What `generation_config.json` recommends. A value that is missing there is `None`: the server's own default holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// 0: greedy.
    pub temperature: Option<f32>,
    /// The most likely so many.
    pub top_k: Option<i32>,
    /// The most likely that add up to this.
    pub top_p: Option<f32>,
    /// At least so likely, relative to the most likely one.
    pub min_p: Option<f32>,
    /// Above 1: tokens that were there already become less likely.
    pub repetition_penalty: Option<f32>,
    /// The longest answer.
    pub max_new_tokens: Option<u32>,
}

/// `2`, `[2, 32000]` or `null`.
#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Ids {
    #[default]
    None,
    One(u32),
    Many(Vec<u32>),
}

impl Ids {
    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let ids: &[u32] = match self {
            Self::None => &[],
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(ids) => ids,
        };
        ids.iter().copied()
    }
}

/// The part of `tokenizer.json` that names special tokens; the vocabulary is skipped unread.
#[derive(Default, Deserialize)]
struct AddedTokens {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    /// `bos_token` and the like: of a `tokenizer.json` that was made (`pelton.loading.tokenizer_json`), else none.
    #[serde(default)]
    names: Vec<String>,
}

impl Checkpoint {
    /// Reads the files in `dir`. The text of its `tokenizer.json` comes from whoever has it: some folders have none, and one is made.
    pub fn open(dir: &Path, tokenizer_json: &[u8]) -> Result<Self, CheckpointError> {
        let config_path = dir.join("config.json");
        let config: Map<String, Value> = read(&config_path)?
            .ok_or_else(|| refuse(&config_path, "not found; a model folder in Hugging Face layout has one"))?;
        let generation_path = dir.join("generation_config.json");
        let generation: Map<String, Value> = read(&generation_path)?.unwrap_or_default();
        let tokenizer_config: Map<String, Value> = read(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
        let special_map: Map<String, Value> = read(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
        let added: AddedTokens = serde_json::from_slice(tokenizer_json)
            .map_err(|error| refuse(&dir.join("tokenizer.json"), &error.to_string()))?;

        // Models that also see or hear keep what concerns text one level down.
        let text = match config.get("text_config").and_then(Value::as_object) {
            Some(inner) if !config.contains_key("vocab_size") => inner,
            _ => &config,
        };
        let vocab_size = number(text.get("vocab_size"));
        let of_config = |key| ids(&config_path, key, config.get(key).or_else(|| text.get(key)), vocab_size);
        let of_generation = |key| ids(&generation_path, key, generation.get(key), vocab_size);
        // `transformers` adds those of its class to vocabularies that lack them; the model knows none beyond its embedding.
        let known = added.added_tokens.iter().filter(|token| vocab_size.is_none_or(|size| token.id < size));
        let named =
            known.flat_map(|token| token.names.iter().map(|name| (name.clone(), token.content.as_str().into())));
        let special_tokens = special_tokens([&named.collect(), &special_map, &tokenizer_config]);
        let id_of = |key: &str| {
            let content = special_tokens.get(key)?.as_str()?;
            added.added_tokens.iter().find(|token| token.content == content).map(|token| token.id)
        };

        let eos_ids: BTreeSet<u32> = of_config("eos_token_id")?
            .into_iter()
            .chain(of_generation("eos_token_id")?)
            .chain(id_of("eos_token"))
            .collect();
        let bos_ids = of_config("bos_token_id")?.into_iter().chain(of_generation("bos_token_id")?);
        let bos_id = bos_ids.chain(id_of("bos_token")).next();
        let architectures = config.get("architectures").and_then(Value::as_array);
        Ok(Self {
            name: name_of(dir),
            dir: dir.to_owned(),
            architectures: architectures.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
            max_model_len: max_model_len(text),
            vocab_size,
            eos_ids: eos_ids.into_iter().collect(),
            ends_texts: tokenizer_config.get("add_eos_token") == Some(&Value::Bool(true)),
            bos_id,
            defaults: GenerationDefaults::read(&generation_path, &generation)?,
            special_tokens,
        })
    }
}

/// Positions that the model was made for. Stretched by `rope_scaling` where the configuration states the length before
/// stretching; `llama3` and `longrope` state the length after it, `linear` either.
fn max_model_len(text: &Map<String, Value>) -> Option<u32> {
    const KEYS: [&str; 5] = ["max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx"];
    let stated: u32 = KEYS.iter().find_map(|key| number(text.get(*key)))?;
    // Command R was made for more than its first code could hold.
    let stated = number(text.get("model_max_length")).map_or(stated, |most| stated.max(most));
    // The older name holds where both stand, unless it is empty: as the worker, and as transformers.
    let scaling = |key| text.get(key).and_then(Value::as_object).filter(|scaling| !scaling.is_empty());
    let rope = scaling("rope_scaling").or_else(|| scaling("rope_parameters"));
    let Some(rope) = rope else {
        return Some(stated);
    };
    let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str);
    let factor = rope.get("factor").and_then(Value::as_f64).filter(|factor| *factor >= 1.0);
    let before = match kind {
        Some("dynamic") => Some(stated),
        // A field beside the others comes before the one within: as the worker, and as transformers.
        Some("yarn") => {
            [text, rope].iter().find_map(|place| number(place.get("original_max_position_embeddings"))).or(Some(stated))
        }
        _ => None,
    };
    let (Some(before), Some(factor)) = (before, factor) else {
        return Some(stated);
    };
    let stretched = f64::from(before) * factor;
    if stretched <= f64::from(u32::MAX) { Some(stretched as u32) } else { Some(stated) }
}

impl GenerationDefaults {
    /// Those that are given, by the names of the file.
    pub fn given(&self) -> Vec<(&'static str, String)> {
        let text = |number: Option<f32>| number.map(|number| number.to_string());
        let all = [
            ("temperature", text(self.temperature)),
            ("top_k", self.top_k.map(|count| count.to_string())),
            ("top_p", text(self.top_p)),
            ("min_p", text(self.min_p)),
            ("repetition_penalty", text(self.repetition_penalty)),
            ("max_new_tokens", self.max_new_tokens.map(|count| count.to_string())),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    fn read(path: &Path, values: &Map<String, Value>) -> Result<Self, CheckpointError> {
        Ok(Self {
            temperature: field(path, values, "temperature", "a number")?,
            top_k: field(path, values, "top_k", "a whole number")?,
            top_p: field(path, values, "top_p", "a number")?,
            min_p: field(path, values, "min_p", "a number")?,
            repetition_penalty: field(path, values, "repetition_penalty", "a number")?,
            max_new_tokens: field(path, values, "max_new_tokens", "a whole number from 0")?,
        })
    }
}

/// One field; `null` counts as absent.
fn field<T: DeserializeOwned>(
    path: &Path,
    values: &Map<String, Value>,
    key: &str,
    allowed: &str,
) -> Result<Option<T>, CheckpointError> {
    match values.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => T::deserialize(value)
            .map(Some)
            .map_err(|_| refuse(path, &format!("`{key}` is {}; allowed: {allowed}", short(value)))),
    }
}

/// Token ids below `vocab_size`, if the checkpoint says how many it has.
fn ids(path: &Path, key: &str, value: Option<&Value>, vocab_size: Option<u32>) -> Result<Vec<u32>, CheckpointError> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let unfit = |allowed: &str| refuse(path, &format!("`{key}` is {}; allowed: {allowed}", short(value)));
    let ids = Ids::deserialize(value).map_err(|_| unfit("a token id, a list of them, or null"))?;
    let size = vocab_size.unwrap_or(u32::MAX);
    if ids.iter().any(|id| id >= size) {
        return Err(unfit(&format!("token ids below `vocab_size`, which is {size} in config.json")));
    }
    Ok(ids.iter().collect())
}

/// A value as it stands in the file, cut where it would fill the screen.
fn short(value: &Value) -> String {
    const CHARACTERS_MAX: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn number(value: Option<&Value>) -> Option<u32> {
    value.and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok())
}

/// All `..._token` entries; a later place wins, and `tokenizer_config.json` is the youngest file.
fn special_tokens(places: [&Map<String, Value>; 3]) -> Map<String, Value> {
    let mut tokens = Map::new();
    for (key, value) in places.into_iter().flatten() {
        let content = match value {
            Value::String(content) => Some(content.as_str()),
            Value::Object(token) => token.get("content").and_then(Value::as_str),
            _ => None,
        };
        if let Some(content) = content.filter(|_| key.ends_with("_token")) {
            tokens.insert(key.clone(), content.into());
        }
    }
    tokens
}

/// `.../models--ORG--NAME/snapshots/REVISION` is ORG/NAME.
fn name_of(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let parts = || dir.components().rev().filter_map(|part| part.as_os_str().to_str());
    let of_hub =
        parts().skip(2).take(1).find_map(|part| part.strip_prefix("models--")).map(|name| name.replacen("--", "/", 1));
    of_hub.or_else(|| parts().next().map(str::to_owned)).unwrap_or_else(|| "model".into())
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, CheckpointError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refuse(path, &error.to_string())),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| refuse(path, &error.to_string()))
}

fn refuse(path: &Path, reason: &str) -> CheckpointError {
    CheckpointError { file: path.display().to_string(), reason: reason.to_owned() }
}
