//! Which tokens an answer may have at all, whatever else it has to fit: those of a list, and none that completes a bad word.
//!
//! A bad word is a run of tokens. Its last token is not allowed where the answer ends with the others; the prompt does not count.

use std::sync::Arc;

/// See the top of the file. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Words {
    /// A bit per allowed token, lowest first. `None`: all are.
    allowed: Option<Arc<[u32]>>,
    /// Each of at least one token.
    bad: Arc<[Vec<u32>]>,
}

impl Words {
    /// `allowed`: the only tokens of the answer; `None`: all. `bad`: runs of tokens; those of none mean nothing.
    pub fn new(allowed: Option<&[u32]>, mut bad: Vec<Vec<u32>>) -> Self {
        bad.retain(|word| !word.is_empty());
        Self { allowed: allowed.map(bits), bad: bad.into() }
    }

    /// The same, and these tokens, whatever is listed.
    pub fn allowing(&self, tokens: &[u32]) -> Self {
        let with = |allowed: &Arc<[u32]>| {
            let (mut all, more) = (allowed.to_vec(), bits(tokens));
            all.resize(all.len().max(more.len()), 0);
            all.iter_mut().zip(&*more).for_each(|(all, more)| *all |= more);
            all.into()
        };
        Self { allowed: self.allowed.as_ref().map(with), bad: Arc::clone(&self.bad) }
    }

    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.allowed.is_none() && self.bad.is_empty()
    }
}

fn bits(tokens: &[u32]) -> Arc<[u32]> {
    let words = tokens.iter().max().map_or(0, |&last| last as usize / 32 + 1);
    let mut bits = vec![0; words];
    for &token in tokens {
        bits[token as usize / 32] |= 1 << (token % 32);
    }
    bits.into()
}

/// One answer's words.
pub(crate) struct Spoken {
    words: Words,
    /// The answer's end, shorter than the longest bad word.
    latest: Vec<u32>,
    /// The latest mask.
    mask: Vec<u32>,
}

/// What is left of the tokens that something else allows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Left<'a> {
    /// Any but these, which may be none.
    AllBut(Vec<u32>),
    /// A bit per token, lowest first; at least one of them is set.
    Of(&'a [u32]),
    /// None at all.
    Nothing,
}

impl Spoken {
    pub(crate) fn new(words: Words) -> Self {
        Self { words, latest: Vec::new(), mask: Vec::new() }
    }

    pub(crate) fn take(&mut self, token: u32) {
        let most = self.words.bad.iter().map(Vec::len).max().unwrap_or(1) - 1;
        self.latest.push(token);
        let past = self.latest.len().saturating_sub(most);
        self.latest.drain(..past);
    }

    /// `else_allowed`: a bit per token; `None`: all tokens.
    pub(crate) fn within(&mut self, else_allowed: Option<&[u32]>) -> Left<'_> {
        let Self { words, latest, mask } = self;
        let ends = |word: &&Vec<u32>| latest.ends_with(&word[..word.len() - 1]);
        let banned = words.bad.iter().filter(ends).filter_map(|word| word.last().copied());
        let allowed = match (else_allowed, words.allowed.as_deref()) {
            (None, None) => return Left::AllBut(banned.collect()),
            (Some(one), None) | (None, Some(one)) => one.iter().zip(one),
            (Some(one), Some(other)) => one.iter().zip(other),
        };
        mask.clear();
        mask.extend(allowed.map(|(one, other)| one & other));
        for token in banned {
            if let Some(bits) = mask.get_mut(token as usize / 32) {
                *bits &= !(1 << (token % 32));
            }
        }
        if mask.iter().any(|&bits| bits != 0) { Left::Of(mask) } else { Left::Nothing }
    }
}
