//! Inquiries in worlds drawn at random: workers with slots, requests that need a while for each token, some of which
//! kill whatever worker computes them at a certain token, or only spoil what is drawn for themselves.

use std::collections::BTreeSet;

use pelton_core::RequestId;
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{LONE_DEATHS_MAX, Suspects};

/// What there is of one request.
#[derive(Debug, Clone)]
struct Plot {
    /// It only spoils what is drawn for itself, and the worker lives on.
    spoils: bool,
    /// It kills once so much of it is done, parts of its prompt first, then tokens; none: it is innocent.
    fatal_at: Option<u32>,
    /// It ends with so many.
    length: u32,
    /// Steps before the first token of each of its lives: a prompt in chunks.
    prefill: u32,
}

/// A request in a slot.
#[derive(Debug)]
struct Running {
    request: usize,
    computed: u32, // parts of its prompt
}

#[derive(Debug, Default)]
struct World {
    plots: Vec<Plot>,
    slots: usize,
    suspects: Suspects,
    tokens: Vec<u32>,
    live: BTreeSet<usize>,
    condemned: BTreeSet<usize>,
    queue: BTreeSet<usize>, // what the core has, and nobody runs
    workers: Vec<Vec<Running>>,
    deaths: usize,
}

fn id(request: usize) -> RequestId {
    RequestId(request as u64)
}

impl World {
    fn new(plots: Vec<Plot>, workers: usize, slots: usize) -> Self {
        let all: BTreeSet<usize> = (0..plots.len()).collect();
        Self {
            tokens: vec![0; plots.len()],
            live: all.clone(),
            queue: all,
            workers: (0..workers).map(|_| Vec::new()).collect(),
            plots,
            slots,
            ..Self::default()
        }
    }

    fn admit(&mut self, worker: usize) {
        while self.workers[worker].len() < self.slots
            && let Some(request) = self.queue.pop_first()
        {
            self.workers[worker].push(Running { request, computed: 0 });
        }
    }

    /// One step of one worker: it dies of any row that is fatal, or every row moves.
    fn step(&mut self, worker: usize) {
        for released in self.suspects.release() {
            assert!(self.queue.insert(released.0 as usize), "released once");
        }
        self.admit(worker);
        let is_fatal = |running: &Running| {
            let plot = &self.plots[running.request];
            let tokens = if running.computed == plot.prefill { self.tokens[running.request] } else { 0 };
            plot.fatal_at == Some(running.computed + tokens)
        };
        let fatal: Vec<usize> =
            self.workers[worker].iter().filter(|&one| is_fatal(one)).map(|one| one.request).collect();
        if fatal.iter().any(|&request| !self.plots[request].spoils) {
            return self.die(worker);
        }
        let mut ended = Vec::new();
        let were_alone = self.workers[worker].len() == 1;
        for running in self.workers[worker].iter_mut().filter(|running| !fatal.contains(&running.request)) {
            if running.computed < self.plots[running.request].prefill {
                running.computed += 1;
                self.suspects.computed(id(running.request), running.computed);
                continue;
            }
            self.tokens[running.request] += 1;
            self.suspects.progressed(id(running.request));
            if self.tokens[running.request] == self.plots[running.request].length {
                ended.push(running.request);
            }
        }
        ended.into_iter().for_each(|request| self.end(request));
        if !fatal.is_empty() {
            self.deaths += 1;
            self.workers[worker].clear();
            self.inquire(&fatal.into_iter().map(id).collect(), were_alone);
        }
    }

    fn die(&mut self, worker: usize) {
        self.deaths += 1;
        let dead: BTreeSet<RequestId> =
            std::mem::take(&mut self.workers[worker]).iter().map(|running| id(running.request)).collect();
        self.inquire(&dead, dead.len() == 1);
    }

    fn inquire(&mut self, blamed: &BTreeSet<RequestId>, were_alone: bool) {
        let elsewhere: BTreeSet<usize> = self.workers.iter().flatten().map(|running| running.request).collect();
        let idle = self.live.difference(&elsewhere).map(|&request| id(request)).collect();
        self.queue.clear();
        if let Some(guilty) = self.suspects.went_wrong(blamed, were_alone, idle) {
            let guilty = guilty.0 as usize;
            assert!(self.plots[guilty].fatal_at.is_some(), "request {guilty} is innocent");
            self.condemned.insert(guilty);
            self.end(guilty);
        }
    }

    fn end(&mut self, request: usize) {
        self.live.remove(&request);
        self.queue.remove(&request);
        self.workers.iter_mut().for_each(|worker| worker.retain(|running| running.request != request));
        self.suspects.left(id(request));
    }

    /// At most so many deaths for each guilty request: once among the innocent, once beside a trial, down the halves,
    /// alone, and once for each other worker that has company to offer.
    fn deaths_max(&self) -> usize {
        let guilty = self.plots.iter().filter(|plot| plot.fatal_at.is_some()).count();
        let halves = self.slots.next_power_of_two().ilog2() as usize;
        guilty * (halves + LONE_DEATHS_MAX as usize + 2 + self.workers.len())
    }
}

fn plots() -> impl Strategy<Value = Vec<Plot>> {
    let innocent =
        (1..12_u32, 0..4_u32).prop_map(|(length, prefill)| Plot { spoils: false, fatal_at: None, length, prefill });
    let guilty = (0..9_u32, 1..6_u32, 0..4_u32, any::<bool>()).prop_map(|(at, more, prefill, spoils)| Plot {
        spoils,
        fatal_at: Some(at),
        length: at.saturating_sub(prefill) + more,
        prefill,
    });
    (vec(innocent, 1..120), vec((guilty, any::<Index>()), 0..6)).prop_map(|(mut plots, guilty)| {
        for (plot, place) in guilty {
            plots.insert(place.index(plots.len() + 1), plot);
        }
        plots
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn innocents_end_and_each_guilty_request_is_condemned_after_few_deaths(
        plots in plots(),
        workers in 1..4_usize,
        slots in 1..40_usize,
        leaves in vec((any::<Index>(), 0..200_usize), 0..5),
    ) {
        let mut world = World::new(plots, workers, slots);
        let mut left = BTreeSet::new();
        for turn in 0.. {
            prop_assert!(turn < 200_000, "it ends: {world:?}");
            if world.live.is_empty() {
                break;
            }
            for (request, at) in &leaves {
                let request = request.index(world.plots.len());
                if *at == turn && world.live.contains(&request) {
                    left.insert(request);
                    world.end(request); // a client has gone
                }
            }
            world.step(turn % workers);
        }
        for (request, plot) in world.plots.iter().enumerate() {
            let ended = world.tokens[request] == plot.length;
            let condemned = world.condemned.contains(&request);
            let is_right = if plot.fatal_at.is_some() { condemned } else { ended };
            prop_assert!(is_right || left.contains(&request), "request {request}");
        }
        prop_assert!(world.deaths <= world.deaths_max(), "{} deaths, allowed: {}", world.deaths, world.deaths_max());
        prop_assert!(!world.suspects.is_inquiring() && world.suspects.withheld() == 0 && world.suspects.count() == 0);
        prop_assert!(world.suspects.lone_deaths.is_empty() && world.suspects.computed.is_empty());
    }

    #[test]
    fn workers_that_are_killed_from_outside_cost_nobody_its_answer(
        lengths in vec((1..30_u32, 0..3_u32), 1..60),
        slots in 1..20_usize,
        kill_every in 5..20_usize,
    ) {
        let innocent = |(length, prefill)| Plot { spoils: false, fatal_at: None, length, prefill };
        let plots = lengths.into_iter().map(innocent).collect();
        let mut world = World::new(plots, 1, slots);
        for turn in 1.. {
            prop_assert!(turn < 200_000, "it ends: {world:?}");
            if world.live.is_empty() {
                break;
            }
            if turn % kill_every == 0 { world.die(0) } else { world.step(0) }
        }
        prop_assert!(world.condemned.is_empty());
    }
}

/// A worker died with these in its unread steps.
fn died(suspects: &mut Suspects, dead: &BTreeSet<RequestId>, idle: BTreeSet<RequestId>) -> Option<RequestId> {
    suspects.went_wrong(dead, dead.len() == 1, idle)
}

fn set(ids: &[u64]) -> BTreeSet<RequestId> {
    ids.iter().map(|&id| RequestId(id)).collect()
}

#[test]
fn half_of_the_suspects_run_first_and_bystanders_last() {
    let mut suspects = Suspects::default();
    assert_eq!(died(&mut suspects, &set(&[1, 2, 3]), set(&[1, 2, 3, 8, 9])), None);
    assert_eq!((suspects.count(), suspects.withheld()), (3, 5));
    assert_eq!(suspects.release(), set(&[1, 2]));
    suspects.withhold(RequestId(10));
    suspects.progressed(RequestId(2));
    assert_eq!(suspects.release(), set(&[]), "one of the half is still tried");
    suspects.left(RequestId(1));
    assert_eq!(suspects.release(), set(&[3]));
    suspects.progressed(RequestId(3));
    assert!(!suspects.is_inquiring());
    assert_eq!(suspects.release(), set(&[8, 9, 10]), "in the order of arrival");
}

#[test]
fn those_of_a_trial_that_were_in_no_step_stay_suspects_for_later() {
    let mut suspects = Suspects::default();
    died(&mut suspects, &set(&[1, 2, 3, 4]), set(&[1, 2, 3, 4, 9]));
    assert_eq!(suspects.release(), set(&[1, 2]));
    died(&mut suspects, &set(&[2]), set(&[1, 2, 3, 4, 9]));
    assert_eq!((suspects.release(), suspects.count()), (set(&[2]), 4));
    suspects.progressed(RequestId(2));
    assert_eq!(suspects.release(), set(&[1]), "before those that were not tried yet");
    suspects.progressed(RequestId(1));
    assert_eq!(suspects.release(), set(&[3, 4]));
}

#[test]
fn deaths_in_company_condemn_nobody() {
    let mut suspects = Suspects::default();
    for _ in 0..10 {
        // The neighbour in its steps runs on elsewhere or has left: nothing says which of the two it was.
        assert_eq!(died(&mut suspects, &set(&[1, 2]), set(&[1])), None);
        assert_eq!(suspects.release(), set(&[1]));
    }
}

#[test]
fn three_deaths_alone_condemn_unless_a_token_came_between() {
    let mut suspects = Suspects::default();
    for _ in 0..10 {
        assert_eq!(died(&mut suspects, &set(&[1]), set(&[1])), None);
        assert_eq!(died(&mut suspects, &set(&[1]), set(&[1])), None);
        assert_eq!(suspects.release(), set(&[1]));
        suspects.progressed(RequestId(1));
    }
    let verdicts = [(); 3].map(|()| died(&mut suspects, &set(&[1]), set(&[1])));
    assert_eq!(verdicts, [None, None, Some(RequestId(1))]);
    assert!(!suspects.is_inquiring());
}

/// A long prompt gets on by parts, and no two lives of its worker need to last for all of it.
#[test]
fn parts_of_a_prompt_are_progress_where_none_was_before() {
    let mut suspects = Suspects::default();
    for life in 1..10 {
        suspects.computed(RequestId(1), 64);
        suspects.computed(RequestId(1), 64 * life);
        assert_eq!(died(&mut suspects, &set(&[1]), set(&[1])), None, "it came further each time");
        assert_eq!(suspects.release(), set(&[1]));
    }
    let verdicts = [(); 2].map(|()| {
        suspects.computed(RequestId(1), 64 * 9); // that is where it always ends
        died(&mut suspects, &set(&[1]), set(&[1]))
    });
    assert_eq!(verdicts, [None, Some(RequestId(1))]);
}
