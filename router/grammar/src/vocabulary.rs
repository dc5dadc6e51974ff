//! A tokenizer's vocabulary as grammars see it: a tree of the bytes of all tokens. Made once; 150,000 tokens take about a second.

use std::sync::Arc;

use llguidance::{
    ParserFactory,
    api::ParserLimits,
    toktrie::{ApproximateTokEnv, InferenceCapabilities, TokRxInfo, TokTrie},
};

use crate::GrammarError;

/// What is known of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenText<'a> {
    /// It adds these bytes to the text.
    Bytes(&'a [u8]),
    /// A control token: only a grammar that names it allows it.
    Special(&'a str),
    /// No grammar allows it.
    Nothing,
}

/// See the top of the file.
pub struct Vocabulary {
    pub(crate) factory: ParserFactory,
    pub(crate) specials: Vec<(String, u32)>, // control tokens by their names
}

/// Bounds of one grammar: compiling takes at most some 100 ms and a mask at most some 20 ms, whatever a client sends; a state
/// takes at most some 30 MB.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000, // 50,000 a millisecond
        step_lexer_fuel: 200_000,      // 14,000 a millisecond
        step_max_items: 50_000,        // 20,000 a millisecond
        max_lexer_states: 16_384,      // 1 to 2 kB each
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

impl Vocabulary {
    /// Of all tokens in the order of their ids. `ends`: those that end a text; at least one.
    pub fn new<'a>(tokens: impl Iterator<Item = TokenText<'a>>, ends: &[u32]) -> Result<Self, GrammarError> {
        let mut specials = Vec::new();
        let words: Vec<Vec<u8>> = tokens
            .zip(0..)
            .inspect(|&(token, id)| match token {
                TokenText::Special(name) if !name.is_empty() => specials.push((name.to_owned(), id)),
                _ => {}
            })
            .map(|(token, _)| match token {
                // A byte of 0xFF stands in no text: it marks control tokens.
                TokenText::Bytes(bytes) if !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) || bytes.len() == 1 => {
                    bytes.to_vec()
                }
                TokenText::Special(name) => [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat(),
                TokenText::Bytes(_) | TokenText::Nothing => Vec::new(),
            })
            .collect();
        let count = u32::try_from(words.len()).expect("token ids are of 32 bits");
        let ends: Vec<u32> = ends.iter().copied().filter(|&end| end < count).collect();
        let Some(&first) = ends.first() else {
            return Err(GrammarError::new("the model has no token that ends a text, so that no grammar could end"));
        };
        let tree = TokTrie::from(&TokRxInfo::new(count, first), &words).with_eos_tokens(&ends);
        let env: llguidance::toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(tree));
        let mut factory = ParserFactory::new(
            &env,
            InferenceCapabilities { ff_tokens: false, backtrack: false, ..InferenceCapabilities::default() },
            &llguidance::earley::SlicedBiasComputer::general_slices(),
        )
        .map_err(|error| GrammarError::new(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory, specials })
    }
}
