//! How much of its prompts the answers to a request show. Each answer shows its prompt anew, and a token's few digits may stand for a long
//! text: without a bound a small body could ask for gigabytes.

use super::{PreparedPrompt, Prompt, Request};
use crate::error::ApiError;

/// Bytes of prompts in all answers to a request at most: twice the largest body that is taken by default.
const SHOWN_MAX: u64 = 64 << 20;
/// Of a token's id, with what parts it from the next.
const ID_BYTES: u64 = 8;

/// What is shown of prompts, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Shown {
    echo: bool,
    texts: bool,
    ids: bool,
    times: u32,
}

/// Prompts that are to be shown, bounded all together.
pub(super) struct ShownPrompts {
    shown: Shown,
    bytes: u64,
}

impl Shown {
    pub(crate) fn of(request: &Request) -> Self {
        // The choices of a chat share its prompt.
        let times = if request.prompts.iter().any(Prompt::is_chat) { 1 } else { request.options.n };
        Self { echo: request.echo, texts: request.shows_prompts, ids: request.shows_ids, times }
    }

    /// Whether a prompt's text has to be kept.
    pub(super) fn has_text(self) -> bool {
        self.echo || self.texts
    }

    /// Bytes of one prompt in all answers to it.
    fn bytes(self, prompt: &PreparedPrompt) -> u64 {
        let text = prompt.text.as_ref().map_or(0, String::len) as u64;
        let ids = prompt.ids.len() as u64 * ID_BYTES * u64::from(self.ids);
        (text * (u64::from(self.echo) + u64::from(self.texts)) + ids) * u64::from(self.times)
    }

    /// What asks for most.
    fn param(self) -> &'static str {
        match self {
            Self { echo: true, .. } => "echo",
            Self { texts: true, .. } => "return_prompt_text",
            _ => "return_token_ids",
        }
    }
}

impl ShownPrompts {
    pub(super) fn new(shown: Shown) -> Self {
        Self { shown, bytes: 0 }
    }

    /// Adds one, or refuses what is too much with it.
    pub(super) fn add(&mut self, prompt: PreparedPrompt) -> Result<PreparedPrompt, ApiError> {
        self.bytes += self.shown.bytes(&prompt);
        if self.bytes <= SHOWN_MAX {
            return Ok(prompt);
        }
        let got = format!("true, for {} bytes of prompts or more in all answers", self.bytes);
        Err(ApiError::invalid(self.shown.param(), got, format!("at most {SHOWN_MAX} bytes of them; or false")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: usize = 1 << 20;

    /// How many prompts of a mebibyte of text, in as many tokens / 8, are shown before one is too much, and what is named then.
    fn check(shown: Shown, expected: Result<usize, (usize, &str)>) {
        let mut all = ShownPrompts::new(shown);
        let text = shown.has_text().then(|| "x".repeat(EACH));
        let prompt = PreparedPrompt { ids: vec![0; EACH / 8].into(), embeds: None, text, chat: None };
        for count in 0..100 {
            if let Err(ApiError::Invalid { param, .. }) = all.add(prompt.clone()) {
                return assert_eq!(Err((count, &*param)), expected, "{shown:?}");
            }
        }
        assert_eq!(Ok(100), expected, "{shown:?}");
    }

    #[test]
    fn prompts_that_are_shown_have_a_bound_all_together() {
        let nothing = Shown { times: 128, ..Shown::default() };
        check(nothing, Ok(100));
        check(Shown { echo: true, times: 1, ..nothing }, Err((64, "echo")));
        check(Shown { echo: true, ..nothing }, Err((0, "echo")));
        check(Shown { echo: true, texts: true, times: 8, ..nothing }, Err((4, "echo")));
        check(Shown { texts: true, ids: true, times: 1, ..nothing }, Err((32, "return_prompt_text")));
        check(Shown { ids: true, times: 2, ..nothing }, Err((32, "return_token_ids")));
    }
}
