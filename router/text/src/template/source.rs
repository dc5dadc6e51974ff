//! Where a checkpoint keeps its chat templates. The first place that has any wins, as in `transformers`:
//!
//! 1. `chat_template.jinja` (the one called `default`) and `additional_chat_templates/NAME.jinja`
//! 2. `chat_template` in `tokenizer_config.json`: a text, or a list of `{"name": ..., "template": ...}`
//! 3. `chat_template` in `chat_template.json`, as processors write it

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;

use super::TemplateError;

#[derive(Deserialize)]
struct Config {
    chat_template: Option<Templates>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Named>),
    ByName(BTreeMap<String, String>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// Templates by name; none if the checkpoint has none.
pub(super) fn read(dir: &Path) -> Result<BTreeMap<String, String>, TemplateError> {
    let of_files = jinja_files(dir)?;
    if !of_files.is_empty() {
        return Ok(of_files);
    }
    for file in ["tokenizer_config.json", "chat_template.json"] {
        let path = dir.join(file);
        let Some(text) = read_file(&path)? else { continue };
        let config: Config = serde_json::from_str(&text).map_err(|error| refuse(&path, error))?;
        match config.chat_template {
            None => {}
            Some(Templates::One(template)) => return Ok(BTreeMap::from([("default".to_owned(), template)])),
            Some(Templates::Named(list)) => return Ok(list.into_iter().map(|one| (one.name, one.template)).collect()),
            Some(Templates::ByName(map)) => return Ok(map),
        }
    }
    Ok(BTreeMap::new())
}

fn jinja_files(dir: &Path) -> Result<BTreeMap<String, String>, TemplateError> {
    let mut templates = BTreeMap::new();
    if let Some(text) = read_file(&dir.join("chat_template.jinja"))? {
        templates.insert("default".to_owned(), text);
    }
    let folder = dir.join("additional_chat_templates");
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(templates),
        Err(error) => return Err(refuse(&folder, error)),
    };
    for entry in entries {
        let path = entry.map_err(|error| refuse(&folder, error))?.path();
        let name = path.file_stem().and_then(|stem| stem.to_str());
        if let Some(name) = name.filter(|_| path.extension().is_some_and(|extension| extension == "jinja"))
            && let Some(text) = read_file(&path)?
        {
            templates.insert(name.to_owned(), text);
        }
    }
    Ok(templates)
}

fn read_file(path: &Path) -> Result<Option<String>, TemplateError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(refuse(path, error)),
    }
}

fn refuse(path: &Path, reason: impl std::fmt::Display) -> TemplateError {
    TemplateError::Invalid { file: path.display().to_string(), reason: reason.to_string() }
}
