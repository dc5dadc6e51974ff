//! A request's way into the schedule, and out of it before its last token.

use std::time::Instant;

use pelton_core::{Refusal, RequestId};

use super::Driver;
use crate::Failure;

impl Driver {
    /// Hands a request of the journal to the schedule, with the tokens that its client has.
    pub(super) fn submit(&mut self, request: RequestId) {
        let new = self.journal.as_new(request).expect("only live requests are submitted");
        let core = self.core.as_mut().expect("the handle takes requests only once the model is known");
        match core.submit(new) {
            Ok(()) => self.keep(request),
            Err(refusal) => self.refuse(request, refusal),
        }
    }

    /// Its prompt is to stay in the prefix cache, if its client has asked for that.
    fn keep(&mut self, request: RequestId) {
        let now = self.now();
        let Some(pin) = self.journal.as_pin(request, now) else { return };
        let block_size = self.groups.iter().map(|group| group.block_size).max().unwrap_or(0);
        let blocks = self.groups.iter().map(|group| group.blocks).filter(|&blocks| blocks > 0).min().unwrap_or(0);
        let kinds = self.shared.status.borrow().model.as_ref().map_or(1, |model| model.kinds.len().max(1));
        let percent = u64::from(self.config.pin_share) * u64::from(self.config.tenant_cache_share);
        let tokens_max = u64::from(blocks) * percent / 10_000 / kinds as u64 * u64::from(block_size);
        let core = self.core.as_mut().expect("the request was submitted to it");
        self.keeping.keep(core, pin, usize::try_from(tokens_max).unwrap_or(usize::MAX), now);
    }

    /// The schedule cannot hold a request that the handle let pass: a worker that came back has less memory.
    pub(super) fn refuse(&mut self, request: RequestId, refusal: Refusal) {
        let block_size = self.groups.first().map_or(0, |group| group.block_size);
        let failure = match refusal {
            Refusal::NeverFits { needed, blocks } => Failure::NeverFits { needed, blocks, block_size },
            other => Failure::Internal(other.to_string()),
        };
        self.fail(request, failure);
    }

    /// Ends a request with an error. The schedule has it no more.
    pub(super) fn fail(&mut self, request: RequestId, failure: Failure) {
        self.journal.failed(request, failure);
        self.suspects.left(request);
    }

    /// Ends those that have lost their places in a full queue. Of one that is still on its way here the queue tells again.
    pub(super) fn end_displaced(&mut self) {
        for (request, failure) in self.shared.queue.displaced(Instant::now()) {
            if self.journal.contains(request) {
                self.core.as_mut().expect("a live request has a core").abort(request);
                self.fail(request, failure);
                self.shared.queue.told_displaced();
            }
        }
    }

    pub(super) fn expire(&mut self, request: RequestId) {
        self.journal.expired(request);
        self.suspects.left(request);
    }
}
