//! What files a model has on the hub, and which of them Pelton takes.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::cache::is_hash;

/// A model at one commit.
#[derive(Debug, Deserialize)]
pub(super) struct Listing {
    /// The commit.
    pub(super) sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// A file to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemoteFile {
    /// Its path in the model; plain names only.
    pub(super) path: String,
    /// Of its contents.
    pub(super) size: u64,
    /// Of its contents: 64 digits of SHA-256 for large files, else 40 of git.
    pub(super) hash: String,
}

impl Listing {
    /// All but the weights.
    pub(super) fn small_files(&self) -> Vec<RemoteFile> {
        self.files(is_small)
    }

    /// The weights: those that the index names, else `model.safetensors`, else all there are. A repository may hold the same
    /// weights a second time in another layout (`consolidated.safetensors`).
    pub(super) fn weights(&self, index: Option<&str>) -> Vec<RemoteFile> {
        if let Some(named) = index.and_then(weights_in_index) {
            return self.named(&named);
        }
        let single = self.files(|path| path == "model.safetensors");
        if single.is_empty() { self.files(|path| is_plain(path) && path.ends_with(".safetensors")) } else { single }
    }

    /// Those of `paths` that there are.
    pub(super) fn named(&self, paths: &BTreeSet<String>) -> Vec<RemoteFile> {
        self.files(|path| paths.contains(path))
    }

    fn files(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<RemoteFile> {
        let file = |sibling: &Sibling| {
            let (hash, size) = match &sibling.lfs {
                Some(lfs) => (lfs.sha256.clone(), lfs.size),
                None => (sibling.blob_id.clone()?, sibling.size?),
            };
            is_hash(&hash).then(|| RemoteFile { path: sibling.rfilename.clone(), size, hash })
        };
        self.siblings.iter().filter(|sibling| is_wanted(&sibling.rfilename)).filter_map(file).collect()
    }
}

/// The names of the files in an index of weights; `None` if it is none, or names something that is no plain file of weights.
pub(super) fn weights_in_index(text: &str) -> Option<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let files: BTreeSet<String> = serde_json::from_str::<Index>(text).ok()?.weight_map.into_values().collect();
    let all_plain = files.iter().all(|file| is_plain(file) && file.ends_with(".safetensors"));
    (!files.is_empty() && all_plain).then_some(files)
}

/// What is read of the modules behind the model, as `modules.json` of sentence-transformers lists them. None of a list that is
/// malformed, of other modules and of folders that are no plain name: the worker refuses those, or reads nothing there.
pub(super) fn files_of_modules(text: &str) -> BTreeSet<String> {
    #[derive(Deserialize)]
    struct Module {
        #[serde(rename = "type")]
        kind: String,
        path: String,
    }
    let modules: Vec<Module> = serde_json::from_str(text).unwrap_or_default();
    let files = |module: &Module| {
        let names: &[&str] = match module.kind.rsplit('.').next() {
            Some("Pooling") => &["config.json"],
            Some("Dense") => &["config.json", "model.safetensors"],
            _ => &[],
        };
        names.iter().map(|name| format!("{}/{name}", module.path)).collect::<Vec<_>>()
    };
    modules.iter().filter(|module| is_plain(&module.path)).flat_map(files).collect()
}

/// Settings, tokenizers, templates. Never `.bin`, `.pt`, `.py` and the like.
fn is_small(path: &str) -> bool {
    let plain = path.strip_prefix("additional_chat_templates/").filter(|rest| rest.ends_with(".jinja")).unwrap_or(path);
    let kinds = [".json", ".jinja", ".model", ".tiktoken"];
    let names = ["merges.txt", "vocab.txt", "LICENSE", "README.md"];
    is_plain(plain) && (kinds.iter().any(|kind| plain.ends_with(kind)) || names.contains(&plain))
}

/// A file name and nothing else: what comes from the network must not choose folders.
fn is_plain(path: &str) -> bool {
    !path.is_empty() && !path.starts_with('.') && path.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(files: &[&str]) -> Listing {
        let hash = "0".repeat(40);
        let sibling =
            |file: &&str| Sibling { rfilename: (*file).into(), size: Some(1), blob_id: Some(hash.clone()), lfs: None };
        Listing { sha: hash.clone(), siblings: files.iter().map(sibling).collect() }
    }

    fn paths(files: &[RemoteFile]) -> Vec<&str> {
        files.iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn no_pickle_no_code_and_no_path_is_taken() {
        // B:A7: code is not even fetched.
        let all = listing(&[
            "config.json",
            "tokenizer.json",
            "chat_template.jinja",
            "additional_chat_templates/tools.jinja",
            "tokenizer.model",
            "qwen.tiktoken",
            "modeling_evil.py",
            "pytorch_model.bin",
            "model.pt",
            "../../etc/cron.json",
            "sub/config.json",
            ".hidden.json",
            "a\\b.json",
        ]);
        assert_eq!(
            paths(&all.small_files()),
            [
                "config.json",
                "tokenizer.json",
                "chat_template.jinja",
                "additional_chat_templates/tools.jinja",
                "tokenizer.model",
                "qwen.tiktoken"
            ]
        );
        assert!(all.weights(None).is_empty());
    }

    #[test]
    fn weights_are_taken_once() {
        let all =
            listing(&["a-00001.safetensors", "a-00002.safetensors", "consolidated.safetensors", "x/y.safetensors"]);
        let index =
            r#"{"weight_map": {"q": "a-00001.safetensors", "k": "a-00002.safetensors", "v": "a-00001.safetensors"}}"#;
        assert_eq!(paths(&all.weights(Some(index))), ["a-00001.safetensors", "a-00002.safetensors"]);
        let single = listing(&["model.safetensors", "consolidated.safetensors"]);
        assert_eq!(paths(&single.weights(None)), ["model.safetensors"]);
        let odd = listing(&["weights.safetensors"]);
        assert_eq!(paths(&odd.weights(None)), ["weights.safetensors"]);
        assert_eq!(weights_in_index(r#"{"weight_map": {"q": "../up.safetensors"}}"#), None);
    }

    #[test]
    fn of_modules_only_what_is_read_is_taken() {
        let modules = r#"[
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
            {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
            {"idx": 4, "name": "4", "path": "", "type": "Pooling"},
            {"idx": 5, "name": "5", "path": "..", "type": "Pooling"},
            {"idx": 6, "name": "6", "path": ".git", "type": "Pooling"},
            {"idx": 7, "name": "7", "path": "a/b", "type": "Dense"}
        ]"#;
        let named = files_of_modules(modules);
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        assert_eq!(named, ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]);
        for malformed in ["", "{}", "[1]", r#"[{"path": "1_Pooling"}]"#] {
            assert!(files_of_modules(malformed).is_empty(), "{malformed}");
        }
    }
}
