//! What a lost worker means: what it was doing is written down, its requests are suspected, held back and released.

use std::collections::BTreeSet;

use pelton_core::RequestId;

use super::Driver;
use crate::{
    Failure, Phase,
    group::{Due, Group},
    results::Garbage,
    suspects::LONE_DEATHS_MAX,
};

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
        let dead = self.groups[index].detach();
        if let Some(events) = self.cache_events.get_mut(index) {
            events.lost();
        }
        self.stats.worker_restarts += 1;
        let core = self.core.as_mut().expect("a worker was attached");
        let before = core.counts().replayed;
        core.worker_lost(self.groups[index].id);
        self.stats.replayed += core.counts().replayed - before;
        self.inquire(&dead, &reason);
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
    fn inquire(&mut self, dead: &BTreeSet<RequestId>, reason: &str) {
        if dead.is_empty() && !self.suspects.is_inquiring() {
            return; // it died idle, of nothing that anybody asked for
        }
        let running: BTreeSet<RequestId> = self.groups.iter().flat_map(Group::running).collect();
        let idle: BTreeSet<RequestId> = self.journal.ids().filter(|request| !running.contains(request)).collect();
        let core = self.core.as_mut().expect("a worker was attached");
        for &request in &idle {
            core.hold(request); // nothing happens to those that are withheld already
        }
        if let Some(guilty) = self.suspects.worker_died(dead, idle) {
            tracing::error!(
                request = guilty.0,
                "this request is refused: {LONE_DEATHS_MAX} workers ended with it: {reason}"
            );
            self.stats.condemned += 1;
            core.abort(guilty);
            // A client reads nothing of what the workers have said.
            let message = format!(
                "{LONE_DEATHS_MAX} workers ended while they computed this request alone, and it came no further between; the server's log says how"
            );
            self.fail(guilty, Failure::Internal(message));
        }
        if self.suspects.is_inquiring() {
            tracing::warn!(
                suspects = self.suspects.count(),
                withheld = self.suspects.withheld(),
                "the lost worker's requests are computed again in portions, to find one that ends workers"
            );
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
