//! A tokenizer's vocabulary as grammars see it: a tree of the bytes of all tokens. Made once; 150,000 tokens take about a second.
//!
//! Where a grammar leaves one text only, tokens could still spell it in many ways. Whoever knows how the tokenizer spells a text has such
//! texts drawn as it does, and then each of their tokens is certain ([`crate::State::run`]).

use std::sync::{Arc, OnceLock};

use llguidance::{
    ParserFactory,
    api::ParserLimits,
    toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv},
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

/// The tokens by which a tokenizer spells a text that stands within another one. `None`: it cannot tell; control tokens do not count.
pub type Spell = Box<dyn Fn(&str) -> Option<Vec<u32>> + Send + Sync>;

/// By which tokens a text without a choice is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// By the tokenizer's own, where that is known.
    Usual,
    /// By any: some tokens may not be used.
    Any,
}

/// See the top of the file.
pub struct Vocabulary {
    usual: ParserFactory,
    /// Made when it is needed, if it is another one.
    any: OnceLock<ParserFactory>,
    tree: Option<TokTrie>,                   // none: `usual` takes any spelling
    pub(crate) ends: Vec<u32>,               // tokens that end a text
    pub(crate) specials: Vec<(String, u32)>, // control tokens by their names
}

/// Tokens as they are spelled.
struct Spelled {
    tree: TokTrie,
    spell: Spell,
}

impl TokenizerEnv for Spelled {
    fn tok_trie(&self) -> &TokTrie {
        &self.tree
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let spell = |text: &str| (self.spell)(text).unwrap_or_else(|| self.tree.greedy_tokenize(text.as_bytes()));
        self.tree.tokenize_with_greedy_fallback(bytes, spell)
    }
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
    /// Of all tokens in the order of their ids. `ends`: those that end a text; at least one. Any spelling will do.
    pub fn new<'a>(tokens: impl Iterator<Item = TokenText<'a>>, ends: &[u32]) -> Result<Self, GrammarError> {
        Self::make(tokens, ends, None)
    }

    /// The same, and texts without a choice are spelled so.
    pub fn spelled<'a>(
        tokens: impl Iterator<Item = TokenText<'a>>,
        ends: &[u32],
        spell: Spell,
    ) -> Result<Self, GrammarError> {
        Self::make(tokens, ends, Some(spell))
    }

    fn make<'a>(
        tokens: impl Iterator<Item = TokenText<'a>>,
        ends: &[u32],
        spell: Option<Spell>,
    ) -> Result<Self, GrammarError> {
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
        let (env, tree): (TokEnv, _) = match spell {
            None => (Arc::new(ApproximateTokEnv::new(tree)), None),
            Some(spell) => (Arc::new(Spelled { tree: tree.clone(), spell }), Some(tree)),
        };
        Ok(Self { usual: factory(&env)?, any: OnceLock::new(), tree, ends, specials })
    }

    pub(crate) fn factory(&self, spelling: Spelling) -> Result<&ParserFactory, GrammarError> {
        let (Spelling::Any, Some(tree)) = (spelling, &self.tree) else { return Ok(&self.usual) };
        if self.any.get().is_none() {
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(tree.clone()));
            let _ = self.any.set(factory(&env)?); // somebody else may have been faster
        }
        Ok(self.any.get().expect("set above"))
    }
}

fn factory(env: &TokEnv) -> Result<ParserFactory, GrammarError> {
    let slices = llguidance::earley::SlicedBiasComputer::general_slices();
    let capabilities = InferenceCapabilities { ff_tokens: false, backtrack: false, ..InferenceCapabilities::default() };
    let mut factory =
        ParserFactory::new(env, capabilities, &slices).map_err(|error| GrammarError::new(error.to_string()))?;
    factory.quiet();
    *factory.limits_mut() = limits();
    Ok(factory)
}
