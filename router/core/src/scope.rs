//! What the KV of a request depends on besides its tokens: an adapter, a salt, and spans whose tokens only stand for
//! something else, an image or embeddings. Requests that differ in one of these share no block that it concerns.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// See the top of the file. The default: on tokens alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CacheScope {
    /// Requests with different salts share no blocks; 0: none. C:K3.
    pub salt: u64,
    /// The adapter's number; 0: the model as it is.
    pub adapter: u64,
    spans: Vec<Span>,
    /// Not 0: what has it shares no block with what has not, or another one.
    own: u64,
}

/// Tokens of a prompt that only hold the places of something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Span {
    /// The first of them, from the start of the prompt.
    pub start: u32,
    /// How many; at least 1.
    pub tokens: u32,
    /// What is there. Equal digests mean equal contents: whoever makes them uses a hash that nobody can collide.
    pub digest: [u8; 16],
    /// Of which kind it is. For those outside: what is different has another digest anyway.
    pub kind: SpanKind,
}

/// What a span stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SpanKind {
    /// An image, a sound or the like.
    Media,
    /// Embeddings that the client has sent. Workers are given those that a prompt begins with, span behind span.
    Embeddings,
}

/// Why something is no scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the span of {tokens} tokens at {start} is empty, or reaches into the next one")]
pub struct BadSpan {
    /// Where it starts.
    pub start: u32,
    /// How long it is.
    pub tokens: u32,
}

impl CacheScope {
    /// On tokens and a salt.
    pub fn salted(salt: u64) -> Self {
        Self { salt, ..Self::default() }
    }

    /// The same with spans, in any order.
    pub fn with_spans(self, mut spans: Vec<Span>) -> Result<Self, BadSpan> {
        spans.sort_by_key(|span| span.start);
        let next_starts = spans.iter().skip(1).map(|span| span.start).chain([u32::MAX]);
        let is_bad = |(span, next): (&Span, u32)| span.tokens == 0 || span.tokens > next - span.start;
        match spans.iter().zip(next_starts).find(|&pair| is_bad(pair)) {
            Some((&Span { start, tokens, .. }, _)) => Err(BadSpan { start, tokens }),
            None => Ok(Self { spans, ..self }),
        }
    }

    /// The same, and shared with nobody who has another number; it is not 0.
    pub(crate) fn apart(self, own: u64) -> Self {
        assert!(own > 0, "0 is shared");
        Self { own, ..self }
    }

    /// The number of `apart`, or 0.
    pub(crate) fn own(&self) -> u64 {
        self.own
    }

    /// In order of their places; none reaches into another.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// How many of a prompt's first tokens only hold the places of embeddings.
    pub fn embedded(&self) -> u32 {
        let is_next = |end: u32, span: &Span| span.kind == SpanKind::Embeddings && span.start == end;
        self.spans.iter().fold(0, |end, span| if is_next(end, span) { end + span.tokens } else { end })
    }

    /// To be shared by all that speaks of a request's blocks. None: they depend on tokens alone.
    pub(crate) fn shared(self) -> Option<Arc<Self>> {
        (self != Self::default()).then(|| Arc::new(self))
    }

    /// The spans that have tokens among these, and where each starts from the first of these.
    pub fn within(&self, tokens: Range<u32>) -> impl Iterator<Item = (i64, &Span)> {
        let first = self.spans.partition_point(|span| span.start + span.tokens <= tokens.start);
        let reaching = self.spans[first..].iter().take_while(move |span| span.start < tokens.end);
        reaching.map(move |span| (i64::from(span.start) - i64::from(tokens.start), span))
    }

    /// How many of these tokens come before the first that only holds a place.
    pub(crate) fn plain(&self, tokens: Range<u32>) -> u32 {
        let first = self.within(tokens.clone()).next();
        first.map_or(tokens.len() as u32, |(offset, _)| u32::try_from(offset).unwrap_or(0))
    }
}

/// A scope behind an `Arc`, as itself.
pub(crate) mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::CacheScope;

    pub(crate) fn serialize<S: Serializer>(scope: &Option<Arc<CacheScope>>, to: S) -> Result<S::Ok, S::Error> {
        scope.as_deref().serialize(to)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Arc<CacheScope>>, D::Error> {
        Option::deserialize(from).map(|scope| scope.map(Arc::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u32, tokens: u32) -> Span {
        Span { start, tokens, digest: [7; 16], kind: SpanKind::Media }
    }

    #[test]
    fn spans_are_put_in_order_and_may_touch() {
        let scope = CacheScope::default().with_spans(vec![span(9, 1), span(2, 7)]).expect("they only touch");
        assert_eq!(scope.spans(), [span(2, 7), span(9, 1)]);
    }

    #[test]
    fn spans_that_overlap_or_are_empty_are_named() {
        for (spans, bad) in [
            (vec![span(2, 8), span(9, 1)], (2, 8)),
            (vec![span(1, 0)], (1, 0)),
            (vec![span(u32::MAX - 1, 2)], (u32::MAX - 1, 2)),
        ] {
            let refused = CacheScope::default().with_spans(spans).expect_err("it is no scope");
            assert_eq!((refused.start, refused.tokens), bad);
        }
    }

    #[test]
    fn embeddings_are_what_a_prompt_begins_with() {
        let embeddings = |start, tokens| Span { kind: SpanKind::Embeddings, ..span(start, tokens) };
        let embedded = |spans| CacheScope::default().with_spans(spans).expect("apart").embedded();
        assert_eq!(embedded(vec![]), 0);
        assert_eq!(embedded(vec![embeddings(4, 3), embeddings(0, 4), span(7, 2), embeddings(9, 1)]), 7);
        assert_eq!(embedded(vec![span(0, 4), embeddings(4, 3)]), 0);
        assert_eq!(embedded(vec![embeddings(1, 3)]), 0);
    }

    #[test]
    fn a_span_concerns_every_range_that_it_reaches_into() {
        let scope = CacheScope::default().with_spans(vec![span(2, 3), span(6, 8)]).expect("apart");
        let offsets = |range| scope.within(range).map(|(offset, _)| offset).collect::<Vec<_>>();
        assert_eq!(offsets(0..2), [] as [i64; 0]);
        assert_eq!(offsets(0..4), [2]);
        assert_eq!(offsets(4..8), [-2, 2]);
        assert_eq!(offsets(5..6), [] as [i64; 0]);
        assert_eq!(offsets(8..12), [-2]);
        assert_eq!(offsets(14..18), [] as [i64; 0]);
        assert_eq!([0..2, 0..4, 4..8, 5..6, 5..8, 14..18].map(|range| scope.plain(range)), [2, 2, 0, 1, 1, 4]);
    }
}
