//! Where one answer stands in its grammar.

use llguidance::Matcher;

use crate::{
    thinking::Thinking,
    words::{Left, Spoken},
};

/// No mask can be had: the answer cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the grammar cannot go on: {0}")]
pub struct Stuck(String);

impl Stuck {
    /// For a reason that the grammar itself does not know of.
    pub fn because(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// What may come next.
#[derive(Debug, PartialEq, Eq)]
pub enum Mask<'a> {
    /// Any token.
    Any,
    /// Any token but these.
    AllBut(Vec<u32>),
    /// This token alone.
    Only(u32),
    /// A bit per token, lowest first.
    Of(&'a [u32]),
}

impl Mask<'_> {
    /// Whether a token may come next.
    pub fn allows(&self, token: u32) -> bool {
        match self {
            Self::Any => true,
            Self::AllBut(tokens) => !tokens.contains(&token),
            Self::Only(only) => *only == token,
            Self::Of(words) => words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1),
        }
    }
}

/// See the top of the file. The same tokens make the same state.
pub struct State {
    text: Option<Text>, // none: it is free
    thinking: Option<Thinking>,
    spoken: Option<Spoken>, // none: any words
    taken: usize,
}

/// The state of a form, and the latest mask.
struct Text {
    matcher: Matcher,
    mask: Vec<u32>,
    mask_at: Option<usize>, // so many tokens were taken when `mask` was made
}

impl State {
    pub(crate) fn new(matcher: Option<Matcher>, thinking: Option<Thinking>, spoken: Option<Spoken>) -> Self {
        let text = matcher.map(|matcher| Text { matcher, mask: Vec::new(), mask_at: None });
        Self { text, thinking, spoken, taken: 0 }
    }

    /// How many tokens it has taken.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Takes tokens that were drawn within masks of this state.
    pub fn take(&mut self, tokens: &[u32]) -> Result<(), Stuck> {
        for &token in tokens {
            if let Some(text) = &mut self.text {
                text.matcher.consume_token(token).map_err(stuck)?;
            }
            if let Some(thinking) = &mut self.thinking {
                thinking.take(token);
            }
            if let Some(spoken) = &mut self.spoken {
                spoken.take(token);
            }
            self.taken += 1;
        }
        Ok(())
    }

    /// What may come next. Once a text that has a form is complete, what ends it. A mark that ends thoughts is no word.
    pub fn mask(&mut self) -> Result<Mask<'_>, Stuck> {
        let form = self.text.as_mut().map(|text| text.mask(self.taken)).transpose()?;
        let forced = self.thinking.as_ref().and_then(Thinking::forced);
        // The form may need more first: the rest of a character.
        let fits = |token: &u32| form.is_none_or(|form| Mask::Of(form).allows(*token));
        if let Some(token) = forced.filter(fits) {
            return Ok(Mask::Only(token));
        }
        let Some(spoken) = &mut self.spoken else { return Ok(form.map_or(Mask::Any, Mask::Of)) };
        match spoken.within(form) {
            Left::AllBut(tokens) if tokens.is_empty() => Ok(Mask::Any),
            Left::AllBut(tokens) => Ok(Mask::AllBut(tokens)),
            Left::Of(mask) => Ok(Mask::Of(mask)),
            Left::Nothing => Err(Stuck::because("of the tokens that fit, none may be used")),
        }
    }
}

impl Text {
    fn mask(&mut self, taken: usize) -> Result<&[u32], Stuck> {
        if self.mask_at != Some(taken) {
            let mask = self.matcher.compute_mask_or_eos().map_err(stuck)?;
            self.mask.clear();
            self.mask.extend_from_slice(mask.as_slice());
            self.mask_at = Some(taken);
        }
        Ok(&self.mask)
    }
}

fn stuck(error: impl ToString) -> Stuck {
    let text = error.to_string();
    Stuck(text.lines().next().unwrap_or_default().to_owned())
}
