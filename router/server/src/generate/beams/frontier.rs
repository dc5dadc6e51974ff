//! Which beams of a search go on, and which answers are complete.
//!
//! As in `transformers`: an answer's score is its log-probability over its length, the stop token counted, to the power of the length
//! penalty; it is complete if a stop token is among the likeliest `width` continuations of all beams. Unless told to stop early, the
//! search goes on until no beam can become better than what is complete, whatever comes.

use std::sync::Arc;

use pelton_engine::{FinishReason, StopRule, TokenId, TokenLogprobs};

use super::BeamSearch;

/// By what the beams are chosen.
#[derive(Clone)]
pub(super) struct Rules {
    pub(super) asked: BeamSearch,
    pub(super) width: usize,
    pub(super) stop: StopRule,
}

impl Rules {
    fn ends(&self, token: TokenId) -> bool {
        self.stop.stop_ids.binary_search(&token).is_ok()
    }

    /// The score of so many tokens.
    fn score(&self, sum: f64, length: u32) -> f64 {
        sum / f64::from(length).powf(f64::from(self.asked.length_penalty))
    }

    /// The best that a beam of so many tokens can come to: its sum only falls.
    fn best(&self, sum: f64, length: u32) -> f64 {
        let longest = if self.asked.length_penalty > 0.0 { self.stop.max_tokens } else { length + 1 };
        self.score(sum, longest)
    }
}

/// A beginning of an answer, or a complete one.
#[derive(Debug, Clone)]
pub(super) struct Beam {
    pub(super) tokens: Vec<TokenId>,
    /// Of each of its tokens, and what was likeliest in its place.
    pub(super) logprobs: Vec<(f32, Arc<TokenLogprobs>)>,
    /// Why it ends, once it is complete.
    pub(super) reason: FinishReason,
    sum: f64,
}

impl Beam {
    const EMPTY: Self = Self { tokens: Vec::new(), logprobs: Vec::new(), reason: FinishReason::Length, sum: 0.0 };

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("an answer fits the context")
    }
}

/// The beams of a search: those that go on, all of one length, and those that are complete.
pub(super) struct Frontier {
    rules: Rules,
    going: Vec<Beam>,
    /// With their scores, best first; at most the width.
    complete: Vec<(f64, Beam)>,
}

impl Frontier {
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, going: vec![Beam::EMPTY], complete: Vec::new() }
    }

    pub(super) fn going(&self) -> &[Beam] {
        &self.going
    }

    /// How many likeliest continuations of each beam it has to know: as many as there are beams, behind all that may end it.
    pub(super) fn looked_at(&self) -> u32 {
        let Rules { width, stop, .. } = &self.rules;
        u32::try_from(width + stop.stop_ids.len()).expect("bounded by what a frame tells")
    }

    /// Takes what follows each beam that goes on. Whether any goes on then.
    pub(super) fn advance(&mut self, next: &[Arc<TokenLogprobs>]) -> bool {
        let length = self.going[0].len() + 1;
        let Rules { width, ref stop, .. } = self.rules;
        let (is_last, may_end) = (length == stop.max_tokens, length > stop.min_tokens);
        let mut candidates = Vec::new();
        for (at, (beam, next)) in self.going.iter().zip(next).enumerate() {
            let allowed = next.top.iter().filter(|(token, _)| may_end || !self.rules.ends(*token));
            candidates.extend(allowed.map(|&(token, logprob)| (beam.sum + f64::from(logprob), at, token, logprob)));
        }
        // Equal ones stay in the order of their beams, likeliest first.
        candidates.sort_by(|one, other| other.0.total_cmp(&one.0));
        let mut going = Vec::with_capacity(width);
        for (rank, &(sum, at, token, chosen)) in candidates.iter().enumerate() {
            let ends = is_last || self.rules.ends(token);
            if if ends { rank >= width } else { going.len() == width } {
                continue;
            }
            let mut beam = self.going[at].clone();
            beam.sum = sum;
            beam.tokens.push(token);
            beam.logprobs.push((chosen, Arc::clone(&next[at])));
            if ends {
                if self.rules.ends(token) {
                    beam.reason = FinishReason::StopToken(token);
                }
                self.complete.push((self.rules.score(sum, length), beam));
            } else {
                going.push(beam);
            }
        }
        self.complete.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        self.complete.truncate(width);
        self.going = going;
        !is_last && !self.is_over(length)
    }

    /// Whether nothing better can come of beams of so many tokens.
    fn is_over(&self, length: u32) -> bool {
        let Some(best) = self.going.first() else { return true };
        let worst = self.complete.last().filter(|_| self.complete.len() == self.rules.width);
        worst.is_some_and(|(worst, _)| self.rules.asked.early_stopping || self.rules.best(best.sum, length) <= *worst)
    }

    /// The answers, best first.
    pub(super) fn found(self) -> Vec<Beam> {
        self.complete.into_iter().map(|(_, beam)| beam).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model that looks at the last token alone; the first row is of the beginning.
    struct Model(Vec<Vec<f32>>);

    const STOP: TokenId = 0;
    const TOKENS: usize = 4;

    impl Model {
        fn new(seed: u64) -> Self {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut weight = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                0.05 + (state >> 40) as f32 / (1 << 24) as f32
            };
            let rows = (0..=TOKENS).map(|_| {
                let weights: Vec<f32> = (0..TOKENS).map(|_| weight()).collect();
                let sum: f32 = weights.iter().sum();
                weights.into_iter().map(|weight| (weight / sum).ln()).collect()
            });
            Self(rows.collect())
        }

        fn after(&self, tokens: &[TokenId]) -> &[f32] {
            &self.0[tokens.last().map_or(0, |&token| token as usize + 1)]
        }

        fn next(&self, beam: &Beam) -> Arc<TokenLogprobs> {
            let mut top: Vec<(TokenId, f32)> = (0..).zip(self.after(&beam.tokens).iter().copied()).collect();
            top.sort_by(|one, other| other.1.total_cmp(&one.1));
            Arc::new(TokenLogprobs { chosen: top[0].1, top })
        }

        /// Searches, all the way to the end if not `may_stop`.
        fn search(&self, rules: Rules, may_stop: bool) -> (u32, Vec<Beam>) {
            let max_tokens = rules.stop.max_tokens;
            let mut frontier = Frontier::new(rules);
            for steps in 1.. {
                let next: Vec<_> = frontier.going().iter().map(|beam| self.next(beam)).collect();
                let goes_on = frontier.advance(&next);
                if steps == max_tokens || may_stop && !goes_on {
                    return (steps, frontier.found());
                }
            }
            unreachable!("it ends with its length");
        }

        /// Every answer there is.
        fn all(&self, rules: &Rules) -> Vec<(f64, Vec<TokenId>)> {
            let (mut open, mut all) = (vec![(0.0, Vec::new())], Vec::new());
            while let Some((sum, tokens)) = open.pop() {
                for (token, &logprob) in (0..).zip(self.after(&tokens)) {
                    let (sum, tokens) = (sum + f64::from(logprob), [tokens.as_slice(), &[token]].concat());
                    let length = u32::try_from(tokens.len()).expect("short");
                    match token {
                        STOP if length <= rules.stop.min_tokens => {}
                        _ if token == STOP || length == rules.stop.max_tokens => {
                            all.push((rules.score(sum, length), tokens));
                        }
                        _ => open.push((sum, tokens)),
                    }
                }
            }
            all.sort_by(|one, other| other.0.total_cmp(&one.0));
            all
        }
    }

    fn rules(width: usize, length_penalty: f32, min_tokens: u32, max_tokens: u32) -> Rules {
        let asked = BeamSearch { length_penalty, early_stopping: false };
        Rules { asked, width, stop: StopRule { max_tokens, min_tokens, stop_ids: [STOP].into() } }
    }

    fn tokens(found: &[Beam]) -> Vec<&[TokenId]> {
        found.iter().map(|beam| beam.tokens.as_slice()).collect()
    }

    #[test]
    fn with_a_beam_for_every_answer_the_best_ones_are_found() {
        for seed in 0..50 {
            let model = Model::new(seed);
            for (length_penalty, min_tokens) in [(0.0, 0), (1.0, 0), (2.5, 1), (-1.0, 2), (1.0, 4)] {
                let rules = rules(400, length_penalty, min_tokens, 5);
                let all = model.all(&rules);
                let score = |beam: &Beam| rules.score(beam.sum, beam.len());
                let found = model.search(rules.clone(), true).1;
                assert!(found.windows(2).all(|pair| score(&pair[0]) >= score(&pair[1])), "best first");
                // Some have the same score.
                let mut expected: Vec<&[TokenId]> = all.iter().map(|(_, tokens)| tokens.as_slice()).collect();
                let mut told = tokens(&found);
                expected.sort_unstable();
                told.sort_unstable();
                assert_eq!(told, expected, "seed {seed}, penalty {length_penalty}, at least {min_tokens}");
                for beam in &found {
                    let ends = beam.tokens.last() == Some(&STOP);
                    let reason = if ends { FinishReason::StopToken(STOP) } else { FinishReason::Length };
                    assert_eq!(beam.reason, reason);
                    let chosen = beam.logprobs.iter().map(|(chosen, _)| f64::from(*chosen)).sum::<f64>();
                    assert!((chosen - beam.sum).abs() < 1e-9);
                }
            }
        }
    }

    #[test]
    fn it_stops_when_nothing_better_can_come_and_no_sooner() {
        let mut saved = 0;
        for seed in 0..500 {
            let model = Model::new(seed);
            for length_penalty in [-2.0, 0.0, 0.7, 1.0, 2.0] {
                let rules = || rules(3, length_penalty, 0, 12);
                let (steps, found) = model.search(rules(), true);
                let (_, expected) = model.search(rules(), false);
                assert_eq!(tokens(&found), tokens(&expected), "seed {seed}, penalty {length_penalty}, {steps} steps");
                assert_eq!(found.len(), 3);
                saved += 12 - steps;
            }
        }
        assert!(saved > 2_000, "{saved} steps were saved");
    }

    #[test]
    fn told_to_stop_early_it_takes_the_first_complete_ones() {
        let mut sooner = 0;
        for seed in 0..200 {
            let model = Model::new(seed);
            let early = || {
                let rules = rules(3, 1.0, 0, 12);
                Rules { asked: BeamSearch { early_stopping: true, ..rules.asked }, ..rules }
            };
            let (steps, found) = model.search(early(), true);
            assert_eq!(found.len(), 3);
            sooner += model.search(rules(3, 1.0, 0, 12), true).0 - steps;
        }
        assert!(sooner > 100, "{sooner} steps");
    }

    #[test]
    fn one_beam_goes_the_way_of_the_likeliest_token() {
        for seed in 0..50 {
            let model = Model::new(seed);
            let asked = BeamSearch { length_penalty: 1.0, early_stopping: true };
            let (_, found) = model.search(Rules { asked, ..rules(1, 1.0, 0, 8) }, true);
            let mut greedy = Vec::new();
            while greedy.len() < 8 && greedy.last() != Some(&STOP) {
                let after = model.after(&greedy);
                let best = (0..TOKENS).max_by(|&one, &other| after[one].total_cmp(&after[other])).expect("some");
                greedy.push(u32::try_from(best).expect("few"));
            }
            assert_eq!(found[0].tokens, greedy, "seed {seed}");
        }
    }
}
