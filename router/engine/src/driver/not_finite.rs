//! Logits or a vector that are not finite: what that says of the worker, and of the requests whose they are.
//!
//! Two may be to blame. A request, or what it has found in the prefix cache: then the worker lives on, and those that are blamed are
//! computed again, in halves and in the end alone, without trust in any KV that was there before. One whose numbers are not finite
//! three times alone, and no token came between, gets an error. Everybody else waits meanwhile, and goes on from the blocks that it
//! had. Or the worker, whose memory may be damaged: another one shows that. It is replaced
//!   * if it has not computed anything that is finite since it came,
//!   * if nothing in the step is finite, of requests that nobody suspects; or for the last of the three times, so that they are
//!     those of two workers. These not more than once a minute: a client must not have workers replaced as fast as it asks.

use std::{collections::BTreeSet, time::Duration};

use pelton_core::{RequestId, SlotId, StepId, Trust};

use super::{
    Driver,
    losses::{Blamed, Cause},
};
use crate::{results::Garbage, suspects::LONE_DEATHS_MAX};

/// So often at most a worker is replaced for this.
const INTERVAL: Duration = Duration::from_secs(60);

impl Driver {
    /// Who is to blame for what is not finite in a step that was read and not committed. Those are not that have left their
    /// slots since the step was planned. None: nobody.
    pub(super) fn not_finite(
        &mut self,
        index: usize,
        step: StepId,
        flagged: &[(SlotId, RequestId)],
    ) -> Option<Garbage> {
        if flagged.is_empty() {
            return None;
        }
        let (core, group) = (self.core.as_ref().expect("a worker was attached"), self.groups[index].id);
        let has_slot = |&&(slot, request): &&(SlotId, RequestId)| core.has_slot(request, group, slot);
        let blamed: BTreeSet<RequestId> = flagged.iter().filter(has_slot).map(|&(_, request)| request).collect();
        (!blamed.is_empty()).then_some(Garbage::NotFinite { step: step.0, blamed })
    }

    /// Has the worker answer for it, or those to blame: then nothing counts that was drawn for them. Whether it is the worker.
    pub(super) fn settle_blame(&mut self, index: usize, garbage: &Garbage) -> bool {
        let Garbage::NotFinite { blamed, .. } = garbage else { return false };
        if self.is_the_worker(index, blamed) {
            self.groups[index].blame(blamed.clone());
            self.groups[index].reject();
            return true;
        }
        let core = self.core.as_mut().expect("a worker was attached");
        blamed.iter().for_each(|&request| core.withdraw(request, Trust::None));
        false
    }

    /// See the top of the file.
    fn is_the_worker(&self, index: usize, blamed: &BTreeSet<RequestId>) -> bool {
        let group = &self.groups[index];
        let tries = blamed.first().filter(|_| group.computed_one()).map(|&request| self.suspects.lone_deaths(request));
        if group.computed_others_soundly(blamed) || tries == Some(LONE_DEATHS_MAX - 1) {
            return false;
        }
        let are_suspected = blamed.iter().all(|&request| self.suspects.contains(request));
        let wants_another = !are_suspected || tries == Some(LONE_DEATHS_MAX - 2);
        !group.has_been_sound() || (wants_another && !group.was_replaced_within(INTERVAL))
    }

    /// The worker lives on: those to blame are computed again, and the others after them.
    pub(super) fn compute_apart(&mut self, index: usize, garbage: &Garbage) {
        let Garbage::NotFinite { blamed, .. } = garbage else { return };
        garbage.count(&mut self.stats.bad_frames);
        tracing::warn!(group = index, "those are computed apart: {garbage}");
        let core = self.core.as_mut().expect("a worker was attached");
        let others = core.in_slots(self.groups[index].id);
        others.iter().for_each(|&request| core.withdraw(request, Trust::Full));
        self.stats.replayed += (blamed.len() + others.len()) as u64;
        let were_alone = self.groups[index].computed_one();
        self.inquire(&Blamed { requests: blamed.clone(), were_alone, cause: Cause::NotFinite }, &garbage.to_string());
    }
}
