//! What an assertion that fired on the engine thread means: everything but the journal is thrown away and made again.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use pelton_core::Counts;
use pelton_record::RecordedCore;

use super::{Driver, begin::new_core};
use crate::{Phase, cache_events::CacheEvents, suspects::Suspects};

/// Two bugs of ours within this time end the engine.
const BUG_INTERVAL: Duration = Duration::from_secs(60);

impl Driver {
    /// Starts again from the journal, or tells the phase in which the engine ends.
    pub(super) fn recover(&mut self) -> Result<(), Phase> {
        self.stats.bugs += 1;
        let is_second = self.last_bug.replace(Instant::now()).is_some_and(|last| last.elapsed() < BUG_INTERVAL);
        if is_second {
            return Err(Phase::Failed { reason: "two internal errors within a minute; see the log".to_owned() });
        }
        tracing::error!(
            requests = self.journal.len(),
            "an assertion failed on the engine thread; replacing the workers and replaying"
        );
        // The bug may lie in what the journal holds, and strike again: nobody must be left waiting for that.
        catch_unwind(AssertUnwindSafe(|| self.start_again())).map_err(|_: Box<dyn Any + Send>| Phase::Failed {
            reason: "an internal error, and another one while its requests were replayed; see the log".to_owned(),
        })
    }

    fn start_again(&mut self) {
        let mut known = Vec::new();
        for group in &mut self.groups {
            if group.has_worker() {
                group.dump("an internal error of the router");
                group.link.replace("an internal error of the router".to_owned());
                known.push(group.id);
                self.stats.worker_restarts += 1;
                self.stats.replayed += group.running().filter(|&request| self.journal.contains(request)).count() as u64;
            }
            group.detach();
        }
        self.cache_events.iter_mut().for_each(CacheEvents::lost);
        self.suspects = Suspects::default();
        self.core = None;
        self.keeping.begin_anew();
        self.counts_seen = Counts::default();
        let Some(report) = self.shared.status.borrow().model.clone() else { return };
        let below = self.tiers.start_again(&report);
        let core = new_core(&self.config, &self.capacities, self.hash_key.of_blocks(), &report, below);
        let mut core = RecordedCore::new(core, self.recorder.clone());
        core.clock(self.now());
        for group in known {
            core.add_group(group, report.blocks, false);
            core.worker_lost(group);
        }
        self.core = Some(core);
        for request in self.journal.ids().collect::<Vec<_>>() {
            self.submit(request);
        }
        self.set_phase(Phase::Recovering { reason: "an internal error; requests are replayed".to_owned() });
    }
}
