//! Who may run after a worker has died: what was in its steps is suspected until it has shown that it does no harm.
//!
//! The life of an inquiry:
//!   1. A worker dies. The requests of its unread steps are suspects; half of them are tried, the others wait, and so
//!      does everything else that runs on no other worker.
//!   2. A suspect that gets on is cleared and runs on: it draws a token, or more of its prompt is computed than ever before. When all that are tried are cleared, the next set is tried.
//!   3. The worker dies again: those of the trial that were in its steps are halved again.
//!   4. A request with which a worker dies while nothing else is in its steps, three times without getting on between, is
//!      condemned. Company is no proof, so a neighbour never is.
//!   5. No suspect is left: everything that waited runs.
//!
//! The same where a worker lives on and what it computes is not finite: the requests whose numbers they are are suspects, and
//! for a death stands that they were not finite again.
//!
//! So k guilty requests among batches of n cost O(k log n) workers, and a worker that was killed from outside costs its
//! requests no more than being replayed in two portions. A request that gets on in each life of its worker is never
//! condemned: it ends by itself.
//!
//! Invariant: `trial` and the sets in `untried` have no request in common; without suspects nothing is withheld for longer
//! than to the next `release`.
//!
//! Never here: the core, tokens, clocks. The caller says who has died, and submits who is released.

use std::collections::{BTreeMap, BTreeSet};

use pelton_core::RequestId;

/// So many workers may die of one request that runs alone.
pub(crate) const LONE_DEATHS_MAX: u32 = 3;

/// See the top of the file. Sets are ordered by id, which is the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    trial: BTreeSet<RequestId>,
    untried: Vec<BTreeSet<RequestId>>, // the next one last; none is empty
    withheld: BTreeSet<RequestId>,     // what the caller keeps out of the core: suspects and bystanders
    lone_deaths: BTreeMap<RequestId, u32>,
    computed: BTreeMap<RequestId, u32>, // of prompts in parts: how many tokens at most, in any life of a worker
}

impl Suspects {
    /// Whether there are suspects. If not, everything may run.
    pub(crate) fn is_inquiring(&self) -> bool {
        !self.trial.is_empty() || !self.untried.is_empty()
    }

    /// Whether a request is suspected.
    pub(crate) fn contains(&self, request: RequestId) -> bool {
        self.trial.contains(&request) || self.untried.iter().any(|set| set.contains(&request))
    }

    /// How many workers it has ended alone, or how often it went wrong, without getting on since.
    pub(crate) fn lone_deaths(&self, request: RequestId) -> u32 {
        self.lone_deaths.get(&request).copied().unwrap_or_default()
    }

    /// How many are suspected.
    pub(crate) fn count(&self) -> usize {
        self.trial.len() + self.untried.iter().map(BTreeSet::len).sum::<usize>()
    }

    /// How many wait for others, suspects among them.
    pub(crate) fn withheld(&self) -> usize {
        self.withheld.len()
    }

    /// A request that came while an inquiry is on: it waits for its end.
    pub(crate) fn withhold(&mut self, request: RequestId) {
        self.withheld.insert(request);
    }

    /// A worker died, or computed what is not finite, for one of those that are blamed, if not for more. `idle` are the live requests that run on no other
    /// worker: all of them are withheld from now on, until `release` names them. Returns who is condemned: the caller ends it.
    pub(crate) fn went_wrong(
        &mut self,
        blamed: &BTreeSet<RequestId>,
        was_alone: bool,
        idle: BTreeSet<RequestId>,
    ) -> Option<RequestId> {
        // One that has left since is accused no more, but the others were not alone.
        let live: BTreeSet<RequestId> = blamed.intersection(&idle).copied().collect();
        self.withheld = idle;
        let tried: BTreeSet<RequestId> = live.intersection(&self.trial).copied().collect();
        // Those that run beside a trial have drawn tokens since they were suspected, if they ever were.
        let accused = if tried.is_empty() { live } else { tried };
        let first = *accused.first()?;
        self.acquit(&accused);
        let rest = std::mem::take(&mut self.trial);
        self.postpone(rest);
        if was_alone {
            let deaths = self.lone_deaths.entry(first).or_default();
            *deaths += 1;
            if *deaths >= LONE_DEATHS_MAX {
                self.left(first);
                return Some(first);
            }
        }
        let mut half = accused;
        let middle = half.iter().nth(half.len().div_ceil(2)).copied();
        if let Some(middle) = middle {
            let others = half.split_off(&middle);
            self.postpone(others);
        }
        self.trial = half;
        None
    }

    /// A part of the request's prompt was computed, up to so many tokens. What a worker before had computed is no progress.
    pub(crate) fn computed(&mut self, request: RequestId, tokens: u32) {
        let most = self.computed.entry(request).or_default();
        if tokens > *most {
            *most = tokens;
            self.progressed(request);
        }
    }

    /// The request has drawn a token, or has otherwise got further than ever before.
    pub(crate) fn progressed(&mut self, request: RequestId) {
        self.lone_deaths.remove(&request);
        self.acquit(&BTreeSet::from([request]));
    }

    /// The request has ended, in whatever way.
    pub(crate) fn left(&mut self, request: RequestId) {
        self.withheld.remove(&request);
        self.computed.remove(&request);
        self.progressed(request);
    }

    /// Those that were withheld and may run now, in order of arrival.
    pub(crate) fn release(&mut self) -> BTreeSet<RequestId> {
        if self.trial.is_empty() {
            self.trial = self.untried.pop().unwrap_or_default();
        }
        if !self.is_inquiring() {
            return std::mem::take(&mut self.withheld);
        }
        let released: BTreeSet<RequestId> = self.withheld.intersection(&self.trial).copied().collect();
        self.withheld.retain(|request| !released.contains(request));
        released
    }

    fn acquit(&mut self, requests: &BTreeSet<RequestId>) {
        self.trial.retain(|suspect| !requests.contains(suspect));
        for set in &mut self.untried {
            set.retain(|suspect| !requests.contains(suspect));
        }
        self.untried.retain(|set| !set.is_empty());
    }

    fn postpone(&mut self, set: BTreeSet<RequestId>) {
        if !set.is_empty() {
            self.untried.push(set);
        }
    }
}

#[cfg(test)]
mod tests;
