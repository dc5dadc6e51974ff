//! Whether an attached worker lives: a look at three words of the memory every few seconds, and what follows from it.

use std::time::{Duration, Instant};

use pelton_frame::Pulse;
use tokio::time::sleep;

use crate::{Deadlines, error::Trouble, session::Vital};

/// Returns when the worker is idle and silent, busy and stuck, or stopped, for longer than its deadlines.
///
/// With shared memory the step thread's own heartbeat counts and the control thread is left alone: a worker that takes
/// steps serves. Inline nothing beats, so an idle worker is asked by a call.
pub(crate) async fn until_lifeless(mut vital: Vital, deadlines: &Deadlines) -> Trouble {
    let mut vigil = Vigil::new(vital.memory.pulse(), Instant::now());
    loop {
        sleep(deadlines.watch_interval).await;
        let answered = vital.answers(deadlines.heartbeat).await;
        let (pulse, now) = (vital.memory.pulse(), Instant::now());
        let looks = vigil.look(pulse, answered, now, deadlines);
        if let Err(trouble) = looks.and_then(|()| vigil.look_for_stop(vital.is_stopped(), now, deadlines)) {
            return trouble;
        }
    }
}

/// What was seen last, and when it moved.
struct Vigil {
    pulse: Pulse,
    moved_at: Instant,
    heard_at: Instant,
    stopped_at: Option<Instant>,
}

impl Vigil {
    fn new(pulse: Pulse, now: Instant) -> Self {
        Self { pulse, moved_at: now, heard_at: now, stopped_at: None }
    }

    /// A stopped process takes no step, so the deadline of a long one need not pass first.
    fn look_for_stop(&mut self, is_stopped: bool, now: Instant, deadlines: &Deadlines) -> Result<(), Trouble> {
        let since = is_stopped.then(|| self.stopped_at.unwrap_or(now));
        self.stopped_at = since;
        match since.map(|since| now - since) {
            Some(still) if still > deadlines.heartbeat => Err(Trouble::Stopped { still }),
            _ => Ok(()),
        }
    }

    fn look(&mut self, pulse: Pulse, answered: bool, now: Instant, deadlines: &Deadlines) -> Result<(), Trouble> {
        if pulse != self.pulse {
            (self.pulse, self.moved_at) = (pulse, now);
        }
        if answered {
            self.heard_at = now;
        }
        let in_flight = pulse.submitted.wrapping_sub(pulse.completed);
        let still = now - self.moved_at;
        if in_flight > 0 {
            // A step begins and ends with a beat, so with nothing moving one step runs, and the rest wait behind it.
            return if still > allowed(in_flight, deadlines) {
                Err(Trouble::Stalled { still, in_flight })
            } else {
                Ok(())
            };
        }
        let silent = still.min(now - self.heard_at);
        if silent > deadlines.heartbeat { Err(Trouble::Silent { still: silent }) } else { Ok(()) }
    }
}

/// A claim of the memory, so it is bounded before it multiplies.
fn allowed(in_flight: u32, deadlines: &Deadlines) -> Duration {
    deadlines.heartbeat + deadlines.step * in_flight.min(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINES: Deadlines = Deadlines {
        connect: Duration::ZERO,
        handshake: Duration::ZERO,
        load_progress: Duration::ZERO,
        attach: Duration::ZERO,
        heartbeat: Duration::from_secs(20),
        step: Duration::from_secs(60),
        watch_interval: Duration::ZERO,
        let_go: Duration::ZERO,
        back_off: Duration::ZERO,
    };

    /// Looks at these seconds, with these (submitted, completed, heartbeat) and answers; the second of the first trouble.
    fn first_trouble(looks: &[(u64, (u32, u32, u32), bool)]) -> Option<(u64, String)> {
        let begin = Instant::now();
        let pulse = |(submitted, completed, heartbeat)| Pulse { submitted, completed, heartbeat };
        let mut vigil = Vigil::new(pulse((0, 0, 0)), begin);
        looks.iter().find_map(|(second, words, answered)| {
            let now = begin + Duration::from_secs(*second);
            vigil.look(pulse(*words), *answered, now, &DEADLINES).err().map(|trouble| (*second, trouble.to_string()))
        })
    }

    #[test]
    fn a_worker_that_beats_or_answers_lives() {
        assert_eq!(first_trouble(&[(19, (0, 0, 1), false), (38, (0, 0, 2), false), (58, (0, 0, 3), false)]), None);
        assert_eq!(first_trouble(&[(19, (0, 0, 0), true), (38, (0, 0, 0), true), (58, (0, 0, 0), true)]), None);
    }

    #[test]
    fn an_idle_worker_that_shows_no_sign_is_silent() {
        let silent = first_trouble(&[(10, (0, 0, 1), false), (30, (0, 0, 1), false), (31, (0, 0, 1), false)]);
        assert_eq!(silent.unwrap(), (31, "the worker has shown no sign of life for 21 s".to_owned()));
    }

    #[test]
    fn a_stopped_process_is_lost_after_a_heartbeats_time_unless_it_goes_on() {
        let begin = Instant::now();
        let mut vigil = Vigil::new(Pulse { submitted: 0, completed: 0, heartbeat: 0 }, begin);
        let mut look = |second, is_stopped| {
            vigil
                .look_for_stop(is_stopped, begin + Duration::from_secs(second), &DEADLINES)
                .err()
                .map(|t| t.to_string())
        };
        for (second, is_stopped) in [(0, false), (2, true), (20, true), (22, false), (30, true), (50, true)] {
            assert_eq!(look(second, is_stopped), None, "{second}");
        }
        assert_eq!(look(51, true), Some("somebody has stopped the worker's process 21 s ago".to_owned()));
    }

    #[test]
    fn a_step_may_be_long_and_is_stalled_past_its_deadline_whatever_the_control_thread_says() {
        let looks = [(80, (1, 0, 1), true), (160, (1, 0, 1), true), (161, (1, 0, 1), true)];
        let (second, words) = first_trouble(&looks).unwrap();
        assert_eq!((second, words.as_str()), (161, "no step has moved for 81 s with 1 in flight"));
        // Each further step in flight adds its own allowance, and movement starts the count again.
        assert_eq!(first_trouble(&[(80, (2, 0, 1), true), (220, (2, 0, 1), true)]), None);
        assert_eq!(first_trouble(&[(80, (2, 1, 2), true), (150, (2, 1, 3), true), (230, (2, 1, 3), true)]), None);
    }
}
