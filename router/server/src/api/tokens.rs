//! `/tokenize` and `/detokenize`.

use pelton_engine::TokenId;
use pelton_text::Tokenizer;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::{
    chat::{TEMPLATE, read_input},
    fields::{Fields, TOKEN_IDS},
    messages::MESSAGES,
    models::{MODEL, read_model},
    shape::{Field, Kind, Most, Shape, needed, optional, with_default},
    tools::TOOLS,
    unknown::Given,
};
use crate::{error::ApiError, generate::Prompt};

const STRS: Field = with_default("return_token_strs", Kind::Flag, "false", "Whether each token is told as text, too.");
const ADD_SPECIAL: &str = "add_special_tokens";

/// The body of a request for a text's tokens.
pub(crate) const TOKENIZE_TEXT: Shape = Shape::new(
    "TokenizeTextRequest",
    "A text to be tokenised.",
    &[&[
        MODEL,
        needed("prompt", Kind::TEXT, "The text."),
        optional("messages", Kind::Absent, "Goes in place of `prompt`."),
        with_default(ADD_SPECIAL, Kind::Flag, "true", "Whether the tokenizer adds its special tokens."),
        STRS,
    ]],
);
/// The body of a request for a chat's tokens.
pub(crate) const TOKENIZE_CHAT: Shape = Shape::new(
    "TokenizeChatRequest",
    "A chat to be rendered and tokenised.",
    &[
        &[
            MODEL,
            MESSAGES,
            optional("prompt", Kind::Absent, "Goes in place of `messages`."),
            with_default(
                ADD_SPECIAL,
                Kind::Flag,
                "false",
                "Whether the tokenizer adds its special tokens to what the template made.",
            ),
            STRS,
        ],
        TOOLS,
        TEMPLATE,
    ],
);
/// The body of a request for a text of tokens.
pub(crate) const DETOKENIZE: Shape = Shape::new(
    "DetokenizeRequest",
    "Tokens to be turned into text.",
    &[&[MODEL, needed("tokens", Kind::TokenIds(0, Most::ANY), "The tokens.")]],
);

/// A text or a chat to be tokenised.
#[derive(Debug)]
pub(crate) struct TokenizeRequest {
    pub(crate) model: Option<String>,
    pub(crate) prompt: Prompt,
    /// Whether each token is wanted as text, too.
    pub(crate) return_token_strs: bool,
}

impl TokenizeRequest {
    pub(crate) fn read<'a>(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let model = read_model(&mut fields)?;
        let return_token_strs = fields.flag("return_token_strs")?.unwrap_or(false);
        let text = fields.text("prompt")?;
        let has_messages = fields.raw("messages").is_some();
        let add_special = fields.flag(ADD_SPECIAL)?;
        let (prompt, shape) = match (text, has_messages) {
            (Some(text), false) => (Prompt::Text { text, add_special: add_special.unwrap_or(true) }, &TOKENIZE_TEXT),
            (None, true) => {
                let (input, _) = read_input(&mut fields)?;
                (Prompt::Chat { input: Box::new(input), add_special: add_special.unwrap_or(false) }, &TOKENIZE_CHAT)
            }
            (Some(_), true) => {
                return Err(ApiError::Conflict {
                    param: "prompt".to_owned(),
                    reason: "cannot go together with `messages`".to_owned(),
                });
            }
            (None, false) => {
                return Err(ApiError::Missing { param: "prompt".to_owned(), allowed: "a text; or send `messages`" });
            }
        };
        fields.finish(shape)?;
        Ok(Self { model, prompt, return_token_strs })
    }
}

/// Its answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokenizeResponse<'a> {
    pub(crate) count: usize,
    pub(crate) max_model_len: Option<u32>,
    pub(crate) tokens: &'a [TokenId],
    #[schemars(with = "Option<Vec<String>>")]
    pub(crate) token_strs: Option<TokenTexts<'a>>,
}

/// Tokens as texts, each made as it is written: millions of them would take 24 bytes and an allocation apiece.
#[derive(Debug)]
pub(crate) struct TokenTexts<'a> {
    pub(crate) tokens: &'a [TokenId],
    pub(crate) tokenizer: &'a Tokenizer,
}

impl Serialize for TokenTexts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = |&token: &TokenId| self.tokenizer.token_bytes(token).unwrap_or_default();
        serializer.collect_seq(self.tokens.iter().map(bytes).map(String::from_utf8_lossy))
    }
}

/// Tokens to be turned into text.
#[derive(Debug)]
pub(crate) struct DetokenizeRequest {
    pub(crate) model: Option<String>,
    pub(crate) tokens: Vec<TokenId>,
}

impl DetokenizeRequest {
    pub(crate) fn read<'a>(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let model = read_model(&mut fields)?;
        let missing = || ApiError::Missing { param: "tokens".to_owned(), allowed: TOKEN_IDS };
        let tokens = fields.token_ids("tokens")?.ok_or_else(missing)?;
        fields.finish(&DETOKENIZE)?;
        Ok(Self { model, tokens })
    }
}

/// Its answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DetokenizeResponse {
    pub(crate) prompt: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::testing::{tokenizer, tokens};

    #[test]
    fn tokens_are_written_as_texts_one_by_one() {
        let (ids, tokenizer) = ([tokens("a\"\u{e9}"), vec![256, 9999]].concat(), tokenizer());
        let texts = TokenTexts { tokens: &ids, tokenizer: &tokenizer };
        let written = serde_json::to_value(&texts).expect("texts are JSON");
        // Half a character is no text, and an id that does not exist has none.
        assert_eq!(written, serde_json::json!(["a", "\"", "\u{fffd}", "\u{fffd}", "<end>", ""]));
    }

    fn refused(body: &str) -> Option<String> {
        match TokenizeRequest::read(body.as_bytes()) {
            Ok(_) => None,
            Err(
                ApiError::Invalid { param, .. }
                | ApiError::Missing { param, .. }
                | ApiError::Conflict { param, .. }
                | ApiError::Unknown { param, .. },
            ) => Some(param),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_text_or_a_chat_is_tokenised_but_not_both() {
        for (body, expected) in [
            (r#"{"prompt": ""}"#, None),
            (r#"{"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": false}"#, None),
            (r#"{}"#, Some("prompt")),
            (r#"{"prompt": ["a"]}"#, Some("prompt")),
            (r#"{"prompt": "a", "messages": []}"#, Some("prompt")),
            (r#"{"prompt": "a", "add_generation_prompt": true}"#, Some("add_generation_prompt")),
            (r#"{"messages": []}"#, Some("messages")),
        ] {
            assert_eq!(refused(body).as_deref(), expected, "{body}");
        }
    }
}
