//! A model whose next token depends on everything that it must depend on, and on nothing else.
//!
//! The KV of a token is a hash of all tokens up to it. A draw reads the KV of every token before it, the request's
//! sampling, and for penalties a tally of all its tokens. So a wrong block, a missed copy, a block that was used again
//! too early, a wrong start or a wrong history gives another token.

use pelton_core::{FinishReason, NewRequest, Sampling, TokenId};

/// How many tokens there are: few, so that stop tokens are drawn and texts meet again.
pub(crate) const VOCAB_SIZE: u32 = 12;

/// The KV before the first token.
pub(crate) const EMPTY: u64 = 0x5eed;

/// Stirs two numbers into one.
pub(crate) fn mix(one: u64, other: u64) -> u64 {
    let mut mixed = one.rotate_left(23) ^ other.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The KV of `token` after a text whose last KV is `before`.
pub(crate) fn kv(before: u64, token: TokenId) -> u64 {
    mix(before, u64::from(token))
}

/// What one token adds to the tally that penalties read. The order of tokens does not matter to it.
pub(crate) fn tally(token: TokenId) -> u64 {
    mix(1, u64::from(token))
}

/// All that a draw depends on.
pub(crate) struct Draw<'a> {
    /// All KV before it, stirred together.
    pub(crate) context: u64,
    /// Of the token that is drawn.
    pub(crate) position: u32,
    /// Of all tokens, if the request has penalties; else 0.
    pub(crate) tally: u64,
    /// Where the output begins.
    pub(crate) prompt_len: u32,
    /// How to draw.
    pub(crate) sampling: &'a Sampling,
    /// Not to be drawn below `suppress_until`.
    pub(crate) suppressed: &'a [TokenId],
    /// See `suppressed`.
    pub(crate) suppress_until: u32,
}

impl Draw<'_> {
    /// The token.
    pub(crate) fn token(&self) -> TokenId {
        let mut noise = mix(self.context, mix(self.sampling.seed, u64::from(self.position)));
        noise = mix(noise, mix(self.tally, u64::from(self.prompt_len)));
        for &(token, bias) in &self.sampling.logit_bias {
            noise = mix(noise, mix(u64::from(token), u64::from(bias.to_bits())));
        }
        loop {
            let token = (noise % u64::from(VOCAB_SIZE)) as TokenId;
            if self.position >= self.suppress_until || !self.suppressed.contains(&token) {
                return token;
            }
            noise = mix(noise, 1);
        }
    }
}

/// What a request draws when nothing else exists: no blocks, no steps, no others.
pub(crate) fn alone(new: &NewRequest, max_model_len: u32) -> (Vec<TokenId>, FinishReason) {
    let prompt_len = new.prompt.len() as u32;
    let mut text = new.prompt.to_vec();
    let (mut last, mut context) = (EMPTY, 0);
    for &token in &text {
        last = kv(last, token);
        context = mix(context, last);
    }
    loop {
        let has_penalties = new.sampling.has_penalties();
        let token = Draw {
            context,
            position: text.len() as u32,
            tally: if has_penalties {
                text.iter().fold(0, |sum: u64, &token| sum.wrapping_add(tally(token)))
            } else {
                0
            },
            prompt_len,
            sampling: &new.sampling,
            suppressed: &new.stop.stop_ids,
            suppress_until: prompt_len + new.stop.min_tokens,
        }
        .token();
        text.push(token);
        last = kv(last, token);
        context = mix(context, last);
        let drawn = text.len() as u32 - prompt_len;
        let reason = if new.stop.stop_ids.contains(&token) {
            FinishReason::StopToken(token)
        } else if drawn == new.stop.max_tokens || text.len() as u32 == max_model_len {
            FinishReason::Length
        } else {
            continue;
        };
        return (text.split_off(prompt_len as usize), reason);
    }
}
