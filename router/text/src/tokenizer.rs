//! Text to token ids, and what is known of each id: its bytes, and whether it is special.
//!
//! The way in is ours (`fast`) where every step of it is known, which is many times as fast, and the `tokenizers` crate's
//! elsewhere; the tokens are the same. The way back is ours (`decoding`), because a stream must never show half a character
//! and must cost the same for the thousandth token as for the first.

use std::path::Path;
use std::sync::Arc;

use tokenizers::{Encoding, PostProcessor as _};

use crate::decoding::Decoding;
use crate::detokenizer::Detokenizer;
use crate::fast::Fast;

/// Why a tokenizer could not be opened or a text could not be tokenised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The checkpoint's tokenizer cannot be used; the operator has to look at it.
    #[error("{file}: {reason}")]
    Tokenizer {
        /// Which file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer refused this text; the client's, since the tokenizer was checked when opened.
    #[error("the text cannot be tokenised: the model's vocabulary has no token for a part of it")]
    Encode,
}

/// A checkpoint's tokenizer. Cheap to clone: clones share everything.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    model: tokenizers::Tokenizer,
    fast: Option<Fast>,
    decoding: Decoding,
    vocab_size: u32,
}

impl Tokenizer {
    /// Reads `tokenizer.json` in `dir`.
    pub fn open(dir: &Path) -> Result<Self, TextError> {
        let path = dir.join("tokenizer.json");
        let fault = |reason: String| TextError::Tokenizer { file: path.display().to_string(), reason };
        let bytes = std::fs::read(&path).map_err(|error| fault(error.to_string()))?;
        Self::from_json(&bytes).map_err(|error| match error {
            TextError::Tokenizer { reason, .. } => fault(reason),
            other => other,
        })
    }

    /// From the text of a `tokenizer.json`.
    pub fn from_json(json: &[u8]) -> Result<Self, TextError> {
        let fault = |reason: String| TextError::Tokenizer { file: "tokenizer.json".into(), reason };
        let mut model = tokenizers::Tokenizer::from_bytes(json).map_err(|error| fault(error.to_string()))?;
        // A file may carry the settings of the last training run; a server neither cuts nor pads what it was sent.
        model.with_truncation(None).map_err(|error| fault(error.to_string()))?;
        model.with_padding(None);

        let ids = model.get_vocab(true).into_values().max().map_or(0, |last| u64::from(last) + 1);
        let vocab_size = u32::try_from(ids).map_err(|_| fault("token ids must be below 2^32 - 1".into()))?;
        let decoding = Decoding::new(&model, vocab_size).map_err(fault)?;
        let fast = Fast::of(json, &model);
        Ok(Self { inner: Arc::new(Inner { model, fast, decoding, vocab_size }) })
    }

    /// The tokens of `text`. `add_special` puts the tokens around it that the model expects (such as BOS);
    /// a rendered chat template has its own, so it is encoded without.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        if let Some(fast) = &self.inner.fast {
            return Ok(fast.encode(text, add_special));
        }
        let encoding = self.inner.model.encode_fast(text, add_special);
        Ok(encoding.map_err(|_| TextError::Encode)?.get_ids().to_vec())
    }

    /// The tokens of one text, or of two as the model expects a pair, within bounds. What does not fit is cut off at the end;
    /// of a pair the longer text loses first. The tokens that the model expects around texts count and stay.
    pub fn encode_within(
        &self,
        texts: Texts<'_>,
        add_special: bool,
        bounds: TokenBounds,
    ) -> Result<Vec<u32>, TextError> {
        let fault = |_: tokenizers::Error| TextError::Encode;
        let model = &self.inner.model;
        let (mut first, mut second) = match texts {
            Texts::One(text) => (self.alone(text)?, None),
            Texts::Pair(first, second) => (self.alone(first)?, Some(self.alone(second)?)),
        };
        if let Some(most) = bounds.last_text {
            let last = second.as_mut().unwrap_or(&mut first);
            cut(last, most);
        }
        if let Some(most) = bounds.all {
            let around = model.get_post_processor().filter(|_| add_special);
            let around = around.map_or(0, |processor| processor.added_tokens(second.is_some()));
            let kept = shares(first.len(), second.as_ref().map_or(0, Encoding::len), most.saturating_sub(around));
            cut(&mut first, kept.0);
            if let Some(second) = &mut second {
                cut(second, kept.1);
            }
        }
        Ok(model.post_process(first, second, add_special).map_err(fault)?.get_ids().to_vec())
    }

    fn alone(&self, text: &str) -> Result<Encoding, TextError> {
        if let Some(fast) = &self.inner.fast {
            return Ok(fast.encoding(text));
        }
        self.inner.model.encode_fast(text, false).map_err(|_| TextError::Encode)
    }

    /// Texts of fewer bytes are tokenised by whoever has them: it takes less time than a hand-over to another thread may on a
    /// busy machine, and no more than an event loop can spare. 16 KiB at 60 MB/s take 0.3 ms (2 ms at the 8 MB/s of one
    /// endless word); 4 KiB take 4 ms at the 1 MB/s that libraries do at least.
    pub fn inline_bytes(&self) -> usize {
        if self.inner.fast.is_some() { 16 << 10 } else { 4 << 10 }
    }

    /// The text of `ids`: what a `Detokenizer` shows of them, at once. Ids that do not exist are passed over.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut detokenizer = Detokenizer::new(self.clone(), skip_special);
        let mut text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    /// Whether a part of a text is tokenised as it would be within the whole, but for where it is cut: nothing is put before it.
    pub fn spells_parts(&self) -> bool {
        self.inner.decoding.is_byte_level()
    }

    /// The tokens of a part of a text, none of which is a control token. `None`: it has no such tokens, or they are another text's.
    pub fn spell(&self, part: &str) -> Option<Vec<u32>> {
        let ids = self.encode(part, false).ok()?;
        let mut rest = part.as_bytes();
        for &id in &ids {
            rest = rest.strip_prefix(self.token_bytes(id).filter(|_| !self.is_special(id))?)?;
        }
        rest.is_empty().then_some(ids)
    }

    /// Ids are below this. There may be holes.
    pub fn vocab_size(&self) -> u32 {
        self.inner.vocab_size
    }

    /// The exact bytes that `id` adds to a text that has begun; perhaps part of a character.
    /// `None`: no such token, or a decoder under which a token alone has no bytes (CTC and its like).
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.inner.decoding.piece(id).map(|piece| piece.bytes)
    }

    /// Whether something stands between two tokens that neither of them says.
    pub fn separates_tokens(&self) -> bool {
        self.inner.decoding.has_separator()
    }

    /// Whether `id` is a control token, left out of text by `skip_special`.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.decoding.is_special(id)
    }

    /// The id of a token by its name in the vocabulary, added tokens included.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.model.token_to_id(token)
    }

    /// The name of a token in the vocabulary; for a byte-level vocabulary that is not its text.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.model.id_to_token(id)
    }

    pub(crate) fn decoding(&self) -> &Decoding {
        &self.inner.decoding
    }
}

/// What is tokenised together.
#[derive(Debug, Clone, Copy)]
pub enum Texts<'a> {
    /// A text.
    One(&'a str),
    /// A text and what it is compared with.
    Pair(&'a str, &'a str),
}

/// How many tokens there may be; `None`: any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenBounds {
    /// Of the only text, or of the second one of a pair.
    pub last_text: Option<usize>,
    /// In all.
    pub all: Option<usize>,
}

/// Leaves the first tokens. The crate's own `truncate` keeps what it cuts as well, in as many pieces as there are, and pairs each of them
/// with each of another text's.
fn cut(encoding: &mut Encoding, most: usize) {
    if most < encoding.len() {
        *encoding = Encoding::new(
            encoding.get_ids()[..most].to_vec(),
            encoding.get_type_ids()[..most].to_vec(),
            encoding.get_tokens()[..most].to_vec(),
            encoding.get_word_ids()[..most].to_vec(),
            encoding.get_offsets()[..most].to_vec(),
            encoding.get_special_tokens_mask()[..most].to_vec(),
            encoding.get_attention_mask()[..most].to_vec(),
            Vec::new(),
            Default::default(),
        );
    }
}

/// How many tokens of two texts stay, at most `most` in all: the longer one loses first, then both alike, as with the crate's `LongestFirst`.
fn shares(first: usize, second: usize, most: usize) -> (usize, usize) {
    let half = most / 2;
    match (first + second <= most, first <= second) {
        (true, _) => (first, second),
        (false, true) => {
            let kept = first.min(half);
            (kept, most - kept)
        }
        (false, false) => {
            let kept = second.min(half);
            (most - kept, kept)
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.inner.vocab_size).finish_non_exhaustive()
    }
}
