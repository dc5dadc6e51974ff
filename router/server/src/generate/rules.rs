//! By what an answer's text is made of its tokens: decided once per prompt, the same for all its answers.

use std::sync::Arc;

use pelton_engine::TokenId;
use pelton_grammar::Budget;
use pelton_text::{Detokenizer, Format, Ids, Reading, Tokenizer};

use super::{ToolReading, repetition::Repetition};

/// What ends an answer and what of it is shown.
#[derive(Debug, Clone)]
pub(crate) struct TextRules {
    pub(crate) stop: Vec<String>,
    pub(crate) include_stop: bool,
    /// Every token that ends the answer, sorted.
    pub(crate) stop_ids: Arc<[TokenId]>,
    /// Those of them that are the model's own, and therefore not worth naming.
    pub(crate) eos_ids: Vec<TokenId>,
    /// The answer's last token is its `max_tokens`th.
    pub(crate) max_tokens: u32,
    /// In the text of so many first tokens, no stop string counts.
    pub(crate) min_tokens: u32,
    /// What ends it when it goes round in circles, from the same token on.
    pub(crate) repetition: Option<Repetition>,
    pub(crate) skip_special: bool,
    pub(crate) tools: Option<ToolReading>,
    /// How the answer is split into its parts; `None`: it is all text.
    pub(crate) form: Option<(Format, Reading)>,
    /// The bound on its thoughts.
    pub(crate) thoughts: Option<Budget>,
    /// Tokens of the prompt.
    pub(crate) prompt: u32,
    /// The prompt's last tokens, from whose text the answer goes on; none where it is a text of its own, as a new message is.
    pub(crate) behind: Vec<TokenId>,
}

impl TextRules {
    pub(super) fn detokenizer(&self, tokenizer: &Tokenizer) -> Detokenizer {
        let detokenizer = Detokenizer::new(tokenizer.clone(), self.skip_special).behind(&self.behind);
        match &self.form {
            // Marks that are special tokens must be seen to be found.
            Some((format, _)) => detokenizer.showing(Arc::clone(format.special_ids())),
            None => detokenizer,
        }
    }

    /// Whether a token is a mark of the format where a grammar draws the text: behind that it is none, but would be read as its end.
    pub(super) fn is_mark_behind_form(&self, token: TokenId) -> bool {
        let of_form = self.form.as_ref().filter(|(_, reading)| reading.has_form);
        of_form.is_some_and(|(format, _)| format.special_ids().binary_search(&token).is_ok())
    }

    /// For a call to which the model gives none.
    pub(super) fn call_id(&self) -> String {
        let id = uuid::Uuid::new_v4().simple().to_string();
        match self.form.as_ref().map(|(format, _)| format.ids()) {
            Some(Ids::Nine) => id[..9].to_owned(),
            Some(Ids::Long) | None => format!("call_{id}"),
        }
    }
}
