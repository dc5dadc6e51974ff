//! What a group has before it: what it will compute and hold if nobody else comes.
//!
//! It is made when its group is planned, or when another group is that wants to compare, and stands until the group's next plan
//! or commit. What others leave to the group meanwhile counts while they are planned; then they forget it, since
//! they look at the same requests again the next time.

use serde::{Deserialize, Serialize};

use crate::epoch::Epoch;
use crate::kinds::Kinds;
use crate::lengths::{AnswerLengths, Growth, grown, peak};
use crate::live::{LiveRequest, Requests};

/// See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outlook {
    running: Vec<Growth>, // those that are here, then those that are left to the group
    here: usize,
    sums: Sums,
    sums_here: Sums,
    step_tokens: u32, // see `Group::step_tokens`
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Sums {
    load: u64,  // tokens to compute
    held: u64,  // blocks
    grown: u64, // blocks more, with all at full length
    has_long_prompt: bool,
}

impl Outlook {
    /// As of now.
    pub(crate) fn new(epoch: &Epoch, requests: &Requests, lengths: &AnswerLengths, step_tokens: u32) -> Self {
        let (running, kinds) = (epoch.growths(requests, lengths), epoch.blocks.kinds());
        let sums = Sums {
            load: epoch.load(requests),
            held: epoch.blocks.pool().held() as u64,
            grown: running.iter().map(|growth| grown(growth, growth.coming, kinds)).sum(),
            has_long_prompt: epoch.has_long_prompt(requests, step_tokens),
        };
        Self { here: running.len(), running, sums, sums_here: sums, step_tokens }
    }

    /// Tokens to compute.
    pub(crate) fn load(&self) -> u64 {
        self.sums.load
    }

    /// Whether there is a prompt that more than one step has to compute.
    pub(crate) fn has_long_prompt(&self) -> bool {
        self.sums.has_long_prompt
    }

    /// Whether a prompt with so many tokens to compute takes all that a step has, and more.
    pub(crate) fn is_long(&self, request: &LiveRequest, to_compute: u32) -> bool {
        to_compute > self.step_tokens && !request.has_short_rows()
    }

    /// One more request is here.
    pub(crate) fn admit(&mut self, request: Growth, to_compute: u32, is_long: bool, kinds: &Kinds) {
        self.leave(request, to_compute, is_long, kinds);
        (self.here, self.sums_here) = (self.running.len(), self.sums);
    }

    /// One more request will be here, if it is up to the others.
    pub(crate) fn leave(&mut self, request: Growth, to_compute: u32, is_long: bool, kinds: &Kinds) {
        self.sums.load += u64::from(to_compute);
        self.sums.held += u64::from(request.held - request.shared);
        self.sums.grown += grown(&request, request.coming, kinds);
        self.sums.has_long_prompt |= is_long;
        self.running.push(request);
    }

    /// Another group is planned: it has left nothing yet.
    pub(crate) fn forget_what_was_left(&mut self) {
        self.running.truncate(self.here);
        self.sums = self.sums_here;
    }

    /// Whether one more request will probably fit until the others leave. Alone it always may try: nobody is in its way.
    pub(crate) fn has_room(&self, request: Growth, kinds: &Kinds, capacity: u64) -> bool {
        if self.running.is_empty() {
            return true;
        }
        let held = self.sums.held + u64::from(request.held - request.shared);
        let at_once = held + self.sums.grown + grown(&request, request.coming, kinds);
        at_once <= capacity || {
            let mut running = [&self.running[..], &[request]].concat();
            peak(&mut running, held, kinds) <= capacity
        }
    }
}
