//! Load in virtual time: real cores, groups that take as long for a step as a cost function says, and the times at which
//! clients see their tokens. What it shows is the schedule; that tokens are right is what `sim` shows.

use std::collections::{BTreeMap, VecDeque};

use pelton_core::{
    CacheScope, Core, CoreConfig, Counts, Event, Goal, GroupId, Kind, Limits, Micros, NewRequest, Party, Plan,
    RequestId, RowResult, Sampling, StepResults, StopRule, TokenId, TokenScore,
};

const STOP: TokenId = 1;
const WORD: TokenId = 2;

/// Numbers from a seed (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn within(&mut self, low: u32, high: u32) -> u32 {
        low + (self.next() % u64::from(high - low + 1)) as u32
    }

    /// The time to the next arrival of a Poisson process.
    pub(crate) fn gap(&mut self, mean_us: f64) -> u64 {
        let uniform = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (-mean_us * (1.0 - uniform).ln()) as u64
    }
}

/// A request as its client sees it.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) arrival: u64,
    pub(crate) prompt: Vec<TokenId>,
    /// Tokens that it draws, the last one its stop token.
    pub(crate) answer: u32,
    pub(crate) priority: i32,
    pub(crate) party: Party,
    /// After its arrival.
    pub(crate) deadline_after: Option<u64>,
    /// Whether its prompt is scored.
    pub(crate) is_scored: bool,
}

impl Asked {
    pub(crate) fn new(arrival: u64, prompt: Vec<TokenId>, answer: u32) -> Self {
        Self { arrival, prompt, answer, priority: 0, party: Party::default(), deadline_after: None, is_scored: false }
    }
}

/// When a request's tokens came.
#[derive(Default, Clone)]
pub(crate) struct Seen {
    pub(crate) arrival: u64,
    pub(crate) tokens: Vec<u64>,
}

impl Seen {
    pub(crate) fn first_token_after(&self) -> u64 {
        self.tokens[0] - self.arrival
    }
}

struct Site {
    plans: VecDeque<Plan>,
    done_at: Option<u64>,
    prompt_len: BTreeMap<u32, (RequestId, u32)>, // by slot
}

/// How long a step takes, in microseconds.
pub(crate) type Cost = fn(&Plan) -> u64;

pub(crate) struct Load {
    core: Core,
    now: u64,
    cost: Cost,
    /// A group whose steps that begin from the first time on end at the second.
    pub(crate) hangs: Option<(GroupId, u64, u64)>,
    noise: Random,
    sites: BTreeMap<GroupId, Site>,
    asked: Vec<Asked>,
    pub(crate) seen: Vec<Seen>,
}

/// A core for loads: blocks of 32, a context of 256k.
pub(crate) fn config() -> CoreConfig {
    CoreConfig {
        block_size: 32,
        kinds: vec![Kind::Full],
        max_model_len: 262_144,
        limits: Limits {
            slots: 256,
            tokens: 8_192,
            appends: 16_384,
            saves: 0,
            loads: 0,
            copies: 256,
            states: 0,
            biases: 64,
            suppressed: 64,
            history: 262_144,
            scores: 8,
            embeds: 0,
        },
        max_running: 64,
        max_waiting: usize::MAX,
        token_budget: 2_048,
        itl_target_us: None,
        hash_key: [1, 2],
        host_blocks: 0,
        disk_places: 0,
        drafts_max: 0,
        prefix_caching: true,
        pin_share: 0,
        tenant_cache_share: 100,
        tells_cache_changes: false,
    }
}

impl Load {
    pub(crate) fn new(config: CoreConfig, groups: u16, blocks: u32, cost: Cost) -> Self {
        let mut core = Core::new(config);
        let mut sites = BTreeMap::new();
        for group in (0..groups).map(GroupId) {
            core.add_group(group, blocks, false);
            sites.insert(group, Site { plans: VecDeque::new(), done_at: None, prompt_len: BTreeMap::new() });
        }
        Self { core, now: 0, cost, hangs: None, noise: Random(1), sites, asked: Vec::new(), seen: Vec::new() }
    }

    /// Lives through all requests, which come in the order of their arrival, to the last token.
    pub(crate) fn run(&mut self, asked: Vec<Asked>) {
        self.seen = asked.iter().map(|asked| Seen { arrival: asked.arrival, ..Seen::default() }).collect();
        self.asked = asked;
        let mut arrived = 0;
        loop {
            let done = self.sites.iter().filter_map(|(&id, site)| Some((site.done_at?, id))).min();
            let arrival = self.asked.get(arrived).map(|asked| asked.arrival);
            match (arrival, done) {
                (Some(at), done) if done.is_none_or(|(done, _)| at <= done) => {
                    self.now = at;
                    self.submit(arrived);
                    arrived += 1;
                }
                (_, Some((at, group))) => {
                    self.now = at;
                    self.commit(group);
                }
                (None, None) => break,
                (Some(_), None) => unreachable!("the first arm takes arrivals when nothing runs"),
            }
            self.plan();
        }
        for (asked, seen) in self.asked.iter().zip(&self.seen) {
            assert_eq!(seen.tokens.len(), asked.answer as usize, "everybody gets a whole answer");
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.core.counts()
    }

    /// When the last token came.
    pub(crate) fn end(&self) -> u64 {
        self.now
    }

    /// The times between the tokens of each request, all together, sorted.
    pub(crate) fn gaps(&self) -> Vec<u64> {
        let mut gaps: Vec<u64> =
            self.seen.iter().flat_map(|seen| seen.tokens.windows(2).map(|pair| pair[1] - pair[0])).collect();
        gaps.sort_unstable();
        gaps
    }

    /// The times to the first tokens of some requests, sorted.
    pub(crate) fn first_tokens(&self, which: impl Fn(&Asked) -> bool) -> Vec<u64> {
        let both = self.asked.iter().zip(&self.seen).filter(|(asked, _)| which(asked));
        let mut times: Vec<u64> = both.map(|(_, seen)| seen.first_token_after()).collect();
        times.sort_unstable();
        times
    }

    fn submit(&mut self, at: usize) {
        let asked = &self.asked[at];
        let new = NewRequest {
            id: RequestId(at as u64),
            prompt: asked.prompt.clone().into(),
            generated: Vec::new(),
            scored: 0,
            goal: Goal::Tokens,
            sampling: Sampling { prompt_logprobs: asked.is_scored.then_some(0), ..Sampling::greedy() },
            stop: StopRule { max_tokens: 8_192, min_tokens: 0, stop_ids: [STOP].into() },
            masked: false,
            scope: CacheScope::default(),
            priority: asked.priority,
            arrival: Micros(self.now),
            party: asked.party,
            deadline: asked.deadline_after.map(|after| Micros(self.now + after)),
        };
        self.core.submit(new).expect("room");
    }

    fn plan(&mut self) {
        for (&group, site) in &mut self.sites {
            while let Some(plan) = self.core.plan(group, Micros(self.now)) {
                for admit in &plan.admits {
                    site.prompt_len.insert(admit.slot.0, (admit.request, admit.prompt_len));
                }
                site.plans.push_back(plan);
            }
            if site.done_at.is_none()
                && let Some(plan) = site.plans.front()
            {
                let took = (self.cost)(plan);
                let usual = self.now + took * u64::from(self.noise.within(97, 103)) / 100;
                let hung = self.hangs.filter(|&(hung, from, until)| hung == group && (from..until).contains(&self.now));
                site.done_at = Some(hung.map_or(usual, |(.., until)| until));
            }
        }
        self.hear();
    }

    fn commit(&mut self, group: GroupId) {
        let site = self.sites.get_mut(&group).expect("a group of this load");
        let plan = site.plans.pop_front().expect("it was running");
        let took = (self.cost)(&plan); // the clock of the worker knows no noise of the machine around it
        site.done_at = None;
        let draws = plan
            .rows
            .iter()
            .map(|row| {
                let (request, prompt_len) = site.prompt_len[&row.slot.0];
                let drawn = row.start + row.count + 1 - prompt_len.min(row.start + row.count);
                let token = if drawn >= self.asked[request.0 as usize].answer { STOP } else { WORD };
                row.samples.then_some(RowResult { token, logprobs: None })
            })
            .collect();
        let scores = plan.rows.iter().map(|row| row.scores as usize).sum();
        let scores = vec![TokenScore::default(); scores];
        let took_us = u32::try_from(took).expect("steps take less than an hour");
        self.core
            .commit(group, StepResults { step: plan.step, took_us, draws, scores, ..StepResults::default() })
            .expect("as planned");
        self.hear();
    }

    fn hear(&mut self) {
        for event in self.core.events() {
            if let Event::Token { request, .. } = event {
                self.seen[request.0 as usize].tokens.push(self.now);
            }
        }
    }
}

/// The value below which so many hundredths of sorted ones lie.
pub(crate) fn percentile(sorted: &[u64], hundredths: usize) -> u64 {
    sorted[(sorted.len() - 1) * hundredths / 100]
}

/// Tokens that nobody else has.
pub(crate) fn text(random: &mut Random, len: u32) -> Vec<TokenId> {
    (0..len).map(|_| random.within(3, 100_000)).collect()
}
