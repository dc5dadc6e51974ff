//! What a model's files say to the router: tokenizer, template, defaults of sampling, and how the model writes what is no text.

use std::path::Path;

use pelton_text::{ChatTemplate, Checkpoint, Format, GenerationDefaults, Tokenizer, with_text_end};

use crate::command::Trouble;
use crate::command::tokenizer_json::tokenizer_json;
use crate::config::{Config, GenerationConfig, Task};
use crate::generate::check_defaults;

/// What the model's files say to the router; the worker reads the weights.
pub(super) struct TextSide {
    pub(super) checkpoint: Checkpoint,
    pub(super) tokenizer: Tokenizer,
    pub(super) template: Option<ChatTemplate>,
}

impl TextSide {
    /// Reads the files. Takes up to a second for a large vocabulary, and some seconds once where there is no `tokenizer.json`.
    pub(super) fn open(folder: &Path, config: &Config) -> Result<Self, Trouble> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Trouble::Failed(format!("{}: {what}: {error}", folder.display()))
        };
        let json = tokenizer_json(folder, config)?;
        let mut checkpoint = Checkpoint::open(folder, &json).map_err(|error| failed("the checkpoint", &error))?;
        if let Some(said) = settle_defaults(&mut checkpoint.defaults, config.model.generation_config) {
            tracing::info!("{said}");
        }
        check_defaults(&checkpoint.defaults).map_err(|reason| failed("generation_config.json", &reason))?;
        let ended = ends_texts(&checkpoint, config.model.task).and_then(|token| with_text_end(&json, token));
        if ended.is_some() {
            tracing::info!("texts end with the model's `eos_token`, as tokenizer_config.json says (`add_eos_token`)");
        }
        let tokenizer = Tokenizer::from_json(ended.as_ref().unwrap_or(&json));
        let tokenizer = tokenizer.map_err(|error| failed("the tokenizer", &error))?;
        let template = ChatTemplate::open(folder, &checkpoint).map_err(|error| failed("the chat template", &error))?;
        Ok(Self { checkpoint, tokenizer, template })
    }

    /// How the model writes reasoning and tool calls, as the setting says.
    pub(super) fn format(&self, setting: &str) -> Result<Option<Format>, Trouble> {
        let refused = |error: &dyn std::fmt::Display| Trouble::Usage(format!("--format {setting}: {error}"));
        let is_file = setting.contains('/') || setting.ends_with(".toml");
        match setting {
            "none" => Ok(None),
            "auto" => {
                let templates = self.template.as_ref().map(ChatTemplate::sources);
                Ok(templates.and_then(|templates| Format::detect(&templates, &self.tokenizer)))
            }
            path if is_file => {
                let text = std::fs::read_to_string(path).map_err(|error| refused(&error))?;
                Format::declared(&text, &self.tokenizer).map(Some).map_err(|error| refused(&error))
            }
            name => Format::named(name, &self.tokenizer).map(Some).map_err(|error| refused(&error)),
        }
    }
}

/// What texts should end with: models that give vectors were trained on that token, where their checkpoint names it.
fn ends_texts(checkpoint: &Checkpoint, task: Task) -> Option<&str> {
    let is_headless = |name: &String| name.ends_with("Model") && !name.ends_with("LMHeadModel");
    let pools = || {
        let modules = std::fs::read_to_string(checkpoint.dir.join("modules.json")).unwrap_or_default();
        modules.contains("Pooling") || (modules.is_empty() && checkpoint.architectures.iter().any(is_headless))
    };
    let gives_vectors = task == Task::Embed || (task == Task::Auto && pools());
    let token = checkpoint.special_tokens.get("eos_token").and_then(serde_json::Value::as_str);
    token.filter(|_| checkpoint.ends_texts && gives_vectors)
}

/// Keeps the checkpoint's defaults of sampling or drops them, and says so: whoever compares two servers has to know of them.
fn settle_defaults(defaults: &mut GenerationDefaults, setting: GenerationConfig) -> Option<String> {
    let given: Vec<String> = defaults.given().into_iter().map(|(name, value)| format!("{name} {value}")).collect();
    if given.is_empty() {
        return None;
    }
    let given = given.join(", ");
    Some(match setting {
        GenerationConfig::Auto => {
            format!(
                "where requests say nothing, sampling is as in generation_config.json: {given} (--generation-config none: OpenAI's defaults)"
            )
        }
        GenerationConfig::None => {
            *defaults = GenerationDefaults::default();
            format!("not used of generation_config.json: {given} (--generation-config none)")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoints_sampling_is_said_at_start_and_can_be_left_out() {
        let settled = |mut defaults: GenerationDefaults, setting| {
            let said = settle_defaults(&mut defaults, setting);
            (defaults, said)
        };
        let none = GenerationDefaults::default();
        assert_eq!(settled(none.clone(), GenerationConfig::Auto), (none.clone(), None), "nothing to say");
        let given =
            GenerationDefaults { temperature: Some(0.6), top_k: Some(20), max_new_tokens: Some(2048), ..none.clone() };
        let (kept, said) = settled(given.clone(), GenerationConfig::Auto);
        assert_eq!(kept, given);
        assert!(said.is_some_and(|said| said.contains(": temperature 0.6, top_k 20, max_new_tokens 2048 (")));
        let (dropped, said) = settled(given, GenerationConfig::None);
        assert_eq!(dropped, none);
        assert!(said.is_some_and(|said| said.starts_with("not used of generation_config.json: temperature 0.6, ")));
    }
}
