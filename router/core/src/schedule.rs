//! Who gets how much of the next step. One rule for all: a request has known tokens and computed ones, and a step
//! computes some of the difference. Prompts, decoding, cached prefixes, replay are not told apart. B:SC2.
//!
//! In this order, each by standing (`Ticket::standing`):
//!   1. those that need one token: they draw, and a prompt never holds them up;
//!   2. prompts that one step could compute, by its tokens and by its time. As long as there are longer ones, these keep half of what is left;
//!   3. those that wait (`admission.rs`), within the same bound;
//!   4. the longer prompts: half of the step is theirs at least, all of what is left if nobody else wants it.
//!
//! One step ahead: a token that a step in flight will draw counts as known, and the worker fills it in. Not so where drafts
//! are worth more (`drafting.rs`): they stand behind the last token that is really known.
//!
//! When blocks run out, a request may take them from requests behind it. The first of all is never preempted and so
//! always gets on: everything ends. One that has nobody behind it waits, and keeps what it has.

use crate::core::{Core, Counts};
use crate::drafting::Drafting;
use crate::epoch::Epoch;
use crate::live::{LiveRequest, Requests};
use crate::next_step::NextStep;
use crate::{GroupId, SlotId};

/// Kinds of rows, by the tokens that a request has ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowKind {
    OneToken,
    ShortPrompt,
    LongPrompt,
}

impl RowKind {
    fn of(request: &LiveRequest, ahead: u32, next: &NextStep) -> Option<Self> {
        match ahead {
            0 => None,
            1 => Some(Self::OneToken),
            _ if next.is_long(ahead) && !request.has_short_rows() => Some(Self::LongPrompt),
            _ => Some(Self::ShortPrompt),
        }
    }
}

/// Which prompts were under way when a step began to be planned.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Prompts {
    has_short: bool,
    has_long: bool,
}

impl Core {
    /// Plans rows for the requests that run, but for long prompts. If one of them goes without the blocks it wants, nobody
    /// is admitted into this step.
    pub(crate) fn plan_running(&mut self, group: GroupId, next: &mut NextStep) -> Prompts {
        let prompts = self.prompts(group, next);
        if prompts.has_short || prompts.has_long {
            next.keep_one(); // with more that draw than tokens in a step, prompts would wait for ever
        }
        let drafting = self.drafting(group, prompts.has_short || prompts.has_long);
        self.plan_rows(group, RowKind::OneToken, drafting, next);
        next.keep_nothing();
        if prompts.has_long {
            next.keep_half();
        }
        if prompts.has_short {
            self.plan_rows(group, RowKind::ShortPrompt, None, next);
        }
        prompts
    }

    /// Plans rows for what does not fit one step.
    pub(crate) fn plan_long_prompts(&mut self, group: GroupId, prompts: Prompts, next: &mut NextStep) {
        next.keep_nothing();
        next.begin_long();
        if prompts.has_long {
            self.plan_rows(group, RowKind::LongPrompt, None, next);
        }
    }

    fn prompts(&self, group: GroupId, next: &NextStep) -> Prompts {
        let epoch = self.epoch(group);
        let mut prompts = Prompts::default();
        for &(_, slot) in &epoch.order {
            let request = self.requests.get(epoch.served(slot));
            let kind = RowKind::of(request, epoch.running(slot).ahead(request), next);
            prompts.has_short |= kind == Some(RowKind::ShortPrompt);
            prompts.has_long |= kind == Some(RowKind::LongPrompt);
        }
        prompts
    }

    fn plan_rows(&mut self, group: GroupId, kind: RowKind, mut drafting: Option<Drafting>, next: &mut NextStep) {
        let (mut at, mut drafts) = (0, Vec::new());
        while !next.is_full()
            && let Some(&(_, slot)) = self.epoch(group).order.get(at)
        {
            at += 1;
            let epoch = self.epoch(group);
            let (key, running) = (epoch.served(slot), epoch.running(slot));
            let request = self.requests.get(key);
            let ahead = running.ahead(request);
            if RowKind::of(request, ahead, next) != Some(kind) || next.has_row(running) {
                continue;
            }
            let mut depth = drafting.as_mut().map_or(0, |drafting| drafting.depth(request, running));
            if depth > 0 && running.draws > 0 {
                continue; // held back: its row in flight has to land first
            }
            if running.last_step > epoch.last_committed {
                depth = 0; // the end of a prompt, and the rest of it is in flight
            }
            let count = next.row_max(request, ahead, running.planned, running.appended);
            if count == 0 {
                continue; // the step has no time, no appends, no scores or no embeddings left
            }
            let Self { requests, groups, totals, .. } = self;
            let epoch = groups.get_mut(&group).and_then(|group| group.epoch.as_mut()).expect("plan() looked");
            let running = epoch.running(slot);
            let (start, mut count) = (running.planned, count);
            if next.leaves_known_blocks(running, count) {
                count = epoch.blocks.row_max(&running.table, start, count);
                let wanted = epoch.blocks.wanted(&running.table, start, start + count);
                if !make_room(epoch, requests, slot, at, wanted, totals) {
                    next.lacks_blocks = true;
                    continue;
                }
                let Epoch { blocks, slots, .. } = epoch;
                let table = &mut slots[slot.index()].as_mut().expect("it serves").table;
                blocks.take_for_row(table, start, start + count);
            }
            drafts.clear();
            if let Some(drafting) = drafting.as_mut().filter(|_| depth > 0) {
                let count = drafting.take_room(epoch, slot, depth, next);
                requests.get(key).draft(count, &mut drafts);
            }
            next.row(slot, epoch.running_mut(slot), requests.get_mut(key), count, &drafts);
        }
    }
}

/// Sees to it that `wanted` blocks are idle for a request, by preempting requests that stand at `behind` or later. Says
/// whether it worked.
///
/// A victim that a step in flight names gives its blocks only when that step commits; then this step goes without the
/// row that wanted them. Nobody else is preempted while blocks are on their way, nor for one whose window passes blocks
/// as soon as a step in flight commits.
fn make_room(
    epoch: &mut Epoch,
    requests: &mut Requests,
    slot: SlotId,
    behind: usize,
    wanted: usize,
    totals: &mut Counts,
) -> bool {
    while epoch.blocks.pool().idle() < wanted {
        if epoch.awaits_blocks() || epoch.awaits_own_blocks(slot) {
            return false;
        }
        let Some((victim, lost)) = victim(epoch, behind) else {
            assert!(epoch.order.len() > 1, "a request that runs alone has all the blocks it may need");
            return false;
        };
        requests.get_mut(epoch.served(victim)).account.preempted(lost);
        requests.get_mut(epoch.served(slot)).account.preempts(lost);
        epoch.preempt(victim, requests);
        totals.preemptions += 1;
        totals.preempted_tokens += u64::from(lost);
    }
    true
}

/// Of the requests at `behind` or later: of the least important priority, the one that loses least work, and how much.
/// Blocks that others hold too are not lost.
fn victim(epoch: &Epoch, behind: usize) -> Option<(SlotId, u32)> {
    let candidates = &epoch.order[behind..];
    let least_important = candidates.last()?.0.priority;
    candidates
        .iter()
        .rev() // of equals the latest
        .take_while(|(place, _)| place.priority == least_important)
        .map(|&(_, slot)| (slot, epoch.lost_by_preempting(slot)))
        .min_by_key(|&(_, lost)| lost)
}
