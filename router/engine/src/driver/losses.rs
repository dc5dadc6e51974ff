//! What a lost worker means: what it was doing is written down, its requests are suspected, held back and released.

use std::collections::BTreeSet;

use pelton_core::{RequestId, Trust};

use super::Driver;
use crate::{Failure, Phase, group::Group, patience::Due, results::Garbage, suspects::LONE_DEATHS_MAX};

/// Whom an inquiry suspects first.
pub(super) struct Blamed {
    pub(super) requests: BTreeSet<RequestId>,
    pub(super) were_alone: bool,
    pub(super) cause: Cause,
}

/// What went wrong with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Death,
    NotFinite,
}

impl Driver {
    /// The worker answers what it should not. Counted as work done.
    pub(super) fn distrust(&mut self, index: usize, garbage: &Garbage) -> bool {
        garbage.count(&mut self.stats.bad_frames);
        self.replace(index, &garbage.to_string());
        true
    }

    /// The worker has a step for longer than it may.
    pub(super) fn overdue(&mut self, index: usize, due: Due) {
        self.stats.overdue_steps += 1;
        let seconds = due.allowed.as_secs_f32();
        self.replace(index, &format!("the wait `{}` has passed its deadline of {seconds} s", due.wait));
    }

    /// Another worker takes this one's place.
    fn replace(&mut self, index: usize, reason: &str) {
        tracing::error!(group = index, "replacing the worker: {reason}");
        self.groups[index].link.replace(reason.to_owned());
        if self.groups[index].reaches_host() {
            self.groups[index].dump(reason);
            self.groups[index].condemn(reason); // until the link says that it is gone: see `tiers.rs`
        } else {
            self.lose(index, reason);
        }
    }

    /// A worker is gone: its requests are computed again, from their committed tokens. Nothing happens if it was gone.
    pub(super) fn lose(&mut self, index: usize, reason: &str) {
        let group = &self.groups[index];
        if !group.has_worker() {
            return;
        }
        let reason = match group.condemned() {
            Some(why) => why.to_owned(), // its end is only what we have done about that
            None => {
                group.dump(reason);
                reason.to_owned()
            }
        };
        let not_finite = self.groups[index].take_blamed();
        let dead = self.groups[index].detach();
        if let Some(events) = self.cache_events.get_mut(index) {
            events.lost();
        }
        self.stats.worker_restarts += 1;
        let core = self.core.as_mut().expect("a worker was attached");
        let before = core.counts().replayed;
        core.worker_lost(self.groups[index].id);
        self.stats.replayed += core.counts().replayed - before;
        let were_alone = dead.len() == 1;
        if let Some(requests) = not_finite {
            requests.iter().for_each(|&request| core.withdraw(request, Trust::None));
            self.inquire(&Blamed { requests, were_alone, cause: Cause::NotFinite }, &reason);
        } else {
            self.inquire(&Blamed { requests: dead, were_alone, cause: Cause::Death }, &reason);
        }
        let is_served = self.groups.iter().any(Group::is_attached);
        if !is_served {
            self.set_phase(Phase::Recovering { reason });
        }
    }

    /// Nothing more will be tried for a worker. Some: nobody is left to serve, or it never did, and whoever has just
    /// started the server wants to know.
    pub(super) fn gave_up(&mut self, index: usize, reason: String) -> Option<Phase> {
        self.lose(index, &reason);
        let had_served = std::mem::take(&mut self.groups[index].blocks) > 0;
        let others_serve = self.groups.iter().any(|group| group.blocks > 0); // now, or as soon as they are back
        if !had_served || !others_serve {
            return Some(Phase::Failed { reason });
        }
        tracing::error!(group = index, "this worker is given up, and the others go on without it: {reason}");
        let (id, core) = (self.groups[index].id, self.core.as_mut().expect("a worker has served"));
        if core.has_group(id) {
            core.remove_group(id); // a core that was made since then does not know it
        }
        self.tell_blocks();
        self.tell_events(); // of those that fit no more
        None
    }

    /// Workers may differ in size, and a new one from the one before: what fits is told by the largest.
    pub(super) fn tell_blocks(&mut self) {
        let most = self.groups.iter().map(|group| group.blocks).max().unwrap_or(0);
        self.shared.status.send_modify(|status| {
            if let Some(model) = &mut status.model {
                model.blocks = most;
            }
        });
    }

    /// Keeps back what runs nowhere, until `suspects` releases it. Its place in the queue is its arrival's.
    pub(super) fn inquire(&mut self, blamed: &Blamed, reason: &str) {
        if blamed.requests.is_empty() && !self.suspects.is_inquiring() {
            return; // it died idle, of nothing that anybody asked for
        }
        let core = self.core.as_mut().expect("a worker was attached");
        let running: BTreeSet<RequestId> = core.groups().flat_map(|group| core.in_slots(group)).collect();
        let idle: BTreeSet<RequestId> = self.journal.ids().filter(|request| !running.contains(request)).collect();
        for &request in &idle {
            core.hold(request); // nothing happens to those that are withheld already
        }
        if let Some(guilty) = self.suspects.went_wrong(&blamed.requests, blamed.were_alone, idle) {
            tracing::error!(
                request = guilty.0,
                "this request is refused: {LONE_DEATHS_MAX} times alone it came no further: {reason}"
            );
            self.stats.condemned += 1;
            core.abort(guilty);
            self.fail(guilty, Failure::Internal(self.verdict(blamed.cause)));
        }
        if self.suspects.is_inquiring() {
            tracing::warn!(
                suspects = self.suspects.count(),
                withheld = self.suspects.withheld(),
                "those that may be to blame are computed again in portions, to find one that is"
            );
        }
    }

    /// What the client of a request reads that is condemned: nothing of what the workers have said.
    fn verdict(&self, cause: Cause) -> String {
        match cause {
            Cause::Death => format!(
                "{LONE_DEATHS_MAX} workers ended while they computed this request alone, and it came no further between; the server's log says how"
            ),
            Cause::NotFinite => {
                let gives_vectors =
                    self.shared.status.borrow().model.as_ref().is_some_and(|model| model.pooling.is_some());
                let what = if gives_vectors { "vector is" } else { "logits are" };
                format!(
                    "the model's {what} not finite for this request, {LONE_DEATHS_MAX} times when it was computed alone"
                )
            }
        }
    }

    /// Lets those run that may now and could not before. Whether there were any.
    pub(super) fn release(&mut self) -> bool {
        let released = self.suspects.release();
        if released.is_empty() {
            return false;
        }
        let core = self.core.as_mut().expect("who was withheld has a core");
        released.iter().for_each(|&request| core.release(request));
        self.tell_events(); // of those that fit no more
        true
    }
}
