//! Where one answer stands in its grammar.

use std::collections::VecDeque;

use llguidance::Matcher;

use crate::{
    thinking::Thinking,
    words::{Left, Spoken},
};

/// No mask can be had: the answer cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    /// For a reason that the grammar itself does not know of.
    #[error("the grammar cannot go on: {0}")]
    Because(String),
    /// To compute what may follow takes more than is allowed.
    #[error("the grammar cannot go on: to compute what may follow takes too much; allowed: a simpler one")]
    TooCostly {
        /// What the library says, for the log.
        log: String,
    },
    /// Words that are ruled out leave nothing.
    #[error("of the tokens that fit, none may be used")]
    NoWord,
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
    /// What comes next, as far as it is certain. It is looked for where the last one has ended and nowhere else: in the midst of one
    /// the rest might be spelled otherwise, and the same tokens have to make the same state.
    run: VecDeque<u32>,
    run_at: Option<usize>, // so many tokens were taken when it was looked for
}

impl State {
    pub(crate) fn new(matcher: Option<Matcher>, thinking: Option<Thinking>, spoken: Option<Spoken>) -> Self {
        let text = matcher.map(Text::new);
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
                text.take(token, self.taken)?;
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

    /// What comes next, as far as the form leaves no choice: each of these tokens is the only one of its mask. Known once there is a mask.
    pub fn run(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        const NONE: &VecDeque<u32> = &VecDeque::new();
        self.text.as_ref().map_or(NONE, |text| &text.run).iter().copied()
    }

    /// Whether that run begins here.
    pub fn begins_run(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.run_at == Some(self.taken) && !text.run.is_empty())
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
            Left::Nothing => Err(Stuck::NoWord),
        }
    }
}

impl Text {
    fn new(matcher: Matcher) -> Self {
        Self { matcher, mask: Vec::new(), mask_at: None, run: VecDeque::new(), run_at: None }
    }

    fn take(&mut self, token: u32, taken: usize) -> Result<(), Stuck> {
        self.look_for_run(taken);
        if self.run.front() == Some(&token) {
            self.run.pop_front();
        } else {
            self.run.clear();
        }
        self.matcher.consume_token(token).map(drop).map_err(stuck)
    }

    fn mask(&mut self, taken: usize) -> Result<&[u32], Stuck> {
        if self.mask_at != Some(taken) {
            self.look_for_run(taken);
            self.mask.clear();
            if let Some(&token) = self.run.front() {
                self.mask.resize(token as usize / 32 + 1, 0);
                self.mask[token as usize / 32] = 1 << (token % 32);
            } else {
                let mask = self.matcher.compute_mask_or_eos().map_err(stuck)?;
                self.mask.extend_from_slice(mask.as_slice());
            }
            self.mask_at = Some(taken);
        }
        Ok(&self.mask)
    }

    fn look_for_run(&mut self, taken: usize) {
        if self.run.is_empty() && self.run_at != Some(taken) && !self.matcher.is_stopped() {
            let run = self.matcher.compute_ff_tokens();
            let valid = if run.is_empty() { 0 } else { self.matcher.validate_tokens(&run).unwrap_or(0) };
            self.run = run.into_iter().take(valid).collect();
            self.run_at = Some(taken);
        }
    }
}

fn stuck(error: impl ToString) -> Stuck {
    let text = error.to_string();
    Stuck::TooCostly { log: text.lines().next().unwrap_or_default().to_owned() }
}
