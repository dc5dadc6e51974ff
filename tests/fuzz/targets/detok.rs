//! Whatever tokens come, in tokenizers of every style: a stream shows what decoding the whole shows, up to the first stop string
//! that completes, and nothing of that.
//!
//! Input: a byte for the tokenizer, one for how, one for how many stop strings; each with a byte for its length before it; then the
//! ids, two bytes each.
#![no_main]

#[path = "../../../router/text/tests/tokens/styles.rs"]
#[expect(dead_code, reason = "the tests of the tokenizers need more of it")]
mod styles;

use std::cmp::Reverse;

use libfuzzer_sys::fuzz_target;
use pelton_text::{Detokenizer, StopMatcher};

/// What stop strings leave of a text, by definition: the first end of one, and the longest that ends there.
fn stopped(stops: &[String], text: &str, include: bool) -> (String, Option<usize>) {
    for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
        let ends_here = |stop: &str| !stop.is_empty() && text[..end].ends_with(stop);
        let found = stops.iter().enumerate().filter(|(_, stop)| ends_here(stop));
        if let Some((index, stop)) = found.max_by_key(|(index, stop)| (stop.len(), Reverse(*index))) {
            return (text[..if include { end } else { end - stop.len() }].to_owned(), Some(index));
        }
    }
    (text.to_owned(), None)
}

fuzz_target!(|input: &[u8]| {
    let [which, how, count, rest @ ..] = input else { return };
    let mut rest = rest;
    let mut stops = Vec::new();
    for _ in 0..count % 5 {
        let Some((&length, after)) = rest.split_first() else { break };
        let (stop, after) = after.split_at(usize::from(length % 32).min(after.len()));
        stops.push(String::from_utf8_lossy(stop).into_owned());
        rest = after;
    }
    let style = &styles::all()[usize::from(*which) % styles::all().len()];
    let size = style.tokenizer.vocab_size() + 2; // two that do not exist
    // No more: an oracle that knows no automata takes the square of them.
    let ids: Vec<u32> =
        rest.chunks_exact(2).take(2_000).map(|pair| u32::from(u16::from_le_bytes([pair[0], pair[1]])) % size).collect();
    let (skip_special, include) = (how & 1 == 1, how & 2 == 2);

    let mut detokenizer = Detokenizer::new(style.tokenizer.clone(), skip_special);
    let mut matcher = StopMatcher::new(stops.clone(), include);
    let (mut text, mut shown, mut hit) = (String::new(), String::new(), None);
    for piece in
        ids.iter().map(|&id| detokenizer.push(id)).collect::<Vec<_>>().into_iter().chain([detokenizer.finish()])
    {
        let step = matcher.push(&piece);
        assert!(hit.is_none() || (step.text.is_empty() && step.hit == hit), "nothing comes after a stop string");
        text.push_str(&piece);
        shown.push_str(&step.text);
        hit = step.hit;
    }
    shown.push_str(&matcher.finish());
    assert_eq!(detokenizer.finish(), "", "nothing is left");

    assert_eq!(text, style.tokenizer.decode(&ids, skip_special));
    // The decoder of BPE with suffixes panics on no tokens.
    if !style.is_byte_fallback && !text.is_empty() {
        assert_eq!(style.reference.decode(&ids, skip_special).ok(), Some(text.clone()), "{}", style.name);
    }
    assert_eq!((shown, hit), stopped(&stops, &text, include), "{stops:?} in {text:?}");
});
