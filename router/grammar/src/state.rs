//! Where one answer stands in its grammar.

use llguidance::Matcher;

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

/// See the top of the file. The same tokens make the same state.
pub struct State {
    matcher: Matcher,
    taken: usize,
    mask: Vec<u32>,
    mask_at: Option<usize>, // so many tokens were taken when `mask` was made
}

impl State {
    pub(crate) fn new(matcher: Matcher) -> Self {
        Self { matcher, taken: 0, mask: Vec::new(), mask_at: None }
    }

    /// How many tokens it has taken.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Takes tokens that were drawn within masks of this state.
    pub fn take(&mut self, tokens: &[u32]) -> Result<(), Stuck> {
        for &token in tokens {
            self.matcher.consume_token(token).map_err(stuck)?;
            self.taken += 1;
        }
        Ok(())
    }

    /// What may come next: a bit per token, lowest first. Once the text is complete, what ends it.
    pub fn mask(&mut self) -> Result<&[u32], Stuck> {
        if self.mask_at != Some(self.taken) {
            let mask = self.matcher.compute_mask_or_eos().map_err(stuck)?;
            self.mask.clear();
            self.mask.extend_from_slice(mask.as_slice());
            self.mask_at = Some(self.taken);
        }
        Ok(&self.mask)
    }
}

fn stuck(error: impl ToString) -> Stuck {
    let text = error.to_string();
    Stuck(text.lines().next().unwrap_or_default().to_owned())
}
