//! A virtual worker: does what a plan says to a KV store, and believes nothing.

use std::collections::{BTreeMap, VecDeque};

use pelton_core::{
    Admit, BlockId, CacheScope, CoreConfig, Goal, Kind, Limits, Plan, RequestId, Row, RowResult, SlotId, StateMove,
    StepId, StepResults, TokenId, TokenLogprobs, TokenScore,
};

use super::model::{self, Draw};
use super::random::Random;

/// See the top of the file.
pub(crate) struct Worker {
    limits: Limits,
    block_size: u32,
    kinds: Vec<Kind>,
    kept: Vec<Vec<Option<u64>>>, // by block, by offset; stale contents stay until something is written; a state is at 0
    copy_us: u32,
    slots: Vec<Option<Slot>>,
    plans: VecDeque<Plan>,
    asked: BTreeMap<RequestId, (CacheScope, Goal)>, // of all that were ever admitted here
    last_step: StepId,
    masks_miss: bool, // now and then, none comes in time
    /// Results that nobody has read yet.
    pub(crate) results: VecDeque<StepResults>,
}

/// What the workers of a host share: by block, by offset.
pub(crate) type HostMemory = Vec<Vec<Option<u64>>>;

/// What a row brings.
enum Given {
    Nothing,
    Tokens(Vec<RowResult>),
    Vector(Box<[f32]>),
}

struct Slot {
    admit: Admit,
    tables: Vec<Vec<Option<BlockId>>>, // by kind, by place; what a window has passed stands there for ever
    states: Vec<Option<BlockId>>,      // by kind
    tally: u64,
    drawn: Option<TokenId>, // by the latest sampling row
    is_stale: bool,         // that row drew nothing: who counts on its token computes nonsense
}

impl Worker {
    pub(crate) fn new(blocks: u32, config: &CoreConfig, copy_us: u32, masks_miss: bool) -> Self {
        let CoreConfig { limits, block_size, kinds, .. } = config.clone();
        Self {
            limits,
            block_size,
            kinds,
            kept: vec![vec![None; block_size as usize]; blocks as usize],
            copy_us,
            slots: (0..limits.slots).map(|_| None).collect(),
            plans: VecDeque::new(),
            asked: BTreeMap::new(),
            last_step: StepId(0),
            masks_miss,
            results: VecDeque::new(),
        }
    }

    /// A step enters the frames.
    pub(crate) fn receive(&mut self, plan: Plan, asked: impl Fn(RequestId) -> (CacheScope, Goal)) {
        self.asked.extend(plan.admits.iter().map(|admit| (admit.request, asked(admit.request))));
        self.check_limits(&plan);
        assert_eq!(plan.step, self.last_step.next(), "steps come without gaps");
        self.last_step = plan.step;
        self.plans.push_back(plan);
        assert!(self.plans.len() + self.results.len() <= 2, "at most two steps are in flight");
    }

    /// Does the oldest step that waits. Rows run in any order: none may depend on another one.
    pub(crate) fn work(&mut self, random: &mut Random, host: &mut HostMemory) {
        let Some(plan) = self.plans.pop_front() else { return };
        for slot in &plan.drops {
            assert!(self.slots[slot.index()].take().is_some(), "{slot:?} is dropped while in use");
        }
        for admit in &plan.admits {
            self.admit(admit.clone());
        }
        for append in &plan.appends {
            let table = &mut self.slot(append.slot).tables[append.kind as usize];
            assert!(table.len() <= append.at as usize, "blocks come at the end of a table, or behind a hole");
            table.resize(append.at as usize, None);
            table.push(Some(append.block));
        }
        for save in &plan.saves {
            let kept = &self.kept[save.from.index()];
            assert!(self.is_full(kept), "{:?} is saved full", save.from);
            host[save.to.index()].clone_from(kept);
        }
        for load in &plan.loads {
            let kept = &host[load.from.index()];
            assert!(self.is_full(kept), "{:?} is loaded full", load.from);
            self.kept[load.to.index()].clone_from(kept);
        }
        for copy in &plan.copies {
            let source = self.kept[copy.from.index()].clone();
            assert_ne!(copy.from, copy.to);
            let target = &mut self.kept[copy.to.index()];
            target.fill(None);
            target[..copy.tokens as usize].copy_from_slice(&source[..copy.tokens as usize]);
        }
        let mut results = vec![vec![None]; plan.rows.len()];
        let mut vectors = vec![None; plan.rows.len()];
        let mut scores = vec![Vec::new(); plan.rows.len()];
        let mut offset = 0;
        let mut rows: Vec<(usize, Row, &[TokenId])> = Vec::new();
        for (at, &row) in plan.rows.iter().enumerate() {
            rows.push((at, row, &plan.tokens[offset..][..row.known as usize]));
            offset += row.known as usize;
        }
        assert_eq!(offset, plan.tokens.len(), "rows and tokens agree");
        random.shuffle(&mut rows);
        for (at, row, tokens) in rows {
            let moves: Vec<StateMove> = plan.states.iter().copied().filter(|told| told.slot == row.slot).collect();
            assert!(row.samples || !row.masked, "a mask is for a row that draws");
            let misses = row.masked && self.masks_miss && random.once_in(4);
            match self.compute(row, tokens, &moves, misses, &mut scores[at]) {
                Given::Nothing => {}
                Given::Tokens(drawn) => results[at] = drawn.into_iter().map(Some).collect(),
                Given::Vector(vector) => vectors[at] = Some(vector),
            }
        }
        let draws = results.into_iter().flatten().collect();
        let vectors = vectors.into_iter().flatten().collect();
        let scores = scores.into_iter().flatten().collect();
        let took_us = took(&plan, self.copy_us);
        self.results.push_back(StepResults { step: plan.step, took_us, draws, vectors, scores });
    }

    /// The worker dies: what it was saving is half there.
    pub(crate) fn die(self, host: &mut HostMemory) {
        for save in self.plans.iter().flat_map(|plan| &plan.saves) {
            host[save.to.index()].fill(None);
        }
    }

    /// Whether a row of a step in flight has drafts.
    pub(crate) fn has_drafts(&self) -> bool {
        self.plans.iter().flat_map(|plan| &plan.rows).any(|row| row.drafts > 0)
    }

    /// What steps in flight are about to read of the host's memory.
    pub(crate) fn sources(&self) -> impl Iterator<Item = usize> {
        self.plans.iter().flat_map(|plan| &plan.loads).map(|load| load.from.index())
    }

    /// Whether a block has something of each token, or a state.
    fn is_full(&self, kept: &[Option<u64>]) -> bool {
        let is_state = self.kinds.iter().any(|kind| matches!(kind, Kind::State { .. })) && kept[0].is_some();
        is_state || kept.iter().all(Option::is_some)
    }

    fn admit(&mut self, admit: Admit) {
        let has_penalties = admit.sampling.has_penalties();
        assert!(has_penalties || admit.history.is_empty());
        let tally = admit.history.iter().fold(0, |sum: u64, &token| sum.wrapping_add(model::tally(token)));
        let place = &mut self.slots[admit.slot.index()];
        assert!(place.is_none(), "{:?} is admitted to while in use", admit.slot);
        let (tables, states) = (vec![Vec::new(); self.kinds.len()], vec![None; self.kinds.len()]);
        *place = Some(Slot { admit, tables, states, tally, drawn: None, is_stale: false });
    }

    /// What is drawn behind the row's last token and behind each of its drafts, or a vector of all.
    fn compute(
        &mut self,
        row: Row,
        tokens: &[TokenId],
        moves: &[StateMove],
        misses: bool,
        scores: &mut Vec<TokenScore>,
    ) -> Given {
        assert!(row.count > row.drafts && row.count - row.known <= 1);
        let slot = self.slots[row.slot.index()].as_ref().expect("rows name slots in use");
        let is_nonsense = slot.is_stale && row.known < row.count;
        // A first row whose mask has missed leaves nothing behind: any token will do.
        let latest = slot.drawn.or(slot.is_stale.then_some(0));
        let unknown = (row.known < row.count).then(|| latest.expect("an unknown token was drawn before"));
        let tokens: Vec<TokenId> = tokens.iter().copied().chain(unknown).collect();
        let (scope, goal) = &self.asked[&slot.admit.request];
        let (goal, prompt_len) = (*goal, slot.admit.prompt_len);
        let embedded = scope.embedded().min(row.start + row.count).saturating_sub(row.start);
        assert!(row.embeds == embedded && row.embeds <= row.known - row.drafts, "{row:?}");
        let meaning = |(position, token)| model::meaning(scope, position, token);
        let meanings: Vec<u64> = (row.start..).zip(tokens.iter().copied()).map(meaning).collect();
        let mut states: Vec<Vec<u64>> = vec![Vec::new(); self.kinds.len()]; // by kind, of each token
        for (number, kind) in self.kinds.clone().into_iter().enumerate() {
            if let Kind::State { .. } = kind {
                let moves = moves.iter().filter(|told| told.kind as usize == number);
                states[number] = self.compute_state(row, number, &meanings, moves);
                continue;
            }
            for (position, &meaning) in (row.start..).zip(&meanings) {
                let kept = model::kept(kind, position, meaning, |position| self.read(row.slot, number, position));
                let (block, offset) = self.place(row.slot, number, position);
                self.kept[block][offset] = Some(kept);
            }
        }
        let end = row.start + row.count;
        self.score(row, &tokens, &states, scores);
        if row.pools {
            let context = || model::context(&self.kinds, end - 1, |kind, position| self.read(row.slot, kind, position));
            assert!(!row.samples && end == prompt_len, "a vector is of all tokens of a request");
            return Given::Vector(model::vector(goal, context, &meanings));
        }
        assert!(goal != Goal::VectorOfAll, "all tokens of such a request stand in one row");
        if !row.samples {
            return Given::Nothing;
        }
        assert!(goal == Goal::Tokens, "nothing is drawn for a vector");
        if misses || is_nonsense {
            self.slot(row.slot).is_stale = true;
            let nonsense = RowResult { token: 0, logprobs: None }; // nobody may look at it
            return if misses { Given::Nothing } else { Given::Tokens(vec![nonsense]) };
        }
        let draws = (end - row.drafts..=end).map(|position| self.draw(row.slot, position)).collect();
        if row.drafts > 0 {
            self.slot(row.slot).drawn = None; // nobody knows yet which one counts
        }
        Given::Tokens(draws)
    }

    /// How likely what follows was behind each of the row's last tokens, without the one that it draws behind.
    fn score(&self, row: Row, tokens: &[TokenId], states: &[Vec<u64>], scores: &mut Vec<TokenScore>) {
        assert_eq!(row.next.is_some(), row.scores > 0 && !row.samples, "{row:?}");
        assert!(row.scores == 0 || !row.pools && row.drafts == 0 && row.known == row.count, "{row:?}");
        let behind = tokens[1..].iter().copied().chain(row.next).collect::<Vec<_>>();
        for at in behind.len() - row.scores as usize..behind.len() {
            let context = model::context(&self.kinds, row.start + at as u32, |kind, position| match self.kinds[kind] {
                Kind::State { .. } => states[kind][at],
                Kind::Full | Kind::Window { .. } => self.read(row.slot, kind, position),
            });
            scores.push(model::score(context, behind[at]));
        }
    }

    /// What stands at `end`, behind all that is kept before.
    fn draw(&mut self, slot: SlotId, end: u32) -> RowResult {
        let context = model::context(&self.kinds, end - 1, |kind, position| self.read(slot, kind, position));
        let slot = self.slots[slot.index()].as_mut().expect("rows name slots in use");
        let token = Draw {
            context,
            position: end,
            tally: slot.tally,
            prompt_len: slot.admit.prompt_len,
            sampling: &slot.admit.sampling,
            suppressed: &slot.admit.suppressed,
            suppress_until: slot.admit.suppress_until,
        }
        .token();
        (slot.drawn, slot.is_stale) = (Some(token), false);
        if slot.admit.sampling.has_penalties() {
            slot.tally = slot.tally.wrapping_add(model::tally(token));
        }
        let logprobs = slot.admit.sampling.logprobs.map(|_| Box::new(logprobs(token)));
        RowResult { token, logprobs }
    }

    /// Carries a slot's state on over a row's tokens, from block to block as it was told, else in place. Says what it was behind each.
    fn compute_state<'a>(
        &mut self,
        row: Row,
        kind: usize,
        meanings: &[u64],
        moves: impl Iterator<Item = &'a StateMove>,
    ) -> Vec<u64> {
        let mut states = Vec::new();
        let end = row.start + row.count;
        let latest = self.slot(row.slot).states[kind];
        let moves: Vec<(Option<BlockId>, BlockId, u32)> = moves.map(|told| (told.from, told.to, told.until)).collect();
        let first_until = moves.first().map_or(end, |_| row.start);
        let in_place = (first_until > row.start).then(|| {
            let latest = latest.expect("a state that was begun");
            (Some(latest), latest, end)
        });
        let mut position = row.start;
        for (from, to, until) in in_place.into_iter().chain(moves) {
            assert!(position < until && until <= end, "a move takes tokens of its row");
            let mut state = match from {
                None => model::EMPTY,
                Some(from) => self.kept[from.index()][0].expect("a state that somebody has written"),
            };
            for at in position..until {
                state = model::kept(self.kinds[kind], at, meanings[(at - row.start) as usize], |_| state);
                states.push(state);
            }
            self.kept[to.index()].fill(None);
            self.kept[to.index()][0] = Some(state);
            self.slot(row.slot).states[kind] = Some(to);
            position = until;
        }
        assert_eq!(position, end, "all tokens of a row go through the state");
        states
    }

    fn place(&self, slot: SlotId, kind: usize, position: u32) -> (usize, usize) {
        let slot = self.slots[slot.index()].as_ref().expect("rows name slots in use");
        let block = slot.tables[kind][(position / self.block_size) as usize].expect("no row reads a hole");
        (block.index(), (position % self.block_size) as usize)
    }

    /// What was kept of the token at a position; of a kind with a state, of all tokens.
    fn read(&self, slot: SlotId, kind: usize, position: u32) -> u64 {
        let (block, offset) = match self.kinds[kind] {
            Kind::State { .. } => {
                let state = self.slots[slot.index()].as_ref().expect("rows name slots in use").states[kind];
                (state.expect("a state that was begun").index(), 0)
            }
            Kind::Full | Kind::Window { .. } => self.place(slot, kind, position),
        };
        self.kept[block][offset].expect("nothing is read that nobody has written")
    }

    fn slot(&mut self, slot: SlotId) -> &mut Slot {
        self.slots[slot.index()].as_mut().expect("a plan names slots in use")
    }

    fn check_limits(&self, plan: &Plan) {
        let total = |lens: &mut dyn Iterator<Item = usize>| lens.sum::<usize>();
        let limits = &self.limits;
        for (what, got, limit) in [
            ("drops", plan.drops.len(), limits.slots),
            ("admits", plan.admits.len(), limits.slots),
            ("rows", plan.rows.len(), limits.slots),
            ("appends", plan.appends.len(), limits.appends),
            ("saves", plan.saves.len(), limits.saves),
            ("loads", plan.loads.len(), limits.loads),
            ("copies", plan.copies.len(), limits.copies),
            ("states", plan.states.len(), limits.states),
            ("results", total(&mut plan.rows.iter().map(Row::results)), limits.slots),
            ("scores", total(&mut plan.rows.iter().map(|row| row.scores as usize)), limits.scores),
            ("embeds", total(&mut plan.rows.iter().map(|row| row.embeds as usize)), limits.embeds),
            ("tokens", total(&mut plan.rows.iter().map(|row| row.count as usize)), limits.tokens),
            ("biases", total(&mut plan.admits.iter().map(|admit| admit.sampling.logit_bias.len())), limits.biases),
            (
                "suppressed",
                total(&mut plan.admits.iter().map(|admit| admit.suppressed.len() + admit.sampling.told.len())),
                limits.suppressed,
            ),
            ("history", total(&mut plan.admits.iter().map(|admit| admit.history.len())), limits.history),
        ] {
            assert!(got <= limit as usize, "{got} {what} in a step that holds {limit}");
        }
        let has_transfers = !plan.saves.is_empty() || !plan.loads.is_empty();
        assert!(!plan.rows.is_empty() || has_transfers, "a step does something");
        let mut slots: Vec<_> = plan.rows.iter().map(|row| row.slot).collect();
        slots.sort();
        assert!(slots.is_sorted_by(|one, next| one < next), "a slot has one row in a step");
    }
}

/// How long a step takes here: the core does not know it.
fn took(plan: &Plan, copy_us: u32) -> u32 {
    let copied = (plan.saves.len() + plan.loads.len()) as u32;
    100 + copied * copy_us + plan.rows.iter().map(|row| 3 + row.count * 7 + row.count * row.start / 4).sum::<u32>()
}

/// What goes with a token, so that a mix-up is seen.
pub(crate) fn logprobs(token: TokenId) -> TokenLogprobs {
    TokenLogprobs { chosen: -(token as f32), top: vec![(token, 0.5)] }
}
