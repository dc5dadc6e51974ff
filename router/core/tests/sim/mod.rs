//! Worlds: the real core, virtual workers, a virtual clock, and all the trouble that a seed can think of.
//!
//! The engine's part is played as the engine plays it: plan, hand over, read results in order, commit, drain the events.
//! In between requests come, leave and are finished from outside, workers are killed with steps in flight, and results
//! come garbled. After every action the core checks its invariants, and every token that it tells is compared with the
//! one that the request draws alone.

mod disk;
mod model;
mod random;
mod requests;
mod tiers;
mod worker;

use std::collections::{BTreeMap, BTreeSet};

use pelton_core::{
    CacheChange, CoreConfig, Event, Explanation, FinishReason, GroupId, Limits, Medium, Micros, NewRequest, Refusal,
    RequestId, TokenId, Wait,
};

use disk::Disk;
use random::Random;
use worker::{HostMemory, Worker};

use crate::Core; // the core itself, or what has the same door

/// See the top of the file.
pub(crate) struct World {
    random: Random,
    now: Micros,
    config: CoreConfig,
    core: Core,
    sites: BTreeMap<GroupId, Site>,
    host: HostMemory,
    disk: Disk,
    tales: BTreeMap<RequestId, Tale>,
    texts: Vec<Vec<TokenId>>, // what prompts are made of
    faults: Faults,
    /// What has happened in this world.
    pub(crate) seen: Seen,
}

/// Where a group's worker lives.
struct Site {
    blocks: u32,
    reaches_host: bool,
    copy_us: u32,
    worker: Option<Worker>,
    findable: BTreeSet<(Medium, u64)>, // blocks, as told by the core
}

/// A request and what came of it.
struct Tale {
    new: NewRequest,
    alone: Vec<TokenId>,
    reason: FinishReason,
    told: Vec<TokenId>,
    was_admitted: bool,
    has_ended: bool,
    has_finished: bool, // by itself: it must have told everything
}

/// Which kinds of trouble a world knows.
struct Faults {
    aborts: bool,
    finishes: bool,
    kills: bool,
    garbage: bool,
    shrinks: bool,
    clears: bool,
    disk: bool,
    /// It says nothing for long.
    disk_hangs: bool,
}

macro_rules! seen {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How often the things have happened that a world is there for.
        #[derive(Debug, Default)]
        pub(crate) struct Seen { $($(#[$doc])* pub(crate) $name: u64,)* }

        impl Seen {
            /// Adds another world's.
            pub(crate) fn add(&mut self, other: &Seen) { $(self.$name += other.$name;)* }

            /// What has never happened.
            #[allow(dead_code, reason = "not every user of the simulator lives through enough worlds")]
            pub(crate) fn missing(&self) -> Vec<&'static str> {
                let all = [$((stringify!($name), self.$name)),*];
                all.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
            }
        }
    };
}

seen! {
    requests,
    finished_by_length,
    finished_by_stop,
    aborted_while_running,
    finished_from_outside,
    refused_at_once,
    refused_later,
    expired,
    blocks_stored,
    blocks_removed,
    steps,
    steps_ahead,
    unknown_tokens,
    chunks,
    cached_tokens,
    copies,
    histories,
    histories_with_output,
    suppressed,
    preemptions,
    kills,
    kills_in_flight,
    replays,
    garbage,
    saves,
    saves_alone,
    loads,
    loads_spread,
    host_hits,
    disk_hits,
    waits_for_disk,
    host_blocks_removed,
    disk_blocks_removed,
    disk_writes,
    disk_reads,
    disk_faults,
    disk_erasures,
    disk_blocks_restored,
    clears,
}

impl World {
    /// Everything about a world follows from its seed.
    pub(crate) fn from_seed(seed: u64) -> Self {
        let mut random = Random(seed);
        let config = config(&mut random);
        let texts: Vec<_> =
            (0..random.within(1..=4)).map(|_| requests::text(&mut random, config.max_model_len)).collect();
        let mut seen = Seen::default();
        let mut core = Core::new(config.clone());
        let disk = tiers::earlier_life(&mut random, &config, &texts);
        if disk.len() > 0 {
            core.restore_disk(disk.entries(&mut random, true));
            seen.disk_blocks_restored += core.counts().disk_blocks as u64;
        }
        let longest = config.max_model_len.div_ceil(config.block_size);
        let mut sites = BTreeMap::new();
        for group in (0..random.within(1..=3)).map(|id| GroupId(id as u16)) {
            let blocks = random.within(longest.div_ceil(2)..=longest * 4);
            let (reaches_host, copy_us) = (!random.once_in(5), random.within(1..=60));
            core.add_group(group, blocks, reaches_host);
            sites.insert(
                group,
                Site {
                    blocks,
                    reaches_host,
                    copy_us,
                    worker: Some(Worker::new(blocks, config.block_size, config.limits, copy_us)),
                    findable: BTreeSet::new(),
                },
            );
        }
        let host = tiers::host_memory(&config);
        let mut often = || !random.once_in(4);
        let faults = Faults {
            aborts: often(),
            finishes: often(),
            kills: often(),
            garbage: often(),
            shrinks: often(),
            clears: often(),
            disk: often(),
            disk_hangs: !often(),
        };
        Self { random, now: Micros(0), config, core, sites, host, disk, tales: BTreeMap::new(), texts, faults, seen }
    }

    /// Lives through so many actions.
    pub(crate) fn run(&mut self, actions: usize) {
        for _ in 0..actions {
            self.now.0 += u64::from(self.random.within(0..=100)); // some arrive at the same time
            match self.random.within(0..=99) {
                0..=11 => self.submit(),
                12 if self.faults.aborts => self.abort(),
                13 if self.faults.finishes => self.finish(),
                14 if self.faults.kills && self.random.once_in(2) => self.kill(),
                15..=18 => self.revive(),
                19 if self.faults.garbage && self.random.once_in(2) => self.garble(),
                20 if self.faults.clears && self.random.once_in(4) => self.clear_tiers(),
                21..=30 if !self.faults.disk_hangs || self.random.once_in(50) => self.disk_acts(),
                20..=49 => self.plan(),
                50..=74 => self.work(),
                _ => self.commit(),
            }
            self.hear();
            self.core.check();
        }
    }

    /// Trouble ends: all requests finish, all blocks come home.
    pub(crate) fn calm(&mut self) {
        for group in self.groups() {
            self.revive_group(group);
        }
        self.hear();
        self.calm_disk();
        while self.tales.values().any(|tale| !tale.has_ended) {
            self.calm_disk();
            for group in self.groups() {
                while self.plan_group(group) {}
            }
            let in_flight: usize = self.sites.keys().map(|&group| self.core.in_flight(group)).sum();
            assert!(in_flight > 0, "requests live, and no group has anything to do");
            for group in self.groups() {
                self.work_group(group);
                self.commit_group(group);
            }
            self.hear();
            self.core.check();
        }
        for group in self.groups() {
            while self.core.in_flight(group) > 0 {
                self.work_group(group);
                self.commit_group(group);
            }
        }
        self.calm_disk();
        self.hear();
        self.core.check();
        let counts = self.core.counts();
        let held = (counts.blocks_held, counts.host_blocks_held);
        assert_eq!((counts.running, counts.waiting, held), (0, 0, (0, 0)), "everything comes home");
        assert_eq!(counts.disk_blocks, self.disk.len(), "core and disk agree on what is kept");
        self.seen.saves += counts.saves;
        self.seen.loads += counts.loads;
        self.seen.host_hits += counts.host_hits;
        self.seen.disk_hits += counts.disk_hits;
        self.seen.preemptions += counts.preemptions;
        self.seen.cached_tokens += counts.cached_tokens;
        self.seen.replays += counts.replayed;
        self.seen.steps += counts.steps;
    }

    /// What each request that finished by itself was told.
    pub(crate) fn tokens(&self) -> Vec<(RequestId, &[TokenId])> {
        self.finished().map(|(id, tale)| (id, tale.told.as_slice())).collect()
    }

    /// What the same requests draw when nothing else exists.
    pub(crate) fn tokens_each_alone(&self) -> Vec<(RequestId, &[TokenId])> {
        self.finished().map(|(id, tale)| (id, tale.alone.as_slice())).collect()
    }

    fn finished(&self) -> impl Iterator<Item = (RequestId, &Tale)> {
        self.tales.iter().filter(|(_, tale)| tale.has_finished).map(|(&id, tale)| (id, tale))
    }

    fn submit(&mut self) {
        let id = RequestId(self.tales.len() as u64 + self.seen.refused_at_once);
        let earlier: Vec<&Tale> = self.tales.values().filter(|tale| tale.has_finished).collect();
        let earlier = self.random.pick(&earlier).map(|tale| [&tale.new.prompt[..], &tale.alone].concat());
        let mut new = requests::request(&mut self.random, id, self.now, &self.texts, earlier, &self.config);
        let (alone, reason) = model::alone(&new, self.config.max_model_len);
        if self.random.once_in(10) {
            let before = self.random.within(0..=alone.len() as u32 - 1);
            new.generated = alone[..before as usize].to_vec(); // from an earlier life of the engine
        }
        let queue_was_full = self.core.counts().waiting >= self.config.max_waiting;
        match self.core.submit(new.clone()) {
            Ok(()) => {
                self.seen.requests += 1;
                let told = new.generated.clone();
                let tale =
                    Tale { new, alone, reason, told, was_admitted: false, has_ended: false, has_finished: false };
                self.tales.insert(id, tale);
            }
            Err(refusal) => {
                self.seen.refused_at_once += 1;
                match refusal {
                    Refusal::QueueFull { .. } => assert!(queue_was_full),
                    refusal => self.check_never_fits(&new, &refusal),
                }
            }
        }
    }

    fn check_never_fits(&self, new: &NewRequest, refusal: &Refusal) {
        let tokens = (new.prompt.len() as u32 + new.stop.max_tokens).min(self.config.max_model_len) - 1;
        let needed = tokens.div_ceil(self.config.block_size) as usize;
        let blocks = self.sites.values().map(|site| site.blocks as usize).max().expect("a world has groups");
        assert!(needed > blocks);
        assert_eq!(*refusal, Refusal::NeverFits { needed, blocks });
    }

    fn abort(&mut self) {
        if let Some(id) = self.any_live() {
            let running = self.core.counts().running;
            self.core.abort(id);
            self.seen.aborted_while_running += (running - self.core.counts().running) as u64;
            self.tale(id).has_ended = true;
        }
    }

    fn finish(&mut self) {
        if let Some(id) = self.any_live() {
            self.core.finish(id);
            self.seen.finished_from_outside += 1;
            self.tale(id).has_ended = true;
        }
    }

    fn kill(&mut self) {
        let group = self.any_group();
        self.seen.kills += 1;
        self.seen.kills_in_flight += u64::from(self.core.in_flight(group) > 0);
        self.lose(group);
    }

    fn lose(&mut self, group: GroupId) {
        let site = self.site(group);
        site.findable.clear();
        if let Some(worker) = site.worker.take() {
            worker.die(&mut self.host);
        }
        self.core.worker_lost(group);
    }

    fn revive(&mut self) {
        let group = self.any_group();
        self.revive_group(group);
    }

    fn revive_group(&mut self, group: GroupId) {
        if self.site(group).worker.is_some() {
            return;
        }
        let shrinks = self.faults.shrinks && self.random.once_in(3);
        let (block_size, limits) = (self.config.block_size, self.config.limits);
        let reaches_host = !self.random.once_in(5);
        let site = self.site(group);
        site.blocks -= u32::from(shrinks) * (site.blocks / 4);
        let blocks = site.blocks;
        site.reaches_host = reaches_host;
        site.worker = Some(Worker::new(blocks, block_size, limits, site.copy_us));
        self.core.worker_back(group, blocks, reaches_host);
    }

    /// Results come that cannot be right: the core says so and changes nothing, and the worker is replaced.
    fn garble(&mut self) {
        let group = self.any_group();
        let kind = self.random.within(0..=3);
        let Some(worker) = &mut self.site(group).worker else { return };
        let Some(mut results) = worker.results.pop_front() else { return };
        match kind {
            0 => results.step = results.step.next(),
            1 => results.rows.push(None),
            2 | 3 if results.rows.is_empty() => results.rows.push(None),
            2 => drop(results.rows.pop()),
            _ => results.rows[0] = if results.rows[0].is_some() { None } else { Some(requests::row_result()) },
        }
        let before = self.core.counts();
        self.core.commit(group, results).expect_err("garbled results are refused");
        assert_eq!(self.core.counts(), before);
        assert_eq!(self.core.events().count(), 0);
        self.seen.garbage += 1;
        self.lose(group);
    }

    fn plan(&mut self) {
        let group = self.any_group();
        self.plan_group(group);
    }

    fn plan_group(&mut self, group: GroupId) -> bool {
        let was_in_flight = self.core.in_flight(group);
        let Some(plan) = self.core.plan(group, self.now) else { return false };
        let tokens: u32 = plan.rows.iter().map(|row| row.count).sum();
        assert!(tokens <= self.config.token_budget);
        let seen = &mut self.seen;
        seen.steps_ahead += u64::from(was_in_flight == 1);
        seen.copies += plan.copies.len() as u64;
        seen.saves_alone += u64::from(plan.rows.is_empty() && plan.loads.is_empty());
        seen.loads_spread += u64::from(plan.rows.is_empty() && !plan.loads.is_empty());
        for row in &plan.rows {
            seen.unknown_tokens += u64::from(row.known < row.count);
            seen.chunks += u64::from(!row.samples);
        }
        for admit in &plan.admits {
            seen.histories += u64::from(!admit.history.is_empty());
            seen.histories_with_output += u64::from(admit.history.len() > admit.prompt_len as usize);
            seen.suppressed += u64::from(!admit.suppressed.is_empty());
        }
        let site = self.site(group);
        assert!(site.reaches_host || (plan.saves.is_empty() && plan.loads.is_empty()), "it reaches no host's memory");
        let worker = site.worker.as_mut().expect("plans are made for workers that live");
        worker.receive(plan);
        true
    }

    fn work(&mut self) {
        let group = self.any_group();
        self.work_group(group);
    }

    fn work_group(&mut self, group: GroupId) {
        let Self { sites, random, host, .. } = self;
        if let Some(worker) = &mut sites.get_mut(&group).expect("a group of this world").worker {
            worker.work(random, host);
        }
    }

    fn commit(&mut self) {
        let group = self.any_group();
        self.commit_group(group);
    }

    fn commit_group(&mut self, group: GroupId) {
        let results = self.site(group).worker.as_mut().and_then(|worker| worker.results.pop_front());
        if let Some(results) = results {
            self.core.commit(group, results).expect("a worker that lives answers rightly");
        }
    }

    /// Takes in what the core tells, and believes none of it.
    fn hear(&mut self) {
        self.hear_of_cache();
        let events: Vec<Event> = self.core.events().collect();
        for event in events {
            match event {
                Event::Admitted { request, cached } => {
                    let tale = self.tale(request);
                    assert!(!std::mem::replace(&mut tale.was_admitted, true), "{request:?} is admitted once");
                    assert!(cached as usize <= tale.new.prompt.len());
                }
                Event::Token { request, token, logprobs } => {
                    let tale = self.tale(request);
                    assert!(tale.was_admitted && !tale.has_ended, "{request:?}: a token in the midst of its life");
                    assert_eq!(
                        Some(&token),
                        tale.alone.get(tale.told.len()),
                        "{request:?}: token {} as when alone",
                        tale.told.len()
                    );
                    assert_eq!(
                        logprobs.as_deref(),
                        tale.new.sampling.logprobs.map(|_| worker::logprobs(token)).as_ref()
                    );
                    tale.told.push(token);
                }
                Event::Finished { request, reason, explanation } => {
                    check_explanation(&explanation, self.now);
                    self.seen.waits_for_disk += u64::from(explanation.waited.micros(Wait::Disk) > 0);
                    let tale = self.tale(request);
                    assert!(!tale.has_ended);
                    assert_eq!(
                        (reason, tale.told.len()),
                        (tale.reason, tale.alone.len()),
                        "{request:?} ends where it ends alone"
                    );
                    (tale.has_ended, tale.has_finished) = (true, true);
                    match reason {
                        FinishReason::Length => self.seen.finished_by_length += 1,
                        FinishReason::StopToken(_) => self.seen.finished_by_stop += 1,
                    }
                }
                Event::Expired { request, explanation } => {
                    let now = self.now;
                    check_explanation(&explanation, now);
                    let tale = self.tale(request);
                    assert!(!tale.has_ended && tale.new.deadline.is_some_and(|deadline| deadline <= now));
                    tale.has_ended = true;
                    self.seen.expired += 1;
                }
                Event::Refused { request, refusal } => {
                    self.check_never_fits(&self.tales[&request].new, &refusal);
                    self.tale(request).has_ended = true;
                    self.seen.refused_later += 1;
                }
            }
        }
    }

    /// Keeps an index from what is told, as a router of several servers does.
    fn hear_of_cache(&mut self) {
        for (&group, site) in &mut self.sites {
            for change in self.core.cache_changes(group) {
                match change {
                    CacheChange::Stored { block, tokens, medium, .. } => {
                        assert_eq!(tokens.len(), self.config.block_size as usize);
                        assert!(site.findable.insert((medium, block)), "a block is stored once");
                        self.seen.blocks_stored += 1;
                    }
                    CacheChange::Removed { block, medium } => {
                        assert!(site.findable.remove(&(medium, block)), "what is removed was stored");
                        let seen = &mut self.seen;
                        *match medium {
                            Medium::Device => &mut seen.blocks_removed,
                            Medium::Host => &mut seen.host_blocks_removed,
                            Medium::Disk => &mut seen.disk_blocks_removed,
                        } += 1;
                    }
                }
            }
        }
    }

    fn any_live(&mut self) -> Option<RequestId> {
        let live: Vec<RequestId> = self.tales.iter().filter(|(_, tale)| !tale.has_ended).map(|(&id, _)| id).collect();
        self.random.pick(&live).copied()
    }

    fn any_group(&mut self) -> GroupId {
        let groups = self.groups();
        *self.random.pick(&groups).expect("a world has groups")
    }

    fn groups(&self) -> Vec<GroupId> {
        self.sites.keys().copied().collect()
    }

    fn site(&mut self, group: GroupId) -> &mut Site {
        self.sites.get_mut(&group).expect("a group of this world")
    }

    fn tale(&mut self, request: RequestId) -> &mut Tale {
        self.tales.get_mut(&request).expect("events tell of requests that were taken")
    }
}

/// Every moment in the queue is explained, and no other.
fn check_explanation(explanation: &Explanation, now: Micros) {
    let Explanation { arrival, admitted, until, waited, .. } = explanation;
    assert!(*until <= now);
    match admitted {
        Some(admitted) if explanation.preempted.times + explanation.replayed == 0 => {
            assert_eq!(waited.total(), admitted.0 - arrival.0, "{explanation:?}");
        }
        Some(admitted) => {
            let (least, most) = (admitted.0 - arrival.0, until.0 - arrival.0);
            assert!((least..=most).contains(&waited.total()), "{explanation:?}");
        }
        None => assert_eq!(waited.total(), until.0 - arrival.0, "{explanation:?}"),
    }
    assert!(explanation.cached_host + explanation.cached_disk <= explanation.cached, "{explanation:?}");
    assert!(explanation.cached + explanation.missed.evicted <= explanation.prompt, "{explanation:?}");
}

fn config(random: &mut Random) -> CoreConfig {
    let block_size = random.within(1..=8);
    let max_model_len = random.within(12..=80);
    let max_running = random.within(1..=8);
    let longest = max_model_len.div_ceil(block_size);
    let limits = Limits {
        slots: max_running + random.within(0..=2),
        tokens: random.within(1..=60),
        appends: longest + random.within(0..=20),
        saves: random.within(1..=4),
        loads: random.within(1..=4),
        copies: random.within(0..=4),
        biases: random.within(2..=6),
        suppressed: random.within(2..=6),
        history: max_model_len + random.within(0..=100),
    };
    let host_blocks = if random.once_in(3) { 0 } else { random.within(1..=longest * 3) };
    let disk_places = if random.once_in(3) { 0 } else { random.within(1..=longest * 5) };
    CoreConfig {
        block_size,
        max_model_len,
        limits,
        max_running,
        max_waiting: random.within(2..=20) as usize,
        token_budget: random.within(1..=60),
        itl_target_us: random.once_in(2).then(|| random.within(50..=1_000)),
        hash_key: [random.next(), random.next()],
        host_blocks,
        disk_places: if host_blocks > 0 { disk_places } else { 0 },
        prefix_caching: !random.once_in(10),
        tells_cache_changes: true,
    }
}

/// Names the seed if something fails while it lives.
pub(crate) struct Naming(pub(crate) u64);

impl Drop for Naming {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the world of seed {0}: cargo run --release -p pelton-core --example worlds -- 1 {0}", self.0);
        }
    }
}

/// A whole life of the world of a seed.
pub(crate) fn live(seed: u64, actions: usize) -> Seen {
    let _naming = Naming(seed);
    let mut world = World::from_seed(seed);
    world.run(actions);
    world.calm();
    assert_eq!(world.tokens(), world.tokens_each_alone());
    world.seen
}
