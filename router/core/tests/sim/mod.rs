//! Worlds: the real core, virtual workers, a virtual clock, and all the trouble that a seed can think of.
//!
//! The engine's part is played as the engine plays it: plan, hand over, read results in order, commit, drain the events.
//! In between requests come, leave and are finished from outside, workers are killed with steps in flight, and results
//! come garbled. After every action the core checks its invariants, and every token that it tells is compared with the
//! one that the request draws alone.

mod acts;
mod disk;
mod hearing;
mod kinds;
mod model;
mod random;
mod requests;
mod tiers;
mod worker;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pelton_core::{
    CacheChange, CoreConfig, Event, Explanation, FinishReason, Goal, GroupId, Kind, Limits, Medium, Micros, NewRequest,
    PinId, PinRefusal, Refusal, RequestId, StateMode, TokenId, TokenScore, Trust, Wait,
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
    scores: VecDeque<TokenScore>, // as when alone; those that are told are taken
    vector: Option<Box<[f32]>>,   // as when alone; none of it is owed any more
    reason: FinishReason,
    told: Vec<TokenId>,
    was_admitted: bool,
    is_held: bool,
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
    misses: bool,
    disk: bool,
    /// It says nothing for long.
    disk_hangs: bool,
    /// Many requests come at once.
    rushes: bool,
    /// Nothing happens for long, and those that wait have waited for so much longer.
    pauses: bool,
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
    vectors_of_last,
    vectors_of_last_cached,
    vectors_of_last_replayed,
    vectors_of_all,
    vectors_of_all_replayed,
    aborted_while_running,
    finished_from_outside,
    held,
    released,
    retired_groups,
    withdrawn,
    withdrawn_without_trust,
    expired_while_held,
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
    cached_behind_spans,
    copies,
    copies_of_two_kinds,
    windows,
    holes,
    states_of_mode_none,
    states_of_mode_all,
    states_of_mode_align,
    states_of_zeros,
    states_in_place,
    states_found,
    windows_loaded,
    states_loaded,
    histories,
    histories_with_output,
    suppressed,
    scores,
    scores_in_chunks,
    scored_and_replayed,
    scored_where_known,
    embeds_in_chunks,
    embeds_before_tokens,
    preemptions,
    turns_ended,
    pins,
    pins_refused,
    pinned_given_up,
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
    unsampled,
    forced,
    drafts,
    drafts_accepted,
    drafts_rejected,
    drafts_in_company,
    drafts_taking_blocks,
    kills_with_drafts,
    rushes,
    long_queues,
    long_waits,
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
        let mut often = || !random.once_in(4);
        let faults = Faults {
            aborts: often(),
            finishes: often(),
            kills: often(),
            garbage: often(),
            shrinks: often(),
            clears: often(),
            misses: often(),
            disk: often(),
            disk_hangs: !often(),
            rushes: !often(),
            pauses: !often(),
        };
        let longest = config.max_model_len.div_ceil(config.block_size);
        let mut sites = BTreeMap::new();
        for group in (0..random.within(1..=3)).map(|id| GroupId(id as u16)) {
            let blocks = random.within(longest.div_ceil(2)..=longest * 3 * (1 + config.kinds.len() as u32));
            let (reaches_host, copy_us) = (!random.once_in(5), random.within(1..=60));
            core.add_group(group, blocks, reaches_host);
            sites.insert(
                group,
                Site {
                    blocks,
                    reaches_host,
                    copy_us,
                    worker: Some(Worker::new(blocks, &config, copy_us, faults.misses)),
                    findable: BTreeSet::new(),
                },
            );
        }
        let host = tiers::host_memory(&config);
        Self { random, now: Micros(0), config, core, sites, host, disk, tales: BTreeMap::new(), texts, faults, seen }
    }

    /// Lives through so many actions.
    pub(crate) fn run(&mut self, actions: usize) {
        for _ in 0..actions {
            self.now.0 += u64::from(self.random.within(0..=100)); // some arrive at the same time
            if self.faults.pauses && self.random.once_in(100) {
                self.now.0 += u64::from(self.random.within(0..=60_000_000));
            }
            match self.random.within(0..=99) {
                0 if self.faults.rushes && self.random.once_in(10) => self.rush(),
                0..=11 => self.submit(),
                12 if self.faults.aborts => self.abort(),
                13 if self.faults.finishes => self.finish(),
                99 if self.config.pin_share > 0 => self.pin(),
                14 if self.faults.kills && self.random.once_in(2) => self.kill(),
                15..=18 => self.revive(),
                79 if self.faults.shrinks => self.retire(),
                19 if self.faults.garbage && self.random.once_in(2) => self.garble(),
                20 if self.faults.clears && self.random.once_in(4) => self.clear_tiers(),
                21..=30 if !self.faults.disk_hangs || self.random.once_in(50) => self.disk_acts(),
                20..=49 => self.plan(),
                50..=73 => self.work(),
                74 => self.force(),
                75 => self.withdraw(),
                76 => self.hold(),
                77..=78 => self.release(),
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
        let live: Vec<RequestId> = self.tales.keys().copied().collect();
        live.into_iter().for_each(|id| self.release_one(id));
        self.hear();
        self.calm_disk();
        while self.tales.values().any(|tale| !tale.has_ended) {
            self.calm_disk();
            for group in self.groups() {
                while self.plan_group(group) {}
            }
            self.hear(); // planning lets time pass, and a deadline with it
            let lives = self.tales.values().any(|tale| !tale.has_ended);
            let in_flight: usize = self.sites.keys().map(|&group| self.core.in_flight(group)).sum();
            assert!(in_flight > 0 || !lives, "requests live, and no group has anything to do");
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
        assert_eq!((counts.running, counts.waiting, counts.held, held), (0, 0, 0, (0, 0)), "everything comes home");
        assert_eq!(counts.disk_blocks, self.disk.len(), "core and disk agree on what is kept");
        self.seen.saves += counts.saves;
        self.seen.loads += counts.loads;
        self.seen.host_hits += counts.host_hits;
        self.seen.disk_hits += counts.disk_hits;
        self.seen.unsampled += counts.unsampled;
        self.seen.forced += counts.forced_tokens;
        self.seen.drafts += counts.drafted_tokens;
        self.seen.drafts_accepted += counts.accepted_tokens;
        self.seen.drafts_rejected += counts.drafted_tokens - counts.accepted_tokens;
        self.seen.preemptions += counts.preemptions;
        self.seen.turns_ended += counts.turns_ended;
        self.seen.cached_tokens += counts.cached_tokens;
        self.seen.replays += counts.replayed;
        self.seen.steps += counts.steps;
        self.seen.pinned_given_up += counts.pinned_given_up;
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

fn config(random: &mut Random) -> CoreConfig {
    let block_size = random.within(1..=8);
    let max_model_len = random.within(12..=80);
    let max_running = random.within(1..=8);
    let longest = max_model_len.div_ceil(block_size);
    let kinds = kinds::kinds(random);
    let limits = Limits {
        slots: max_running + random.within(0..=6),
        tokens: random.within(1..=60),
        appends: longest * kinds::tables(&kinds) + random.within(0..=20),
        saves: random.within(1..=4),
        loads: random.within(1..=4),
        copies: random.within(0..=4),
        states: kinds.len() as u32 - kinds::tables(&kinds) + random.within(0..=20),
        biases: random.within(2..=6),
        suppressed: random.within(2..=6),
        history: max_model_len + random.within(0..=100),
        scores: 0,
        embeds: 0,
    };
    let host_blocks = if random.once_in(3) { 0 } else { random.within(1..=longest * 3) };
    let disk_places = if random.once_in(3) { 0 } else { random.within(1..=longest * 5) };
    let mut config = CoreConfig {
        block_size,
        kinds,
        max_model_len,
        limits,
        max_running,
        max_waiting: if random.once_in(4) { 200 } else { random.within(2..=20) as usize },
        token_budget: random.within(1..=60),
        itl_target_us: random.once_in(2).then(|| random.within(50..=1_000)),
        hash_key: [random.next(), random.next()],
        host_blocks,
        disk_places: if host_blocks > 0 { disk_places } else { 0 },
        drafts_max: if random.once_in(2) { 0 } else { random.within(1..=8) },
        prefix_caching: !random.once_in(10),
        pin_share: if random.once_in(2) { 0 } else { random.within(1..=100) },
        tenant_cache_share: if random.once_in(2) { 100 } else { random.within(0..=99) },
        tells_cache_changes: true,
    };
    config.limits.scores = 1 + (config.hash_key[0] % 24) as u32;
    config.limits.embeds = 1 + (config.hash_key[1] % 12) as u32;
    config
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
