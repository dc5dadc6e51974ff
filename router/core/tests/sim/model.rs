//! A model whose next token depends on everything that it must depend on, and on nothing else.
//!
//! Each kind of layers keeps a hash of its own for each token. A full one's hashes all tokens up to it, and a draw reads
//! all of them. A window's is made of the oldest one that the token sees, the latest, and the token; a draw reads those
//! that it sees. A state is one hash of all tokens. A draw depends on what it reads, the request's sampling, and for
//! penalties a tally of all its tokens. With `top_k` most of a text repeats itself, so that drafts come true. So a wrong block, a missed copy, a block that was used again too early, a block
//! that a window still needed, a state that was continued from another one, a wrong start or a wrong history gives
//! another token.

use pelton_core::{CacheScope, FinishReason, Goal, Kind, NewRequest, Sampling, TokenId, TokenLogprobs, TokenScore};

/// How many tokens there are: few, so that stop tokens are drawn and texts meet again.
pub(crate) const VOCAB_SIZE: u32 = 12;

/// What there is before the first token: nothing, and a state of zeros.
pub(crate) const EMPTY: u64 = 0x5eed;

/// Stirs two numbers into one.
pub(crate) fn mix(one: u64, other: u64) -> u64 {
    let mut mixed = one.rotate_left(23) ^ other.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// What a kind keeps of what stands at a position, if `kept` reads what it kept of those before.
pub(crate) fn kept(kind: Kind, position: u32, meaning: u64, kept: impl Fn(u32) -> u64) -> u64 {
    let before = match kind {
        _ if position == 0 => EMPTY,
        Kind::Full | Kind::State { .. } => kept(position - 1),
        Kind::Window { tokens: 1 } => u64::from(position),
        Kind::Window { .. } => mix(kept(first_seen(kind, position)), kept(position - 1)),
    };
    mix(before, meaning)
}

/// What an adapter sees at a position: the token, or a part of what it holds the place of.
pub(crate) fn meaning(scope: &CacheScope, position: u32, token: TokenId) -> u64 {
    let meaning = match scope.within(position..position + 1).next() {
        None => u64::from(token),
        Some((offset, span)) => mix(u64::from(span.digest[0]) + 1_000, offset.unsigned_abs()),
    };
    mix(meaning, scope.adapter)
}

/// The first position that the token at a position sees.
pub(crate) fn first_seen(kind: Kind, position: u32) -> u32 {
    match kind {
        Kind::Full => 0,
        Kind::Window { tokens } => (position + 1).saturating_sub(tokens),
        Kind::State { .. } => position,
    }
}

/// What a draw behind `position` makes of what it reads, kind by kind.
pub(crate) fn context(kinds: &[Kind], position: u32, kept: impl Fn(usize, u32) -> u64) -> u64 {
    let seen = |&(_, kind): &(usize, Kind)| first_seen(kind, position)..=position;
    let kinds = kinds.iter().copied().enumerate();
    let read = kinds.flat_map(|kind| seen(&kind).map(move |position| (kind.0, position)));
    read.fold(0, |context, (kind, position)| mix(context, mix(kind as u64, kept(kind, position))))
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
    /// Of all tokens that hold no embeddings' places, if the request has penalties; else 0.
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
        let repeats = self.sampling.top_k > 0 && noise >> 61 != 0; // seven times of eight
        let often = self.position.checked_rem(self.sampling.top_k).unwrap_or(0);
        if repeats && !(self.position < self.suppress_until && self.suppressed.contains(&often)) {
            return often;
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

/// A vector that shows what it was made of: for all tokens what they mean, for the last one what it reads.
pub(crate) fn vector(goal: Goal, context: impl FnOnce() -> u64, meanings: &[u64]) -> Box<[f32]> {
    let made_of = match goal {
        Goal::Tokens => panic!("a row that pools is of a request that wants a vector"),
        Goal::VectorOfLast => context(),
        Goal::VectorOfAll => meanings.iter().fold(1, |all, &meaning| mix(all, meaning)),
    };
    [made_of >> 48, made_of >> 24 & 0xff_ffff, made_of & 0xff_ffff].map(|part| part as f32).into()
}

/// How likely `next` was behind what its context was made of.
pub(crate) fn score(context: u64, next: TokenId) -> TokenScore {
    let logprobs = TokenLogprobs { chosen: -(next as f32), top: vec![(next, 0.5)] };
    TokenScore { rank: mix(context, u64::from(next)) as u32, logprobs }
}

/// What a request gives when nothing else exists.
pub(crate) struct Alone {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) scores: Vec<TokenScore>,
    pub(crate) vector: Option<Box<[f32]>>,
    pub(crate) reason: FinishReason,
}

/// What a request gives when nothing else exists: no blocks, no steps, no others.
pub(crate) fn alone(new: &NewRequest, kinds: &[Kind], max_model_len: u32) -> Alone {
    let (prompt_len, embedded) = (new.prompt.len() as u32, new.scope.embedded());
    let mut text = new.prompt.to_vec();
    let mut memory: Vec<Vec<u64>> = vec![Vec::new(); kinds.len()]; // by kind, by position
    let remember = |memory: &mut Vec<Vec<u64>>, token: TokenId| {
        for (&kind, memory) in kinds.iter().zip(memory) {
            let position = memory.len() as u32;
            let meaning = meaning(&new.scope, position, token);
            memory.push(kept(kind, position, meaning, |position| memory[position as usize]));
        }
    };
    text.iter().for_each(|&token| remember(&mut memory, token));
    if new.goal != Goal::Tokens {
        let meanings: Vec<u64> = (0..).zip(&text).map(|(at, &token)| meaning(&new.scope, at, token)).collect();
        let last = text.len() as u32 - 1;
        let context = || context(kinds, last, |kind, position| memory[kind][position as usize]);
        let vector = Some(vector(new.goal, context, &meanings));
        return Alone { tokens: Vec::new(), scores: Vec::new(), vector, reason: FinishReason::Vector };
    }
    let scored = if new.sampling.prompt_logprobs.is_some() { &text[1..] } else { &[] };
    let score = |(at, &next): (u32, &TokenId)| {
        score(context(kinds, at, |kind, position| memory[kind][position as usize]), next)
    };
    let scores = (0..).zip(scored).map(score).collect();
    loop {
        let has_penalties = new.sampling.has_penalties();
        let token = Draw {
            context: context(kinds, text.len() as u32 - 1, |kind, position| memory[kind][position as usize]),
            position: text.len() as u32,
            tally: if has_penalties {
                text[embedded as usize..].iter().fold(0, |sum: u64, &token| sum.wrapping_add(tally(token)))
            } else {
                0
            },
            prompt_len: prompt_len - embedded,
            sampling: &new.sampling,
            suppressed: &new.stop.stop_ids,
            suppress_until: prompt_len + new.stop.min_tokens,
        }
        .token();
        text.push(token);
        remember(&mut memory, token);
        let drawn = text.len() as u32 - prompt_len;
        let reason = if new.stop.stop_ids.contains(&token) {
            FinishReason::StopToken(token)
        } else if drawn == new.stop.max_tokens || text.len() as u32 == max_model_len {
            FinishReason::Length
        } else {
            continue;
        };
        return Alone { tokens: text.split_off(prompt_len as usize), scores, vector: None, reason };
    }
}
