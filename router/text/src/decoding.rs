//! How the ids of one tokenizer become bytes: its decoder, worked out once per id when it is opened.
//!
//! A Hugging Face decoder is a chain of steps over the list of all tokens. Nearly all chains have this shape:
//!
//! ```text
//!   each token alone          │ bytes                            │ the whole text
//!   Replace, Metaspace,       │ ByteLevel: a char is a byte      │ Strip: so many spaces
//!   WordPiece, Strip          │ ByteFallback: `<0xE2>` is a byte │ off its beginning
//! ```
//!
//! The first two columns depend on the token and on whether it is the first one, and on nothing else: so every id has
//! its `Piece`. A chain of another shape (CTC, say) is run by its own crate over the whole list, when the text ends.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::{Decoder, Tokenizer};

/// What one token adds to a text that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub(crate) bytes: &'a [u8],
    /// Whether `bytes` may begin or end inside a character. If not, they are whole characters that also end whatever
    /// character was begun before.
    pub(crate) is_raw: bool,
}

/// The decoder of one tokenizer.
pub(crate) struct Decoding {
    shape: Shape,
    tokens: Vec<Token>, // by id
    bytes: Vec<u8>,     // of all tokens, one after the other
}

enum Shape {
    /// As drawn above: pieces follow each other.
    Pieces { chain: Chain, strip: Option<Strip> },
    /// Only the whole list of tokens has a text.
    Whole(DecoderWrapper),
}

struct Chain {
    each: Vec<DecoderWrapper>,
    kind: Kind,
    /// Between tokens: a space if the tokenizer has no decoder at all.
    separator: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    ByteLevel,
    ByteFallback,
}

/// Takes up to `count` times `content` off the beginning of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Strip {
    pub(crate) content: char,
    pub(crate) count: usize,
}

#[derive(Debug, Clone, Default)]
struct Token {
    /// Empty: no such id.
    name: Option<Box<str>>,
    is_special: bool,
    is_raw: bool,
    start: usize,
    end: usize,
}

impl Decoding {
    /// Works out the pieces of all ids below `vocab_size`.
    pub(crate) fn new(tokenizer: &Tokenizer, vocab_size: u32) -> Result<Self, String> {
        let shape = Shape::of(tokenizer.get_decoder())?;
        let added = tokenizer.get_added_vocabulary();
        let mut tokens = Vec::with_capacity(vocab_size as usize);
        let mut bytes = Vec::new();
        for id in 0..vocab_size {
            let Some(name) = tokenizer.id_to_token(id) else {
                tokens.push(Token::default());
                continue;
            };
            let start = bytes.len();
            let mut is_raw = false;
            if let Shape::Pieces { chain, .. } = &shape {
                let later = chain.later(&name)?;
                bytes.extend_from_slice(&later.bytes);
                is_raw = later.is_raw;
            }
            let is_special = added.is_special_token(&name);
            tokens.push(Token { name: Some(name.into()), is_special, is_raw, start, end: bytes.len() });
        }
        Ok(Self { shape, tokens, bytes })
    }

    /// Whether `id` exists.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.token(id).is_some()
    }

    /// Whether `id` is a control token.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.token(id).is_some_and(|token| token.is_special)
    }

    /// The piece of `id` after other tokens.
    pub(crate) fn piece(&self, id: u32) -> Option<Piece<'_>> {
        let token = self.token(id)?;
        match self.shape {
            Shape::Pieces { .. } => Some(Piece { bytes: &self.bytes[token.start..token.end], is_raw: token.is_raw }),
            Shape::Whole(_) => None,
        }
    }

    /// The piece of `id` as the first token of a text: some decoders take a space off it. Worked out anew, for once per text.
    pub(crate) fn first_piece(&self, id: u32) -> Option<(Vec<u8>, bool)> {
        let name = self.token(id)?.name.as_deref()?;
        match &self.shape {
            // Decoders answered for this token when it was opened; one that refuses it as the first has no text for it.
            Shape::Pieces { chain, .. } => chain.first(name).ok().map(|piece| (piece.bytes, piece.is_raw)),
            Shape::Whole(_) => None,
        }
    }

    /// What is taken off the beginning of the whole text.
    pub(crate) fn strip(&self) -> Option<Strip> {
        match &self.shape {
            Shape::Pieces { strip, .. } => *strip,
            Shape::Whole(_) => None,
        }
    }

    /// Whether something may stand between two tokens.
    pub(crate) fn has_separator(&self) -> bool {
        match &self.shape {
            Shape::Pieces { chain, .. } => !chain.separator.is_empty(),
            Shape::Whole(_) => true,
        }
    }

    /// Whether each character of a token's name stands for a byte.
    pub(crate) fn is_byte_level(&self) -> bool {
        matches!(&self.shape, Shape::Pieces { chain, .. } if chain.kind == Kind::ByteLevel)
    }

    /// Whether some tokens stand for one byte each (`<0xE2>`).
    pub(crate) fn is_byte_fallback(&self) -> bool {
        matches!(&self.shape, Shape::Pieces { chain, .. } if chain.kind == Kind::ByteFallback)
    }

    /// Whether tokens have pieces; if not, only `whole` gives their text.
    pub(crate) fn has_pieces(&self) -> bool {
        matches!(self.shape, Shape::Pieces { .. })
    }

    /// The text of all of `ids`, for a decoder whose tokens have no pieces.
    pub(crate) fn whole(&self, ids: &[u32]) -> String {
        let Shape::Whole(decoder) = &self.shape else {
            return String::new();
        };
        let names: Vec<String> =
            ids.iter().filter_map(|id| self.token(*id)?.name.as_deref()).map(str::to_owned).collect();
        if names.is_empty() {
            return String::new(); // some decoders look at the last token without asking whether there is one
        }
        // Such a decoder fails on a regular expression at most; then the names are the best that can be shown.
        decoder.decode(names.clone()).unwrap_or_else(|_| names.concat())
    }

    fn token(&self, id: u32) -> Option<&Token> {
        self.tokens.get(id as usize).filter(|token| token.name.is_some())
    }
}

impl Shape {
    fn of(decoder: Option<&DecoderWrapper>) -> Result<Self, String> {
        let Some(decoder) = decoder else {
            let chain = Chain { each: Vec::new(), kind: Kind::Text, separator: " " };
            return Ok(Self::Pieces { chain, strip: None });
        };
        let mut steps = Vec::new();
        flatten(decoder, &mut steps);
        if steps.iter().any(|step| matches!(step, DecoderWrapper::Strip(strip) if strip.stop > 0)) {
            return Err("a decoder with `Strip` at the end of tokens is not supported".into());
        }

        let is_each = |step: &&DecoderWrapper| {
            use DecoderWrapper::{Metaspace, Replace, Strip, WordPiece};
            matches!(step, Replace(_) | Metaspace(_) | WordPiece(_) | Strip(_))
        };
        let each: Vec<_> = steps.iter().take_while(is_each).cloned().collect();
        let mut rest = steps[each.len()..].iter().peekable();
        let kind =
            match rest.next_if(|step| matches!(step, DecoderWrapper::ByteLevel(_) | DecoderWrapper::ByteFallback(_))) {
                Some(DecoderWrapper::ByteLevel(_)) => Kind::ByteLevel,
                Some(_) => Kind::ByteFallback,
                None => Kind::Text,
            };
        // ByteLevel makes one text of all tokens, as Fuse does.
        let is_fused =
            rest.next_if(|step| matches!(step, DecoderWrapper::Fuse(_))).is_some() || kind == Kind::ByteLevel;
        let strip = match rest.next_if(|step| is_fused && matches!(step, DecoderWrapper::Strip(_))) {
            Some(DecoderWrapper::Strip(strip)) => Some(Strip { content: strip.content, count: strip.start }),
            _ => None,
        };
        Ok(match rest.next() {
            None => Self::Pieces { chain: Chain { each, kind, separator: "" }, strip },
            Some(_) => Self::Whole(decoder.clone()),
        })
    }
}

fn flatten(decoder: &DecoderWrapper, steps: &mut Vec<DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().for_each(|step| flatten(step, steps)),
        step => steps.push(step.clone()),
    }
}

struct OwnedPiece {
    bytes: Vec<u8>,
    is_raw: bool,
}

impl Chain {
    fn first(&self, name: &str) -> Result<OwnedPiece, String> {
        let tokens = self.run(vec![name.to_owned()])?;
        Ok(self.bytes(tokens.concat()))
    }

    /// An empty token before it makes this one a later one, and has no text of its own.
    fn later(&self, name: &str) -> Result<OwnedPiece, String> {
        let mut tokens = self.run(vec![String::new(), name.to_owned()])?;
        let text = tokens.pop().unwrap_or_default();
        Ok(self.bytes(format!("{}{text}", self.separator)))
    }

    fn run(&self, mut tokens: Vec<String>) -> Result<Vec<String>, String> {
        for step in &self.each {
            tokens = step.decode_chain(tokens).map_err(|error| error.to_string())?;
        }
        Ok(tokens)
    }

    fn bytes(&self, text: String) -> OwnedPiece {
        match self.kind {
            Kind::Text => OwnedPiece { bytes: text.into_bytes(), is_raw: false },
            Kind::ByteLevel => {
                // A token with any other character (an added one, mostly) stands for itself.
                let bytes: Option<Vec<u8>> = text.chars().map(byte_of_char).collect();
                OwnedPiece { bytes: bytes.unwrap_or(text.into_bytes()), is_raw: true }
            }
            Kind::ByteFallback => match byte_of_name(&text) {
                Some(byte) => OwnedPiece { bytes: vec![byte], is_raw: true },
                None => OwnedPiece { bytes: text.into_bytes(), is_raw: false },
            },
        }
    }
}

/// The byte that a character of a byte-level vocabulary stands for: printable Latin-1 for itself, the other 68 bytes
/// in order from U+0100.
pub(crate) fn byte_of_char(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(), // 0x00..=0x20
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(), // 0x7F..=0xA0
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// `<0xE2>` is the byte E2.
fn byte_of_name(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_character() {
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let mut bytes: Vec<u8> = alphabet.into_iter().map(|c| byte_of_char(c).expect("in the alphabet")).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        for (c, byte) in [('Ġ', b' '), ('Ċ', b'\n'), ('ĉ', b'\t'), ('a', b'a'), ('Ń', 0xAD), ('ł', 0xA0)] {
            assert_eq!(byte_of_char(c), Some(byte));
        }
        assert_eq!(byte_of_char(' '), None);
        assert_eq!(byte_of_char('▁'), None);
    }

    #[test]
    fn a_byte_token_is_spelled_exactly() {
        for (name, byte) in
            [("<0xE2>", Some(0xE2)), ("<0x0a>", Some(10)), ("<0x123>", None), ("<0xé>", None), ("0xE2", None)]
        {
            assert_eq!(byte_of_name(name), byte, "{name}");
        }
    }
}
