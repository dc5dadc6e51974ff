//! A limit on a model's thoughts, as the grammars keep it: the mark that ends them in tokens, and a reader of what is thought.
//!
//! That reader is made of the parts that split the answer for the client, so that what is counted is what is shown as reasoning.

use std::sync::Arc;

use pelton_engine::TokenId;
use pelton_grammar::{Budget, Grammar, Part, Watch};
use pelton_text::{AnswerParser, ChatTemplate, Detokenizer, Format, Reading, Tokenizer};

use super::{PreparedPrompt, Request, constrain::mark, options::ModelFacts, serving::Serving};
use crate::error::ApiError;

/// How long a model may think.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThoughtLimit {
    /// Tokens of reasoning, the marks around it not counted.
    pub tokens: u32,
    /// The parameter that says so.
    pub param: String,
}

/// Reads one answer along.
struct Thoughts {
    detokenizer: Detokenizer,
    parser: AnswerParser,
}

impl Watch for Thoughts {
    fn take(&mut self, token: u32) {
        let text = self.detokenizer.push(token);
        self.parser.push(&text);
    }

    fn is_reasoning(&self) -> bool {
        self.parser.is_thinking()
    }

    fn is_within_character(&self) -> bool {
        self.detokenizer.is_within_character()
    }
}

impl Serving {
    /// Whether the end of the model's thoughts can be forced.
    pub(crate) fn ends_thoughts(&self) -> bool {
        self.format.as_ref().is_some_and(|format| closing(format, &self.tokenizer).is_some())
    }

    /// Refuses a limit that this model's thoughts cannot have.
    pub(super) fn check_thoughts(&self, limit: &ThoughtLimit) -> Result<(), ApiError> {
        self.end_of_thoughts(limit).map(drop)
    }

    /// The format, and the mark that ends thoughts in it.
    fn end_of_thoughts(&self, limit: &ThoughtLimit) -> Result<(&Format, Vec<TokenId>), ApiError> {
        let param = limit.param.clone();
        let Some(format) = self.format.as_ref().filter(|format| format.has_reasoning()) else {
            let reason = "cannot be used: the model marks no reasoning, or in no format that is read here (`--format`)";
            return Err(ApiError::Conflict { param, reason: reason.to_owned() });
        };
        let Some(close) = closing(format, &self.tokenizer) else {
            let what = format!("ending thoughts in the model's format ({})", format.name());
            return Err(ApiError::not_served(param, limit.tokens, "null", what));
        };
        Ok((format, close))
    }

    /// What the answers to a prompt are drawn within if their thoughts have a limit. `form`: how they are read.
    pub(super) async fn limit_thoughts(
        &self,
        grammar: Option<Grammar>,
        request: &Request,
        prompt: &PreparedPrompt,
        form: Option<&(Format, Reading)>,
        facts: &ModelFacts<'_>,
    ) -> Result<Option<Grammar>, ApiError> {
        let Some(limit) = &request.options.thoughts else { return Ok(grammar) };
        let (format, close) = self.end_of_thoughts(limit)?;
        if grammar.is_some() && form.is_none() {
            let reason =
                "cannot go together with a form of the text, unless in a chat: there alone thoughts come before it";
            return Err(ApiError::Conflict { param: limit.param.clone(), reason: reason.to_owned() });
        }
        if close.iter().any(|&token| token >= facts.vocab_size) {
            let log = "the mark that ends thoughts is not in the model's vocabulary".to_owned();
            return Err(ApiError::Internal { log });
        }
        let reading = match form {
            Some((_, reading)) => reading.clone(),
            None => self.reading_of_text(format, prompt).await?,
        };
        let detokenizer = Detokenizer::new(self.tokenizer.clone(), request.options.skip_special);
        let budget = budget(detokenizer, format, reading, limit.tokens, close);
        Ok(Some(match grammar {
            Some(grammar) => grammar.with_thinking(budget),
            None => Grammar::of_thinking(budget),
        }))
    }

    /// How the continuation of a text is read: the text may have opened thoughts and not closed them.
    async fn reading_of_text(&self, format: &Format, prompt: &PreparedPrompt) -> Result<Reading, ApiError> {
        let (tokenizer, format, ids) = (self.tokenizer.clone(), format.clone(), Arc::clone(&prompt.ids));
        let read = move || {
            let text = tokenizer.decode(&ids, false);
            let starts_in_reasoning = format.starts_in_reasoning(&text, Some(&text));
            Ok(Reading { starts_in_reasoning, ..Reading::default() })
        };
        self.on_text(prompt.ids.len(), read).await
    }
}

/// A limit of so many tokens as grammars keep it. `close`: the mark that ends thoughts.
pub(super) fn budget(
    detokenizer: Detokenizer,
    format: &Format,
    reading: Reading,
    tokens: u32,
    close: Vec<TokenId>,
) -> Budget {
    let detokenizer = detokenizer.showing(Arc::clone(format.special_ids()));
    let parser = format.parser(reading);
    let watch =
        move || -> Box<dyn Watch> { Box::new(Thoughts { detokenizer: detokenizer.clone(), parser: parser.clone() }) };
    Budget { tokens, close: close.into(), watch: Arc::new(watch) }
}

/// Whether a model thinks: its format may be one of models of which some do.
pub(super) fn thinks(format: &Format, template: Option<&ChatTemplate>, tokenizer: &Tokenizer) -> bool {
    let is_known = |mark: &str| {
        tokenizer.token_to_id(mark).is_some() || template.is_some_and(|template| template.sources().contains(mark))
    };
    format.has_reasoning() && format.reasoning_marks().is_none_or(|(_, close)| is_known(close.trim()))
}

/// The mark that ends thoughts, as tokens. `None`: the format has none, or its parser does not see it before the answer's end.
fn closing(format: &Format, tokenizer: &Tokenizer) -> Option<Vec<TokenId>> {
    let (_, close) = format.reasoning_marks()?;
    let mut ids = Vec::new();
    for part in mark(tokenizer, format, close) {
        match part {
            Part::Token(id) => ids.push(id),
            Part::Text(text) => ids.extend(tokenizer.encode(&text, false).ok()?),
            Part::Number | Part::Gap => return None, // no mark has them
        }
    }
    let reading = Reading { starts_in_reasoning: true, ..Reading::default() };
    let detokenizer = Detokenizer::new(tokenizer.clone(), true).showing(Arc::clone(format.special_ids()));
    let mut thoughts = Thoughts { detokenizer, parser: format.parser(reading) };
    ids.iter().for_each(|&id| thoughts.take(id));
    (!ids.is_empty() && !thoughts.is_reasoning()).then_some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::testing::{tokenizer, tokens};

    #[test]
    fn the_mark_is_what_the_parser_takes_for_the_end() {
        let tokenizer = tokenizer();
        let of = |name: &str| closing(&Format::named(name, &tokenizer).expect("known"), &tokenizer);
        assert_eq!(of("hermes"), Some(tokens("</think>")));
        assert_eq!(of("harmony"), Some(tokens("<|end|>")));
        assert_eq!(of("llama4-pythonic"), None, "it does not think");
        let special = "name = \"x\"\n[reasoning]\nopen = [\"<t>\"]\nclose = [\"/<end>/\"]";
        let format = Format::declared(special, &tokenizer).expect("a format");
        assert_eq!(closing(&format, &tokenizer), Some([tokens("/"), vec![256], tokens("/")].concat()));
    }

    #[test]
    fn a_model_thinks_if_it_knows_how_thoughts_end() {
        let tokenizer = tokenizer();
        let of = |name: &str, source: &str| {
            let sources = [("default".to_owned(), source.to_owned())].into();
            let template = ChatTemplate::from_sources(sources, serde_json::Map::new()).expect("a template");
            thinks(&Format::named(name, &tokenizer).expect("known"), Some(&template), &tokenizer)
        };
        assert!(of("hermes", "{# <think></think> #}"));
        assert!(!of("hermes", "<tool_call>"), "as with Qwen 2.5");
        assert!(!of("llama4-pythonic", "</think>"), "it is not told apart");
    }

    #[test]
    fn what_is_thought_is_what_the_client_is_told() {
        let tokenizer = tokenizer();
        let format = Format::named("hermes", &tokenizer).expect("known");
        let detokenizer = Detokenizer::new(tokenizer.clone(), true);
        let mut thoughts = Thoughts { detokenizer, parser: format.parser(Reading::default()) };
        let mut read = |text: &[u32]| {
            text.iter().for_each(|&token| thoughts.take(token));
            (thoughts.is_reasoning(), thoughts.is_within_character())
        };
        assert_eq!(read(&tokens("\n<think")), (false, false));
        assert_eq!(read(&tokens(">So")), (true, false));
        assert_eq!(read(&tokens("\u{20ac}")[..2]), (true, true));
        assert_eq!(read(&tokens("\u{20ac}")[2..]), (true, false));
        assert_eq!(read(&tokens("</think>Yes <think>")), (false, false), "thoughts come first or not at all");
    }
}
