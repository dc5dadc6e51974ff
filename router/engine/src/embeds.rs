//! Prompts that begin with embeddings: their numbers, and the scope by which the prefix cache tells them apart.

use std::{fmt, ops::Range};

use pelton_core::{CacheScope, Span, SpanKind};
use tokio::sync::OwnedSemaphorePermit;

use crate::names::HashKey;

/// Embeddings in the place of a prompt's first tokens. Kept with the request, so that a worker's death costs nothing.
pub struct Embeds {
    width: usize,
    values: Box<[f32]>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Embeds {
    /// `values`: embeddings of `width` numbers, one behind the other, at least one. `room` is given back with the last of them.
    pub fn new(width: u32, values: Box<[f32]>, room: Option<OwnedSemaphorePermit>) -> Self {
        let width = width as usize;
        assert!(width > 0 && !values.is_empty() && values.len().is_multiple_of(width), "whole embeddings");
        Self { width, values, _room: room }
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        u32::try_from(self.values.len() / self.width).expect("fewer than a context has tokens")
    }

    /// Numbers of one.
    pub fn width(&self) -> u32 {
        u32::try_from(self.width).expect("it was one")
    }

    /// Their numbers, one embedding behind the other.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Those in the places of these tokens.
    pub(crate) fn of(&self, tokens: Range<u32>) -> &[f32] {
        &self.values[tokens.start as usize * self.width..tokens.end as usize * self.width]
    }

    /// The scope of a prompt that begins with these: a span for each block, so that prompts which begin alike share blocks.
    pub(crate) fn scope(&self, block_size: u32, key: HashKey) -> CacheScope {
        let starts = (0..self.count()).step_by(block_size as usize);
        let span = |start: u32| {
            let end = (start + block_size).min(self.count());
            let digest = key.digest(self.of(start..end));
            Span { start, tokens: end - start, digest, kind: SpanKind::Embeddings }
        };
        CacheScope::default().with_spans(starts.map(span).collect()).expect("one behind the other")
    }
}

impl fmt::Debug for Embeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} embeddings of {} numbers", self.count(), self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_named_by_what_is_in_them() {
        let key = HashKey::of(None).expect("randomness");
        let scope = |values: &[f32]| Embeds::new(2, values.into(), None).scope(2, key);
        let one = scope(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(one.embedded(), 3);
        let ranges: Vec<_> = one.spans().iter().map(|span| (span.start, span.tokens)).collect();
        assert_eq!(ranges, [(0, 2), (2, 1)]);
        let other = scope(&[1.0, 2.0, 3.0, 4.0, 5.0, -6.0]);
        assert_eq!(one.spans()[0], other.spans()[0]);
        assert_ne!(one.spans()[1].digest, other.spans()[1].digest);
        let elsewhere = Embeds::new(2, [1.0, 2.0, 3.0, 4.0].into(), None);
        let elsewhere = elsewhere.scope(2, HashKey::of(None).expect("randomness"));
        assert_ne!(one.spans()[0].digest, elsewhere.spans()[0].digest, "nobody can foresee another server's names");
    }
}
