//! Logits or a vector that are not finite: what that says of the worker, and of the requests whose they are.
//!
//! Two may be to blame. The worker, whose memory may be damaged: a new one shows that, and not more than once a minute, since
//! workers are not to be replaced as fast as somebody asks. Else a request, or what it has found in the prefix cache: the
//! worker lives on, and those that are blamed are computed again, in halves and in the end alone, without trust in any KV that
//! was there before. One whose numbers are not finite three times alone, and no token came between, gets an error. Everybody else
//! waits meanwhile, and goes on from the blocks that it had.

use std::{collections::BTreeSet, time::Duration};

use pelton_core::{RequestId, SlotId, StepId, Trust};

use super::{
    Driver,
    losses::{Blamed, Cause},
};
use crate::results::Garbage;

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
        let (core, group) = (self.core.as_mut().expect("a worker was attached"), self.groups[index].id);
        let has_slot = |&&(slot, request): &&(SlotId, RequestId)| core.has_slot(request, group, slot);
        let blamed: BTreeSet<RequestId> = flagged.iter().filter(has_slot).map(|&(_, request)| request).collect();
        (!blamed.is_empty()).then_some(Garbage::NotFinite { step: step.0, blamed })
    }

    /// Whether the worker is to be replaced for it. If not, nothing that was drawn for those to blame counts.
    pub(super) fn may_be_the_worker(&mut self, index: usize, garbage: &Garbage) -> bool {
        let Garbage::NotFinite { blamed, .. } = garbage else { return false };
        let group = &mut self.groups[index];
        let were_suspected = blamed.iter().all(|&request| self.suspects.contains(request));
        if !were_suspected && !group.was_replaced_within(INTERVAL) {
            group.blame(blamed.clone());
            group.reject();
            return true;
        }
        let core = self.core.as_mut().expect("a worker was attached");
        blamed.iter().for_each(|&request| core.withdraw(request, Trust::None));
        false
    }

    /// It was not the worker: those to blame are computed again, and the others after them.
    pub(super) fn compute_apart(&mut self, index: usize, garbage: &Garbage) {
        let Garbage::NotFinite { blamed, .. } = garbage else { return };
        garbage.count(&mut self.stats.bad_frames);
        tracing::warn!(group = index, "probably not the worker's fault: {garbage}");
        let core = self.core.as_mut().expect("a worker was attached");
        let others = core.in_slots(self.groups[index].id);
        others.iter().for_each(|&request| core.withdraw(request, Trust::Full));
        self.stats.replayed += (blamed.len() + others.len()) as u64;
        let were_alone = self.groups[index].computed_one();
        self.inquire(&Blamed { requests: blamed.clone(), were_alone, cause: Cause::NotFinite }, &garbage.to_string());
    }
}
