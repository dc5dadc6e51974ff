//! Which rows of a step have drafts, and how many. They are what is left over: no draft takes a block or a token of the step
//! that somebody else is about to want, so none ever preempts anybody or holds up an admission.
//!
//! Never here: what is drafted (`drafts.rs`), what becomes of it (`commit.rs`).

use crate::core::Core;
use crate::cost::{Prices, Work};
use crate::drafts::Bargain;
use crate::epoch::{Epoch, Running};
use crate::live::LiveRequest;
use crate::next_step::NextStep;
use crate::{GroupId, SlotId};

/// While others wait or compute prompts, all drafts of a step together take this part of its tokens at most.
const PART_BESIDE_PROMPTS: u32 = 4;

/// What drafts have to go by while a step is planned.
pub(crate) struct Drafting {
    prices: Prices,
    decoding: Work, // all rows of one token, without drafts
    token_us: u64,
    in_company: bool,
    drafts_max: u32, // per row
    left: u32,       // of the step's tokens and draws
    rows_ahead: u32, // rows of one token that are not planned yet
    takes_blocks: bool,
}

impl Core {
    /// None: there are no drafts in this step.
    pub(crate) fn drafting(&self, group: GroupId, has_prompts: bool) -> Option<Drafting> {
        if self.config.drafts_max == 0 {
            return None;
        }
        let epoch = self.epoch(group);
        let (mut rows, mut decoding) = (0, Work::default());
        for &(_, slot) in &epoch.order {
            let running = epoch.running(slot);
            if running.ahead(self.requests.get(epoch.served(slot))) == 1 {
                rows += 1;
                decoding = decoding.with_row(running.planned, 1);
            }
        }
        let prices = self.groups[&group].cost.prices();
        let others_want_room = has_prompts || self.requests.waiting_count() > 0;
        // Whoever runs may have a row, and who is admitted: with the drafts they are no more than the slots.
        let running = u32::try_from(epoch.order.len()).expect("slots are counted by u32");
        let waiting = u32::try_from(self.requests.waiting_count()).unwrap_or(u32::MAX);
        let enter = (self.config.max_running - running.min(self.config.max_running)).min(waiting);
        let draws = self.config.limits.slots - running - enter;
        let part = if others_want_room { PART_BESIDE_PROMPTS } else { 1 };
        Some(Drafting {
            prices,
            decoding,
            token_us: prices.micros(decoding) / u64::from(rows.max(1)),
            in_company: rows > 1,
            drafts_max: self.config.drafts_max,
            left: draws.min(self.config.token_budget / part),
            rows_ahead: rows,
            takes_blocks: !others_want_room,
        })
    }
}

impl Drafting {
    /// How many drafts are worth it for the request whose turn it is to get a row of one token.
    pub(crate) fn depth(&mut self, request: &LiveRequest, running: &Running) -> u32 {
        self.rows_ahead = self.rows_ahead.saturating_sub(1);
        let Some(drafter) = &request.drafter else { return 0 };
        // The last token that it may have is drawn behind the last draft.
        let most = self.drafts_max.min(request.known_max - request.known() - 1);
        let longer = self.prices.micros(self.decoding.with_drafts(running.planned + 1, 1));
        let bargain = Bargain {
            token_us: self.token_us,
            draft_us: longer - self.prices.micros(self.decoding),
            in_company: self.in_company,
        };
        drafter.depth(most, &bargain)
    }

    /// Of `most` drafts, those that there is room for behind a slot's row of one token, which has its block.
    pub(crate) fn take_room(&mut self, epoch: &mut Epoch, slot: SlotId, most: u32, next: &NextStep) -> u32 {
        let start = epoch.running(slot).planned + 1;
        let most = next.drafts_max(start - 1, most.min(self.left), self.rows_ahead);
        let count = self.take_blocks(epoch, slot, start, most, next);
        self.left -= count;
        count
    }

    fn take_blocks(&self, epoch: &mut Epoch, slot: SlotId, start: u32, most: u32, next: &NextStep) -> u32 {
        let running = epoch.running(slot);
        let block_size = epoch.blocks.block_size();
        let places =
            u32::try_from(running.appended).expect("blocks are counted by u32").max(start.div_ceil(block_size));
        let within = places * block_size - start;
        if most <= within || !self.takes_blocks {
            return most.min(within);
        }
        // Each of the others may want a block of each kind in this step.
        let others = u32::try_from(epoch.order.len()).expect("slots are counted by u32");
        let kinds = *epoch.blocks.kinds();
        let wanted = epoch.blocks.wanted(&running.table, start, start + most);
        let appends = ((start + most).div_ceil(block_size) - places + 1) * kinds.tables();
        if epoch.blocks.pool().idle() < wanted + (others * kinds.tables()) as usize
            || !next.takes_appends(appends, others * kinds.tables())
        {
            return within;
        }
        let Epoch { blocks, slots, .. } = epoch;
        let table = &mut slots[slot.index()].as_mut().expect("it serves").table;
        blocks.take_for_row(table, start, start + most);
        most
    }
}
