//! What is sent: sizes, and token ids drawn from a seed.

use crate::config::Word;

/// Sizes of a request, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scenario {
    /// All prompts begin with these.
    pub(super) shared: u32,
    /// Of each prompt's own.
    pub(super) own: u32,
    /// Asked for, exactly.
    pub(super) output: u32,
}

impl Word for Scenario {
    fn form() -> String {
        "[SHARED+]PROMPT/OUTPUT".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        let allowed = || {
            "PROMPT/OUTPUT or SHARED+PROMPT/OUTPUT in tokens, as 512/64 or 1024+32/32; PROMPT and OUTPUT at least 1"
                .to_owned()
        };
        let number = |text: &str| text.parse::<u32>().ok().filter(|tokens| *tokens <= 1 << 24);
        let scenario = || {
            let (prompt, output) = text.split_once('/')?;
            let (shared, own) = prompt.split_once('+').unwrap_or(("0", prompt));
            Some(Self { shared: number(shared)?, own: number(own)?, output: number(output)? })
        };
        scenario().filter(|sizes| sizes.own > 0 && sizes.output > 0).ok_or_else(allowed)
    }
    fn show(&self) -> String {
        let Self { shared, own, output } = self;
        if *shared == 0 { format!("{own}/{output}") } else { format!("{shared}+{own}/{output}") }
    }
}

/// Token ids, the last one included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenRange {
    first: u32,
    last: u32,
}

impl Word for TokenRange {
    fn form() -> String {
        "FIRST..LAST".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        let range = || {
            let (first, last) = text.split_once("..")?;
            Some(Self { first: first.parse().ok()?, last: last.parse().ok()? })
        };
        range()
            .filter(|range| range.first < range.last)
            .ok_or_else(|| "FIRST..LAST with FIRST < LAST, as 300..4000".into())
    }
    fn show(&self) -> String {
        format!("{}..{}", self.first, self.last)
    }
}

/// Draws prompts; the same seed draws the same ones. SplitMix64 (Steele, Lea, Flood 2014): one addition and a mix.
pub(super) struct Prompts {
    state: u64,
    range: TokenRange,
}

impl Prompts {
    pub(super) fn new(seed: u64, range: TokenRange) -> Self {
        // Mixed, because streams from neighbouring states would be the same one, shifted.
        Self { state: mix(seed), range }
    }

    /// So many tokens after `prefix`.
    pub(super) fn draw(&mut self, prefix: &[u32], own: u32) -> Vec<u32> {
        let mut prompt = prefix.to_vec();
        prompt.extend((0..own).map(|_| self.token()));
        prompt
    }

    fn token(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let width = u64::from(self.range.last - self.range.first) + 1;
        self.range.first + (mix(self.state) % width) as u32
    }
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_are_read_and_shown_alike() {
        for text in ["32/64", "1024+32/32"] {
            assert_eq!(Scenario::parse(text).expect(text).show(), text);
        }
        for text in ["", "32", "0/64", "32/0", "a/b", "1+2+3/4", "-1/5", "99999999999/1"] {
            assert!(Scenario::parse(text).is_err(), "{text}");
        }
        assert!(TokenRange::parse("5..5").is_err());
    }

    #[test]
    fn a_seed_draws_the_same_prompts_within_the_range() {
        let range = TokenRange::parse("10..12").expect("a range");
        let draw = |seed| Prompts::new(seed, range).draw(&[7, 7], 100);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(draw(1).starts_with(&[7, 7]));
        for token in 10..=12 {
            assert!(draw(1).contains(&token));
        }
        assert!(draw(1)[2..].iter().all(|token| (10..=12).contains(token)));
    }
}
