//! Tokens into text, for whoever asks for nothing else.

use pelton_engine::TokenId;
use pelton_text::Tokenizer;

use super::{prepare::COUNTED_BYTES_MAX, serving::Serving};
use crate::error::ApiError;

impl Serving {
    /// The text of tokens, special ones too. `param` is what the request calls the tokens.
    pub(crate) async fn detokenize(&self, param: &'static str, tokens: Vec<TokenId>) -> Result<String, ApiError> {
        let tokenizer = self.tokenizer.clone();
        self.on_text(tokens.len(), move || {
            check(param, &tokens, &tokenizer, COUNTED_BYTES_MAX)?;
            Ok(tokenizer.decode(&tokens, false))
        })
        .await
    }
}

/// Refuses ids that do not exist, and more than `most` bytes of text: some tokens stand for a hundred bytes and more, so that the length of
/// a request is no bound of them.
fn check(param: &str, tokens: &[TokenId], tokenizer: &Tokenizer, most: usize) -> Result<(), ApiError> {
    let size = tokenizer.vocab_size();
    if let Some(token) = tokens.iter().find(|&&token| token >= size) {
        let allowed = format!("token ids from 0 to {}", size.saturating_sub(1));
        return Err(ApiError::invalid(param, format_args!("token id {token}"), allowed));
    }
    let bytes: usize = tokens.iter().map(|&token| text_bytes(token, tokenizer)).sum();
    if bytes <= most {
        return Ok(());
    }
    let got = format_args!("{} tokens with {bytes} bytes of text", tokens.len());
    Err(ApiError::invalid(param, got, format!("at most {most} bytes of text at once")))
}

/// What a token adds to a text, about. Where only all tokens together have one, its name is as long.
fn text_bytes(token: TokenId, tokenizer: &Tokenizer) -> usize {
    let by_name = || tokenizer.id_to_token(token).map_or(0, |name| name.len());
    tokenizer.token_bytes(token).map_or_else(by_name, <[u8]>::len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::testing::{tokenizer, tokens};

    #[test]
    fn what_is_made_text_of_exists_and_has_a_bound_in_bytes_of_text() {
        let tokenizer = tokenizer();
        let check = |tokens: &[TokenId]| check("tokens", tokens, &tokenizer, 22).map_err(|error| error.to_string());
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&tokens(&"a".repeat(22))), Ok(()));
        assert_eq!(check(&[257, 257]), Ok(()), "`<tool_call>` has 11 bytes");
        let told = "`tokens` is 3 tokens with 23 bytes of text; allowed: at most 22 bytes of text at once";
        assert_eq!(check(&[257, 257, 97]), Err(told.to_owned()));
        let told = "`tokens` is token id 259; allowed: token ids from 0 to 258";
        assert_eq!(check(&[vec![259], vec![257; 9]].concat()), Err(told.to_owned()));
    }
}
