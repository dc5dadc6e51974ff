//! Prompts that are cut to a length instead of being refused.

use pelton_engine::TokenId;

use crate::error::ApiError;

/// How requests call the length.
pub(crate) const TRUNCATE: &str = "truncate_prompt_tokens";
/// And the side.
pub(crate) const TRUNCATION_SIDE: &str = "truncation_side";

/// How long a prompt is at most, and what goes of a longer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Its tokens at most; `None`: as many as leave room for one of the answer.
    pub tokens: Option<u32>,
    /// Which end stays; a prompt's own one unless it is said.
    pub keeps: Side,
}

/// An end of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first tokens.
    Beginning,
    /// The last ones.
    End,
}

impl Cut {
    /// `context`: the model's. `before`: the tokens that the tokenizer puts before every text; they stay.
    pub(crate) fn apply(
        self,
        mut ids: Vec<TokenId>,
        before: &[TokenId],
        context: u32,
    ) -> Result<Vec<TokenId>, ApiError> {
        let most = self.tokens.unwrap_or(context.saturating_sub(1));
        if most > context {
            let allowed = format!("-1 (the context less one), or an integer from 1 to {context}, the model's context");
            return Err(ApiError::invalid(TRUNCATE, most, allowed));
        }
        let excess = ids.len().saturating_sub(most as usize);
        match self.keeps {
            _ if excess == 0 => {}
            Side::Beginning => ids.truncate(most as usize),
            Side::End => {
                let kept = if ids.starts_with(before) { before.len().min(most as usize) } else { 0 };
                ids.drain(kept..kept + excess);
            }
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_the_side_that_is_asked_for_behind_what_begins_every_text() {
        let cut = |tokens, keeps, before: &[TokenId]| Cut { tokens, keeps }.apply(vec![1, 2, 3, 4, 5], before, 5);
        assert_eq!(cut(Some(3), Side::End, &[]), Ok(vec![3, 4, 5]));
        assert_eq!(cut(Some(3), Side::End, &[1]), Ok(vec![1, 4, 5]));
        assert_eq!(cut(Some(3), Side::End, &[9]), Ok(vec![3, 4, 5]), "it does not begin so");
        assert_eq!(cut(Some(1), Side::End, &[1, 2]), Ok(vec![1]));
        assert_eq!(cut(Some(3), Side::Beginning, &[1]), Ok(vec![1, 2, 3]));
        assert_eq!(cut(None, Side::End, &[]), Ok(vec![2, 3, 4, 5]), "one of the answer fits");
        assert_eq!(cut(Some(5), Side::End, &[]), Ok(vec![1, 2, 3, 4, 5]));
        assert!(cut(Some(6), Side::End, &[]).is_err(), "longer than the context");
    }
}
