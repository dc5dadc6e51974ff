//! A step while it is being planned: what stands in it, and what still fits.
//!
//! Never here: who gets into it, and where blocks come from.

use crate::cost::{Prices, Work};
use crate::epoch::{Running, Sent, SentRow};
use crate::group::Group;
use crate::hit::Hit;
use crate::kinds::Kinds;
use crate::live::LiveRequest;
use crate::state;
use crate::{Admit, Append, BlockId, Copy, CoreConfig, Goal, Limits, Load, Plan, Row, Save, SlotId, StepId, TokenId};

/// However little time is left, a prompt gets on by so many tokens per step.
pub(crate) const CHUNK_MIN: u32 = 16;
/// As long as nobody knows what prompts take, they get so many tokens beside those that draw.
const CHUNK_UNKNOWN: u32 = 256;

/// How long a step may take that draws tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) target_us: u64,
    pub(crate) prices: Prices,
}

/// See the top of the file.
pub(crate) struct NextStep {
    step: StepId,
    pace: Option<Pace>,
    prices: Prices,
    work: Work,
    has_decoding: bool,
    has_prompt: bool,
    kept: u32, // tokens
    keeps_half: bool,
    step_tokens: u32, // see `Group::step_tokens`
    block_size: u32,
    kinds: Kinds,
    cuts_rows: bool,
    /// One of those that run goes without the blocks that it wants.
    pub(crate) lacks_blocks: bool,
    left: Limits,
    plan: Plan,
    rows: Vec<SentRow>,
    drafts: Vec<TokenId>,
    named: Vec<SlotId>,
    sources: Vec<BlockId>,
}

impl NextStep {
    pub(crate) fn new(step: StepId, config: &CoreConfig, kinds: Kinds, group: &Group) -> Self {
        let prices = group.cost.prices();
        let left = Limits { tokens: config.token_budget.min(config.limits.tokens), ..config.limits };
        Self {
            step,
            pace: config.itl_target_us.map(|target| Pace { target_us: u64::from(target), prices }),
            prices,
            work: Work::default(),
            has_decoding: false,
            has_prompt: false,
            kept: 0,
            keeps_half: false,
            step_tokens: group.step_tokens(config),
            block_size: config.block_size,
            kinds,
            cuts_rows: config.prefix_caching && kinds.cuts_rows() && kinds.can_be_found(),
            lacks_blocks: false,
            left,
            plan: Plan::default(),
            rows: Vec::new(),
            drafts: Vec::new(),
            named: Vec::new(),
            sources: Vec::new(),
        }
    }

    /// Whether a prompt with so many tokens ahead is more than a step takes.
    pub(crate) fn is_long(&self, ahead: u32) -> bool {
        ahead > self.step_tokens
    }

    /// Whether a slot has its row already.
    pub(crate) fn has_row(&self, running: &Running) -> bool {
        running.last_row == self.step
    }

    /// Until `keep_nothing`, rows leave a token of the step to others, unless it is the only one: whoever comes later may have
    /// no block for it, while those before wait for the token.
    pub(crate) fn keep_one(&mut self) {
        self.kept = u32::from(self.left.tokens > 1);
    }

    /// Until `keep_nothing`, rows leave half of what is left now of the step to others.
    pub(crate) fn keep_half(&mut self) {
        self.kept = self.left.tokens / 2;
        self.keeps_half = true;
    }

    /// What follows are long prompts: one of them gets on by `CHUNK_MIN` tokens, whatever short ones have had.
    pub(crate) fn begin_long(&mut self) {
        self.has_prompt = false;
    }

    pub(crate) fn keep_nothing(&mut self) {
        (self.kept, self.keeps_half) = (0, false);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.left.tokens <= self.kept
    }

    pub(crate) fn takes_copies(&self, copies: usize) -> bool {
        self.left.copies as usize >= copies
    }

    /// Whether the frame has room for what a request brings along when it is admitted.
    pub(crate) fn takes_admit(&self, request: &LiveRequest) -> bool {
        let cost = AdmitCost::of(request);
        cost.biases <= self.left.biases && cost.suppressed <= self.left.suppressed && cost.history <= self.left.history
    }

    /// Whether a row of so many tokens goes beyond the blocks that the worker knows. Within these it wants no other.
    pub(crate) fn leaves_known_blocks(&self, running: &Running, count: u32) -> bool {
        (running.planned + count) as usize > running.appended * self.block_size as usize
    }

    /// Whether the step has room for more of requests with short rows, of one sort at least.
    pub(crate) fn takes_short_rows(&self) -> bool {
        self.left.scores > 0 || self.left.embeds > 0
    }

    /// Whether a request's next row would have to score, or begin with embeddings, and the step takes no more of these. One whose
    /// embeddings are all found in the cache waits like the others: nobody has looked yet.
    pub(crate) fn has_no_room_for_short_row(&self, request: &LiveRequest) -> bool {
        (self.left.scores == 0 && request.is_to_be_scored()) || (self.left.embeds == 0 && request.embedded > 0)
    }

    /// How many tokens a request's row can have, at most `ahead`, that begins at token `planned` of a slot whose worker knows
    /// `appended` places.
    pub(crate) fn row_max(&self, request: &LiveRequest, ahead: u32, planned: u32, appended: usize) -> u32 {
        let ahead = request.row_max(planned, ahead, self.left.scores, self.left.embeds);
        if ahead == 0 {
            return 0;
        }
        let appended = u32::try_from(appended).expect("blocks are counted by u32");
        let more = match self.kinds.tables() {
            0 => u32::MAX,
            1 => self.left.appends,
            tables => self.left.appends / tables,
        };
        let mut reach = appended.saturating_add(more);
        if self.kinds.states() > 0 {
            reach = reach.min(state::reach(&self.kinds, self.block_size, planned, self.left.states));
        }
        let reach = reach.saturating_mul(self.block_size);
        let count = ahead.min(self.left.tokens.saturating_sub(self.kept)).min(reach.saturating_sub(planned));
        let count = match self.pace {
            Some(pace) if self.has_decoding && count > 1 => count.min(self.chunk(pace, request, planned, count)),
            _ => count,
        };
        if self.cuts_rows { self.cut(planned, count) } else { count }
    }

    /// A row that ends with a full block, if it gets to the end of any: then its state can be found.
    fn cut(&self, start: u32, count: u32) -> u32 {
        let aligned = (start + count) / self.block_size * self.block_size;
        if aligned > start { aligned - start } else { count }
    }

    /// How much of a prompt fits into the time of this step, beside what stands in it.
    fn chunk(&self, pace: Pace, request: &LiveRequest, start: u32, max: u32) -> u32 {
        if !pace.prices.knows_prompts {
            return CHUNK_UNKNOWN;
        }
        let spent = pace.prices.micros(self.work);
        let left = pace.target_us.saturating_sub(spent);
        let limit = spent + if self.keeps_half { left / 2 } else { left };
        let with = |count| self.work.with_row(start, count).with_scores(request.scores_in(start, start + count));
        let chunk = pace.prices.tokens_within(limit, max, with);
        if self.has_prompt { chunk } else { chunk.max(CHUNK_MIN) }
    }

    /// Tells the worker of a request that enters `slot`.
    pub(crate) fn admit(&mut self, slot: SlotId, running: &mut Running, request: &LiveRequest) {
        self.name(slot, running);
        let cost = AdmitCost::of(request);
        self.left.biases -= cost.biases;
        self.left.suppressed -= cost.suppressed;
        self.left.history -= cost.history;
        self.plan.admits.push(Admit {
            slot,
            request: request.place.id,
            prompt_len: request.prompt_len - request.embedded,
            suppress_until: request.suppress_until(),
            suppressed: if is_suppressing(request) { request.stop.stop_ids.clone() } else { [].into() },
            sampling: request.sampling.clone(),
            history: if cost.history > 0 { request.tokens[request.embedded as usize..].to_vec() } else { Vec::new() },
        });
    }

    pub(crate) fn takes_save(&self) -> bool {
        self.left.saves > 0
    }

    pub(crate) fn takes_load(&self) -> bool {
        self.left.loads > 0
    }

    /// Whether the step has room for all loads of a hit.
    pub(crate) fn takes_loads(&self, hit: &Hit) -> bool {
        hit.loads.len() <= self.left.loads as usize
    }

    /// Has a block copied to the host's memory.
    pub(crate) fn save(&mut self, save: Save) {
        self.left.saves -= 1;
        self.work = self.work.with_copied_block();
        self.plan.saves.push(save);
    }

    /// Has a block copied back from the host's memory, for the request of a slot.
    pub(crate) fn load(&mut self, slot: SlotId, running: &mut Running, load: Load) {
        self.left.loads -= 1;
        self.work = self.work.with_copied_block();
        self.plan.loads.push(load);
        self.name(slot, running);
    }

    /// The step names a slot. If it has no row of it besides, its commit looks at the slot all the same.
    fn name(&mut self, slot: SlotId, running: &mut Running) {
        if self.named.last() != Some(&slot) {
            self.named.push(slot);
        }
        running.last_step = self.step;
    }

    /// Has the start of a block copied. The caller holds the source, until the step has committed.
    pub(crate) fn copy(&mut self, copy: Copy) {
        self.left.copies -= 1;
        self.plan.copies.push(copy);
        self.sources.push(copy.from);
    }

    /// How many drafts a row of one token behind `start` others may have, of at most `most`, so that `reserved` tokens are left
    /// for others, and it takes no longer than it should.
    pub(crate) fn drafts_max(&self, start: u32, most: u32, reserved: u32) -> u32 {
        let left = self.left.tokens.saturating_sub(self.kept).saturating_sub(reserved).saturating_sub(1);
        let most = most.min(left);
        let Some(Pace { target_us, prices }) = self.pace else { return most };
        let work = self.work.with_row(start, 1);
        let fits = |&drafts: &u32| prices.micros(work.with_drafts(start + 1, drafts)) <= target_us;
        (1..=most).take_while(fits).last().unwrap_or(0)
    }

    /// Whether the step's lists hold these appends, and as many for each of `others`.
    pub(crate) fn takes_appends(&self, appends: u32, others: u32) -> bool {
        self.left.appends.saturating_sub(others) >= appends
    }

    /// Gives a slot its row, of `count` tokens and the drafts behind them, and tells the worker of the blocks that it fills.
    pub(crate) fn row(
        &mut self,
        slot: SlotId,
        running: &mut Running,
        request: &mut LiveRequest,
        count: u32,
        drafts: &[TokenId],
    ) {
        let drafted = u32::try_from(drafts.len()).expect("at most `drafts_max`");
        assert!(count > 0 && count + drafted <= self.left.tokens && !self.has_row(running));
        let (start, known) = (running.planned, request.known());
        let (before, scores) = (self.work, request.scores_in(start, start + count));
        self.work = before.with_row(start, count).with_drafts(start + count, drafted).with_scores(scores);
        if count > 1 {
            let longer = || self.prices.micros(self.work).saturating_sub(self.prices.micros(before));
            request.account.chunk(if self.has_decoding { longer() } else { 0 });
        }
        let draws = request.goal == Goal::Tokens;
        *(if count == 1 && draws { &mut self.has_decoding } else { &mut self.has_prompt }) = true;
        let is_last = start + count == known + running.draws;
        let (samples, pools) = (is_last && draws, is_last && !draws);
        assert!(drafts.is_empty() || samples && running.draws == 0, "drafts are planned from committed state");
        let end = start + count + drafted;
        let places = end.div_ceil(self.block_size) as usize;
        if places > running.appended {
            self.tell_blocks(slot, running, places);
        }
        if self.kinds.states() > 0 {
            self.tell_states(slot, running, end);
        }
        self.left.tokens -= count + drafted;

        let tokens = &request.tokens[start as usize..(start + count).min(known) as usize];
        self.plan.tokens.extend_from_slice(tokens);
        self.plan.tokens.extend_from_slice(drafts);
        self.drafts.extend_from_slice(drafts);
        let known = u32::try_from(tokens.len()).expect("at most `count`") + drafted;
        let masked = samples && request.masked;
        self.left.scores -= scores;
        let embeds = request.embeds_in(start, start + count);
        assert!(embeds == 0 || draws, "nobody makes a vector of embeddings");
        self.left.embeds -= embeds;
        let next = (scores > 0 && !samples).then(|| request.tokens[(start + count) as usize]);
        self.plan.rows.push(Row {
            slot,
            start,
            count: count + drafted,
            known,
            drafts: drafted,
            samples,
            masked,
            pools,
            scores,
            next,
            embeds,
        });
        self.rows.push(SentRow { slot, end, drafts: drafted, samples, masked, pools, scores, is_void: false });

        running.appended = running.appended.max(places); // a row that was taken back may have reached further
        running.planned = end;
        running.draws += u32::from(samples) + drafted;
        running.drafts = drafted;
        (running.last_row, running.last_step) = (self.step, self.step);
    }

    fn tell_blocks(&mut self, slot: SlotId, running: &Running, places: usize) {
        let number = |index: usize| u32::try_from(index).expect("few kinds, and blocks are counted by u32");
        for at in running.appended..places {
            for kind in self.kinds.in_tables() {
                if let Some(block) = running.table.get(kind, at) {
                    self.plan.appends.push(Append { slot, kind: number(kind), at: number(at), block });
                    self.left.appends -= 1;
                }
            }
        }
    }

    fn tell_states(&mut self, slot: SlotId, running: &Running, end: u32) {
        let states = &mut self.plan.states;
        let before = states.len();
        state::moves(&self.kinds, self.block_size, slot, &running.table, running.planned, end, states);
        self.left.states -= u32::try_from(states.len() - before).expect("bounded by what is left");
    }

    /// The plan, if there is anything to do, and what the core must remember of it.
    pub(crate) fn finish(mut self, drops: &mut Vec<SlotId>) -> Option<(Plan, Sent)> {
        let Plan { rows, admits, saves, loads, .. } = &self.plan;
        if rows.is_empty() && admits.is_empty() && saves.is_empty() && loads.is_empty() {
            return None; // drops alone can wait for the next step that does something
        }
        self.named.retain(|slot| !rows.iter().any(|row| row.slot == *slot));
        let sent = Sent {
            step: self.step,
            rows: self.rows,
            drafts: self.drafts,
            named: self.named,
            sources: self.sources,
            saves: saves.iter().map(|save| save.to).collect(),
            loads: loads.iter().map(|load| load.from).collect(),
            work: self.work,
        };
        self.plan.step = self.step;
        self.plan.drops = std::mem::take(drops);
        Some((self.plan, sent))
    }
}

/// What a request takes from a frame's lists when it is admitted.
struct AdmitCost {
    biases: u32,
    /// With those that are told.
    suppressed: u32,
    history: u32,
}

impl AdmitCost {
    fn of(request: &LiveRequest) -> Self {
        let count = |len: usize| u32::try_from(len).expect("refused at submit() otherwise");
        let suppressed = if is_suppressing(request) { request.stop.stop_ids.len() } else { 0 };
        Self {
            biases: count(request.sampling.logit_bias.len()),
            suppressed: count(suppressed + request.sampling.told.len()),
            history: if request.sampling.has_penalties() { request.known() - request.embedded } else { 0 },
        }
    }
}

/// Whether tokens that would end it cannot be drawn yet.
fn is_suppressing(request: &LiveRequest) -> bool {
    request.known() < request.suppress_until()
}
