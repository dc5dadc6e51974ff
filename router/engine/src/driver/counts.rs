//! The driver's counters, for whoever reads them at any time.

use std::sync::PoisonError;

use super::Driver;

impl Driver {
    /// Reads off what there is now, and adds what has happened since the last time.
    pub(super) fn publish_stats(&mut self) {
        self.stats.workers = self.groups.len() as u64;
        self.stats.workers_ready = self.groups.iter().filter(|group| group.is_attached()).count() as u64;
        (self.stats.computing_us, self.stats.occupied_us) = (0, 0);
        for group in &mut self.groups {
            // The group's own slots are cleared by its next step alone.
            let core = self.core.as_ref();
            let time =
                group.work_time(|id| core.is_some_and(|core| core.has_group(id) && !core.in_slots(id).is_empty()));
            self.stats.computing_us += time.computing_us();
            self.stats.occupied_us += time.occupied_us();
        }
        if let Some(core) = &self.core {
            let counts = core.counts();
            self.stats.running = counts.running as u64;
            self.stats.blocks_held = counts.blocks_held as u64;
            self.stats.blocks = counts.blocks as u64;
            self.stats.host_blocks = counts.host_blocks as u64;
            self.stats.host_blocks_held = counts.host_blocks_held as u64;
            self.stats.host_blocks_findable = counts.host_blocks_findable as u64;
            self.stats.disk_blocks = counts.disk_blocks as u64;
            self.stats.disk_places = counts.disk_places as u64;
            self.stats.kept_prompts = counts.pins as u64;
            self.stats.kept_blocks = counts.blocks_pinned as u64;
            let seen = std::mem::replace(&mut self.counts_seen, counts);
            self.stats.preemptions += counts.preemptions - seen.preemptions;
            self.stats.turns_ended += counts.turns_ended - seen.turns_ended;
            self.stats.preempted_tokens += counts.preempted_tokens - seen.preempted_tokens;
            self.stats.drafted_tokens += counts.drafted_tokens - seen.drafted_tokens;
            self.stats.accepted_tokens += counts.accepted_tokens - seen.accepted_tokens;
            self.stats.forced_tokens += counts.forced_tokens - seen.forced_tokens;
            self.stats.again_preempted += counts.again_preempted - seen.again_preempted;
            self.stats.again_lost += counts.again_lost - seen.again_lost;
            self.stats.unsampled += counts.unsampled - seen.unsampled;
            self.stats.expired += counts.expired - seen.expired;
            self.stats.host_hit_tokens += counts.host_hits - seen.host_hits;
            self.stats.disk_hit_tokens += counts.disk_hits - seen.disk_hits;
            let evicted = counts.evicted_tokens - seen.evicted_tokens;
            let too_short = counts.too_short_tokens - seen.too_short_tokens;
            let cached = counts.cached_tokens - seen.cached_tokens;
            self.stats.evicted_tokens += evicted;
            self.stats.too_short_tokens += too_short;
            self.stats.new_tokens += counts.prompt_tokens - seen.prompt_tokens - cached - evicted - too_short;
            self.stats.waited.add(&counts.waited.since(&seen.waited));
            self.stats.kept_blocks_given_up += counts.pinned_given_up - seen.pinned_given_up;
            self.stats.saves += counts.saves - seen.saves;
            self.stats.loads += counts.loads - seen.loads;
        }
        self.stats.keeps_refused = self.keeping.refused;
        self.stats.suspects = self.suspects.count() as u64;
        self.stats.withheld = self.suspects.withheld() as u64;
        *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner) = self.stats;
    }
}
