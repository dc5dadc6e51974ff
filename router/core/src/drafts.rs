//! Drafts: tokens that a request will probably draw next, since its text has come by here before (prompt look-up). The
//! model's own draw decides: a draft counts if it is equal to it, so the tokens are those without drafts.
//!
//! The life of a request's drafts:
//!   1. Each commit takes in what is known by then: of all runs of [`RUN`] tokens, where each has stood last. If the latest
//!      run has stood somewhere before, what followed it there is a guess at what follows here.
//!   2. If drafts are worth it, the request is held back: nothing is planned behind its row in flight.
//!   3. That row has committed: the next one has drafts behind its last known token, and draws after each of them. Nothing
//!      is planned behind it either, until it is known which of them count.
//!   4. Every guess is compared with what was drawn then, whether drafts were made of it or not. So a request whose guesses
//!      fail goes back to plain steps, and has drafts again as soon as they would have counted.
//!
//! Integers only, so that recorded inputs give the same plans. Never here: steps, blocks, whose tokens they are.

use serde::{Deserialize, Serialize};

use crate::TokenId;

/// So many tokens have to have stood together before. Fewer match by accident.
const RUN: usize = 3;
/// A commit takes in so many tokens at most, some 20 us: a prompt found in the cache comes at once.
const TAKEN_IN_MAX: usize = 4_096;
/// Chances are in parts of this.
const SURE: u64 = 1 << 16;
/// What the chance of a draft is taken to be at first: enough for a request that is alone, and too little in company.
const CHANCE_AT_FIRST: u64 = SURE / 2;
/// A guess's part in the chance falls to 1/e within 2^3 of them.
const MEMORY_BITS: u32 = 3;
/// Drafts that promise fewer tokens per row than this (in parts of `SURE`) are not worth waiting for the row before.
const WORTH_ALONE: u64 = SURE / 4;
/// The same beside others: then a request that is held back misses a step, and so a token.
const WORTH_IN_COMPANY: u64 = SURE;

/// A price that was learned while the machine was disturbed would never be learned anew without drafts: so at places of this distance a
/// request that is alone tries one that is likely to count, whatever it costs.
const TRIAL_EVERY: u32 = 32;
/// How likely.
const TRIAL_CHANCE: u64 = SURE / 4 * 3;

/// What a step costs, as far as it matters to how deep drafts go. In microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bargain {
    /// What a token costs now: the time of a step without drafts, by the tokens that it draws.
    pub(crate) token_us: u64,
    /// By how much a draft lengthens the step.
    pub(crate) draft_us: u64,
    /// Whether others draw beside the request.
    pub(crate) in_company: bool,
}

/// What a live request remembers of its own text. See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Drafter {
    /// By a number made of a run of tokens: behind which place it has stood last, 0 if nowhere. Runs that share a number
    /// push each other out. 8 to 16 bytes per token.
    places: Vec<u32>,
    taken_in: usize, // runs that end at or before this place are in `places`
    guess: Option<Guess>,
    chance: u64, // of a draft to count, if those before it did
}

/// What stands at `at` and behind it is guessed to be what stands at `like`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Guess {
    at: u32,
    like: u32,
}

impl Drafter {
    pub(crate) fn new() -> Self {
        Self { places: Vec::new(), taken_in: RUN - 1, guess: None, chance: CHANCE_AT_FIRST }
    }

    /// Takes in what is known by now, and looks for its latest run. O(1) per new token, with at most `TAKEN_IN_MAX` of them.
    pub(crate) fn take_in(&mut self, tokens: &[TokenId]) {
        if let Some(guess) = self.guess.take() {
            self.learn(guess, tokens);
        }
        self.widen(tokens);
        // The latest run of all stays out: it must not find itself.
        let end = tokens.len().saturating_sub(1).min(self.taken_in + TAKEN_IN_MAX);
        for behind in self.taken_in + 1..=end {
            let place = self.place(&tokens[behind - RUN..behind]);
            self.places[place] = u32::try_from(behind).expect("tokens are counted by u32");
        }
        self.taken_in = self.taken_in.max(end);
        if tokens.len() <= RUN || self.taken_in + 1 < tokens.len() {
            return; // the rest comes with the next commits
        }
        let run = &tokens[tokens.len() - RUN..];
        let behind = self.places[self.place(run)];
        if behind > 0 && &tokens[behind as usize - RUN..behind as usize] == run {
            let at = u32::try_from(tokens.len()).expect("tokens are counted by u32");
            self.guess = Some(Guess { at, like: behind });
        }
    }

    /// Compares a guess with what has come, up to the first token that differs.
    fn learn(&mut self, guess: Guess, tokens: &[TokenId]) {
        let (at, like) = (guess.at as usize, guess.like as usize);
        for (drawn, guessed) in tokens[at..].iter().zip(&tokens[like..]) {
            let is_right = drawn == guessed;
            let outcome = if is_right { SURE } else { 0 };
            self.chance = self.chance - (self.chance >> MEMORY_BITS) + (outcome >> MEMORY_BITS);
            if !is_right {
                break;
            }
        }
    }

    /// How many drafts, at most `most`, are worth it now. 0: none, be it that there is no guess.
    pub(crate) fn depth(&self, most: u32, bargain: &Bargain) -> u32 {
        let Some(guess) = self.guess else { return 0 };
        // Two places in a row: at the first the request is held back, behind the second it has the draft.
        let is_trial = !bargain.in_company && guess.at % TRIAL_EVERY < 2 && self.chance >= TRIAL_CHANCE;
        let (mut depth, mut all_count, mut expected) = (0, SURE, 0);
        while depth < most {
            all_count = all_count * self.chance / SURE;
            let gain = u128::from(all_count) * u128::from(bargain.token_us);
            let is_tried = is_trial && depth == 0;
            if gain < u128::from(SURE) * u128::from(bargain.draft_us) && !is_tried {
                break;
            }
            depth += 1;
            expected += all_count;
        }
        let worth = if bargain.in_company { WORTH_IN_COMPANY } else { WORTH_ALONE };
        if expected >= worth { depth } else { 0 }
    }

    /// The tokens that the guess says come next. Where it reaches the end of the text, the text repeats itself from there.
    pub(crate) fn drafts(&self, tokens: &[TokenId], count: u32, drafts: &mut Vec<TokenId>) {
        let begin = self.guess.expect("depth() saw a guess").like as usize;
        let period = tokens.len() - begin; // at least 1: the latest run stays out
        drafts.extend((0..count as usize).map(|at| tokens[begin + at % period]));
    }

    /// Sees to it that there is room for twice the runs of a text. Those that were taken in stay in: each is put in at most
    /// once per doubling.
    fn widen(&mut self, tokens: &[TokenId]) {
        if self.places.len() >= 2 * tokens.len() {
            return;
        }
        let before = std::mem::take(&mut self.places);
        self.places = vec![0; (4 * tokens.len()).next_power_of_two() / 2];
        for &behind in before.iter().filter(|&&behind| behind > 0) {
            let place = self.place(&tokens[behind as usize - RUN..behind as usize]);
            self.places[place] = self.places[place].max(behind);
        }
    }

    fn place(&self, run: &[TokenId]) -> usize {
        let mixed = run.iter().fold(0, |mixed: u64, &token| {
            (mixed ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        usize::try_from(mixed % self.places.len() as u64).expect("below a length")
    }

    /// Asserts that it tells what stands in the text.
    pub(crate) fn check(&self, tokens: &[TokenId]) {
        assert!(self.places.iter().all(|&behind| (behind as usize) < tokens.len().max(1)), "it knows no later run");
        if let Some(Guess { at, like }) = self.guess {
            let [at, like] = [at, like].map(|place| place as usize);
            assert!(like < at && at == tokens.len());
            assert_eq!(tokens[like - RUN..like], tokens[at - RUN..at], "the same run");
        }
    }
}

/// How many of these drafts count, by what was drawn in their places: those before the first that differs.
pub fn accepted(drafts: &[TokenId], drawn: impl IntoIterator<Item = TokenId>) -> usize {
    drafts.iter().zip(drawn).take_while(|(draft, drawn)| **draft == *drawn).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Bargain = Bargain { token_us: 0, draft_us: 0, in_company: false };

    fn drafts(text: &[TokenId], most: u32) -> Vec<TokenId> {
        let mut drafter = Drafter::new();
        drafter.take_in(text);
        drafter.check(text);
        let mut drafts = Vec::new();
        match drafter.depth(most, &FREE) {
            0 => {}
            depth => drafter.drafts(text, depth, &mut drafts),
        }
        drafts
    }

    #[test]
    fn what_followed_the_latest_run_before_is_drafted() {
        for (text, most, expected) in [
            (&[1, 2, 3, 4, 5, 6, 1, 2, 3][..], 3, &[4, 5, 6][..]),
            (&[1, 2, 3, 4, 5, 6, 1, 2, 3], 2, &[4, 5]),
            (&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 2, &[5, 1]), // where it stood last
            (&[7, 7, 7, 7], 4, &[7, 7, 7, 7]),                // beyond the end: on and on
            (&[8, 9, 1, 8, 9, 1, 8], 4, &[9, 1, 8, 9]),
            (&[1, 2, 3, 4, 9, 2, 3], 4, &[]), // two alike are too few
            (&[1, 2, 3], 4, &[]),
            (&[1], 4, &[]),
        ] {
            assert_eq!(drafts(text, most), expected, "behind {text:?}");
        }
    }

    #[test]
    fn what_is_too_dear_is_tried_at_a_few_places_where_it_is_likely_and_nobody_else_draws() {
        let dear = Bargain { token_us: 100, draft_us: 1_000, in_company: false };
        let text: Vec<TokenId> = (0..200).map(|at| at % 7).collect();
        let (mut sure, mut unsure) = (Drafter::new(), Drafter::new());
        let mut tried = Vec::new();
        for end in 1..=text.len() {
            sure.take_in(&text[..end]);
            unsure.take_in(&text[..end]);
            unsure.chance = TRIAL_CHANCE - 1;
            assert_eq!(sure.depth(8, &Bargain { in_company: true, ..dear }), 0);
            assert_eq!(unsure.depth(8, &dear), 0);
            assert_eq!(sure.depth(0, &dear), 0);
            tried.extend((sure.depth(8, &dear) == 1).then_some(end));
            assert!(sure.depth(8, &dear) <= 1);
        }
        assert_eq!(tried, [32, 33, 64, 65, 96, 97, 128, 129, 160, 161, 192, 193]);
    }

    #[test]
    fn a_text_that_grows_token_by_token_is_remembered_in_bounded_memory() {
        let mut seed = 1_u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % 6
        };
        let text: Vec<TokenId> = (0..3_000).map(|_| random()).collect();
        let mut growing = Drafter::new();
        let mut guesses = 0;
        for end in 1..=text.len() {
            growing.take_in(&text[..end]);
            growing.check(&text[..end]);
            assert!(growing.places.len() <= 4 * end.max(2), "at most 16 bytes per token");
            guesses += u32::from(growing.guess.is_some());
        }
        assert!(guesses > 2_000, "{guesses}: most of 216 runs have come by before");
    }

    #[test]
    fn a_long_text_is_taken_in_piece_by_piece() {
        let text: Vec<TokenId> = (0..TAKEN_IN_MAX as u32 * 2).map(|at| at % 1_000).collect();
        let mut drafter = Drafter::new();
        let commits = (1..).find(|_| {
            drafter.take_in(&text);
            drafter.guess.is_some()
        });
        assert_eq!(commits, Some(2));
    }

    fn with_chance(chance: u64) -> Drafter {
        let mut drafter = Drafter::new();
        drafter.take_in(&[7, 7, 7, 7]);
        Drafter { chance, ..drafter }
    }

    #[test]
    fn drafts_go_as_deep_as_they_pay_and_none_is_made_in_company_that_brings_less_than_it_costs() {
        let depth = |chance, token_us, draft_us, in_company| {
            with_chance(chance).depth(8, &Bargain { token_us, draft_us, in_company })
        };
        assert_eq!(depth(SURE * 3 / 4, 100, 0, false), 8);
        assert_eq!(depth(SURE * 3 / 4, 100, 50, false), 2, "3/4 and 9/16 of a token, at half the price of one");
        assert_eq!(depth(SURE * 3 / 4, 100, 50, true), 2);
        assert_eq!(depth(SURE * 3 / 4, 100, 70, true), 0, "3/4 of a token for the one that is missed");
        assert_eq!(depth(SURE * 3 / 4, 100, 70, false), 1);
        assert_eq!(depth(SURE * 3 / 4, 100, 80, false), 0);
        assert_eq!(depth(SURE / 2, 0, 0, true), 0, "8 drafts bring less than a token");
        assert_eq!(depth(SURE / 8, 100, 0, false), 0);
    }

    #[test]
    fn guesses_teach_whether_drafts_are_made_of_them_or_not() {
        let mut drafter = Drafter::new();
        let mut text: Vec<TokenId> = vec![7, 7, 7, 7];
        let mut grow = |token, drafter: &mut Drafter| {
            drafter.take_in(&text);
            text.push(token);
            drafter.take_in(&text);
            drafter.chance
        };
        let sure = (0..40).map(|_| grow(7, &mut drafter)).last().expect("40 tokens");
        assert!(sure > SURE * 9 / 10, "{sure}");
        // 8 is a surprise, and behind it nothing is guessed until 7 has come back.
        let unsure = (0..200).map(|at| grow(if at % 4 == 3 { 8 + at } else { 7 }, &mut drafter)).last();
        assert!(unsure.is_some_and(|chance| chance < SURE * 2 / 5), "{unsure:?}");
        assert_eq!(drafter.depth(8, &Bargain { token_us: 100, draft_us: 50, in_company: false }), 0);
        let sure = (0..20).map(|_| grow(7, &mut drafter)).last().expect("20 tokens");
        assert!(sure > SURE * 4 / 5, "{sure}");
    }

    #[test]
    fn several_tokens_at_once_teach_as_one_by_one() {
        let text: Vec<TokenId> = (0..60).map(|at| if at == 41 { 99 } else { at % 5 }).collect();
        let mut drafter = Drafter::new();
        for (end, expected) in [(30, SURE / 2), (34, SURE * 5 / 7), (44, SURE * 4 / 5)] {
            drafter.take_in(&text[..end]);
            assert!(drafter.chance.abs_diff(expected) < SURE / 20, "{end}: {}", drafter.chance);
        }
    }

    #[test]
    fn drafts_count_up_to_the_first_that_differs() {
        for (drawn, expected) in [([1, 2, 3, 9], 3), ([1, 5, 3, 9], 1), ([5, 2, 3, 9], 0)] {
            assert_eq!(accepted(&[1, 2, 3], drawn), expected);
        }
    }
}
