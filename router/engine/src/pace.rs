//! How fast prompts are let in while others wait, and so how long a queue will take.
//!
//! A *spell* of waiting lasts from a request that comes into an empty queue until the queue is empty again. Of a spell
//! count the admissions that left somebody behind, each with the time since the ones before. What is not counted:
//!   * idle time, in which nobody waited;
//!   * the first admissions of a spell: they found room that was free, and at once;
//!   * the last ones of a spell: more would have been let in, had there been more.
//!
//! Counted in prompt tokens and not in requests, because one long prompt takes as long as many short ones. Where slots or
//! blocks are short and not compute, tokens are as good: then every request brings its mean number of them.
//! Pure: time is an argument.

use std::time::{Duration, Instant};

/// What was seen so long ago, in counted time, counts half.
const HALF_LIFE_S: f64 = 5.0;

/// See the top of the file.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    tokens: f64,
    seconds: f64,
    spell: Option<Spell>,
}

#[derive(Debug)]
struct Spell {
    began: Instant,
    /// The latest admissions, all at one instant.
    latest: Option<Admissions>,
}

#[derive(Debug)]
struct Admissions {
    at: Instant,
    tokens: u64,
    /// Since the ones before; none: these are the spell's first.
    after: Option<Duration>,
}

impl Pace {
    /// Somebody waits who found nobody waiting.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.spell = Some(Spell { began: now, latest: None });
    }

    /// Nobody waits any more.
    pub(crate) fn end(&mut self) {
        self.spell = None;
    }

    /// Somebody who waited was let in.
    pub(crate) fn admitted(&mut self, tokens: u64, now: Instant) {
        let Some(spell) = self.spell.as_mut() else { return };
        match spell.latest.as_mut() {
            Some(latest) if latest.at == now => latest.tokens += tokens,
            latest => {
                let after = latest.map(|latest| now.saturating_duration_since(latest.at));
                let before = spell.latest.replace(Admissions { at: now, tokens, after });
                if let Some(Admissions { tokens, after: Some(after), .. }) = before {
                    self.count(tokens, after);
                }
            }
        }
    }

    fn count(&mut self, tokens: u64, took: Duration) {
        let kept = 0.5f64.powf(took.as_secs_f64() / HALF_LIFE_S);
        self.tokens = self.tokens * kept + tokens as f64;
        self.seconds = self.seconds * kept + took.as_secs_f64();
    }

    /// How long it will take until so many waiting tokens have been let in.
    ///
    /// Before anything was counted, as long again as the spell has lasted: that is all that is known of it.
    pub(crate) fn wait(&self, tokens: u64, now: Instant) -> Duration {
        let Some(spell) = &self.spell else { return Duration::ZERO };
        let since = |instant| now.saturating_duration_since(instant);
        if self.tokens == 0.0 {
            return since(spell.began);
        }
        // While nobody is let in the pace falls, whatever it was: a worker may be gone.
        let stalled = since(spell.latest.as_ref().map_or(spell.began, |latest| latest.at));
        let seconds = tokens as f64 * (self.seconds + stalled.as_secs_f64()) / self.tokens;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets in `tokens` a time, every `step_ms`, `times` times; somebody always waits. Returns when it ended.
    fn run(pace: &mut Pace, begin: Instant, tokens: &[u64], step_ms: u64, times: u64) -> Instant {
        let mut now = begin;
        for _ in 0..times {
            now += Duration::from_millis(step_ms);
            tokens.iter().for_each(|&tokens| pace.admitted(tokens, now));
        }
        now
    }

    fn seconds(pace: &Pace, tokens: u64, now: Instant) -> f64 {
        (pace.wait(tokens, now).as_secs_f64() * 1e3).round() / 1e3
    }

    #[test]
    fn before_anything_was_let_in_the_wait_is_as_long_as_the_one_so_far() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.wait(1_000_000, now), Duration::ZERO);
        pace.begin(now);
        assert_eq!(pace.wait(1_000_000, now + Duration::from_secs(3)), Duration::from_secs(3));
    }

    #[test]
    fn a_steady_pace_is_found_whatever_the_prompts_lengths() {
        for tokens in [&[1_000][..], &[10; 100], &[999, 1]] {
            let (mut pace, begin) = (Pace::default(), Instant::now());
            pace.begin(begin);
            let now = run(&mut pace, begin, tokens, 100, 20);
            assert_eq!(seconds(&pace, 50_000, now), 5.0, "{tokens:?}");
        }
    }

    #[test]
    fn one_huge_prompt_before_us_is_a_long_wait_though_it_is_one_request() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        pace.begin(begin);
        let now = run(&mut pace, begin, &[100, 100], 100, 20);
        assert_eq!((seconds(&pace, 100, now), seconds(&pace, 100_000, now)), (0.05, 50.0));
    }

    #[test]
    fn whoever_finds_room_at_once_teaches_nothing_about_waiting() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        pace.begin(now);
        now = run(&mut pace, now, &[100], 100, 20);
        let before = seconds(&pace, 10_000, now);
        pace.end();
        for _ in 0..10_000 {
            now += Duration::from_micros(500);
            pace.begin(now);
            now += Duration::from_micros(200);
            pace.admitted(5_000, now);
            pace.end();
        }
        pace.begin(now);
        assert_eq!((before, seconds(&pace, 10_000, now)), (10.0, 10.0));
    }

    #[test]
    fn an_idle_time_changes_nothing() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        pace.begin(begin);
        let now = run(&mut pace, begin, &[100], 100, 20);
        pace.end();
        let later = now + Duration::from_secs(3_600);
        pace.begin(later);
        assert_eq!(seconds(&pace, 10_000, later), 10.0);
    }

    #[test]
    fn the_last_of_a_spell_do_not_make_it_look_slow() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        pace.begin(begin);
        let now = run(&mut pace, begin, &[1_000], 100, 20);
        let last = now + Duration::from_millis(100);
        pace.admitted(1, last);
        pace.end();
        pace.begin(last);
        assert_eq!(seconds(&pace, 10_000, last), 1.0);
    }

    #[test]
    fn while_nobody_is_let_in_the_wait_grows() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        pace.begin(begin);
        let now = run(&mut pace, begin, &[1_000], 100, 12);
        let waits = [0, 1, 9].map(|stalled| seconds(&pace, 10_000, now + Duration::from_secs(stalled)));
        assert!(waits[0] < waits[1] && waits[1] < waits[2] && waits[2] > 9.0, "{waits:?}");
    }

    #[test]
    fn a_new_pace_is_learnt_within_half_a_minute() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        pace.begin(begin);
        let slower = run(&mut pace, begin, &[1_000], 100, 600);
        let now = run(&mut pace, slower, &[100], 100, 300);
        let wait = seconds(&pace, 1_000, now);
        assert!((0.8..=1.0).contains(&wait), "{wait} s, of 0.1 s before and 1 s now");
    }
}
