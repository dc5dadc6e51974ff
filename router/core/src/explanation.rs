//! What a request went through and what it cost others: counters that are kept while it lives, in words that its client
//! can do something with.
//!
//! Each is an addition where something is decided about the request anyway: O(1), and nothing is allocated. Nobody looks
//! at those far back in the queue, so their time is booked when they are looked at next: they waited behind others.

use serde::{Deserialize, Serialize};

use crate::tiers::Below;
use crate::{Micros, RequestId};

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Wait {
    /// Others came before it, and it was not looked at.
    Queue,
    /// As many requests ran as may run at once.
    Slot,
    /// The step was full: of tokens, or of what a frame holds.
    Step,
    /// Too few blocks were idle for its tokens.
    Blocks,
    /// There was room now, but not for what all that run would probably grow to.
    Growth,
    /// Another request was computing the tokens that come next: they are shared when they are there.
    Shared,
    /// Another group was to take it.
    Group,
    /// Another prompt longer than a step was under way.
    LongPrompt,
    /// No worker was there.
    Worker,
    /// It was kept back: see `Core::hold`.
    Held,
    /// Blocks of its prompt were being read from disk.
    Disk,
}

impl Wait {
    /// All there are.
    pub const ALL: [Self; 11] = [
        Self::Queue,
        Self::Slot,
        Self::Step,
        Self::Blocks,
        Self::Growth,
        Self::Shared,
        Self::Group,
        Self::LongPrompt,
        Self::Worker,
        Self::Held,
        Self::Disk,
    ];

    /// One word, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Slot => "slot",
            Self::Step => "step",
            Self::Blocks => "blocks",
            Self::Growth => "growth",
            Self::Shared => "shared",
            Self::Group => "group",
            Self::LongPrompt => "long_prompt",
            Self::Worker => "worker",
            Self::Held => "held",
            Self::Disk => "disk",
        }
    }

    /// What follows "it waited", for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Queue => "behind others in the queue",
            Self::Slot => "for a slot (--max-running)",
            Self::Step => "for room in a step (--token-budget, --itl-target)",
            Self::Blocks => "for memory: too few KV blocks were idle (--kv-memory)",
            Self::Growth => "for memory: those that run were going to need it (--kv-memory)",
            Self::Shared => "for tokens that were being computed for another request",
            Self::Group => "for another worker group",
            Self::LongPrompt => "for another long prompt: they come one by one",
            Self::Worker => "for a worker: none was there",
            Self::Held => "while others were tried: a worker had died, and one of those that it computed may be why",
            Self::Disk => "for blocks of its prompt that were read from disk (--kv-disk)",
        }
    }
}

/// Microseconds of waiting, by what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Waited([u64; Wait::ALL.len()]);

impl Waited {
    /// How long for this.
    pub fn micros(&self, what: Wait) -> u64 {
        self.0[what as usize]
    }

    /// How long in all.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, micros)| *sum += micros);
    }

    /// What came since it was as `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|what| self.0[what] - earlier.0[what]))
    }
}

/// Why prompt tokens were not found in the prefix cache, at the first admission. What none of these explains is new: it was
/// never there, as far as is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Missed {
    /// The prefix cache is off.
    pub is_off: bool,
    /// Its prompt is scored, so all of it is computed, whatever is there.
    pub is_scored: bool,
    /// Tokens right behind the hit that were there and were given up since.
    pub evicted: u32,
    /// Tokens that no cache would have held: the last one, which is computed to draw the next, and, where blocks are found
    /// whole or not at all, those of the last block.
    pub too_short: u32,
    /// Nothing was found, and the first block is there under another salt.
    pub has_other_salt: bool,
}

/// Requests that lost their blocks, and what that cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Preempted {
    /// How often.
    pub times: u32,
    /// Tokens whose KV was lost by it.
    pub tokens: u64,
}

impl Preempted {
    fn add(&mut self, tokens: u32) {
        self.times += 1;
        self.tokens += u64::from(tokens);
    }
}

/// See the top of the file. Times are as of the core's clock, which stands still between calls that tell the time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Which request.
    pub request: RequestId,
    /// When it came in.
    pub arrival: Micros,
    /// When it had to end.
    pub deadline: Option<Micros>,
    /// When it was first admitted.
    pub admitted: Option<Micros>,
    /// When its first token was there. None before, and if that was in an earlier life of the engine.
    pub first_token: Option<Micros>,
    /// As of when all this is: its end, if it has ended.
    pub until: Micros,
    /// How long it stood in the queue, and what for; after a preemption and after its worker was lost too.
    pub waited: Waited,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Of these, found in the prefix cache at its first admission.
    pub cached: u32,
    /// Of the cached ones, brought back from the host's memory, where they had stayed.
    pub cached_host: u32,
    /// Of the cached ones, brought back from disk.
    pub cached_disk: u32,
    /// Why the others were not.
    pub missed: Missed,
    /// Tokens drawn.
    pub drawn: u32,
    /// Drafts of tokens that were computed for it.
    pub drafted: u32,
    /// Of these, those that were drawn too.
    pub accepted: u32,
    /// Steps that had more than one of its tokens: parts of its prompt, or of what was lost.
    pub chunks: u32,
    /// Steps that it had part in.
    pub steps: u32,
    /// How long these steps took together.
    pub steps_us: u64,
    /// Times it lost its blocks to others.
    pub preempted: Preempted,
    /// Times its worker was lost while it ran, or what it was loading.
    pub replayed: u32,
    /// Tokens, its own among them, that were computed once more because it had lost its blocks to others.
    pub again_preempted: u32,
    /// The same because its worker was lost.
    pub again_lost: u32,
    /// Times it took the blocks of others.
    pub preempted_others: Preempted,
    /// By how much its chunks lengthened steps in which others drew tokens, as the cost model foresaw it.
    pub slowed_others_us: u64,
}

/// The counters of a live request, and what it waits for now.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Account {
    so_far: Explanation,
    since: Micros, // booked until then
    outage: u64,   // as of `since`
    reason: Wait,
    look: u64,      // when the reason was seen
    was_lost: bool, // why it came back to the queue last: its worker was lost, or else it was preempted
    computed: u32,  // tokens that had KV, at most
}

/// When the core looks at those that wait.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Looks {
    pub(crate) now: Micros,
    /// Admissions so far. A reason that was seen `memory` of them ago or earlier holds no more: others came before.
    count: u64,
    memory: u64,
    outage_before: u64, // microseconds without any worker, but for the outage that lasts
    outage_began: Option<Micros>,
}

/// So many admissions, or some milliseconds of a busy group.
const THOROUGH_EVERY: u64 = 16;

impl Looks {
    /// Whether it is time to look anew at those that are likely to wait for the same as before.
    pub(crate) fn is_thorough(&self) -> bool {
        self.count.is_multiple_of(THOROUGH_EVERY)
    }

    /// One more admission looks at the queue; there are so many groups that do.
    pub(crate) fn next(&mut self, groups: usize) {
        self.count += 1;
        self.memory = groups as u64;
    }

    /// Whether any worker is there.
    pub(crate) fn set_served(&mut self, is_served: bool) {
        match (is_served, self.outage_began) {
            (false, None) => self.outage_began = Some(self.now),
            (true, Some(_)) => {
                self.outage_before = self.outage();
                self.outage_began = None;
            }
            _ => {}
        }
    }

    fn outage(&self) -> u64 {
        self.outage_before + self.outage_began.map_or(0, |began| self.now.0.saturating_sub(began.0))
    }
}

impl Explanation {
    /// Of a request that has gone through nothing.
    pub fn new(request: RequestId, arrival: Micros, deadline: Option<Micros>, prompt: u32) -> Self {
        Self {
            request,
            arrival,
            deadline,
            admitted: None,
            first_token: None,
            until: arrival,
            waited: Waited::default(),
            prompt,
            cached: 0,
            cached_host: 0,
            cached_disk: 0,
            missed: Missed::default(),
            drawn: 0,
            drafted: 0,
            accepted: 0,
            chunks: 0,
            steps: 0,
            steps_us: 0,
            preempted: Preempted::default(),
            replayed: 0,
            again_preempted: 0,
            again_lost: 0,
            preempted_others: Preempted::default(),
            slowed_others_us: 0,
        }
    }

    /// Prompt tokens that nobody had computed before, as far as is remembered.
    pub fn new_tokens(&self) -> u32 {
        self.prompt.saturating_sub(self.cached + self.missed.evicted + self.missed.too_short)
    }
}

impl Account {
    pub(crate) fn new(so_far: Explanation) -> Self {
        Self { since: so_far.arrival, so_far, outage: 0, reason: Wait::Queue, look: 0, was_lost: false, computed: 0 }
    }

    /// It stands in the queue, for the first time or again.
    pub(crate) fn begin_to_wait(&mut self, looks: &Looks) {
        if self.so_far.admitted.is_some() {
            self.since = looks.now; // before, it waits since its arrival
        }
        (self.outage, self.reason, self.look) = (looks.outage(), Wait::Queue, looks.count);
    }

    /// It was looked at, and waits on for this.
    pub(crate) fn wait_for(&mut self, reason: Wait, looks: &Looks) {
        self.book(looks);
        (self.reason, self.look) = (reason, looks.count);
    }

    /// It is kept back from now on.
    pub(crate) fn hold(&mut self, looks: &Looks) {
        self.wait_for(Wait::Held, looks);
    }

    /// It was kept back until now.
    pub(crate) fn release(&mut self, looks: &Looks) {
        self.wait_for(Wait::Queue, looks);
    }

    /// It waits no more.
    pub(crate) fn admit(&mut self, looks: &Looks) {
        self.book(looks);
        self.so_far.admitted.get_or_insert(looks.now);
    }

    fn book(&mut self, looks: &Looks) {
        let waited = looks.now.0.saturating_sub(self.since.0);
        let without_worker = (looks.outage() - self.outage).min(waited);
        // Nobody looks at one that is kept back or set aside until that has changed why it waits.
        let stays = matches!(self.reason, Wait::Held | Wait::LongPrompt);
        let holds = stays || looks.count - self.look <= looks.memory.max(1);
        let reason = if holds { self.reason } else { Wait::Queue };
        self.so_far.waited.0[Wait::Worker as usize] += without_worker;
        self.so_far.waited.0[reason as usize] += waited - without_worker;
        // The clock stands still between calls that tell the time: a request may have come in after its last one.
        (self.since, self.outage) = (looks.now.max(self.since), looks.outage());
    }

    /// The prefix cache was asked for its prompt.
    pub(crate) fn cached(&mut self, cached: u32, below: Below, missed: Missed) {
        (self.so_far.cached, self.so_far.missed) = (cached, missed);
        (self.so_far.cached_host, self.so_far.cached_disk) = (below.host, below.disk);
    }

    /// A step was planned that computes several of its tokens, and takes so much longer for those that draw in it.
    pub(crate) fn chunk(&mut self, slows_others_us: u64) {
        self.so_far.chunks += 1;
        self.so_far.slowed_others_us += slows_others_us;
    }

    /// A step that it had part in is done: so many of its tokens have KV.
    pub(crate) fn step(&mut self, took_us: u32, computed: u32) {
        self.computed = self.computed.max(computed);
        self.so_far.steps += 1;
        self.so_far.steps_us += u64::from(took_us);
    }

    /// A row of it had so many drafts.
    pub(crate) fn drafted(&mut self, drafts: u32) {
        self.so_far.drafted += drafts;
    }

    /// A token was drawn that was drafted.
    pub(crate) fn accepted(&mut self) {
        self.so_far.accepted += 1;
    }

    /// Its first token was drawn.
    pub(crate) fn first_token(&mut self, now: Micros) {
        self.so_far.first_token = Some(now);
    }

    /// It loses its blocks.
    pub(crate) fn preempted(&mut self, tokens: u32) {
        self.so_far.preempted.add(tokens);
        self.was_lost = false;
    }

    /// It takes the blocks of another one.
    pub(crate) fn preempts(&mut self, tokens: u32) {
        self.so_far.preempted_others.add(tokens);
    }

    /// Its worker is gone.
    pub(crate) fn replayed(&mut self) {
        self.so_far.replayed += 1;
        self.was_lost = true;
    }

    /// It is back, and so many of its tokens have KV. Says how many are computed once more, and whether for want of a worker.
    pub(crate) fn comes_back(&mut self, cached: u32) -> (u32, bool) {
        let tokens = std::mem::replace(&mut self.computed, cached).saturating_sub(cached);
        let again = if self.was_lost { &mut self.so_far.again_lost } else { &mut self.so_far.again_preempted };
        *again = again.saturating_add(tokens);
        (tokens, self.was_lost)
    }

    /// All of it, as of now.
    pub(crate) fn explain(&self, drawn: u32, waits: bool, looks: &Looks) -> Explanation {
        let mut account = self.clone();
        if waits {
            account.book(looks);
        }
        Explanation { until: looks.now.max(self.so_far.arrival), drawn, ..account.so_far }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at a request at these times, with what is found to hold it up; none: others are looked at.
    fn waited(looks: &[(u64, Option<Wait>)], admitted: u64) -> Vec<(Wait, u64)> {
        let mut account = Account::new(Explanation::new(RequestId(1), Micros(100), None, 5));
        let mut clock = Looks { now: Micros(100), ..Looks::default() };
        account.begin_to_wait(&clock);
        for &(now, reason) in looks {
            clock.now = Micros(now);
            clock.next(1);
            if let Some(reason) = reason {
                account.wait_for(reason, &clock);
            }
        }
        clock.now = Micros(admitted);
        clock.next(1);
        account.admit(&clock);
        let explanation = account.explain(0, false, &clock);
        assert_eq!(explanation.waited.total(), admitted - 100, "all of its time is explained");
        let of = |wait| (wait, explanation.waited.micros(wait));
        Wait::ALL.map(of).into_iter().filter(|&(_, micros)| micros > 0).collect()
    }

    #[test]
    fn time_is_booked_to_what_was_seen_last_and_to_the_queue_where_nothing_was_seen() {
        use Wait::{Blocks, Queue, Slot};
        assert_eq!(waited(&[], 150), [(Queue, 50)]);
        assert_eq!(waited(&[(110, Some(Slot)), (130, Some(Blocks))], 160), [(Queue, 10), (Slot, 20), (Blocks, 30)]);
        let with_others_between = [(110, Some(Slot)), (120, None), (140, Some(Slot))];
        assert_eq!(waited(&with_others_between, 145), [(Queue, 40), (Slot, 5)]);
    }

    #[test]
    fn time_without_a_worker_is_booked_as_such() {
        let mut clock = Looks { now: Micros(100), ..Looks::default() };
        let mut account = Account::new(Explanation::new(RequestId(1), Micros(100), None, 5));
        account.begin_to_wait(&clock);
        clock.now = Micros(110);
        clock.set_served(false);
        clock.now = Micros(150);
        clock.set_served(false);
        clock.set_served(true);
        clock.now = Micros(155);
        clock.next(1);
        account.admit(&clock);
        let waited = account.explain(0, false, &clock).waited;
        assert_eq!((waited.micros(Wait::Worker), waited.micros(Wait::Queue)), (40, 15));
    }

    #[test]
    fn every_wait_has_a_place_of_its_own() {
        for (place, wait) in Wait::ALL.into_iter().enumerate() {
            assert_eq!(wait as usize, place, "{}", wait.name());
        }
    }
}
